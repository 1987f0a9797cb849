//! Finds out that the agreed stream repeats itself.
//!
//! The stream is cut into *segments*: a segment ends where a name comes that it already has. A training loop that asks
//! for the same tensors in every iteration, in whatever order, so gives one segment for each iteration, after at most
//! one odd segment at the start. A segment *repeats* if it has the same names with the same metadata as the one before
//! it. After enough repeats in a row the last segment is the *cycle*. Where a batch of the stream ends in the middle of
//! the next segment, as happens when iterations overlap, the cycle may as well begin there, if the stream is still in
//! step.
//!
//! All ranks record the same stream; only the coordinator asks whether there is a cycle, and says so in the stream. A
//! program that uses one name twice in an iteration never has a cycle and is negotiated for ever, which is slower but
//! right.

use std::collections::VecDeque;
use std::sync::Arc;

use super::table::ByName;
use crate::item::Item;

/// Longest segment that is remembered. A program whose names never come again would otherwise fill the memory.
const LONGEST_CYCLE: u64 = 1 << 16;

/// One item of the stream.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) item: Arc<Item>,
    /// Index of the bucket in which it ran.
    pub(super) bucket: u64,
    /// It may depend on the results of buckets before this index.
    pub(super) seen: u64,
}

/// The tail of the agreed stream: the current segment and the one before it.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Items from position `previous_start` on; positions count all items ever recorded.
    items: VecDeque<Recorded>,
    last_position: ByName<u64>,
    previous_start: u64,
    segment_start: u64,
    end: u64,
    /// Items of the current segment that were in the previous one with the same metadata.
    matched: u64,
    /// How many items of the previous segment come up to the last one of these.
    furthest_twin: u64,
    /// Segments in a row that repeat the one before them, the current one included once it is complete.
    repeats: u32,
}

impl History {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = History::default();
    }

    /// Appends the next item.
    pub(super) fn record(&mut self, recorded: Recorded) {
        if !recorded.item.joined.is_empty() || self.end - self.segment_start >= LONGEST_CYCLE {
            self.clear();
            return;
        }
        let position = self.end;
        let before = self.last_position.insert(Arc::clone(&recorded.item.name), position);
        if before.is_some_and(|before| before >= self.segment_start) {
            self.start_segment(position);
        }
        if let Some(before) = before.filter(|before| (self.previous_start..self.segment_start).contains(before)) {
            let twin = &self.items[(before - self.previous_start) as usize];
            self.matched += u64::from(twin.item.same_terms(&recorded.item));
            self.furthest_twin = self.furthest_twin.max(before + 1 - self.previous_start);
        }
        self.items.push_back(recorded);
        self.end += 1;
        self.repeats += u32::from(self.is_complete());
    }

    fn start_segment(&mut self, position: u64) {
        if !self.is_complete() {
            self.repeats = 0;
        }
        for _ in self.previous_start..self.segment_start {
            let old = self.items.pop_front().expect("both segments are kept");
            // A name that came again since has a later position, which stays.
            if self.last_position.get(&old.item.name).is_some_and(|last| *last < self.segment_start) {
                self.last_position.remove(&old.item.name);
            }
        }
        (self.previous_start, self.segment_start) = (self.segment_start, position);
        (self.matched, self.furthest_twin) = (0, 0);
    }

    /// Whether the current segment repeats the previous one and is as long.
    fn is_complete(&self) -> bool {
        let length = self.end - self.segment_start;
        length > 0 && length == self.segment_start - self.previous_start && length == self.matched
    }

    /// The length of the cycle, if there was one that was repeated this often and the stream now ends with all of it.
    pub(super) fn cycle_len(&self, repeats: u32) -> Option<usize> {
        let length = self.end - self.segment_start;
        // The current segment has had exactly the names with which the previous one began, so its items and the rest of
        // the previous one make a whole cycle. (All of it, if the current segment is complete.)
        let in_step = length > 0 && self.matched == length && self.furthest_twin == length;
        (in_step && self.repeats >= repeats).then_some((self.segment_start - self.previous_start) as usize)
    }

    /// The last `len` items, if so many are remembered.
    pub(super) fn tail(&self, len: usize) -> Option<Vec<Recorded>> {
        let start = self.items.len().checked_sub(len)?;
        Some(self.items.range(start..).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Placement;
    use crate::request::{Collective, Dtype};

    fn item(name: &str, rows: u64) -> Recorded {
        let item = Item {
            name: name.into(),
            collective: Collective::Broadcast { root: crate::Rank(0) },
            dtype: Dtype::F32,
            shape: vec![rows],
            device: Placement::Cpu,
            rows: vec![],
            joined: vec![],
            batch: None,
            priority: 0,
        };
        Recorded { item: Arc::new(item), bucket: 0, seen: 0 }
    }

    /// Records one-letter names and says after which of them there is a cycle, and how long it is.
    fn cycles(stream: &str, repeats: u32) -> Vec<(usize, usize)> {
        let mut history = History::default();
        let mut found = Vec::new();
        for (at, letter) in stream.chars().enumerate() {
            let rows = if letter.is_uppercase() { 2 } else { 1 };
            history.record(item(&letter.to_lowercase().to_string(), rows));
            found.extend(history.cycle_len(repeats).map(|len| (at, len)));
        }
        found
    }

    #[test]
    fn a_cycle_is_found_at_the_end_of_its_first_repeat_in_any_order() {
        assert_eq!(cycles("abcabc", 1), [(5, 3)]);
        assert_eq!(cycles("abcbca", 1), [(5, 3)]);
        assert_eq!(cycles("aa", 1), [(1, 1)]);
        assert_eq!(cycles("pqrabcabcabc", 1), [(11, 3)]);
    }

    #[test]
    fn a_cycle_may_begin_anywhere_while_the_stream_is_in_step() {
        assert_eq!(cycles("abcabcab", 1), [(5, 3), (6, 3), (7, 3)]);
        assert_eq!(cycles("abcabcba", 1), [(5, 3), (7, 3)]);
        assert_eq!(cycles("abcabcaB", 1), [(5, 3), (6, 3)]);
    }

    #[test]
    fn changed_metadata_or_other_names_are_no_repeat() {
        assert_eq!(cycles("abcaBc", 1), []);
        assert_eq!(cycles("abcabd", 1), []);
        assert_eq!(cycles("xayaxaya", 1), []);
    }

    #[test]
    fn more_repeats_can_be_asked_for() {
        assert_eq!(cycles("ababab", 2), [(5, 2)]);
        assert_eq!(cycles("ababcababab", 2), [(10, 2)]);
    }

    #[test]
    fn names_that_never_return_do_not_fill_the_memory() {
        let mut history = History::default();
        for number in 0..(2 * LONGEST_CYCLE + 10) {
            history.record(item(&number.to_string(), 1));
        }
        assert!(history.items.len() as u64 <= LONGEST_CYCLE && history.last_position.len() as u64 <= LONGEST_CYCLE);
    }
}
