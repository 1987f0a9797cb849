//! Which tests failed, and why, by reading what the test runners print.
//!
//! A log of continuous integration is long and may be cut off, so the message at its end repeats what this module kept.
//! It understands the runners that `tally.rs` counts, and pytest on every rank of a job: the first rank may only say
//! that another one is gone. It keeps the name of each failed test once. Of the reasons it keeps few lines: those of
//! panics, and what pytest says of the first failure on each rank. It never decides whether a command failed.

use std::collections::BTreeMap;
use std::fmt;

use crate::tally::without_colors;

/// Names that a message shows. More failures than these mostly have one cause.
const NAMES_SHOWN: usize = 10;

/// Lines of reasons that are kept for each process that prefixes its lines: an assertion with both of its values fits.
const REASONS_KEPT: usize = 15;

/// Lines of a traceback among them that come before what went wrong: the test's own, and those that it called.
const CALLS_KEPT: usize = 5;

/// Characters that are kept of a line: a path, a long name and a sentence fit.
const LINE_KEPT: usize = 300;

/// How nextest calls a test that did not pass, besides the names of signals.
const NEXTEST_WORDS: [&str; 6] = ["FAIL", "TIMEOUT", "XFAIL", "LEAK-FAIL", "FLKY-FL", "ABORT"];

/// What was heard so far.
#[derive(Default)]
pub(crate) struct Failures {
    names: Vec<String>,
    /// One for each prefix of lines; a command that is not a job has the empty one.
    speakers: BTreeMap<String, Speaker>,
}

/// What one process said.
#[derive(Default)]
struct Speaker {
    reasons: Vec<String>,
    place: Place,
    /// How many failures of pytest it has described, the one that it describes now included.
    described: usize,
}

/// In which part of the output a line stands.
#[derive(Clone, Copy, Default, PartialEq)]
enum Place {
    #[default]
    Anywhere,
    /// Behind the line of a panic that says where it happened.
    Panic,
    /// In pytest's description of a failure.
    Description,
    /// In the list of names that rustc's runner ends with.
    List,
}

impl Failures {
    /// Takes in one line of output.
    pub(crate) fn hear(&mut self, line: &str) {
        let line = without_colors(line);
        let (prefix, line) = without_prefix(line.trim_end());
        let speaker = self.speakers.entry(prefix.to_owned()).or_default();
        let name = speaker.hear(line);
        if let Some(name) = name {
            let name = shortened(&format!("{}{name}", rank_of(prefix)));
            if !self.names.contains(&name) {
                self.names.push(name);
            }
        }
    }
}

impl Speaker {
    /// Keeps the line if it is a reason, and returns the name of the failed test that it tells.
    fn hear(&mut self, line: &str) -> Option<String> {
        let text = line.trim_start();
        if let Some(name) = of_nextest(text).or_else(|| of_libtest(line)).or_else(|| of_pytest(line)) {
            self.place = Place::Anywhere;
            return Some(name);
        }
        if text.starts_with("thread '") && text.contains(" panicked at ") {
            self.place = Place::Panic;
            self.keep(text);
        } else if is_heading(line) {
            (self.place, self.described) = (Place::Description, self.described + 1);
        } else if line == "failures:" {
            self.place = Place::List;
        } else if text.starts_with("Fatal Python error: ") || text.starts_with("Error: ") {
            self.keep(text);
        } else {
            return self.hear_more(line, text);
        }
        None
    }

    /// The same for a line whose meaning depends on where it stands.
    fn hear_more(&mut self, line: &str, text: &str) -> Option<String> {
        match self.place {
            Place::Anywhere => {}
            Place::Panic if text.is_empty() || text.starts_with("stack backtrace:") || text.starts_with("note: ") => {
                self.place = Place::Anywhere;
            }
            Place::Panic => self.keep(text),
            Place::Description if line.starts_with("===") => self.place = Place::Anywhere,
            Place::Description => {
                let is_early = self.reasons.len() < CALLS_KEPT || self.reasons.iter().any(|line| is_of_error(line));
                if self.described == 1 && (is_of_error(line) || is_early && is_place_in_python(line)) {
                    self.keep(line);
                }
            }
            Place::List => match line.strip_prefix("    ") {
                Some(name) => return Some(name.to_owned()),
                None => self.place = Place::Anywhere,
            },
        }
        None
    }

    fn keep(&mut self, line: &str) {
        if self.reasons.len() < REASONS_KEPT {
            self.reasons.push(shortened(line));
        }
    }
}

