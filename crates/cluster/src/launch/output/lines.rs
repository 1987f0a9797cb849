//! Bytes from a pipe, cut into whole lines.
//!
//! A line ends with a newline or, for progress bars, with a carriage return. What has no end yet is kept until it has
//! one, the pipe is closed, or it has grown to [`LONGEST_BYTES`]: a rank that writes gigabytes without a newline is
//! shown in pieces rather than kept in memory.

/// A line longer than this is passed on in pieces. Far beyond what a person reads; small beside a machine's memory.
const LONGEST_BYTES: usize = 64 << 10;

/// One stream of one rank.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// What has no end yet.
    open: Vec<u8>,
}

impl Lines {
    /// Takes bytes in; gives out what is complete now.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.open.extend_from_slice(bytes);
        let complete = match self.open.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(last) => last + 1,
            None if self.open.len() >= LONGEST_BYTES => self.open.len(),
            None => return None,
        };
        let rest = self.open.split_off(complete);
        Some(std::mem::replace(&mut self.open, rest))
    }

    /// The pipe is closed: what is left is the last line.
    pub(crate) fn finish(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.open);
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_lines_wait_for_their_other_half() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"one\ntw"), Some(b"one\n".to_vec()));
        assert_eq!(lines.push(b"o"), None);
        assert_eq!(lines.push(b"\nthree\nfour"), Some(b"two\nthree\n".to_vec()));
        assert_eq!(lines.finish(), Some(b"four".to_vec()));
        assert_eq!(lines.finish(), None);
    }

    #[test]
    fn progress_bars_move() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b" 10%\r 20%\r 3"), Some(b" 10%\r 20%\r".to_vec()));
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_for_ever() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(&vec![b'x'; LONGEST_BYTES - 1]), None);
        assert_eq!(lines.push(b"x").map(|piece| piece.len()), Some(LONGEST_BYTES));
    }
}
