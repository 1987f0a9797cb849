//! The line on standard error that says that a rank has dumped its records.
//!
//! The launcher takes the last lines of a failed rank for the cause. This line comes after them and is no cause, so the
//! writer of the line and the launcher, which skips it, share the format here.

use std::fmt;
use std::path::Path;

/// How the line begins.
const BEGINNING: &str = "farandole: rank ";
/// What stands between the rank and the file.
const VERB: &str = ": wrote ";
/// How the line ends when the reason is an abort.
const ABORT: &str = "(trouble)";

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
        line.starts_with(BEGINNING) && line.contains(VERB) && line.ends_with(ABORT)
    }
}

impl fmt::Display for DumpNotice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEGINNING}{}{VERB}{} ({})", self.rank, self.path.display(), self.occasion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_an_abort_is_known_and_others_are_not() {
        let saved = |occasion| DumpNotice { rank: 1, path: Path::new("/tmp/rank-00001.trace"), occasion }.to_string();
        assert_eq!(saved("trouble"), "farandole: rank 1: wrote /tmp/rank-00001.trace (trouble)");
        assert!(DumpNotice::reports_abort(&saved("trouble")));
        assert!(!DumpNotice::reports_abort(&saved("signal")));
        assert!(!DumpNotice::reports_abort("ValueError: rank 1: wrote nothing (trouble)"));
    }
}
