//! Memory that is fetched into the cache before it is needed.
//!
//! A lookup of one of many keys mostly waits for memory. A load that is made early makes the processor wait, too, once its queue
//! of unfinished instructions is full; a prefetch does not, so that many can be under way at once.

/// Has the processor fetch what is here, without waiting for it. Changes nothing but the time.
#[inline(always)]
pub(crate) fn prefetch<T>(target: &T) {
    let target: *const u8 = std::ptr::from_ref(target).cast();
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    // SAFETY: the instruction is part of every x86-64 processor, and a hint: it reads and writes nothing that can be seen.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(target.cast());
    }
    #[cfg(target_arch = "aarch64")]
    #[allow(unsafe_code)]
    // SAFETY: a hint, as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) target, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = target;
}

/// The same of a few bytes, which may lie across two lines of the cache.
#[inline(always)]
pub(crate) fn prefetch_few(bytes: &[u8]) {
    if let ([first, ..], [.., last]) = (bytes, bytes) {
        prefetch(first);
        prefetch(last);
    }
}
