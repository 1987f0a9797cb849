//! Asks a program something: starts it, writes its input, and collects its output until it exits, within a deadline.
//!
//! Output is read while the program runs, so a full pipe does not stop it. The program gets its own process group,
//! which is killed on time-out and on too much output. The caller's thread reaps the program; no other thread may wait
//! for children meanwhile.
//!
//! **Scenario.** *The program exits, and a child that it left in the background keeps the pipes open:* output that
//! arrives within [`DRAIN`] after the exit is used, and the background child is left alone.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use farandole_transport::Countdown;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

/// How often a program is checked for its exit.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long the pipes are read after the program has exited, unless they are closed earlier. A filter that the script
/// started in the background, such as `tee`, needs a moment to pass on its last lines.
const DRAIN: Duration = Duration::from_secs(1);

/// Most bytes of standard output: Slurm prints about a kilobyte for a node, so this is enough for 60,000 nodes.
const MOST_BYTES: usize = 64 << 20;

/// Most bytes of standard error that are kept, the last ones.
const KEPT_ERROR_BYTES: usize = 64 << 10;

/// Bytes of a read: what a pipe holds.
const CHUNK_BYTES: usize = 64 << 10;

/// What a program answers to this input within this time. `meanwhile` is called repeatedly while it runs.
///
/// # Errors
/// If the program cannot be started, does not exit in time or writes more than [`MOST_BYTES`]. The last line of its
/// standard error is part of the message.
pub(super) fn ask(
    command: &mut Command,
    input: &str,
    patience: Duration,
    meanwhile: &mut dyn FnMut(),
) -> io::Result<Output> {
    let mut goes_on = || {
        meanwhile();
        true
    };
    ask_while(command, input, patience, &mut goes_on)
}

/// [`ask`], but the program is killed as soon as `goes_on` returns false.
///
/// # Errors
/// As those of [`ask`], and if `goes_on` returned false.
pub(super) fn ask_while(
    command: &mut Command,
    input: &str,
    patience: Duration,
    goes_on: &mut dyn FnMut() -> bool,
) -> io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut program = Program { child: command.spawn()?, exit: None };
    if let Some(mut stdin) = program.child.stdin.take() {
        // A program that does not read its input may still answer.
        let _ = stdin.write_all(input.as_bytes());
    }
    let mut streams = Streams::of(&mut program.child)?;
    let deadline = Countdown::new(patience);
    let status = loop {
        if let Some(status) = program.try_wait()? {
            break status;
        }
        if deadline.is_over() {
            return Err(streams.failure(&format!("it did not exit within {patience:?}")));
        }
        if !goes_on() {
            return Err(streams.failure("it was ended, because its answer is not needed any more"));
        }
        streams.read(LOOK_EVERY)?;
    };
    let drain = Countdown::new(DRAIN);
    while streams.are_open() && !drain.is_over() && goes_on() {
        streams.read(LOOK_EVERY)?;
    }
    Ok(Output { status, stdout: streams.stdout.bytes, stderr: streams.stderr.bytes })
}

/// The last line of what a program wrote to standard error, to append to a message.
pub(super) fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.trim().lines().last().map(|line| format!(": {line}")).unwrap_or_default()
}

/// A child process. Its process group is killed on drop, unless it has exited.
struct Program {
    child: Child,
    exit: Option<ExitStatus>,
}

