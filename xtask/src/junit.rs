//! Reads the JUnit files of nextest and pytest: how many tests passed, which failed, and the first reasons.
//!
//! nextest writes one file for each run of a profile (`.config/nextest.toml`), pytest one for each process; a job of
//! pytest has one for each rank, and what a rank reports is marked with its number. A log of continuous integration is
//! long and may be truncated, so the message at its end repeats names and reasons from here. Of the reasons it keeps
//! few lines: the panic, and pytest's lines of the exception and of the places in the traceback. This module never
//! decides whether a command failed: its exit status does.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::shell::root;
use crate::tally::Tally;

/// Names that a message shows. More failures than these mostly have one cause.
const NAMES_SHOWN: usize = 10;

/// Lines of reasons that are kept of a failure: an assertion with both of its values fits.
const REASONS_KEPT: usize = 15;

/// Places of a traceback that are kept before the first line of the exception: the test's own, and a few calls.
const PLACES_KEPT: usize = 5;

/// Characters that are kept of a line: a path, a long name and a sentence fit.
const LINE_KEPT: usize = 300;

/// Where nextest writes the file of a run with this profile.
pub(crate) fn of_nextest(profile: &str) -> PathBuf {
    root().join("target/nextest").join(profile).join("junit.xml")
}

/// Where pytest writes the file of a run with this name, or each rank its own.
pub(crate) fn of_pytest(name: &str) -> PathBuf {
    root().join("target/junit").join(format!("{name}.xml"))
}

/// What the files of one command report.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Tests that passed.
    passed: u64,
    /// Tests that did not, in the order of the files.
    failures: Vec<Failure>,
}

/// A test that failed, in whatever manner: wrong, too slow, not startable, leaking.
#[derive(Debug, PartialEq)]
struct Failure {
    /// `rank 0: ` where it ran on a rank of a job.
    rank: String,
    name: String,
    reasons: Vec<String>,
}

impl Outcome {
    /// Reads the files of one command. All ranks of a job run the same tests: the first file counts those that passed.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for (index, path) in paths.iter().enumerate() {
            let of_file = std::fs::read_to_string(path).map_err(anyhow::Error::from).and_then(|text| parse(&text));
            let of_file = of_file.with_context(|| format!("the JUnit file {}: cannot be read", path.display()))?;
            if index == 0 {
                outcome.passed = of_file.passed;
            }
            let rank = rank_of(path);
            let failures = of_file.failures.into_iter().map(|failure| Failure { rank: rank.clone(), ..failure });
            outcome.failures.extend(failures);
        }
        Ok(outcome)
    }

    /// How many passed and failed; a test that fails on several ranks is one.
    pub(crate) fn tally(&self) -> Tally {
        Tally { passed: self.passed, failed: self.names().len() as u64 }
    }

    /// The tests that failed, each once.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.failures.iter().map(|failure| failure.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl fmt::Display for Outcome {
    /// Nothing, or whole lines: the names, and the reasons of the first failure on each rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.failures.is_empty() {
            return Ok(());
        }
        writeln!(f, "failed tests:")?;
        for Failure { rank, name, .. } in self.failures.iter().take(NAMES_SHOWN) {
            writeln!(f, "  {rank}{}", shortened(name))?;
        }
        if self.failures.len() > NAMES_SHOWN {
            writeln!(f, "  and {} more", self.failures.len() - NAMES_SHOWN)?;
        }
        for (index, Failure { rank, reasons, .. }) in self.failures.iter().enumerate() {
            if !reasons.is_empty() && self.failures[..index].iter().all(|earlier| earlier.rank != *rank) {
                writeln!(f, "{rank}the first reasons:")?;
                reasons.iter().try_for_each(|line| writeln!(f, "  | {line}"))?;
            }
        }
        Ok(())
    }
}

/// `rank 0: ` for a path that ends in `.rank-0.xml`.
fn rank_of(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    stem.rsplit_once(".rank-").map_or_else(String::new, |(_, rank)| format!("rank {rank}: "))
}

/// A `<testcase>` that is being read.
#[derive(Default)]
struct Case {
    name: String,
    is_skipped: bool,
    trouble: Option<Trouble>,
}

/// Its first `<failure>` or `<error>`.
#[derive(Default)]
struct Trouble {
    kind: String,
    message: String,
    body: String,
}

fn parse(text: &str) -> Result<Outcome> {
    let mut reader = Reader::from_str(text);
    let (mut outcome, mut case, mut is_in_trouble, mut depth) = (Outcome::default(), None, false, 0);
    loop {
        match reader.read_event()? {
            Event::Start(tag) => {
                depth += 1;
                is_in_trouble = begin(&tag, &mut case)?;
            }
            Event::Empty(tag) => {
                begin(&tag, &mut case)?;
                if tag.name().as_ref() == b"testcase" {
                    outcome.add(case.take());
                }
            }
            Event::End(tag) => {
                depth -= 1;
                is_in_trouble = false;
                if tag.name().as_ref() == b"testcase" {
                    outcome.add(case.take());
                }
            }
            Event::Eof if depth > 0 => bail!("it is truncated"),
            Event::Eof => return Ok(outcome),
            piece if is_in_trouble => {
                if let Some(trouble) = case.as_mut().and_then(|case: &mut Case| case.trouble.as_mut()) {
                    trouble.body.push_str(&text_of(&piece)?);
                }
            }
            _ => {}
        }
    }
}

