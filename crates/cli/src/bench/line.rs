//! The line between the driver and one rank of a contestant: orders go one way, answers come back.
//!
//! Each message is one line of JSON over a Unix socket in a directory that only this user can enter. It is text so that
//! a peer program in another language can speak it. A rank that waits for an order blocks in `read`, so that
//! contestants which are not being measured take no processor time from the one that is. End of file means "go home":
//! ranks outlive neither the driver nor its interest in them.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::task::Task;

/// Longest line. The times of the longest round need about a tenth of it; more can only be a stranger.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// What the driver wants.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RankCommand {
    /// Run a round: check the result once, warm up, then time the iterations.
    Measure {
        /// What to run.
        task: Task,
        /// Untimed iterations.
        warmup: usize,
        /// Timed iterations.
        iterations: usize,
    },
}

/// What a rank says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RankAnswer {
    /// The first message on the line.
    Hello {
        /// Which rank speaks.
        rank: usize,
        /// Product and version.
        product: String,
    },
    /// A round is done.
    Measured {
        /// Time of each iteration on this rank.
        times_ns: Vec<u64>,
        /// Elements of this rank's result that were wrong.
        wrong: u64,
    },
    /// The contestant has no such collective, dtype or operation. All ranks of a contestant say so alike.
    Unsupported {
        /// What it lacks.
        why: String,
    },
    /// The contestant broke.
    Failed {
        /// Its words.
        why: String,
    },
}

/// One end of a line.
pub(crate) struct Line {
    reader: BufReader<UnixStream>,
}

impl Line {
    pub(crate) fn new(stream: UnixStream) -> Line {
        Line { reader: BufReader::new(stream) }
    }

    /// How long [`Line::receive`] waits before it gives up; `None` waits for ever.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> Result<()> {
        self.reader.get_ref().set_read_timeout(patience).context("setting a socket's timeout")
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(message).context("writing a message as JSON")?;
        text.push(b'\n');
        self.reader.get_mut().write_all(&text).context("sending a message")
    }

    /// The next message, or `None` when the other end has gone.
    pub(crate) fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>> {
        let mut text = Vec::new();
        match (&mut self.reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut text) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!("no answer within the time allowed")
            }
            Err(error) => return Err(error).context("reading a message"),
        }
        if text.is_empty() {
            return Ok(None);
        }
        if text.last() != Some(&b'\n') {
            bail!("a message broke off after {} bytes", text.len());
        }
        serde_json::from_slice(&text).map(Some).context("a message that is not ours")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Line, Line) {
        let (a, b) = UnixStream::pair().unwrap();
        (Line::new(a), Line::new(b))
    }

    #[test]
    fn messages_arrive_in_order_and_then_the_end() {
        let (mut rank, mut driver) = pair();
        rank.send(&RankAnswer::Hello { rank: 3, product: "x".into() }).unwrap();
        rank.send(&RankAnswer::Measured { times_ns: vec![1, 2], wrong: 0 }).unwrap();
        drop(rank);
        assert!(matches!(driver.receive().unwrap(), Some(RankAnswer::Hello { rank: 3, .. })));
        assert!(matches!(driver.receive().unwrap(), Some(RankAnswer::Measured { .. })));
        assert!(driver.receive::<RankAnswer>().unwrap().is_none());
    }

    #[test]
    fn garbage_and_broken_lines_are_errors() {
        let (mut rank, mut driver) = pair();
        rank.reader.get_mut().write_all(b"hello\n{\"hello\"").unwrap();
        drop(rank);
        assert!(driver.receive::<RankAnswer>().unwrap_err().to_string().contains("not ours"));
        assert!(driver.receive::<RankAnswer>().unwrap_err().to_string().contains("broke off"));
    }

    #[test]
    fn silence_ends_with_the_patience() {
        let (_rank, mut driver) = pair();
        driver.set_patience(Some(Duration::from_millis(5))).unwrap();
        assert!(driver.receive::<RankAnswer>().unwrap_err().to_string().contains("no answer"));
    }
}
