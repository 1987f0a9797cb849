//! Runs all tests again and again, beside processes that compute, and tells which ever failed.
//!
//! `cargo xtask soak --runs N --busy K` runs the Rust tests, those of them that judge times, and all tests in Python, N
//! times beside K busy processes. It goes on after a failure: what it looks for are tests that pass most of the time. A
//! test that fails once is a defect, so the chore fails, too. Nothing is tried again.

use std::collections::BTreeMap;
use std::fmt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::ci;
use crate::python;
use crate::shell::Failed;
use crate::tally::Tally;

/// Computes until its parent has ended, should nobody end it before.
const BUSY: &str = "while kill -0 $PPID 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";

/// `cargo xtask soak`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let wish = Wish::read(words)?;
    ci::install_tools()?;
    let mut record = Record::default();
    let _busy = Busy::start(wish.busy)?;
    for run in 1..=wish.runs {
        println!("\n=== run {run} of {} beside {} busy processes ===", wish.runs, wish.busy);
        record.note("Rust tests", ci::run_tests());
        record.note("Rust timings", ci::run_timings());
        python::each_suite(|title, outcome| record.note(&title, outcome))?;
        println!("\nafter {run} of {} runs: {record}", wish.runs);
    }
    if !record.failures.is_empty() {
        bail!("{} tests failed at least once", record.failures.len());
    }
    Ok(())
}

/// What is asked for.
#[derive(Debug, PartialEq)]
struct Wish {
    runs: usize,
    busy: usize,
}

impl Wish {
    fn read(words: &[String]) -> Result<Wish> {
        let mut wish = Wish { runs: 1, busy: 0 };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut number = || -> Result<usize> {
                let number = words.next().with_context(|| format!("`{word}` needs a number"))?;
                number.parse().with_context(|| format!("`{word}` needs a number, not `{number}`"))
            };
            match word.as_str() {
                "--runs" => wish.runs = number()?,
                "--busy" => wish.busy = number()?,
                other => bail!("`cargo xtask soak` takes --runs N and --busy K, not `{other}`"),
            }
        }
        Ok(wish)
    }
}

/// What happened so far.
#[derive(Default)]
struct Record {
    total: Tally,
    /// How often each test failed; a command that failed without naming a test has its first line of error.
    failures: BTreeMap<String, usize>,
}

impl Record {
    fn note(&mut self, title: &str, outcome: Result<Tally>) {
        let error = match outcome {
            Ok(tally) => {
                self.total += tally;
                return;
            }
            Err(error) => error,
        };
        println!("{title}: {error:#}");
        let named = error.downcast_ref::<Failed>().map(|failed| failed.tests.clone()).unwrap_or_default();
        let unnamed = || vec![error.to_string().lines().next().unwrap_or_default().to_owned()];
        for test in if named.is_empty() { unnamed() } else { named } {
            *self.failures.entry(format!("{title}: {test}")).or_default() += 1;
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed: usize = self.failures.values().sum();
        write!(f, "{} failures of {} tests", failed, self.failures.len())?;
        let passed = self.total.passed;
        write!(f, "; {passed} passed in the legs without a failure")?;
        self.failures.iter().try_for_each(|(test, times)| write!(f, "\n  {times} x {test}"))
    }
}

/// Processes that compute, until they are dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Result<Busy> {
        let mut busy = Busy(Vec::new());
        for _ in 0..count {
            let mut command = Command::new("sh");
            let child = command.args(["-c", BUSY]).stdin(Stdio::null()).spawn();
            busy.0.push(child.context("starting a busy process")?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already needs nothing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Shell;

    #[test]
    fn words_are_understood() {
        let read = |words: &[&str]| Wish::read(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&[]).unwrap(), Wish { runs: 1, busy: 0 });
        assert_eq!(read(&["--busy", "2", "--runs", "3"]).unwrap(), Wish { runs: 3, busy: 2 });
        assert!(read(&["--runs"]).is_err() && read(&["--busy", "x"]).is_err() && read(&["3"]).is_err());
    }

    #[test]
    fn every_test_that_ever_failed_is_told_with_how_often() {
        let folder = farandole_testing::Folder::new();
        let path = folder.join("junit.xml");
        let report = r#"<testsuites><testcase name="b" classname="a"><failure/></testcase></testsuites>"#;
        let script = format!("echo '{report}' > {}; exit 1", path.display());
        let fails = || Shell::new("sh").words(&["-c", &script]).junit(vec![path.clone()]).run();
        let mut record = Record::default();
        record.note("first", fails());
        record.note("first", fails().context("behind a context"));
        record.note("second", Shell::new("false").run());
        record.note("third", Ok(Tally { passed: 5, failed: 0 }));
        let text = record.to_string();
        assert!(text.starts_with("3 failures of 2 tests; 5 passed"), "{text}");
        assert!(text.contains("\n  2 x first: a b\n  1 x second: exit status: 1"), "{text}");
    }

    #[test]
    fn busy_processes_end_with_the_chore() {
        let busy = Busy::start(2).unwrap();
        let paths: Vec<String> = busy.0.iter().map(|child| format!("/proc/{}", child.id())).collect();
        assert!(paths.iter().all(|path| std::path::Path::new(path).exists()));
        drop(busy);
        assert!(!paths.iter().any(|path| std::path::Path::new(path).exists()), "they have been waited for");
    }
}
