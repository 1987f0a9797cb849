//! The last lines of a stream, for the report on the rank that failed.

use std::collections::VecDeque;

use farandole_trace::DumpNotice;

/// So many lines say what happened: a traceback's end is among them.
const MOST_LINES: usize = 20;

/// A longer line is cut: the report has to fit on a screen.
const MOST_LINE_BYTES: usize = 500;

/// The last lines that were pushed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
}

impl Tail {
    /// Takes lines in.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let pieces = bytes.split(|byte| matches!(byte, b'\n' | b'\r'));
        for line in pieces.filter(|line| !line.iter().all(u8::is_ascii_whitespace)) {
            let cut = &line[..line.len().min(MOST_LINE_BYTES)];
            let mut text = String::from_utf8_lossy(cut).into_owned();
            if cut.len() < line.len() {
                text.push('…');
            }
            if self.lines.len() == MOST_LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(text);
        }
    }

    /// The lines, oldest first.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// The last one that says why. Where a rank in trouble has left its records comes after that, and is no reason.
    pub(crate) fn last(&self) -> Option<&str> {
        self.lines().filter(|line| !DumpNotice::reports_abort(line)).last().or_else(|| self.lines().last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_rank_are_the_cause_and_not_where_its_records_are() {
        let mut tail = Tail::default();
        tail.push(b"ValueError: no\nfarandole: rank 1: wrote /tmp/rank-00001.trace (trouble)\n");
        assert_eq!(tail.last(), Some("ValueError: no"));
        assert_eq!(tail.lines().count(), 2);
    }

    #[test]
    fn the_newest_lines_stay() {
        let mut tail = Tail::default();
        for number in 0..30 {
            tail.push(format!("line {number}\n\n").as_bytes());
        }
        assert_eq!(tail.lines().count(), MOST_LINES);
        assert_eq!(tail.lines().next(), Some("line 10"));
        assert_eq!(tail.last(), Some("line 29"));
    }

    #[test]
    fn endless_lines_are_cut() {
        let mut tail = Tail::default();
        tail.push(&[b'a'; 2000]);
        assert_eq!(tail.last().map(|line| line.chars().count()), Some(MOST_LINE_BYTES + 1));
    }
}
