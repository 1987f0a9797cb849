//! How many tests passed and failed, and the two lines of text that say it.
//!
//! Tests that nextest or pytest run are counted from their JUnit files (`junit.rs`). Doctests, models and tests under
//! valgrind run in the runner that rustc links into tests, which writes no such file on a stable toolchain: its last
//! line counts (`test result: ok. 8 passed; 1 failed; 0 ignored`). A leg that runs as a process of its own ends with
//! the line that we write (`8 passed, 1 failed`).

use std::fmt;
use std::ops::AddAssign;

/// How many tests passed and how many did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed, in whatever manner: wrong, too slow, not startable, leaking.
    pub(crate) failed: u64,
}

impl Tally {
    /// What the last line of rustc's runner says, if this is one.
    pub(crate) fn of_libtest(line: &str) -> Option<Tally> {
        let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut numbers = numbers.split("; ");
        let mut next = |word| numbers.next()?.strip_suffix(word)?.parse().ok();
        Some(Tally { passed: next(" passed")?, failed: next(" failed")? })
    }

    /// What a line that is a tally of ours says.
    pub(crate) fn of_chore(line: &str) -> Option<Tally> {
        let (passed, failed) = line.trim_end().strip_suffix(" failed")?.split_once(" passed, ")?;
        Some(Tally { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_of_rustc_is_understood() {
        let line = "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.1s\n";
        assert_eq!(Tally::of_libtest(line), Some(Tally { passed: 7, failed: 2 }));
        assert_eq!(Tally::of_libtest(&format!("    {line}")), None, "what a failed test has printed");
        assert_eq!(Tally::of_libtest("running 4 tests"), None);
    }

    #[test]
    fn our_own_line_is_understood() {
        let tally = Tally { passed: 7, failed: 2 };
        assert_eq!(Tally::of_chore(&format!("{tally}\n")), Some(tally));
        assert_eq!(Tally::of_chore("exit status: 1; 7 passed, 2 failed"), None);
        assert_eq!(Tally::of_chore("12 files are tidy"), None);
    }
}
