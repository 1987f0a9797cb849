//! Where ranks meet before they know each other: every rank brings one message and takes home the messages of all.
//!
//! A [`Server`] hosts the meeting, in rank 0 or in the parent of all ranks, or one part of it on each host;
//! [`Rendezvous::exchange`] is a rank's visit, and [`Rendezvous::join`] one from which it keeps a [`Lifeline`]. All of
//! it travels over channels ([`crate::channel`]), so nothing of a stranger's is decoded. Everything has a limit:
//! messages of [`MOST_BLOB_BYTES`], a time for each visit, a number of connections. A visit ends with all messages or
//! with an error that names who did not come. What the messages say is not decided here.
//!
//! A visit costs a rank one message up and one down, however many ranks there are: the server gathers.

mod address;
mod arrivals;
mod lifeline;
mod liveness;
mod message;
mod server;
mod server_loop;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{Countdown, JobId, Key};

pub use address::Address;
pub use lifeline::{HEARTBEAT_TIMEOUT, Lifeline, silence_from_lookup};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use message::check_any_message;
pub use server::{OnEvent, RendezvousEvent, Server};

pub use crate::failure_notice::{FailureKind, FailureNotice};

use crate::channel::{Channel, ChannelFault, ChannelPurpose};
use crate::environment;
use crate::error::{Error, Result};
use address::Stream;
use message::{Arrival, Down, ServerProcess, Stay, Up};

/// Longest message of a rank: room for hundreds of addresses.
pub const MOST_BLOB_BYTES: usize = 64 << 10;

/// Pauses between attempts to connect grow from the first to the second: the host of the meeting may just be starting.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// The server answers at a rank's deadline; the answer gets this long to arrive.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// What an answer needs besides the ranks' messages: who keeps the rendezvous, or a reason.
const ANSWER_BYTES: usize = 4096;

/// A rank's way to the meeting.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    address: Address,
    job: JobId,
    ranks: usize,
    key: Key,
    host: String,
    silence: Option<Duration>,
    hosted_by: Option<Rank>,
}

impl Rendezvous {
    /// The meeting of `ranks` ranks at `address`, for holders of `key`, which was made for their job alone.
    pub fn new(address: Address, ranks: usize, key: Key) -> Rendezvous {
        Rendezvous {
            address,
            job: JobId::of_key(&key),
            ranks,
            key,
            host: environment::host_identity(),
            silence: Some(farandole_settings::HEARTBEAT_TIMEOUT.default_value()),
            hosted_by: None,
        }
    }

    /// The same for a rank of this job, where other jobs may have the same key.
    pub fn of_job(self, job: JobId) -> Rendezvous {
        Rendezvous { job, ..self }
    }

    /// The same for a rank on this host, where its identity is not what the machine says.
    pub fn on_host(self, host: impl Into<String>) -> Rendezvous {
        Rendezvous { host: host.into(), ..self }
    }

    /// The same where it is known which rank hosts the meeting: should nobody answer, it is that one who has not come.
    pub fn kept_by(self, rank: Rank) -> Rendezvous {
        Rendezvous { hosted_by: Some(rank), ..self }
    }

    /// The same with another limit for the silence of either side of a lifeline; `None`: no heartbeats.
    pub fn with_silence(self, silence: Option<Duration>) -> Rendezvous {
        Rendezvous { silence, ..self }
    }

    /// Brings this rank's message and waits, until the deadline, for those of all ranks. They come in rank order. Time
    /// in which this process is stopped does not count.
    pub fn exchange(&self, rank: Rank, blob: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let (_, _, blobs) = self.meet(rank, blob, &Stay::No, &Countdown::until(deadline))?;
        Ok(blobs)
    }

    /// The same, and keeps the connection: from now on either side notices when the other is gone.
    pub fn join(&self, rank: Rank, blob: &[u8], deadline: Instant) -> Result<(Vec<Vec<u8>>, Lifeline)> {
        let stay = Stay::Yes { silence: self.silence, pid: std::process::id(), host: self.host.clone() };
        let (channel, server_process, blobs) = self.meet(rank, blob, &stay, &Countdown::until(deadline))?;
        let channel = channel.into_polled().map_err(|error| Error::local("keeping a lifeline", error))?;
        let lifeline = Lifeline::start(channel, server_process, self.host.clone(), self.silence)?;
        Ok((blobs, lifeline))
    }

    fn meet(
        &self,
        rank: Rank,
        blob: &[u8],
        stay: &Stay,
        deadline: &Countdown,
    ) -> Result<(Channel<Stream>, ServerProcess, Vec<Vec<u8>>)> {
        if blob.len() > MOST_BLOB_BYTES {
            return Err(Error::TooLong { bytes: blob.len(), most: MOST_BLOB_BYTES });
        }
        let began = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            let error = match self.visit(rank, blob, stay, deadline) {
                Ok((channel, reply)) => {
                    let (server_process, blobs) = self.understand(&reply, began.elapsed())?;
                    return Ok((channel, server_process, blobs));
                }
                Err(error) => error,
            };
            let at = self.address.to_string();
            match ChannelFault::of(&error) {
                Some(ChannelFault::Stranger | ChannelFault::NotAChannel) => return Err(Error::Untrusted { at }),
                Some(ChannelFault::Version { theirs }) => return Err(Error::Version { at, theirs: *theirs }),
                // Somebody who went away, or who is just starting: another attempt may do better.
                _ => {}
            }
            if deadline.left() <= pause {
                let address = match self.hosted_by {
                    Some(rank) => format!("{at}, which rank {rank} opens"),
                    None => at,
                };
                return Err(Error::Unreachable { address, waited: began.elapsed(), source: error });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn visit(
        &self,
        rank: Rank,
        blob: &[u8],
        stay: &Stay,
        deadline: &Countdown,
    ) -> io::Result<(Channel<Stream>, Vec<u8>)> {
        let patience = deadline.left();
        let stream = self.address.connect(patience)?;
        let answered = &Countdown::new(deadline.left() + ANSWER_PATIENCE);
        let channel = Channel::connect(stream, &self.key, ChannelPurpose::Rendezvous, rank.0, answered)?;
        let mut channel = channel.with_most_bytes(self.ranks * (MOST_BLOB_BYTES + 4) + ANSWER_BYTES);
        let (job, ranks) = (self.job, self.ranks as u32);
        let arrival = Arrival { job, ranks, patience, stay: stay.clone(), blob: blob.to_vec() };
        channel.send(&Up::Arrival(arrival).encode(), answered)?;
        match channel.receive(answered)? {
            Some(reply) => Ok((channel, reply)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn understand(&self, reply: &[u8], waited: Duration) -> Result<(ServerProcess, Vec<Vec<u8>>)> {
        match Down::decode(reply) {
            Some(Down::Everybody { server_process, blobs }) if blobs.len() == self.ranks => {
                Ok((server_process, Arc::try_unwrap(blobs).unwrap_or_else(|shared| shared.to_vec())))
            }
            Some(Down::Missing(ranks)) => Err(Error::Missing { ranks, waited }),
            Some(Down::Refused(why)) => Err(Error::Refused { why }),
            _ => {
                Err(Error::Refused { why: "its answer has another form: install the same farandole everywhere".into() })
            }
        }
    }
}
