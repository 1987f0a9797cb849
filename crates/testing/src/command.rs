//! Runs a command to its end, or to its deadline.
//!
//! Two threads read what it writes, so that it never waits for a full pipe. At its deadline it is killed, and the test
//! panics with everything that it has written.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Deadline;
use crate::time::INTERVAL;

/// Starts a command without input and returns how it ended and what it wrote. It is started and waited for by the
/// calling thread, which the kernel takes for its parent.
pub fn finish(command: &mut Command, limit: Duration) -> Output {
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    finish_child(&mut child, limit)
}

/// The same for a child that runs already. What of its output is not piped, or was taken, is empty.
pub fn finish_child(child: &mut Child, limit: Duration) -> Output {
    let (out, err) = (Stream::read(child.stdout.take()), Stream::read(child.stderr.take()));
    let deadline = Deadline::after(limit);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if deadline.is_over() {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it does not end within {limit:?}; it wrote:\n{}{}", out.so_far(), err.so_far());
        }
        std::thread::sleep(INTERVAL);
    };
    Output { status, stdout: out.into_bytes(), stderr: err.into_bytes() }
}

/// What a child writes to one of its pipes.
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    fn read(pipe: Option<impl Read + Send + 'static>) -> Stream {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = pipe.map(|mut pipe| {
            std::thread::spawn(move || {
                let mut piece = [0; 1 << 16];
                while let Ok(count @ 1..) = pipe.read(&mut piece) {
                    kept.lock().unwrap().extend_from_slice(&piece[..count]);
                }
            })
        });
        Stream { bytes, reader }
    }

    /// Without waiting for the end of the stream, which other processes may hold up.
    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn into_bytes(self) -> Vec<u8> {
        if let Some(reader) = self.reader {
            reader.join().unwrap();
        }
        std::mem::take(&mut self.bytes.lock().unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn more_than_a_pipe_holds_is_read_while_the_command_runs() {
        let script = "head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2; exit 3";
        let output = finish(&mut shell(script), Duration::from_secs(60));
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout.len(), output.stderr.len()), (3_000_000, 2_000_000));
    }

    #[test]
    fn a_command_that_hangs_is_killed_and_its_words_are_told() {
        let hang = || finish(&mut shell("echo first words; exec sleep 600"), Duration::from_millis(300));
        let panic = std::panic::catch_unwind(hang).unwrap_err();
        let words = panic.downcast::<String>().unwrap();
        assert!(words.contains("300ms") && words.contains("first words"), "{words}");
    }

    #[test]
    fn a_command_that_is_not_there_is_named() {
        let panic = std::panic::catch_unwind(|| finish(&mut Command::new("no-such-program"), Duration::from_secs(1)));
        assert!(panic.unwrap_err().downcast::<String>().unwrap().contains("no-such-program"));
    }
}