/// Takes in an opening tag; says whether text that follows describes the trouble of the case.
fn begin(tag: &BytesStart<'_>, case: &mut Option<Case>) -> Result<bool> {
    let attribute = |name: &str| -> Result<String> {
        let found = tag.try_get_attribute(name)?;
        Ok(match found {
            Some(attribute) => attribute.normalized_value(XmlVersion::Implicit1_0)?.into_owned(),
            None => String::new(),
        })
    };
    match (tag.name().as_ref(), case) {
        (b"testcase", case) => {
            let name = format!("{} {}", attribute("classname")?, attribute("name")?);
            *case = Some(Case { name: name.trim().to_owned(), ..Case::default() });
        }
        (b"skipped", Some(case)) => case.is_skipped = true,
        (b"failure" | b"error", Some(case)) if case.trouble.is_none() => {
            let (kind, message) = (attribute("type")?, attribute("message")?);
            case.trouble = Some(Trouble { kind, message, body: String::new() });
            return Ok(true);
        }
        _ => {}
    }
    Ok(false)
}

/// The text of an event, references resolved.
fn text_of(event: &Event<'_>) -> Result<String> {
    Ok(match event {
        Event::Text(text) => text.decode()?.into_owned(),
        Event::CData(text) => text.decode()?.into_owned(),
        Event::GeneralRef(reference) => match (reference.resolve_char_ref()?, reference.decode()?.as_ref()) {
            (Some(character), _) => character.to_string(),
            (None, name) => quick_xml::escape::resolve_predefined_entity(name).unwrap_or_default().to_owned(),
        },
        _ => String::new(),
    })
}

impl Outcome {
    fn add(&mut self, case: Option<Case>) {
        match case {
            Some(Case { name, trouble: Some(trouble), .. }) => {
                // nextest names the way of failing: a signal, a timeout, a leak.
                let is_usual = trouble.kind.is_empty() || trouble.kind.starts_with("test failure");
                let name = if is_usual { name } else { format!("{name} ({})", trouble.kind) };
                self.failures.push(Failure { rank: String::new(), name, reasons: trouble.reasons() });
            }
            Some(Case { is_skipped: false, .. }) => self.passed += 1,
            _ => {}
        }
    }
}

impl Trouble {
    /// The lines that say what went wrong.
    fn reasons(&self) -> Vec<String> {
        let text = if self.body.trim().is_empty() { &self.message } else { &self.body };
        let is_of_pytest = text.lines().any(is_of_exception);
        let mut kept: Vec<String> = Vec::new();
        for line in text.lines().map(str::trim_end) {
            if !is_of_pytest && ["stack backtrace:", "note: run with"].iter().any(|end| line.trim().starts_with(end)) {
                break;
            }
            let is_early = kept.len() < PLACES_KEPT || kept.iter().any(|line| is_of_exception(line));
            let says_why = is_of_exception(line) || is_early && is_place_in_python(line);
            if !line.is_empty() && (!is_of_pytest || says_why) && kept.len() < REASONS_KEPT {
                kept.push(shortened(line));
            }
        }
        kept
    }
}

/// `E   assert 1 == 2`, with which pytest says what went wrong.
fn is_of_exception(line: &str) -> bool {
    line.starts_with("E   ")
}