impl Program {
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.exit = self.child.try_wait()?;
        Ok(self.exit)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.exit.is_none() {
            // It is not reaped, so its number is still that of its group.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// The outputs of a program.
struct Streams {
    stdout: Stream,
    stderr: Stream,
}

/// A pipe, and what was read from it. `None`: it is closed.
struct Stream {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl Streams {
    fn of(child: &mut Child) -> io::Result<Streams> {
        let missing = "invariant: both outputs are pipes";
        let stdout = Stream::new(child.stdout.take().expect(missing).into())?;
        let stderr = Stream::new(child.stderr.take().expect(missing).into())?;
        Ok(Streams { stdout, stderr })
    }

    fn are_open(&self) -> bool {
        self.stdout.pipe.is_some() || self.stderr.pipe.is_some()
    }

    /// Waits for output, for a limited time, and reads at most one chunk from each pipe.
    fn read(&mut self, patience: Duration) -> io::Result<()> {
        let pipes = [&self.stdout, &self.stderr].into_iter().filter_map(|stream| stream.pipe.as_ref());
        let mut polled: Vec<PollFd<'_>> = pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
        let patience = Timespec::try_from(patience).expect("invariant: a step of waiting is short");
        match poll(&mut polled, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        drop(polled);
        self.stdout.read()?;
        self.stderr.read()?;
        if self.stdout.bytes.len() > MOST_BYTES {
            return Err(self.failure(&format!("it wrote more than {} MiB, which is the limit", MOST_BYTES >> 20)));
        }
        let surplus = self.stderr.bytes.len().saturating_sub(KEPT_ERROR_BYTES);
        self.stderr.bytes.drain(..surplus);
        Ok(())
    }

    fn failure(&self, what: &str) -> io::Error {
        io::Error::other(format!("{what}{}", last_words(&self.stderr.bytes)))
    }
}

impl Stream {
    fn new(pipe: OwnedFd) -> io::Result<Stream> {
        let flags = rustix::fs::fcntl_getfl(&pipe)?;
        rustix::fs::fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?;
        Ok(Stream { pipe: Some(pipe), bytes: Vec::new() })
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        let held = self.bytes.len();
        self.bytes.resize(held + CHUNK_BYTES, 0);
        let read = rustix::io::read(pipe, &mut self.bytes[held..]);
        self.bytes.truncate(held + read.unwrap_or(0));
        match read {
            Ok(0) => self.pipe = None,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, patience: Duration) -> io::Result<Output> {
        ask(Command::new("sh").args(["-c", script]), "question\n", patience, &mut || {})
    }

    #[test]
    fn a_program_reads_its_question_and_its_answer_is_read() {
        let answer = shell("read word; echo $word, answer; exit 3", LONG).unwrap();
        assert_eq!((answer.stdout.as_slice(), answer.status.code()), (&b"question, answer\n"[..], Some(3)));
    }

    #[test]
    fn an_answer_may_be_longer_than_a_pipe_holds() {
        let script = "head -c 3000000 /dev/zero | tr '\\0' a; head -c 3000000 /dev/zero | tr '\\0' e >&2; echo end";
        let answer = shell(script, LONG).unwrap();
        assert_eq!(answer.stdout.len(), 3_000_004);
        assert!(answer.stdout.ends_with(b"aend\n") && answer.status.success());
        assert_eq!(answer.stderr, vec![b'e'; KEPT_ERROR_BYTES]);
    }

    #[test]
    fn an_endless_answer_is_an_error_that_names_the_limit() {
        let error = shell("echo too much to do >&2; exec cat /dev/zero", LONG).unwrap_err();
        assert_eq!(error.to_string(), "it wrote more than 64 MiB, which is the limit: too much to do");
    }

    /// A named pipe in a folder. A process that opens it for reading waits until the test opens it for writing.
    fn named_pipe() -> (farandole_testing::Folder, PathBuf) {
        let folder = farandole_testing::Folder::new();
        let path = folder.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        (folder, path)
    }

    #[test]
    fn a_child_in_the_background_that_keeps_the_pipes_open_does_not_hang_the_caller() {
        let (_folder, pipe) = named_pipe();
        let script = format!("cat {} & echo host; echo warned >&2", pipe.display());
        let answer = shell(&script, LONG).unwrap();
        assert_eq!((answer.stdout.as_slice(), answer.stderr.as_slice()), (&b"host\n"[..], &b"warned\n"[..]));
        // It is still there, and ends now.
        drop(std::fs::File::options().write(true).open(pipe).unwrap());
    }

    #[test]
    fn a_program_that_does_not_answer_is_ended_with_its_children() {
        let (_folder, pipe) = named_pipe();
        let script = format!("echo looking around >&2; cat {}; true", pipe.display());
        let mut writer = None;
        // Opening returns when the program's child has opened the other end.
        let mut meanwhile = || {
            writer.get_or_insert_with(|| std::fs::File::options().write(true).open(&pipe).unwrap());
        };
        let asked = ask(Command::new("sh").args(["-c", &script]), "", Duration::from_millis(50), &mut meanwhile);
        assert_eq!(asked.unwrap_err().to_string(), "it did not exit within 50ms: looking around");
        let writer = writer.unwrap();
        let mut polled = [PollFd::new(&writer, PollFlags::empty())];
        assert_eq!(poll(&mut polled, Some(&Timespec::try_from(LONG).unwrap())), Ok(1));
        assert!(polled[0].revents().contains(PollFlags::ERR), "a reader is left");
    }

    #[test]
    fn a_caller_that_does_not_go_on_ends_the_program() {
        let error = ask_while(Command::new("sleep").arg("600"), "", LONG, &mut || false).unwrap_err();
        assert_eq!(error.to_string(), "it was ended, because its answer is not needed any more");
    }
}
