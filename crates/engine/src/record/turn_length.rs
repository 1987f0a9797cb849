//! How long the turns take in which tiny buckets end: [`TurnLength`].
//!
//! The length of such a turn is needed for the record of the wait that ends with it. Looking at the clock costs as much
//! as everything else that is recorded of a tiny bucket, so most waits take the length of an earlier turn.

/// Of waits for tiny buckets one in so many looks at the clock when it is over.
const SHARING: u32 = 8;

/// From the begin of a turn, which is known, until the waiting thread goes on.
#[derive(Debug, Default)]
pub(super) struct TurnLength {
    length_ns: u64,
    /// Waits since the last look.
    since: u32,
}

impl TurnLength {
    /// When a turn that began then was over.
    pub(super) fn end_ns(&mut self, begun_ns: u64, clock: impl FnOnce() -> u64) -> u64 {
        self.since += 1;
        if self.length_ns > 0 && self.since < SHARING {
            return begun_ns + self.length_ns;
        }
        self.since = 0;
        let now_ns = clock().max(begun_ns);
        // One that was interrupted says nothing about the next, so the length shrinks at once and grows slowly.
        let most_ns = if self.length_ns == 0 { u64::MAX } else { self.length_ns + self.length_ns / 8 + 1 };
        self.length_ns = (now_ns - begun_ns).min(most_ns);
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_tiny_buckets_share_looks_and_one_that_was_interrupted_spoils_none() {
        let mut turns = TurnLength::default();
        let ends = |turns: &mut TurnLength, length_ns: u64| -> Vec<u64> {
            (0..SHARING).map(|_| turns.end_ns(1000, || 1000 + length_ns)).collect()
        };
        assert_eq!(ends(&mut turns, 300), [1300; SHARING as usize], "the first is measured, the others are like it");
        let interrupted = ends(&mut turns, 5_000_000);
        assert_eq!((interrupted[0], interrupted[1]), (5_001_000, 1338), "what is measured is told as it is");
        assert_eq!(ends(&mut turns, 200), [1200; SHARING as usize]);
    }
}
