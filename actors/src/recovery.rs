//! What to do after the store answered, or did not: pure decisions over pointers, with the I/O left to the committer.
//!
//! The pointer alone decides. A write whose answer was lost is unknown until the pointer has been read, and as long as
//! the pointer is unchanged the identical write is repeated: a second, different write could land on top of the first.

use crate::pointer::{Attempt, Base, Generation, Pointer};

/// What a read of the pointer says about a conditional write of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pointer is the one that we wrote.
    Done,
    /// Nothing has changed: our write may still land. Repeat the identical write.
    Repeat,
    /// Somebody of our own generation moved the pointer: what was built on the old one is void.
    Reload,
    /// A higher generation owns the shard: this process steps down.
    StepDown,
}

/// Decides after a write of `mine` on `base`, from the pointer as it was read afterwards (or as the store returned it
/// when it refused the write).
pub fn after_write(current: Option<&Pointer>, mine: Attempt, base: Option<Base>, generation: Generation) -> Verdict {
    match current {
        Some(pointer) if pointer.attempt == mine => Verdict::Done,
        Some(pointer) if pointer.generation > generation && !flaw!(FenceIgnored) => Verdict::StepDown,
        Some(pointer) if Some(pointer.base()) == base => Verdict::Repeat,
        Some(_) => Verdict::Reload,
        None if base.is_none() => Verdict::Repeat,
        // A pointer that existed is gone: nothing can be built on it.
        None => Verdict::Reload,
    }
}

/// Whether a shard may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// Move the pointer from this base (`None`: create it).
    Claim(Option<Base>),
    /// A higher generation owns the shard.
    StepDown,
}

/// Decides on a claim from the pointer as it was read. The higher generation always wins, so two live processes never
/// kill each other in turns.
pub fn claim(current: Option<&Pointer>, generation: Generation) -> ClaimVerdict {
    match current {
        Some(pointer) if pointer.generation > generation && !flaw!(FenceIgnored) => ClaimVerdict::StepDown,
        Some(pointer) => ClaimVerdict::Claim(Some(pointer.base())),
        None => ClaimVerdict::Claim(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::{Content, Epoch};

    fn pointer(epoch: i64, attempt: Attempt, generation: i64) -> Pointer {
        Pointer {
            shard: 0,
            epoch: Epoch(epoch),
            attempt,
            generation: Generation(generation),
            timestamp: 0,
            content: Content::default(),
            kept: Vec::new(),
        }
    }

    /// Case: unknown write (palantir/atlasdb#2988). Mine goes on, another steps down, and only what is unchanged is repeated.
    #[test]
    fn every_case_after_a_write() {
        let (before, mine, other) = (Attempt::fresh(), Attempt::fresh(), Attempt::fresh());
        let base = Base { epoch: Epoch(4), attempt: before };
        let verdict = |current: Option<Pointer>, base| after_write(current.as_ref(), mine, base, Generation(7));

        assert_eq!(verdict(Some(pointer(5, mine, 7)), Some(base)), Verdict::Done);
        assert_eq!(verdict(Some(pointer(4, before, 7)), Some(base)), Verdict::Repeat);
        // A claim sits on a pointer of an older generation: unchanged is still unknown.
        assert_eq!(verdict(Some(pointer(4, before, 6)), Some(base)), Verdict::Repeat);
        assert_eq!(verdict(Some(pointer(5, other, 7)), Some(base)), Verdict::Reload);
        assert_eq!(verdict(Some(pointer(5, other, 6)), Some(base)), Verdict::Reload);
        assert_eq!(verdict(Some(pointer(5, other, 8)), Some(base)), Verdict::StepDown);
        // The same epoch by another attempt is not the base.
        assert_eq!(verdict(Some(pointer(4, other, 7)), Some(base)), Verdict::Reload);
        assert_eq!(verdict(Some(pointer(4, other, 8)), Some(base)), Verdict::StepDown);
        // The first write of all.
        assert_eq!(verdict(None, None), Verdict::Repeat);
        assert_eq!(verdict(Some(pointer(1, mine, 7)), None), Verdict::Done);
        assert_eq!(verdict(Some(pointer(1, other, 7)), None), Verdict::Reload);
        assert_eq!(verdict(Some(pointer(1, other, 9)), None), Verdict::StepDown);
        assert_eq!(verdict(None, Some(base)), Verdict::Reload);
    }

    #[test]
    fn the_higher_generation_wins_a_claim() {
        let attempt = Attempt::fresh();
        let base = Base { epoch: Epoch(3), attempt };
        assert_eq!(claim(None, Generation(1)), ClaimVerdict::Claim(None));
        for (theirs, verdict) in
            [(4, ClaimVerdict::Claim(Some(base))), (5, ClaimVerdict::Claim(Some(base))), (6, ClaimVerdict::StepDown)]
        {
            assert_eq!(claim(Some(&pointer(3, attempt, theirs)), Generation(5)), verdict, "their generation {theirs}");
        }
    }
}
