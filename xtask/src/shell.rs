//! Runs commands: shows what runs, passes its output on, and keeps how many tests passed and which failed.
//!
//! Every command starts at the root of the workspace. A command that fails ends the chore with the tests that failed,
//! or its last lines where it names none, and the line that repeats it. Nothing here goes through `sh`: words are
//! words.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, IsTerminal, PipeReader, Stdout, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::junit::{self, Outcome};
use crate::tally::Tally;
use crate::tools::{target_dir, tools_bin};

/// How long the output of a command may stay open after the command itself has ended. Longer means that it left a
/// process behind, which is a fault of whatever it ran: our tests promise to leave nothing.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

/// Lines that an error repeats of a command that names no failed tests: an error of the compiler, or the message of a
/// leg that runs as a process of its own.
const LAST_LINES: usize = 40;

/// Whether commands compile our crates without keeping what a later change would be compiled faster with.
static COMPILES_ONCE: AtomicBool = AtomicBool::new(false);

/// From now on nothing is kept for compiling a later change, which takes an eighth of the time of compiling our crates.
/// Cargo keeps both kinds apart, so this is for clones in which nobody works.
pub(crate) fn compile_once() {
    COMPILES_ONCE.store(true, Ordering::Relaxed);
}

/// The root of the workspace. Cargo says at run time where it found us; what it said when we were compiled may be a
/// copy of the tree elsewhere that shares our target folder.
pub(crate) fn root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let xtask = PathBuf::from(xtask);
    xtask.parent().expect("invariant: xtask lies in the workspace").to_path_buf()
}

/// One command, built up word by word.
pub(crate) struct Shell {
    program: OsString,
    words: Vec<String>,
    env: Vec<(String, String)>,
    refused: Vec<&'static str>,
    accepted: Option<i32>,
    tests: Tests,
}

/// Where it stands how many tests a command has run.
#[derive(Clone, Default)]
enum Tests {
    /// It runs none.
    #[default]
    None,
    /// In these files.
    Junit(Vec<PathBuf>),
    /// In the last line of each binary of tests.
    Libtest,
    /// In the last line: the command is a chore.
    Chore,
}

impl Shell {
    /// A command without words so far.
    pub(crate) fn new(program: impl Into<OsString>) -> Shell {
        Shell {
            program: program.into(),
            words: Vec::new(),
            env: Vec::new(),
            refused: Vec::new(),
            accepted: None,
            tests: Tests::None,
        }
    }

    /// `cargo` with these words, of the toolchain that the workspace names.
    pub(crate) fn cargo(words: &[&str]) -> Shell {
        Shell::new("cargo").words(words)
    }

    /// `cargo` of the nightly toolchain, for the chores that stable cannot do.
    pub(crate) fn nightly_cargo(words: &[&str]) -> Shell {
        Shell::new("rustup").words(&["run", "nightly", "cargo"]).words(words)
    }

