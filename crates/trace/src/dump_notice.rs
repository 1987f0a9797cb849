//! The line on standard error that says that a rank has dumped its records, and how to read them.
//!
//! The launcher takes the last lines of a failed rank for the cause. This line comes after them and is no cause, so the
//! writer of the line and the launcher, which skips it, share the format here.

use std::fmt;
use std::path::Path;

/// How the line begins.
const BEGINNING: &str = "farandole: rank ";
/// What stands between the rank and the file.
const VERB: &str = ": wrote ";
/// What stands between the file and the command when the reason is an abort.
const ABORT: &str = "(trouble); ";

/// A rank has dumped its records. Its text is the line.
#[derive(Clone, Copy, Debug)]
pub struct DumpNotice<'a> {
    /// The rank.
    pub rank: u32,
    /// The file.
    pub path: &'a Path,
    /// Why, in one word.
    pub occasion: &'a str,
}

impl DumpNotice<'_> {
    /// Whether a line says that records were dumped because of an abort.
    pub fn reports_abort(line: &str) -> bool {
        line.starts_with(BEGINNING) && line.contains(VERB) && line.contains(ABORT)
    }
}

impl fmt::Display for DumpNotice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.path.parent().unwrap_or(Path::new(".")).display().to_string();
        let (rank, path, occasion) = (self.rank, self.path.display(), self.occasion);
        write!(f, "{BEGINNING}{rank}{VERB}{path} ({occasion}); to read: farandole report {}", quoted(&folder))
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:@%,".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_an_abort_is_known_and_others_are_not() {
        let saved = |occasion| DumpNotice { rank: 1, path: Path::new("/tmp/rank-00001.trace"), occasion }.to_string();
        let line = "farandole: rank 1: wrote /tmp/rank-00001.trace (trouble); to read: farandole report /tmp";
        assert_eq!(saved("trouble"), line);
        assert!(DumpNotice::reports_abort(&saved("trouble")));
        assert!(!DumpNotice::reports_abort(&saved("signal")));
        assert!(!DumpNotice::reports_abort("ValueError: rank 1: wrote nothing (trouble)"));
    }

    #[test]
    fn the_command_at_the_end_of_the_line_can_be_copied_to_a_shell() {
        let path = Path::new("/tmp/my traces/it's/rank-00001.trace");
        let line = DumpNotice { rank: 1, path, occasion: "stall" }.to_string();
        assert!(line.ends_with(r"; to read: farandole report '/tmp/my traces/it'\''s'"), "{line}");
    }
}