impl fmt::Display for Failures {
    /// Nothing, or whole lines. All are moved in, so that whoever reads them from our output does not take them for
    /// those of a runner.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.names.is_empty() {
            writeln!(f, "failed tests:")?;
            self.names.iter().take(NAMES_SHOWN).try_for_each(|name| writeln!(f, "  {name}"))?;
        }
        if self.names.len() > NAMES_SHOWN {
            writeln!(f, "  and {} more", self.names.len() - NAMES_SHOWN)?;
        }
        for (prefix, Speaker { reasons, .. }) in self.speakers.iter().filter(|(_, said)| !said.reasons.is_empty()) {
            writeln!(f, "{}the first reasons:", rank_of(prefix))?;
            reasons.iter().try_for_each(|line| writeln!(f, "  | {line}"))?;
        }
        Ok(())
    }
}

/// `FAIL [   0.117s] (4/4) package::binary name` and the same with another word, without the time and the place.
fn of_nextest(text: &str) -> Option<String> {
    let (word, rest) = text.split_once(" [")?;
    let is_signal = word.strip_prefix("SIG").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphanumeric()));
    if !is_signal && !NEXTEST_WORDS.contains(&word) {
        return None;
    }
    let (time, name) = rest.split_once("] ")?;
    time.trim().strip_suffix('s')?.parse::<f64>().ok()?;
    let name = name.trim_start();
    let name = name.strip_prefix('(').and_then(|place| place.split_once(") ")).map_or(name, |(_, name)| name);
    Some(if word == "FAIL" { name.to_owned() } else { format!("{name} ({word})") })
}

/// `test name ... FAILED`. Where nextest shows what a failed test printed it moves the lines in.
fn of_libtest(line: &str) -> Option<String> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned)
}

/// `FAILED path::name - reason`, or `ERROR path - reason` where the file cannot be read.
fn of_pytest(line: &str) -> Option<String> {
    let said = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
    let test = said.split(' ').next()?;
    (test.contains(".py::") || test.ends_with(".py")).then(|| said.to_owned())
}

/// Whether pytest begins to describe a failure: `____ name ____`.
fn is_heading(line: &str) -> bool {
    line.starts_with("___") && line.ends_with("___") && line.contains(' ')
}

/// `E   assert 1 == 2`, with which pytest says what went wrong.
fn is_of_error(line: &str) -> bool {
    line.starts_with("E   ")
}

