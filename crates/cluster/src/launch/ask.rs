//! Asks a program something: starts it, gives it its input, and waits for its end, but not for ever.
//!
//! For short answers only: what the program writes is read when it has ended, so it must fit into a pipe. Whoever asks
//! reaps the program itself; nobody else may wait for children meanwhile.

use std::io::{self, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use farandole_transport::Countdown;

/// How often it is looked whether a program has ended.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What a program answers to this input within this time. `meanwhile` is called again and again while it runs.
pub(super) fn ask(
    command: &mut Command,
    input: &str,
    patience: Duration,
    meanwhile: &mut dyn FnMut(),
) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input has an answer all the same.
        let _ = stdin.write_all(input.as_bytes());
    }
    if !ends_in_time(&mut child, patience, meanwhile)? {
        let _ = child.kill();
        let _ = child.wait();
        return Err(io::Error::other(format!("it does not answer within {patience:?}")));
    }
    child.wait_with_output()
}

fn ends_in_time(child: &mut Child, patience: Duration, meanwhile: &mut dyn FnMut()) -> io::Result<bool> {
    let deadline = Countdown::new(patience);
    while child.try_wait()?.is_none() {
        if deadline.is_over() {
            return Ok(false);
        }
        meanwhile();
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> io::Result<Output> {
        ask(Command::new("sh").args(["-c", script]), "question\n", patience, &mut || {})
    }

    #[test]
    fn a_program_reads_its_question_and_its_answer_is_read() {
        let answer = shell("read word; echo $word, answer; exit 3", Duration::from_secs(60)).unwrap();
        assert_eq!((answer.stdout.as_slice(), answer.status.code()), (&b"question, answer\n"[..], Some(3)));
    }

    #[test]
    fn a_program_that_does_not_answer_is_ended() {
        let error = shell("exec sleep 600", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "it does not answer within 50ms");
    }
}
