//! Counts tests by reading what the test runners print at their end.
//!
//! Three runners speak here: nextest (`Summary [ 1.2s] 9 tests run: 8 passed, 1 failed, 0 skipped`), the one that rustc
//! links into tests (`test result: ok. 8 passed; 1 failed; 0 ignored`) and pytest
//! (`=== 8 passed, 1 failed in 1.20s ===`), of which the first rank counts where it runs as a job
//! (`[0]<stdout>:=== 8 passed …`). Lines of anything else count nothing.

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
    /// What one line of output tells.
    pub(crate) fn of_line(line: &str) -> Tally {
        let line = without_colors(line);
        let nextest = line.trim_start().starts_with("Summary [") && line.contains(" run: ");
        // Where nextest shows what a failed test printed it moves the lines in; those have been counted already.
        let libtest = line.starts_with("test result: ");
        let (line, pytest) = match pytest_summary(&line) {
            Some(summary) => (summary, true),
            None => (line.trim(), false),
        };
        if !nextest && !libtest && !pytest {
            return Tally::default();
        }
        let bad =
            ["failed", "timed out", "exec failed", "error", "errors"].into_iter().map(|word| number_before(line, word));
        Tally { passed: number_before(line, "passed"), failed: bad.sum() }
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

/// What stands between the bars of pytest's last line, without the time. All ranks of a job run the same tests; the
/// first counts.
fn pytest_summary(line: &str) -> Option<&str> {
    let line = line.strip_prefix("[0]<stdout>:").unwrap_or(line).trim_end();
    let (summary, time) = line.strip_prefix("==")?.strip_suffix("==")?.trim_matches('=').rsplit_once(" in ")?;
    time.trim_end().contains('s').then_some(summary.trim())
}

/// The number that stands directly before this word, or zero.
fn number_before(line: &str, word: &str) -> u64 {
    let parts = line.split([',', ';', ':', '.']);
    let counted = parts.filter_map(|part| part.trim().split_once(' '));
    counted
        .filter(|(_, rest)| *rest == word || rest.starts_with(&format!("{word} (")))
        .find_map(|(n, _)| n.parse().ok())
        .unwrap_or(0)
}

/// The line without terminal colours.
pub(crate) fn without_colors(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(line: &str) -> (u64, u64) {
        let Tally { passed, failed } = Tally::of_line(line);
        (passed, failed)
    }

    #[test]
    fn nextest_is_understood() {
        assert_eq!(tally("     Summary [   0.005s] 4 tests run: 4 passed, 0 skipped"), (4, 0));
        assert_eq!(tally("  Summary [  61.0s] 1 test run: 1 passed (1 slow), 12 skipped"), (1, 0));
        assert_eq!(
            tally("Summary [ 1.0s] 9 tests run: 5 passed (1 leaky), 2 failed, 1 timed out, 1 exec failed, 0 skipped"),
            (5, 4)
        );
    }

    #[test]
    fn libtest_is_understood() {
        assert_eq!(
            tally("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.1s"),
            (5, 0)
        );
        assert_eq!(tally("test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured"), (7, 2));
    }

    #[test]
    fn pytest_is_understood() {
        assert_eq!(tally("============================== 2 passed in 0.01s =============================="), (2, 0));
        assert_eq!(
            tally("=========== 1 failed, 12 passed, 3 warnings, 1 error in 61.20s (0:01:01) ==========="),
            (12, 2)
        );
        assert_eq!(tally("============ no tests ran in 0.00s ============"), (0, 0));
    }

    #[test]
    fn the_first_rank_counts_for_a_job_of_pytest() {
        assert_eq!(tally("[0]<stdout>:======== 7 passed, 1 skipped in 3.10s ========\n"), (7, 0));
        assert_eq!(tally("[1]<stdout>:======== 7 passed, 1 skipped in 3.10s ========\n"), (0, 0));
        assert_eq!(tally("[0]<stdout>:===== test session starts ====="), (0, 0));
    }

    #[test]
    fn colours_do_not_hide_numbers() {
        assert_eq!(
            tally(
                "\u{1b}[32;1m     Summary\u{1b}[0m [   0.005s] \u{1b}[1m4\u{1b}[0m tests run: \u{1b}[1m4\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m skipped"
            ),
            (4, 0)
        );
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(tally("running 4 tests"), (0, 0));
        assert_eq!(tally("3 passed, 0 failed"), (0, 0));
        assert_eq!(tally("    test result: FAILED. 0 passed; 1 failed; 0 ignored"), (0, 0));
    }
}
