//! Errors that several ranks write alike: the first one is shown, the others are told in one line.
//!
//! An *error block* is what one rank writes to standard error from a line `Traceback (most recent call last):` or
//! `Error: …` (how Rust's `main` ends) on, with the tracebacks that are chained to it. A block is held until it is
//! complete, so that those of several ranks do not mix: until a line comes that does not belong to it, the rank has
//! ended, nothing has come for [`QUIET`], or it has taken [`LONGEST`]. Then it is shown, unless another rank has just
//! written the same; the numbers of the ranks that have are collected for [`COLLECTING`] and shown together:
//!
//! ```text
//! [1-3,5]<stderr>:ValueError: a bad batch (same traceback as rank 0)
//! ```
//!
//! All other lines pass at once, and lines of one rank's stream never change their order. Lines of the engine's own
//! (`farandole: …`, from another thread) may come within a block; they name their rank, so they do not count when
//! blocks are compared, and each rank's are shown.
//!
//! **Invariant:** what is held is bounded: [`MOST_BYTES`] for each rank, and [`MOST_BLOCKS`] for comparing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

/// Python writes a traceback piece by piece, and reads source files between: a loaded machine takes its time.
const QUIET: Duration = Duration::from_millis(200);

/// A block that is written for longer than this is shown as it comes.
const LONGEST: Duration = Duration::from_secs(1);

/// Ranks that fail together come within this time of each other.
const COLLECTING: Duration = Duration::from_millis(500);

/// A block that was shown longer ago than this has been scrolled away, and is shown again.
const MEMORY: Duration = Duration::from_secs(10);

/// A longer block is shown as it comes: its ranks' blocks would hardly be equal.
const MOST_BYTES: usize = 64 << 10;

/// Ranks of one job fail in few ways at a time.
const MOST_BLOCKS: usize = 16;

/// The line that repeats an error is cut here, so that it stays one line on a screen.
const MOST_CHARACTERS: usize = 200;

const TRACEBACK: &[u8] = b"Traceback (most recent call last):";

/// What may follow the last line of an error and belong to it.
const CHAINS: [&[u8]; 4] = [
    TRACEBACK,
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
    b"Caused by:",
];

/// Something to be shown now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Lines of a rank, as they came at this time.
    Lines { rank: u32, bytes: Vec<u8>, at: SystemTime },
    /// These ranks have written the same error as the first one.
    Same { ranks: Vec<u32>, first: u32, text: String },
}

/// The standard errors of all ranks.
#[derive(Debug, Default)]
pub(super) struct ErrorBlocks {
    open: BTreeMap<u32, Block>,
    /// Oldest first.
    past: Vec<Past>,
}

/// A block that may go on.
#[derive(Debug)]
struct Block {
    /// Everything since it began.
    bytes: Vec<u8>,
    /// What is compared: without the engine's lines.
    error: Vec<u8>,
    /// The engine's lines.
    others: Vec<u8>,
    /// Where the last line of `error` begins that is not indented: what went wrong.
    head: usize,
    /// Whether that line has come.
    is_complete: bool,
    began: Instant,
    last: Instant,
    at: SystemTime,
}

/// A block that was shown.
#[derive(Debug)]
struct Past {
    error: Vec<u8>,
    head: usize,
    rank: u32,
    /// Who else has written it and has not been told of, and since when.
    waiting: BTreeSet<u32>,
    since: Instant,
    /// Who has been told of.
    told: BTreeSet<u32>,
    last: Instant,
}

