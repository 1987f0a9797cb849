//! Telling people how far it is.
//!
//! Rank 0 speaks for the whole job. What it has to say is *news*: lines to keep, and how far a step has come. Where a
//! launcher with a terminal has opened a mailbox (its path is in a variable), news goes there, and the launcher draws
//! one bar for the job. Everywhere else it becomes plain lines on standard output: all lines to keep, and the steps of
//! a long epoch now and then.
//!
//! News never holds up training: what the launcher has no room for is dropped if it is about a step, and waits a moment
//! if it is to be kept.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The variable that has the path of the launcher's mailbox.
pub const MAILBOX: &str = "FARANDOLE_TRAIN_NEWS";

/// The largest piece of news in bytes: what one datagram may have without asking for more.
pub const MOST_NEWS_BYTES: usize = 16 << 10;

/// In plain lines, steps are told so often: a long epoch shows that it is alive, a log of a day stays readable.
const LINES_EVERY: Duration = Duration::from_secs(15);

/// A bar is drawn anew so often at most; nobody reads faster.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// How long a line to keep may wait for room in the mailbox before it goes to standard output instead.
const PATIENCE: Duration = Duration::from_millis(500);

/// What rank 0 has to say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum News {
    /// A line to keep.
    Line(String),
    /// How far it is.
    Step(TrainProgress),
    /// Nothing more will come.
    End,
}

/// How far training is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainProgress {
    /// The epoch, from one.
    pub epoch: u64,
    /// How many there are.
    pub epochs: u64,
    /// Steps of this epoch that are done.
    pub step: u64,
    /// How many there are.
    pub steps: u64,
    /// Steps of the whole training that are done.
    pub steps_done: u64,
    /// How many there are.
    pub steps_in_all: u64,
    /// The loss of the last step, over all ranks.
    pub loss: f64,
    /// Samples in a second, of all ranks.
    pub samples_per_s: f64,
}

/// The voice of a job: loud on rank 0, silent elsewhere.
#[derive(Debug)]
pub struct Voice {
    way: Way,
    last_step: Instant,
}

#[derive(Debug)]
enum Way {
    Silent,
    Lines,
    Mailbox(UnixDatagram),
}

impl Voice {
    /// The voice of a rank. `mailbox` is what the variable says.
    pub fn new(rank: usize, mailbox: Option<&Path>) -> Voice {
        let way = match (rank, mailbox.and_then(open)) {
            (0, Some(socket)) => Way::Mailbox(socket),
            (0, None) => Way::Lines,
            _ => Way::Silent,
        };
        Voice { way, last_step: Instant::now() }
    }

    /// Says a line to keep.
    pub fn say(&mut self, line: &str) {
        if let Way::Mailbox(socket) = &self.way {
            let waits = socket.set_nonblocking(false).and_then(|()| socket.set_write_timeout(Some(PATIENCE)));
            if waits.is_ok() && send(socket, &News::Line(line.to_owned())) {
                return;
            }
            // The launcher is gone or stuck. Lines are slower to read, but they arrive.
            self.way = Way::Lines;
        }
        if matches!(self.way, Way::Lines) {
            write_line(line);
        }
    }

    /// Says something that is amiss on this rank. Every rank does so for itself: whoever reads standard error reads all
    /// of it.
    pub fn warn(rank: usize, what: &str) {
        log::warn!("rank {rank}: {what}");
    }

    /// Says how far it is, if it is time to.
    pub fn step(&mut self, progress: TrainProgress) {
        let every = if matches!(self.way, Way::Lines) { LINES_EVERY } else { BAR_EVERY };
        let last = progress.step == progress.steps && matches!(self.way, Way::Mailbox(_));
        if self.last_step.elapsed() < every && !last {
            return;
        }
        self.last_step = Instant::now();
        match &self.way {
            Way::Silent => {}
            Way::Lines => write_line(&plain(&progress)),
            Way::Mailbox(socket) => {
                if socket.set_nonblocking(true).is_ok() {
                    send(socket, &News::Step(progress));
                }
            }
        }
    }

    /// Says that nothing more will come, so that a bar can go away before anything else is written.
    pub fn end(&mut self) {
        if let Way::Mailbox(socket) = &self.way {
            send(socket, &News::End);
            self.way = Way::Lines;
        }
    }
}

fn open(path: &Path) -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(path).ok()?;
    Some(socket)
}

/// Whether the news has been taken.
fn send(socket: &UnixDatagram, news: &News) -> bool {
    let text = serde_json::to_vec(news).expect("invariant: news has a form in JSON");
    text.len() <= MOST_NEWS_BYTES && socket.send(&text).is_ok()
}

/// A line on standard output. Where nobody reads it any more there is nobody to tell.
fn write_line(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A step in a plain line.
fn plain(progress: &TrainProgress) -> String {
    let TrainProgress { epoch, epochs, step, steps, loss, samples_per_s, .. } = progress;
    format!("epoch {epoch}/{epochs}  step {step}/{steps}  loss {loss:.4}  {samples_per_s:.1} samples/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(step: u64) -> TrainProgress {
        TrainProgress {
            epoch: 1,
            epochs: 2,
            step,
            steps: 9,
            steps_done: step,
            steps_in_all: 18,
            loss: 0.25,
            samples_per_s: 100.0,
        }
    }

    #[test]
    fn news_arrives_in_the_mailbox_and_ends() {
        let folder = farandole_testing::Folder::new();
        let path = folder.join("mailbox");
        let mailbox = UnixDatagram::bind(&path).unwrap();
        mailbox.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut voice = Voice::new(0, Some(&path));
        voice.say("a line");
        voice.step(progress(9));
        voice.end();
        let mut bytes = vec![0; MOST_NEWS_BYTES];
        let mut next = || {
            let length = mailbox.recv(&mut bytes).unwrap();
            serde_json::from_slice::<News>(&bytes[..length]).unwrap()
        };
        assert_eq!([next(), next(), next()], [News::Line("a line".to_owned()), News::Step(progress(9)), News::End]);
    }

    #[test]
    fn a_full_mailbox_holds_up_nobody() {
        let folder = farandole_testing::Folder::new();
        let path = folder.join("mailbox");
        let _mailbox = UnixDatagram::bind(&path).unwrap();
        let mut voice = Voice::new(0, Some(&path));
        for _ in 0..5_000 {
            voice.step(progress(9));
        }
        voice.say("this one waits for a moment, and goes elsewhere");
        assert!(matches!(voice.way, Way::Lines));
    }

    #[test]
    fn other_ranks_and_missing_mailboxes_cost_nothing() {
        assert!(matches!(Voice::new(1, None).way, Way::Silent));
        assert!(matches!(Voice::new(0, Some(Path::new("/nowhere/at/all"))).way, Way::Lines));
    }
}
