//! Asks another program, and waits for its answer no longer than one is willing to.
//!
//! The invariant: [`ask`] returns soon after its deadline whatever the program does: it may hang, write without end, or
//! leave a child behind that holds its output open. Programs stay in our process group, so that an interrupt from the
//! terminal ends them with us.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How often a waiting thread looks whether the program has ended: far less than any program here takes to start.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// How long output may trickle in after the program has ended. Only a child that it left behind makes use of this.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What is kept of each output. No answer that we understand is nearly as long.
const KEPT_BYTES: usize = 1 << 20;

/// How a program that was asked has ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// It was killed, because it took longer than this.
    TooSlow(Duration),
    /// It could not be started.
    NotStarted(std::io::Error),
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Exited(code) => write!(f, "it ended with status {code}"),
            Ending::Signalled(signal) => write!(f, "it was ended by signal {signal}"),
            Ending::TooSlow(patience) => write!(f, "it did not answer within {} s", patience.as_secs_f32()),
            Ending::NotStarted(error) => write!(f, "it could not be started: {error}"),
        }
    }
}

/// What a program answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) ending: Ending,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// When the last of its standard output came.
    pub(crate) heard: SystemTime,
}

impl Answer {
    /// Whether the program ended by itself and well.
    pub(crate) fn is_good(&self) -> bool {
        matches!(self.ending, Ending::Exited(0))
    }

    /// The last line of its standard error that says something.
    pub(crate) fn last_complaint(&self) -> Option<&str> {
        self.stderr.lines().map(str::trim).rfind(|line| !line.is_empty())
    }
}

/// Runs a command without input and waits for it until `patience` is over; then kills it.
pub(crate) fn ask(command: &mut Command, patience: Duration) -> Answer {
    let deadline = Instant::now() + patience;
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let nothing = String::new();
            let ending = Ending::NotStarted(error);
            return Answer { ending, stdout: nothing.clone(), stderr: nothing, heard: SystemTime::now() };
        }
    };
    let stdout = child.stdout.take().map(listen);
    let stderr = child.stderr.take().map(listen);
    let ending = loop {
        match child.try_wait() {
            Ok(Some(status)) => break ended(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            Ok(None) => {
                // Both may fail only because it has ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                break Ending::TooSlow(patience);
            }
            Err(error) => break Ending::NotStarted(error),
        }
    };
    let last_words = Instant::now() + LAST_WORDS;
    let (stdout, heard) = gather(stdout, last_words);
    let (stderr, _) = gather(stderr, last_words);
    Answer { ending, stdout, stderr, heard: heard.unwrap_or_else(SystemTime::now) }
}

fn ended(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, signal) => Ending::Signalled(signal.unwrap_or(0)),
    }
}

/// A thread of its own reads the pipe until it is closed, so that the program is never held up by a full one. Nobody
/// waits for the thread: if a left-behind child keeps the pipe open, it ends with this process.
fn listen(mut pipe: impl Read + Send + 'static) -> Receiver<(Vec<u8>, SystemTime)> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let (mut piece, mut kept_bytes) = ([0; 4096], 0);
        while let Ok(count @ 1..) = pipe.read(&mut piece) {
            // The rest is drained and forgotten.
            let keep = count.min(KEPT_BYTES - kept_bytes);
            kept_bytes += keep;
            // Nobody may be listening any more; the pipe is drained all the same.
            if keep > 0 {
                let _ = sender.send((piece[..keep].to_vec(), SystemTime::now()));
            }
        }
    });
    receiver
}

fn gather(pieces: Option<Receiver<(Vec<u8>, SystemTime)>>, deadline: Instant) -> (String, Option<SystemTime>) {
    let (mut bytes, mut heard) = (Vec::new(), None);
    while let Some(pieces) = &pieces {
        match pieces.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((piece, when)) => {
                bytes.extend_from_slice(&piece);
                heard = Some(when);
            }
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
        }
        if Instant::now() > deadline {
            break;
        }
    }
    (String::from_utf8_lossy(&bytes).into_owned(), heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    use farandole_testing::NEVER;

    fn shell(script: &str, patience: Duration) -> Answer {
        ask(Command::new("sh").args(["-c", script]), patience)
    }

    #[test]
    fn both_outputs_and_the_status_come_back() {
        let answer = shell("echo out; echo first >&2; echo last >&2; echo >&2; exit 3", NEVER);
        assert!(matches!(answer.ending, Ending::Exited(3)) && !answer.is_good());
        assert_eq!((answer.stdout.as_str(), answer.last_complaint()), ("out\n", Some("last")));
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_said_is_kept() {
        // A shell that is slow to start has said nothing by then.
        let has_spoken = |patience| {
            let answer = shell("echo here; exec sleep 3600", patience);
            assert!(matches!(answer.ending, Ending::TooSlow(_)), "{answer:?}");
            answer.stdout == "here\n"
        };
        assert!((1..7).any(|doubled| has_spoken(Duration::from_millis(250 << doubled))), "its words are lost");
    }

    #[test]
    fn a_child_left_behind_does_not_hold_us_up() {
        // It holds the output open until it is ended here.
        let answer = shell("sleep 3600 & echo $!; exit 0", NEVER);
        assert!(answer.is_good(), "{answer:?}");
        let child = rustix::process::Pid::from_raw(answer.stdout.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn a_crash_is_told_from_an_exit_and_from_a_missing_program() {
        assert!(matches!(shell("kill -SEGV $$", NEVER).ending, Ending::Signalled(11)));
        let missing = ask(&mut Command::new("/nowhere/program"), NEVER);
        assert!(matches!(missing.ending, Ending::NotStarted(_)));
    }

    #[test]
    fn a_flood_is_cut_and_does_not_block_the_program() {
        let answer = shell("head -c 3000000 /dev/zero; exit 0", NEVER);
        assert!(answer.is_good(), "{:?}", answer.ending);
        assert!(answer.stdout.len() <= KEPT_BYTES);
    }
}