impl ErrorBlocks {
    /// Takes whole lines of a rank; gives out what is to be shown.
    pub(super) fn push(&mut self, rank: u32, bytes: &[u8], now: Instant, at: SystemTime, shown: &mut Vec<Shown>) {
        let mut plain = Vec::new();
        for line in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            if let Some(block) = self.open.get_mut(&rank) {
                if block.takes(line) {
                    block.push(line, now);
                    if block.bytes.len() > MOST_BYTES {
                        self.release(rank, shown);
                    }
                    continue;
                }
                self.close(rank, now, shown);
            }
            if begins(line) {
                show_lines(rank, &mut plain, at, shown);
                self.open.insert(rank, Block::new(line, now, at));
            } else {
                plain.extend_from_slice(line);
            }
        }
        show_lines(rank, &mut plain, at, shown);
    }

    /// A rank writes no more.
    pub(super) fn rank_ended(&mut self, rank: u32, now: Instant, shown: &mut Vec<Shown>) {
        self.close(rank, now, shown);
    }

    /// Shows what is due. Returns when to come back, if anything is held.
    pub(super) fn tick(&mut self, now: Instant, shown: &mut Vec<Shown>) -> Option<Instant> {
        let due: Vec<u32> = self.open.iter().filter(|(_, block)| now >= block.due()).map(|(rank, _)| *rank).collect();
        for rank in due {
            // One that is closed takes earlier ones along.
            match self.open.get(&rank).map(|block| block.is_complete) {
                Some(true) => self.close(rank, now, shown),
                Some(false) => self.release(rank, shown),
                None => {}
            }
        }
        for past in &mut self.past {
            if !past.waiting.is_empty() && now >= past.since + COLLECTING {
                past.tell(shown);
            }
        }
        let collecting = self.past.iter().filter(|past| !past.waiting.is_empty()).map(|past| past.since + COLLECTING);
        self.open.values().map(Block::due).chain(collecting).min()
    }

    /// Shows all that is held.
    pub(super) fn finish(&mut self, now: Instant, shown: &mut Vec<Shown>) {
        while let Some(rank) = self.open.keys().next().copied() {
            self.close(rank, now, shown);
        }
        self.past.iter_mut().filter(|past| !past.waiting.is_empty()).for_each(|past| past.tell(shown));
    }

    /// The block of a rank is over. Those that other ranks began and completed before it come first: they may be the
    /// cause.
    fn close(&mut self, rank: u32, now: Instant, shown: &mut Vec<Shown>) {
        let Some(began) = self.open.get(&rank).map(|block| block.began) else { return };
        let earlier = self.open.iter().filter(|(_, block)| block.is_complete && block.began < began);
        let mut earlier: Vec<(Instant, u32)> = earlier.map(|(rank, block)| (block.began, *rank)).collect();
        earlier.sort_unstable();
        for (_, rank) in earlier.into_iter().chain([(began, rank)]) {
            if let Some(block) = self.open.remove(&rank) {
                self.show_or_collect(rank, block, now, shown);
            }
        }
    }

    /// Shows a block, or notes who has written the same.
    fn show_or_collect(&mut self, rank: u32, mut block: Block, now: Instant, shown: &mut Vec<Shown>) {
        let is_known = |past: &&mut Past| past.error == block.error && now < past.last + MEMORY;
        if let Some(past) = self.past.iter_mut().find(is_known)
            && past.is_new_from(rank)
        {
            if past.waiting.is_empty() {
                past.since = now;
            }
            past.waiting.insert(rank);
            past.last = now;
            return show_lines(rank, &mut block.others, block.at, shown);
        }
        let Block { bytes, error, head, at, .. } = block;
        shown.push(Shown::Lines { rank, bytes, at });
        // The same error once more from the same rank: from here on it is the one that others are compared with.
        for mut past in self.past.extract_if(.., |past| past.error == error) {
            if !past.waiting.is_empty() {
                past.tell(shown);
            }
        }
        if self.past.len() == MOST_BLOCKS {
            let mut oldest = self.past.remove(0);
            if !oldest.waiting.is_empty() {
                oldest.tell(shown);
            }
        }
        let (waiting, told) = (BTreeSet::new(), BTreeSet::new());
        self.past.push(Past { error, head, rank, waiting, since: now, told, last: now });
    }

    /// Shows a block that is not complete; what follows passes.
    fn release(&mut self, rank: u32, shown: &mut Vec<Shown>) {
        let Some(Block { bytes, at, .. }) = self.open.remove(&rank) else { return };
        shown.push(Shown::Lines { rank, bytes, at });
    }
}

impl Block {
    fn new(line: &[u8], now: Instant, at: SystemTime) -> Block {
        let (bytes, error, others) = (line.to_vec(), line.to_vec(), Vec::new());
        // A line `Error: …` says it all; a traceback ends with the line that does.
        let is_complete = !line.starts_with(TRACEBACK);
        Block { bytes, error, others, head: 0, is_complete, began: now, last: now, at }
    }

    /// Whether a line belongs to this block.
    fn takes(&self, line: &[u8]) -> bool {
        let text = line.trim_ascii_end();
        !self.is_complete || text.is_empty() || CHAINS.contains(&text) || line[0].is_ascii_whitespace() || is_ours(line)
    }

    fn push(&mut self, line: &[u8], now: Instant) {
        self.bytes.extend_from_slice(line);
        self.last = now;
        if is_ours(line) {
            return self.others.extend_from_slice(line);
        }
        let text = line.trim_ascii_end();
        if text == TRACEBACK {
            self.is_complete = false;
        } else if !line[0].is_ascii_whitespace() && !CHAINS.contains(&text) {
            self.is_complete = true;
            self.head = self.error.len();
        }
        self.error.extend_from_slice(line);
    }

