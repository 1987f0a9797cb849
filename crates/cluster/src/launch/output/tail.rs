//! The last lines of a stream, for the report on the rank that failed.

use std::collections::VecDeque;

use farandole_trace::DumpNotice;

/// A longer line is cut: the report has to fit on a screen.
const MOST_LINE_BYTES: usize = 500;

/// How a quotation of a rank's lines begins, and each of its lines.
const QUOTE_HEAD: &str = "the last lines that";
const QUOTE_MARK: &str = "  | ";

/// The last lines that were pushed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
}

impl Tail {
    /// So many lines say what happened: a traceback's end is among them.
    pub(super) const MOST_LINES: usize = 20;

    /// Takes lines in.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let pieces = bytes.split(|byte| matches!(byte, b'\n' | b'\r'));
        for line in pieces.filter(|line| !line.iter().all(u8::is_ascii_whitespace) && !says_no_cause(line)) {
            let cut = &line[..line.len().min(MOST_LINE_BYTES)];
            let mut text = String::from_utf8_lossy(cut).into_owned();
            if cut.len() < line.len() {
                text.push('…');
            }
            if self.lines.len() == Tail::MOST_LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(text);
        }
    }

    /// The lines, oldest first.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// The lines for the user, with a line that says whose they are; none if there are none.
    pub(crate) fn quoted(&self, who: &str) -> Vec<String> {
        let head = (!self.lines.is_empty()).then(|| format!("{QUOTE_HEAD} {who} wrote to standard error:"));
        head.into_iter().chain(self.lines().map(|line| format!("{QUOTE_MARK}{line}"))).collect()
    }

    /// Whether a line is one of [`Tail::quoted`].
    pub(crate) fn is_quote(line: &str) -> bool {
        line.starts_with(QUOTE_HEAD) || line.starts_with(QUOTE_MARK)
    }

    /// The last one that says why. Where a rank in trouble has left its records comes after that, and is no reason.
    pub(crate) fn last(&self) -> Option<&str> {
        self.lines().filter(|line| !DumpNotice::reports_abort(line)).last()
    }
}

/// Whether a line belongs to the native backtrace that PyTorch appends to the text of its errors, to the list of nodes
/// that TensorFlow appends, or to JAX's note on filtered tracebacks. Twenty such lines would displace the error itself.
fn says_no_cause(line: &[u8]) -> bool {
    // With a process group, PyTorch marks lines of tracebacks: `[rank1]: `.
    let marked = line.strip_prefix(b"[rank").and_then(|rest| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        rest[digits..].strip_prefix(b"]:")
    });
    let text = marked.unwrap_or(line).trim_ascii_start();
    if marked.is_some() && text.is_empty() {
        return true;
    }
    let begins = [
        &b"frame #"[..],
        b"<omitting python frames>",
        b"Exception raised from ",
        b"[[",
        b"--------------------",
        b"For simplicity, JAX has removed its internal frames",
    ];
    begins.iter().any(|begin| text.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_last_words_of_a_rank_are_the_cause_and_not_where_its_records_are() {
        let mut tail = Tail::default();
        let notice = DumpNotice { rank: 1, path: Path::new("/tmp/rank-00001.trace"), occasion: "trouble" };
        tail.push(format!("ValueError: no\n{notice}\n").as_bytes());
        assert_eq!(tail.last(), Some("ValueError: no"));
        assert_eq!(tail.lines().count(), 2);
    }

    #[test]
    fn native_frames_and_notes_do_not_displace_the_error() {
        for mark in ["", "[rank1]: "] {
            let mut text = format!("{mark}DistNetworkError: no answer\n{mark}Exception raised from wait at a.cpp:1:\n");
            (0..40).for_each(|number| text += &format!("{mark}frame #{number}: _start + 0x21\n"));
            text += &format!("{mark}--------------------\n{mark}For simplicity, JAX has removed its internal frames\n");
            text += &format!("\t [[{{{{node PyFunc}}}}]]\n{mark}");
            let mut tail = Tail::default();
            tail.push(text.as_bytes());
            assert_eq!(tail.last(), Some(format!("{mark}DistNetworkError: no answer").as_str()));
        }
    }

    #[test]
    fn the_newest_lines_stay() {
        let mut tail = Tail::default();
        for number in 0..30 {
            tail.push(format!("line {number}\n\n").as_bytes());
        }
        assert_eq!(tail.lines().count(), Tail::MOST_LINES);
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
