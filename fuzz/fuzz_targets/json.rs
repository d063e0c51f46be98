#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    strandline_fuzz::quiet();
    strandline_fuzz::json(data);
});