    fn due(&self) -> Instant {
        (self.last + QUIET).min(self.began + LONGEST)
    }
}

impl Past {
    /// Whether a rank has not written this before.
    fn is_new_from(&self, rank: u32) -> bool {
        rank != self.rank && !self.waiting.contains(&rank) && !self.told.contains(&rank)
    }

    fn tell(&mut self, shown: &mut Vec<Shown>) {
        let what = if self.error.starts_with(TRACEBACK) { "traceback" } else { "error" };
        let line = self.error[self.head..].split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        let mut text: String = String::from_utf8_lossy(line).chars().take(MOST_CHARACTERS).collect();
        text.push_str(&format!(" (same {what} as rank {})", self.rank));
        shown.push(Shown::Same { ranks: self.waiting.iter().copied().collect(), first: self.rank, text });
        self.told.append(&mut self.waiting);
    }
}

fn show_lines(rank: u32, lines: &mut Vec<u8>, at: SystemTime, shown: &mut Vec<Shown>) {
    if !lines.is_empty() {
        shown.push(Shown::Lines { rank, bytes: std::mem::take(lines), at });
    }
}

fn begins(line: &[u8]) -> bool {
    line.trim_ascii_end() == TRACEBACK || line.starts_with(b"Error: ")
}

fn is_ours(line: &[u8]) -> bool {
    line.starts_with(b"farandole: ")
}

