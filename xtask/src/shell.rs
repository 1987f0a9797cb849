//! Runs commands: shows what runs, passes its output on, and keeps what a test runner counts and which tests failed.
//!
//! Every command starts at the root of the workspace. A command that fails ends the chore with the tests that failed
//! and the very line that repeats it. Nothing here goes through `sh`: words are words.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, PipeReader, Stdout, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::failures::Failures;
use crate::tally::Tally;
use crate::tools::{target_dir, tools_bin};

/// How long the output of a command may stay open after the command itself has ended. Longer means that it left a
/// process behind, which is a fault of whatever it ran: our tests promise to leave nothing.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

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
}

impl Shell {
    /// A command without words so far.
    pub(crate) fn new(program: impl Into<OsString>) -> Shell {
        Shell { program: program.into(), words: Vec::new(), env: Vec::new(), refused: Vec::new(), accepted: None }
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

    /// The line that a person would type to run the same.
    pub(crate) fn line(&self) -> String {
        let env = self.env.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = self.words.iter().map(|word| quoted(word));
        let program = self.program.to_string_lossy();
        env.chain([quoted(&program)]).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Runs the command, passes its output on as it comes, and returns what its test runner counted.
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
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = command.spawn().with_context(|| format!("cannot start `{}`", self.line()))?;
        // The command holds both writing ends of the pipe; ours must go, or the reader would never see the end.
        drop(command);
        let (heard_out, heard) = mpsc::channel();
        let refused = self.refused.clone();
        thread::spawn(move || {
            // Nobody hears it where the end was not waited for.
            let _ = heard_out.send(pass_on(reader, &refused, out()));
        });
        Ok(Started { line: self.line(), accepted: self.accepted, began: Instant::now(), child, heard })
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
        let color = if std::io::stdout().is_terminal() { "always" } else { "never" };
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
    began: Instant,
    child: Child,
    heard: mpsc::Receiver<Heard>,
}

/// A command that has ended.
pub(crate) struct Ended {
    /// What its test runner counted, or how it failed.
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
        let Ok(Heard { tally, failures, offence, output, ended }) = self.heard.recv_timeout(LEFT_BEHIND) else {
            bail!("the command ended, but a process that it left behind still runs: {line}");
        };
        let is_well = status.success() || status.code().is_some() && status.code() == self.accepted;
        let tally = match offence {
            _ if !is_well => Err(anyhow!("{status}; {tally}\n{failures}to repeat it: {line}")),
            Some(said) => Err(anyhow!("it succeeded, but said: {said}\nto repeat it: {line}")),
            None => Ok(tally),
        };
        Ok(Ended { tally, output, wall: ended - self.began })
    }
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
    failures: Failures,
    /// The first line with a refused text.
    offence: Option<String>,
    output: Vec<u8>,
    ended: Instant,
}

/// Copies lines, counts the tests they tell of and looks for refused texts.
fn pass_on(reader: PipeReader, refused: &[&str], mut out: impl Output) -> Heard {
    let (mut tally, mut failures, mut offence) = (Tally::default(), Failures::default(), None);
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut line) {
        // Nobody may be left to read us (a closed terminal); the command must still be drained.
        let _ = out.write_all(&line).and_then(|()| out.flush());
        let text = String::from_utf8_lossy(&line);
        tally += Tally::of_line(&text);
        failures.hear(&text);
        if offence.is_none() && refused.iter().any(|refused| text.contains(refused)) {
            offence = Some(text.trim_end().to_owned());
        }
        line.clear();
    }
    Heard { tally, failures, offence, output: out.kept(), ended: Instant::now() }
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

    #[test]
    fn counts_reach_the_caller() {
        let tally = Shell::new("echo").words(&["test result: ok. 3 passed; 0 failed; 0 ignored"]).run().unwrap();
        assert_eq!(tally, Tally { passed: 3, failed: 0 });
    }

    #[test]
    fn a_command_that_fails_names_the_tests_that_failed() {
        let words = ["-c", "echo 'test a::b ... FAILED'; echo 'test result: FAILED. 0 passed; 1 failed'; exit 101"];
        let error = Shell::new("sh").words(&words).run().unwrap_err().to_string();
        assert!(error.contains("0 passed, 1 failed\nfailed tests:\n  a::b\nto repeat it: sh"), "{error}");
    }

    #[test]
    fn what_a_command_writes_apart_is_kept_until_its_end() {
        let words = ["-c", "echo 'test result: ok. 3 passed; 0 failed'; sleep 0.1; echo no >&2; exit 4"];
        let ended = Shell::new("sh").words(&words).start_apart().unwrap().end().unwrap();
        assert_eq!(String::from_utf8(ended.output).unwrap(), "test result: ok. 3 passed; 0 failed\nno\n");
        assert!(ended.wall >= Duration::from_millis(100), "{:?}", ended.wall);
        let error = ended.tally.unwrap_err().to_string();
        assert!(error.contains("3 passed") && error.contains("to repeat it: sh -c "), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Shell::new("no-such-program-anywhere").read().unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-anywhere"));
    }
}