    /// Adds words.
    pub(crate) fn words(mut self, words: &[&str]) -> Shell {
        self.words.extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    /// Sets a variable of the environment.
    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Shell {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Makes [`Shell::run`] fail if a line of the output holds this text, whatever the exit status says.
    pub(crate) fn refuse(mut self, text: &'static str) -> Shell {
        self.refused.push(text);
        self
    }

    /// Lets [`Shell::run`] succeed where the command ends with this exit code.
    pub(crate) fn accept(mut self, code: i32) -> Shell {
        self.accepted = Some(code);
        self
    }

    /// The command runs tests and writes these JUnit files: one, or one for each rank of a job.
    pub(crate) fn junit(mut self, paths: Vec<PathBuf>) -> Shell {
        self.tests = Tests::Junit(paths);
        self
    }

    /// The command runs tests in the runner that rustc links into them.
    pub(crate) fn libtest(mut self) -> Shell {
        self.tests = Tests::Libtest;
        self
    }

    /// The command is a chore that ends with a tally.
    pub(crate) fn chore(mut self) -> Shell {
        self.tests = Tests::Chore;
        self
    }

    /// The line that a person would type to run the same.
    pub(crate) fn line(&self) -> String {
        let env = self.env.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = self.words.iter().map(|word| quoted(word));
        let program = self.program.to_string_lossy();
        env.chain([quoted(&program)]).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Runs the command, passes its output on as it comes, and returns how many tests it has run.
    pub(crate) fn run(&self) -> Result<Tally> {
        println!("$ {}", self.line());
        std::io::stdout().flush()?;
        self.start(std::io::stdout)?.end()?.tally
    }

    /// Starts the command and keeps its output for whoever waits for its end.
    pub(crate) fn start_apart(self) -> Result<Started> {
        self.start(Vec::new)
    }

    /// Starts the command. What it writes goes to `out`, line by line.
    fn start<W: Output + 'static>(&self, out: fn() -> W) -> Result<Started> {
        let (reader, writer) = std::io::pipe().context("making a pipe")?;
        if let Tests::Junit(paths) = &self.tests {
            // A file of an earlier run must not be taken for one of this run.
            paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = command.spawn().with_context(|| format!("cannot start `{}`", self.line()))?;
        // The command holds both writing ends of the pipe; ours must go, or the reader would never see the end.
        drop(command);
        let (heard_out, heard) = mpsc::channel();
        let (refused, tests) = (self.refused.clone(), self.tests.clone());
        thread::spawn(move || {
            // Nobody hears it where the end was not waited for.
            let _ = heard_out.send(pass_on(reader, &refused, &tests, out()));
        });
        let (line, tests) = (self.line(), self.tests.clone());
        Ok(Started { line, accepted: self.accepted, tests, began: Instant::now(), child, heard })
    }

    /// Runs the command and returns what it wrote to standard output.
    pub(crate) fn read(&self) -> Result<String> {
        let output = self.command().stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot start `{}`", self.line()))?;
        if !output.status.success() {
            bail!("{}: {}\n{}", self.line(), output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self) -> Command {
        // A tally is read from text without colours.
        let is_read = matches!(self.tests, Tests::Libtest | Tests::Chore);
        let color = if std::io::stdout().is_terminal() && !is_read { "always" } else { "never" };
        let mut command = Command::new(&self.program);
        command.args(&self.words).current_dir(root()).env("CARGO_TERM_COLOR", color).env("PATH", search_path());
        // Python keeps what it compiles of frameworks and of ours, outside of the tree, even where a system says no.
        command.env("PYTHONPYCACHEPREFIX", target_dir().join("pycache")).env("PYTHONDONTWRITEBYTECODE", "");
        // Set before any thread is started that runs commands; legs that are processes of their own inherit it.
        if COMPILES_ONCE.load(Ordering::Relaxed) {
            command.env("CARGO_INCREMENTAL", "0");
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Where programs are looked for: the user's path first, then the tools that we compiled. A leg that runs as a process
/// of its own has the same path as we: crates whose build looks at the path would be compiled again for another.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    let tools = tools_bin();
    if !std::env::split_paths(&path).any(|folder| folder == tools) {
        path.push(":");
        path.push(tools);
    }
    path
}

/// A command that runs.
pub(crate) struct Started {
    line: String,
    accepted: Option<i32>,
    tests: Tests,
    began: Instant,
    child: Child,
    heard: mpsc::Receiver<Heard>,
}

/// A command that has ended.
pub(crate) struct Ended {
    /// How many tests it has run, or how it failed.
    pub(crate) tally: Result<Tally>,
    /// What it wrote, where it was started apart.
    pub(crate) output: Vec<u8>,
    /// How long it ran.
    pub(crate) wall: Duration,
}

impl Started {
    /// Waits for its end. Its processor time counts as ours from then on.
    pub(crate) fn end(mut self) -> Result<Ended> {
        let status = self.child.wait()?;
        let line = &self.line;
        let Ok(Heard { mut tally, last_lines, offence, output, ended }) = self.heard.recv_timeout(LEFT_BEHIND) else {
            bail!("the command ended, but a process that it left behind still runs: {line}");
        };
        let is_well = status.success() || status.code().is_some() && status.code() == self.accepted;
        let (mut tests, mut unread) = (Outcome::default(), None);
        if let Tests::Junit(paths) = &self.tests {
            match Outcome::read(paths) {
                Ok(outcome) => (tally, tests) = (outcome.tally(), outcome),
                Err(error) => unread = Some(format!("{error:#}; the test runner has ended early\n")),
            }
        }
        let tally = match (offence, unread) {
            (_, unread) if !is_well => {
                let failed = tests.names();
                let last_lines = if failed.is_empty() { told(last_lines) } else { String::new() };
                let unread = unread.unwrap_or_default();
                let text = format!("{status}; {tally}\n{unread}{tests}{last_lines}to repeat it: {line}");
                Err(anyhow!(Failed { tests: failed, text }))
            }
            (Some(said), _) => Err(anyhow!("it succeeded, but said: {said}\nto repeat it: {line}")),
            (None, Some(unread)) => Err(anyhow!("it succeeded, but {unread}to repeat it: {line}")),
            (None, None) => Ok(tally),
        };
        Ok(Ended { tally, output, wall: ended - self.began })
    }
}

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The tests that failed, where it has named them.
    pub(crate) tests: Vec<String>,
    text: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failed {}

/// The last lines of a command, as an error repeats them.
fn told(lines: VecDeque<String>) -> String {
    let told: String = lines.iter().map(|line| format!("  | {}\n", junit::shortened(line))).collect();
    if told.is_empty() { told } else { format!("its last lines:\n{told}") }
}

/// Where lines of a command go.
trait Output: Write {
    /// What was kept of them.
    fn kept(self) -> Vec<u8>;
}

impl Output for Stdout {
    fn kept(self) -> Vec<u8> {
        Vec::new()
    }
}

impl Output for Vec<u8> {
    fn kept(self) -> Vec<u8> {
        self
    }
}

/// What the output of a command told.
struct Heard {
    tally: Tally,
    last_lines: VecDeque<String>,
    /// The first line with a refused text.
    offence: Option<String>,
    output: Vec<u8>,
    ended: Instant,
}

/// Copies lines, counts tests where the text says how many there were, and looks for refused texts.
fn pass_on(reader: PipeReader, refused: &[&str], tests: &Tests, mut out: impl Output) -> Heard {
    let (mut tally, mut last_lines, mut offence) = (Tally::default(), VecDeque::new(), None);
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut line) {
        // Nobody may be left to read us (a closed terminal); the command must still be drained.
        let _ = out.write_all(&line).and_then(|()| out.flush());
        let text = String::from_utf8_lossy(&line);
        match tests {
            Tests::None | Tests::Junit(_) => {}
            Tests::Libtest => tally += Tally::of_libtest(&text).unwrap_or_default(),
            Tests::Chore => tally = Tally::of_chore(&text).unwrap_or(tally),
        }
        if offence.is_none() && refused.iter().any(|refused| text.contains(refused)) {
            offence = Some(text.trim_end().to_owned());
        }
        if last_lines.len() == LAST_LINES {
            last_lines.pop_front();
        }
        last_lines.extend(Some(text.trim_end().to_owned()).filter(|text| !text.is_empty()));
        line.clear();
    }
    Heard { tally, last_lines, offence, output: out.kept(), ended: Instant::now() }
}

/// The word as a shell would need it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_to_repeat_a_command_can_be_pasted_into_a_shell() {
        let shell = Shell::new("cargo").words(&["test", "a b", "it's"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(shell.line(), r"RUSTFLAGS='--cfg loom' cargo test 'a b' 'it'\''s'");
    }

    #[test]
    fn a_command_that_fails_names_itself() {
        let error = Shell::new("false").words(&["x"]).run().unwrap_err().to_string();
        assert!(error.contains("to repeat it: false x"), "{error}");
    }

    #[test]
    fn a_refused_text_fails_a_command_that_succeeds() {
        let echo = Shell::new("echo").words(&["warning: output filename collision at x"]);
        let error = echo.refuse("output filename collision").run().unwrap_err().to_string();
        assert!(error.contains("collision at x") && error.contains("to repeat it: echo"), "{error}");
        Shell::new("echo").words(&["all is well"]).refuse("output filename collision").run().unwrap();
    }

    #[test]
    fn an_accepted_exit_code_is_a_success_and_others_are_not() {
        let fails = || Shell::new("sh").words(&["-c", "exit 5"]);
        fails().accept(5).run().unwrap();
        assert!(fails().accept(4).run().is_err() && fails().run().is_err());
        assert!(Shell::new("sh").words(&["-c", "kill -9 $$"]).accept(9).run().is_err());
    }

    const LIBTEST: &str = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";

    #[test]
    fn tallies_of_text_are_read_where_they_are_expected() {
        let shell = |script: &str| Shell::new("sh").words(&["-c", script]);
        assert_eq!(shell(LIBTEST).libtest().run().unwrap(), Tally { passed: 3, failed: 0 });
        assert_eq!(shell(LIBTEST).run().unwrap(), Tally::default());
        let chore = shell(&format!("{LIBTEST}; echo 4 passed, 0 failed")).chore();
        assert_eq!(chore.run().unwrap(), Tally { passed: 4, failed: 0 });
    }

    const BAD: &str = r#"<testsuites><testcase name="b" classname="a"><failure message="no"/></testcase></testsuites>"#;

    #[test]
    fn a_command_that_fails_names_the_tests_that_failed() {
        let folder = farandole_testing::Folder::new();
        let path = folder.join("junit.xml");
        let script = format!("echo '{BAD}' > {}; exit 101", path.display());
        let error = Shell::new("sh").words(&["-c", &script]).junit(vec![path.clone()]).run().unwrap_err();
        assert_eq!(error.downcast_ref::<Failed>().unwrap().tests, ["a b"]);
        let text = error.to_string();
        assert!(text.contains("0 passed, 1 failed\nfailed tests:\n  a b\nthe first reasons:\n  | no\nto"), "{text}");
        // The file is not there any more when the next command begins.
        let error = Shell::new("true").junit(vec![path]).run().unwrap_err().to_string();
        assert!(error.contains("junit.xml: cannot be read") && error.contains("has ended early"), "{error}");
    }

    #[test]
    fn a_command_that_fails_without_naming_tests_repeats_its_last_lines() {
        let words = ["-c", "seq 100; exit 3"];
        let error = Shell::new("sh").words(&words).run().unwrap_err().to_string();
        assert!(error.contains("its last lines:\n  | 61\n  | 62\n") && error.contains("  | 100\nto repeat"), "{error}");
    }

    #[test]
    fn what_a_command_writes_apart_is_kept_until_its_end() {
        let script = format!("{LIBTEST}; echo no >&2; exit 4");
        let ended = Shell::new("sh").words(&["-c", &script]).libtest().start_apart().unwrap().end().unwrap();
        let output = String::from_utf8(ended.output).unwrap();
        assert_eq!(output, "test result: ok. 3 passed; 0 failed; 0 ignored\nno\n");
        assert!(!ended.wall.is_zero());
        let error = ended.tally.unwrap_err().to_string();
        assert!(error.contains("3 passed") && error.contains("to repeat it: sh -c "), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Shell::new("no-such-program-anywhere").read().unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-anywhere"));
    }
}