/// Numbers as `0-2,5`.
pub(super) fn ranges(numbers: &[u32]) -> String {
    let chunks = numbers.chunk_by(|one, next| one + 1 == *next);
    let words = chunks.map(|chunk| match chunk {
        [one] => one.to_string(),
        [first, second] => format!("{first},{second}"),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: &str = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nValueError: no\n";

    struct Story {
        blocks: ErrorBlocks,
        now: Instant,
        said: Vec<String>,
    }

    impl Story {
        fn new() -> Story {
            Story { blocks: ErrorBlocks::default(), now: Instant::now(), said: Vec::new() }
        }

        fn did(&mut self, act: impl FnOnce(&mut ErrorBlocks, Instant, &mut Vec<Shown>)) {
            let mut shown = Vec::new();
            act(&mut self.blocks, self.now, &mut shown);
            self.said.extend(shown.into_iter().map(|shown| match shown {
                Shown::Lines { rank, bytes, .. } => format!("{rank}:{}", String::from_utf8(bytes).unwrap()),
                Shown::Same { ranks, text, .. } => format!("{}={text}", ranges(&ranks)),
            }));
        }

        fn writes(&mut self, rank: u32, text: &str) {
            self.did(|blocks, now, shown| {
                blocks.push(rank, text.as_bytes(), now, SystemTime::UNIX_EPOCH, shown);
            });
        }

        fn ends(&mut self, rank: u32) {
            self.did(|blocks, now, shown| blocks.rank_ended(rank, now, shown));
        }

        fn passes(&mut self, time: Duration) {
            self.now += time;
            self.did(|blocks, now, shown| {
                blocks.tick(now, shown);
            });
        }

        fn said(&mut self) -> Vec<String> {
            std::mem::take(&mut self.said)
        }
    }

    #[test]
    fn an_error_of_all_ranks_is_shown_once_with_the_numbers_of_the_others() {
        let mut story = Story::new();
        // All ranks at once, line by line.
        for line in ERROR.split_inclusive('\n') {
            (0..8).for_each(|rank| story.writes(rank, line));
        }
        (0..8).for_each(|rank| story.ends(rank));
        assert_eq!(story.said(), [format!("0:{ERROR}")]);
        story.passes(COLLECTING);
        assert_eq!(story.said(), ["1-7=ValueError: no (same traceback as rank 0)"]);
        story.did(ErrorBlocks::finish);
        assert!(story.said().is_empty());
    }

    #[test]
    fn different_errors_are_all_shown_and_do_not_mix() {
        let mut story = Story::new();
        let other = ERROR.replace("no", "yes");
        for (one, two) in ERROR.split_inclusive('\n').zip(other.split_inclusive('\n')) {
            story.writes(0, one);
            story.writes(1, two);
        }
        story.passes(QUIET);
        assert_eq!(story.said(), [format!("0:{ERROR}"), format!("1:{other}")]);
    }

    #[test]
    fn an_error_that_came_first_is_shown_first() {
        let mut story = Story::new();
        story.writes(1, ERROR);
        story.now += Duration::from_millis(1);
        let other = ERROR.replace("no", "rank 1 ended");
        story.writes(0, &other);
        story.ends(0);
        assert_eq!(story.said(), [format!("1:{ERROR}"), format!("0:{other}")]);
    }

    #[test]
    fn two_errors_that_were_due_at_once_ended_the_launcher() {
        let mut story = Story::new();
        story.writes(1, ERROR);
        story.now += Duration::from_millis(1);
        let other = ERROR.replace("no", "rank 1 ended");
        story.writes(0, &other);
        story.passes(QUIET);
        assert_eq!(story.said(), [format!("1:{ERROR}"), format!("0:{other}")]);
    }

    #[test]
    fn other_lines_pass_at_once_and_in_their_order() {
        let mut story = Story::new();
        story.writes(0, "loading\n");
        assert_eq!(story.said(), ["0:loading\n"]);
        story.writes(0, &format!("one\n{ERROR}two\n"));
        assert_eq!(story.said(), ["0:one\n".to_owned(), format!("0:{ERROR}"), "0:two\n".to_owned()]);
    }

    #[test]
    fn chained_errors_are_one_block() {
        let mut story = Story::new();
        let chain = "\nDuring handling of the above exception, another exception occurred:\n\n";
        let chained = format!("{ERROR}{chain}{}", ERROR.replace("ValueError", "KeyError"));
        (0..3).for_each(|rank| story.writes(rank, &chained));
        (0..3).for_each(|rank| story.ends(rank));
        story.did(ErrorBlocks::finish);
        assert_eq!(story.said(), [format!("0:{chained}"), "1,2=KeyError: no (same traceback as rank 0)".to_owned()]);
    }

    #[test]
    fn lines_of_the_engine_within_an_error_are_shown_for_each_rank() {
        let mut story = Story::new();
        let (before, after) = ERROR.split_at(ERROR.find("  File").unwrap());
        for rank in 0..2 {
            story.writes(rank, &format!("{before}farandole: rank {rank}: wrote it\n{after}"));
            story.ends(rank);
        }
        story.did(ErrorBlocks::finish);
        let shown = [
            format!("0:{before}farandole: rank 0: wrote it\n{after}"),
            "1:farandole: rank 1: wrote it\n".to_owned(),
            "1=ValueError: no (same traceback as rank 0)".to_owned(),
        ];
        assert_eq!(story.said(), shown);
    }

    #[test]
    fn errors_of_rusts_main_are_collapsed() {
        let mut story = Story::new();
        for rank in 0..4 {
            story.writes(rank, "Error: rank 9 is gone\n");
            story.ends(rank);
        }
        story.did(ErrorBlocks::finish);
        assert_eq!(story.said(), ["0:Error: rank 9 is gone\n", "1-3=Error: rank 9 is gone (same error as rank 0)"]);
    }

    #[test]
    fn a_rank_that_logs_its_error_again_is_shown_again() {
        let mut story = Story::new();
        for _ in 0..2 {
            story.writes(0, ERROR);
            story.passes(QUIET);
        }
        assert_eq!(story.said(), [format!("0:{ERROR}"), format!("0:{ERROR}")]);
        // And so is one that was shown long ago.
        story.passes(MEMORY);
        story.writes(1, ERROR);
        story.passes(QUIET);
        assert_eq!(story.said(), [format!("1:{ERROR}")]);
    }

    #[test]
    fn what_is_not_complete_is_shown_after_a_while_and_whatever_its_length() {
        let mut story = Story::new();
        story.writes(0, "Traceback (most recent call last):\n  File\n");
        assert!(story.said().is_empty());
        story.passes(QUIET);
        assert_eq!(story.said(), ["0:Traceback (most recent call last):\n  File\n"]);
        story.writes(0, "ValueError: late\n");
        assert_eq!(story.said(), ["0:ValueError: late\n"]);
        story.writes(1, &format!("Traceback (most recent call last):\n{}", " x\n".repeat(MOST_BYTES / 2)));
        let shown: usize = story.said().iter().map(|text| text.len() - 2).sum();
        assert_eq!(shown, TRACEBACK.len() + 1 + 3 * (MOST_BYTES / 2), "nothing is kept, nothing is lost");
    }

    #[test]
    fn numbers_are_read_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7,8");
        assert_eq!(ranges(&[3]), "3");
    }
}
