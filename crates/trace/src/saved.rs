//! The line by which a rank says that it has saved its records, and by which whoever reads its output knows it for what
//! it is.
//!
//! The last words of a rank are taken for the cause of its end. This line comes after them when there is trouble, and
//! is no cause; so the one who writes it and the one who passes over it look at the same words, here.

use std::fmt;
use std::path::Path;

/// What every such line begins with.
const BEGINNING: &str = "farandole: rank ";
/// What stands between the rank and the file.
const DEED: &str = ": wrote ";
/// What is saved because something went wrong ends with this.
const TROUBLE: &str = "(trouble)";

/// That a rank has saved its records. Its text is the line.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// Whose they are.
    pub rank: u32,
    /// Where they are.
    pub path: &'a Path,
    /// Why they were saved, in one word.
    pub occasion: &'a str,
}

impl Saved<'_> {
    /// Whether a line says that records were saved because something went wrong.
    pub fn is_told_of_trouble_by(line: &str) -> bool {
        line.starts_with(BEGINNING) && line.contains(DEED) && line.ends_with(TROUBLE)
    }
}

impl fmt::Display for Saved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEGINNING}{}{DEED}{} ({})", self.rank, self.path.display(), self.occasion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_trouble_is_known_and_others_are_not() {
        let saved = |occasion| Saved { rank: 1, path: Path::new("/tmp/rank-00001.trace"), occasion }.to_string();
        assert_eq!(saved("trouble"), "farandole: rank 1: wrote /tmp/rank-00001.trace (trouble)");
        assert!(Saved::is_told_of_trouble_by(&saved("trouble")));
        assert!(!Saved::is_told_of_trouble_by(&saved("signal")));
        assert!(!Saved::is_told_of_trouble_by("ValueError: rank 1: wrote nothing (trouble)"));
    }
}