/// `path.py:12: AssertionError`, with which pytest ends what it shows of a function.
fn is_place_in_python(line: &str) -> bool {
    let number = line.split_once(".py:").and_then(|(_, rest)| rest.split_once(':'));
    !line.starts_with(' ') && number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// The line, truncated where it is long.
pub(crate) fn shortened(line: &str) -> String {
    if line.chars().count() <= LINE_KEPT {
        return line.to_owned();
    }
    line.chars().take(LINE_KEPT).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXTEST: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="3" errors="0" uuid="x" time="1.0">
    <testsuite name="nx::bin" tests="4" disabled="0" errors="0" failures="3">
        <testcase name="good" classname="nx::bin" timestamp="2026-01-01T00:00:00.000+00:00" time="0.004"/>
        <testcase name="bad" classname="nx::bin" time="0.004">
            <failure message="thread &apos;bad&apos; panicked" type="test failure with exit code 101">thread &apos;bad&apos; (7) panicked at src/lib.rs:1:28:
assertion `left == right` failed: why &lt;not&gt;
  left: 1
 right: 2
stack backtrace:
   0: __rustc::rust_begin_unwind</failure>
            <system-out>running 1 test</system-out>
        </testcase>
        <testcase name="abort" classname="nx" time="0.004">
            <failure message="process aborted" type="test abort with signal 6 (SIGABRT)"/>
        </testcase>
        <testcase name="slow" classname="nx" time="120.004"><failure type="test timeout"/></testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn nextest_is_understood() {
        let outcome = parse(NEXTEST).unwrap();
        assert_eq!(outcome.tally(), Tally { passed: 1, failed: 3 });
        let names: Vec<&str> = outcome.failures.iter().map(|failure| failure.name.as_str()).collect();
        assert_eq!(names, ["nx::bin bad", "nx abort (test abort with signal 6 (SIGABRT))", "nx slow (test timeout)"]);
        let panic = ["thread 'bad' (7) panicked at src/lib.rs:1:28:", "assertion `left == right` failed: why <not>"];
        assert_eq!(outcome.failures[0].reasons, [panic[0], panic[1], "  left: 1", " right: 2"]);
        assert_eq!(outcome.failures[1].reasons, ["process aborted"]);
    }

    const PYTEST: &str = r#"<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest"
errors="1" failures="1" skipped="1" tests="4" time="0.1"><testcase classname="tests.test_a" name="test_b" time="0.001" />
<testcase classname="tests.test_a" name="test_a[1]" time="0.001"><failure
message="assert 1 == 2">def test_a(x):
&gt;       assert x == 2
E       assert 1 == 2

tests/test_a.py:3: AssertionError</failure></testcase>
<testcase classname="tests.test_a" name="test_s" time="0.0"><skipped type="pytest.skip" message="no" /></testcase>
<testcase classname="" name="tests.test_c" time="0.000"><error message="collection failure">ImportError: no</error></testcase>
</testsuite></testsuites>"#;

    #[test]
    fn pytest_is_understood() {
        let outcome = parse(PYTEST).unwrap();
        assert_eq!(outcome.tally(), Tally { passed: 1, failed: 2 });
        assert_eq!(outcome.names(), ["tests.test_a test_a[1]", "tests.test_c"]);
        assert_eq!(outcome.failures[0].reasons, ["E       assert 1 == 2", "tests/test_a.py:3: AssertionError"]);
        assert_eq!(outcome.failures[1].reasons, ["ImportError: no"]);
    }

    #[test]
    fn every_rank_of_a_job_is_shown_and_a_test_counts_once() {
        let folder = farandole_testing::Folder::new();
        let paths = [0, 1].map(|rank| folder.join(format!("torch.rank-{rank}.xml")));
        paths.iter().for_each(|path| std::fs::write(path, PYTEST).unwrap());
        let outcome = Outcome::read(&paths).unwrap();
        assert_eq!(outcome.tally(), Tally { passed: 1, failed: 2 });
        let text = outcome.to_string();
        assert!(text.starts_with("failed tests:\n  rank 0: tests.test_a test_a[1]\n"), "{text}");
        assert!(text.contains("\nrank 0: the first reasons:\n  | E       assert 1 == 2\n"), "{text}");
        assert!(text.contains("\nrank 1: the first reasons:\n"), "{text}");
    }

    #[test]
    fn a_file_that_is_missing_or_truncated_is_named() {
        let folder = farandole_testing::Folder::new();
        let path = folder.join("torch.rank-1.xml");
        assert!(format!("{:#}", Outcome::read(std::slice::from_ref(&path)).unwrap_err()).contains("torch.rank-1.xml"));
        std::fs::write(&path, &NEXTEST[..NEXTEST.len() / 2]).unwrap();
        assert!(format!("{:#}", Outcome::read(&[path]).unwrap_err()).contains("torch.rank-1.xml"));
    }

    #[test]
    fn long_reports_are_truncated() {
        let failures = (0..13).map(|n| Failure {
            rank: String::new(),
            name: format!("t{n}{}", "x".repeat(400)),
            reasons: Vec::new(),
        });
        let message = Outcome { passed: 0, failures: failures.collect() }.to_string();
        assert_eq!(message.lines().count(), 1 + NAMES_SHOWN + 1, "{message}");
        assert!(message.ends_with("…\n  and 3 more\n"), "{message}");
        let places: String = (0..40).map(|n| format!("test_a.py:{n}: in call\n")).collect();
        let trouble = |body: String| Trouble { body, ..Trouble::default() }.reasons();
        let kept = trouble(format!("{places}E   no\na.py:1: ValueError"));
        assert_eq!(
            (kept.len(), &kept[PLACES_KEPT..]),
            (PLACES_KEPT + 2, &["E   no".into(), "a.py:1: ValueError".into()][..])
        );
        assert_eq!(trouble("E   line\n".repeat(40)).len(), REASONS_KEPT);
        assert_eq!(Outcome::default().to_string(), "");
    }
}