/// `path.py:12: AssertionError`, with which pytest ends what it shows of a function.
fn is_place_in_python(line: &str) -> bool {
    let number = line.split_once(".py:").and_then(|(_, rest)| rest.split_once(':'));
    !line.starts_with(' ') && number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// The line of a rank of a job (`[0]<stdout>:text`) as its prefix and its text. pytest says everything on one stream.
fn without_prefix(line: &str) -> (&str, &str) {
    let rank = line.strip_prefix('[').and_then(|rest| rest.split_once("]<std"));
    let text = rank.filter(|(rank, _)| rank.parse::<u32>().is_ok()).and_then(|(_, rest)| {
        let rest = rest.strip_prefix("out>:").or_else(|| rest.strip_prefix("err>:"))?;
        Some((&line[..line.len() - rest.len()], rest))
    });
    text.unwrap_or(("", line))
}

/// `rank 0: ` for such a prefix.
fn rank_of(prefix: &str) -> String {
    prefix.split_once(']').map_or_else(String::new, |(rank, _)| format!("rank {}: ", &rank[1..]))
}

fn shortened(line: &str) -> String {
    if line.chars().count() <= LINE_KEPT {
        return line.to_owned();
    }
    line.chars().take(LINE_KEPT).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &str) -> Failures {
        let mut failures = Failures::default();
        lines.lines().for_each(|line| failures.hear(line));
        failures
    }

    fn reasons(failures: &Failures, prefix: &str) -> Vec<String> {
        failures.speakers[prefix].reasons.clone()
    }

    #[test]
    fn nextest_is_understood_and_each_test_named_once() {
        let failures = heard(
            "        PASS [   0.005s] (1/4) nx good
        SLOW [> 30.000s] nx good
     SIGABRT [   0.011s] (2/4) nx abort
        FAIL [   0.117s] (3/4) nx::bin bad
  stdout ───

    running 1 test
    test bad ... FAILED

    failures:

    failures:
        bad

  stderr ───

    thread 'bad' (21601) panicked at src/lib.rs:1:28:
    assertion `left == right` failed: why not
      left: 1
     right: 2
    stack backtrace:
       0: __rustc::rust_begin_unwind

     TIMEOUT [ 120.003s] nx slow
────────────
     Summary [   0.118s] 4 tests run: 1 passed, 2 failed, 1 timed out, 0 skipped
     SIGABRT [   0.011s] (2/4) nx abort
        FAIL [   0.117s] (3/4) nx::bin bad
     TIMEOUT [ 120.003s] (4/4) nx slow",
        );
        assert_eq!(failures.names, ["nx abort (SIGABRT)", "nx::bin bad", "nx slow (TIMEOUT)"]);
        let panic = ["thread 'bad' (21601) panicked at src/lib.rs:1:28:", "assertion `left == right` failed: why not"];
        assert_eq!(reasons(&failures, ""), [panic[0], panic[1], "left: 1", "right: 2"]);
    }

    #[test]
    fn the_runner_of_rustc_is_understood() {
        let failures = heard(
            "test a::good ... ok
test src/lib.rs - Thing (line 3) ... FAILED

failures:

---- a::bad stdout ----
thread 'a::bad' panicked at src/a.rs:2:5:
no
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace


failures:
    a::bad
    src/lib.rs - Thing (line 3)

test result: FAILED. 1 passed; 2 failed; 0 ignored
    a line that is moved in",
        );
        assert_eq!(failures.names, ["src/lib.rs - Thing (line 3)", "a::bad"]);
        assert_eq!(reasons(&failures, ""), ["thread 'a::bad' panicked at src/a.rs:2:5:", "no"]);
    }

    const PYTEST: &str = "==== FAILURES ====
____ test_a[1] ____

    def test_a(x):
>       assert x == 2
E       assert 1 == 2

tests/test_a.py:3: AssertionError
---- Captured log call ----
ERROR    root:test_a.py:2 said
____ test_b ____
E       assert False
tests/test_a.py:7: AssertionError
==== short test summary info ====
FAILED tests/test_a.py::test_a[1] - assert 1 == 2
FAILED tests/test_a.py::test_b - assert False
ERROR tests/test_c.py - ImportError: no
ERROR tests/test_d.py::test_x
!!!! stopping after 1 failures !!!!
==== 2 failed, 2 errors in 0.10s ====";

    #[test]
    fn pytest_is_understood_and_the_first_failure_explained() {
        let failures = heard(PYTEST);
        let names = [
            "tests/test_a.py::test_a[1] - assert 1 == 2",
            "tests/test_a.py::test_b - assert False",
            "tests/test_c.py - ImportError: no",
            "tests/test_d.py::test_x",
        ];
        assert_eq!(failures.names, names);
        assert_eq!(reasons(&failures, ""), ["E       assert 1 == 2", "tests/test_a.py:3: AssertionError"]);
    }

    #[test]
    fn every_rank_of_a_job_is_heard_apart() {
        let failures = heard(
            "[0]<stdout>:____ test_a ____
[1]<stdout>:____ test_a ____
[1]<stdout>:E       assert 1 == 2
[0]<stdout>:E       HorovodInternalError: rank 1 is gone
[1]<stdout>:FAILED tests/test_a.py::test_a - assert 1 == 2
[0]<stdout>:FAILED tests/test_a.py::test_a - HorovodInternalError
[1]<stderr>:Fatal Python error: Aborted",
        );
        assert_eq!(
            failures.to_string(),
            "failed tests:
  rank 1: tests/test_a.py::test_a - assert 1 == 2
  rank 0: tests/test_a.py::test_a - HorovodInternalError
rank 0: the first reasons:
  | E       HorovodInternalError: rank 1 is gone
rank 1: the first reasons:
  | Fatal Python error: Aborted
rank 1: the first reasons:
  | E       assert 1 == 2
"
        );
    }

    #[test]
    fn much_is_cut_short_and_nothing_is_silent() {
        assert_eq!(Failures::default().to_string(), "");
        let lines: Vec<String> = (0..13).map(|n| format!("test t{n}{} ... FAILED", "x".repeat(400))).collect();
        let message = heard(&lines.join("\n")).to_string();
        assert_eq!(message.lines().count(), 1 + NAMES_SHOWN + 1, "{message}");
        assert!(message.ends_with("…\n  and 3 more\n"), "{message}");
        assert!(message.lines().all(|line| line.chars().count() <= LINE_KEPT + 3), "{message}");
        let calls: Vec<String> = (0..40).map(|n| format!("test_a.py:{n}: in call")).collect();
        let message = heard(&format!("____ test_a ____\n{}\nE   no\na.py:1: ValueError", calls.join("\n"))).to_string();
        assert_eq!(message.lines().count(), 1 + CALLS_KEPT + 2, "{message}");
        assert!(message.ends_with("  | E   no\n  | a.py:1: ValueError\n"), "{message}");
        let reasons: Vec<String> = (0..40).map(|n| format!("E   line {n}")).collect();
        let message = heard(&format!("____ test_a ____\n{}", reasons.join("\n"))).to_string();
        assert_eq!(message.lines().count(), 1 + REASONS_KEPT, "{message}");
    }

    #[test]
    fn what_we_print_ourselves_is_not_heard_again() {
        let message = heard(PYTEST).to_string();
        let again = heard(&message);
        assert!(again.names.is_empty() && again.to_string().is_empty(), "{again}");
    }
}
