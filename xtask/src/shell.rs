//! Runs commands: shows what runs, passes its output on, and keeps the lines in which a test runner counts.
//!
//! Every command starts at the root of the workspace. A command that fails ends the chore with the very line that
//! repeats it. Nothing here goes through `sh`: words are words.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, PipeReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::tally::Tally;
use crate::tools::tools_bin;

/// How long the output of a command may stay open after the command itself has ended. Longer means that it left a
/// process behind, which is a fault of whatever it ran: our tests promise to leave nothing.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

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
        let (reader, writer) = std::io::pipe().context("making a pipe")?;
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| format!("cannot start `{}`", self.line()))?;
        // The command holds both writing ends of the pipe; ours must go, or the reader would never see the end.
        drop(command);
        let (heard_out, heard_in) = mpsc::channel();
        let refused = self.refused.clone();
        let reading = thread::spawn(move || heard_out.send(pass_on(reader, &refused)));
        let status = child.wait()?;
        let Heard { tally, offence } = match heard_in.recv_timeout(LEFT_BEHIND) {
            Ok(heard) => heard,
            Err(_) => bail!("the command ended, but a process that it left behind still runs: {}", self.line()),
        };
        let _ = reading.join();
        if !status.success() && (status.code().is_none() || status.code() != self.accepted) {
            bail!("{status}; {tally}\nto repeat it: {}", self.line());
        }
        if let Some(line) = offence {
            bail!("it succeeded, but said: {line}\nto repeat it: {}", self.line());
        }
        Ok(tally)
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
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Where programs are looked for: the user's path first, then the tools that we compiled.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(tools_bin());
    path
}

/// What the output of a command told.
struct Heard {
    tally: Tally,
    /// The first line with a refused text.
    offence: Option<String>,
}

/// Copies lines to our own output, counts the tests they tell of and looks for refused texts.
fn pass_on(reader: PipeReader, refused: &[&str]) -> Heard {
    let mut heard = Heard { tally: Tally::default(), offence: None };
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut line) {
        let mut out = std::io::stdout().lock();
        // Nobody may be left to read us (a closed terminal); the command must still be drained.
        let _ = out.write_all(&line).and_then(|()| out.flush());
        let text = String::from_utf8_lossy(&line);
        heard.tally += Tally::of_line(&text);
        if heard.offence.is_none() && refused.iter().any(|refused| text.contains(refused)) {
            heard.offence = Some(text.trim_end().to_owned());
        }
        line.clear();
    }
    heard
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
    fn a_program_that_is_not_there_is_named() {
        let error = Shell::new("no-such-program-anywhere").read().unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-anywhere"));
    }
}
