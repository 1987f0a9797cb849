//! Where ranks meet before they know each other: every rank brings one message and takes home the messages of all.
//!
//! A [`Server`] hosts the meeting, in rank 0 or in the parent of all ranks, or one part of it on each host;
//! [`Rendezvous::exchange`] is a rank's visit, and [`Rendezvous::join`] one from which it keeps a [`Lifeline`]. All of
//! it travels over channels ([`crate::channel`]), so nothing of a stranger's is decoded. Everything has a limit:
//! messages of [`MOST_BLOB_BYTES`], a time for each visit, a number of connections. A visit ends with all messages or
//! with an error that names who did not come. What the messages say is not decided here.
//!
//! A visit costs a rank one message up and one down, however many ranks there are: the server gathers.
//!
//! Processes of an elastic job have numbers instead of ranks, and come and go while it runs: [`Rendezvous::enter`]. The
//! owner of the servers says when the job begins ([`Server::found`]); whoever comes later is told whom to call.

mod address;
mod arrivals;
mod generation;
mod lifeline;
mod liveness;
mod message;
mod server;
mod server_loop;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{Countdown, JobId, Key, ProcessId};

pub use address::Address;
pub use generation::{Entry, Generation};
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
use lifeline::Bond;
use message::{Arrival, Down, Enter, ServerProcess, Stay, Up};

/// Longest message of a rank: room for hundreds of addresses.
pub const MOST_BLOB_BYTES: usize = 64 << 10;

/// Pauses between attempts to connect grow from the first to the second: the host of the meeting may just be starting.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// The server answers at a rank's deadline; the answer gets this long to arrive.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// What an answer needs besides the ranks' messages: who keeps the rendezvous, or a reason.
const ANSWER_BYTES: usize = 4096;

/// Longest answer to a process of an elastic job, whose size is not known beforehand: thousands of members.
const MOST_ENTRY_BYTES: usize = 256 << 20;

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
        let (channel, server_process, blobs) = self.meet(rank, blob, &self.stay(), &Countdown::until(deadline))?;
        Ok((blobs, self.keep(channel, server_process, Bond::Job)?))
    }

    /// Comes as a process of an elastic job with this number, which no other process of the job ever has, and brings
    /// what the others are to know of it. Waits, until the deadline, for the job to begin, or is told at once whom to
    /// call if it has begun. Keeps the connection in either case.
    ///
    /// # Errors
    /// If the deadline passes before the job begins, or the rendezvous cannot be reached or turns this process away.
    pub fn enter(&self, member: u64, blob: &[u8], deadline: Instant) -> Result<(Entry, Lifeline)> {
        let (job, stay, until) = (self.job, self.stay(), Countdown::until(deadline));
        let (channel, reply) = self.call(member as u32, blob.len(), MOST_ENTRY_BYTES, &until, |patience| {
            Up::Enter(Enter { job, member, patience, stay: stay.clone(), blob: blob.to_vec() })
        })?;
        let (server_process, entry) = match Down::decode(&reply) {
            Some(Down::Founding { server_process, generation }) => (server_process, Entry::Founding(generation)),
            Some(Down::Seeds { server_process, blobs }) => (server_process, Entry::Joining { seeds: blobs }),
            other => return Err(turned_away(other)),
        };
        Ok((entry, self.keep(channel, server_process, Bond::Elastic)?))
    }

    /// Whom a candidate calls by now: what the members of the latest known generation have brought, in rank order.
    /// Waits until there is one. For candidates whose first seeds are all gone.
    ///
    /// # Errors
    /// As [`Rendezvous::enter`].
    pub fn seeds(&self, member: u64, deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let job = self.job;
        let ask = |patience| Up::AskSeeds { job, patience };
        let (_, reply) = self.call(member as u32, 0, MOST_ENTRY_BYTES, &Countdown::until(deadline), ask)?;
        match Down::decode(&reply) {
            Some(Down::Seeds { blobs, .. }) => Ok(blobs),
            other => Err(turned_away(other)),
        }
    }

    fn stay(&self) -> Stay {
        Stay::Yes { silence: self.silence, process: ProcessId::own(), host: self.host.clone() }
    }

    fn keep(&self, channel: Channel<Stream>, server_process: ServerProcess, bond: Bond) -> Result<Lifeline> {
        let channel = channel.into_polled().map_err(|error| Error::local("keeping a lifeline", error))?;
        Lifeline::start(channel, server_process, self.host.clone(), self.silence, bond)
    }

    fn meet(
        &self,
        rank: Rank,
        blob: &[u8],
        stay: &Stay,
        deadline: &Countdown,
    ) -> Result<(Channel<Stream>, ServerProcess, Vec<Vec<u8>>)> {
        let began = Instant::now();
        let most_bytes = self.ranks * (MOST_BLOB_BYTES + 4) + ANSWER_BYTES;
        let (job, ranks) = (self.job, self.ranks as u32);
        let arrive = |patience| Up::Arrival(Arrival { job, ranks, patience, stay: stay.clone(), blob: blob.to_vec() });
        let (channel, reply) = self.call(rank.0, blob.len(), most_bytes, deadline, arrive)?;
        let (server_process, blobs) = self.understand(&reply, began.elapsed())?;
        Ok((channel, server_process, blobs))
    }

    /// Says something to the server, which is told how long this process will wait, and waits for the answer. Until the
    /// deadline it calls again where nobody answers.
    fn call(
        &self,
        caller: u32,
        blob_bytes: usize,
        most_bytes: usize,
        deadline: &Countdown,
        say: impl Fn(Duration) -> Up,
    ) -> Result<(Channel<Stream>, Vec<u8>)> {
        if blob_bytes > MOST_BLOB_BYTES {
            return Err(Error::TooLong { bytes: blob_bytes, most: MOST_BLOB_BYTES });
        }
        let began = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            let error = match self.visit(caller, most_bytes, &say, deadline) {
                Ok(answered) => return Ok(answered),
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
        caller: u32,
        most_bytes: usize,
        say: &impl Fn(Duration) -> Up,
        deadline: &Countdown,
    ) -> io::Result<(Channel<Stream>, Vec<u8>)> {
        let patience = deadline.left();
        let stream = self.address.connect(patience)?;
        let answered = &Countdown::new(deadline.left() + ANSWER_PATIENCE);
        let channel = Channel::connect(stream, &self.key, ChannelPurpose::Rendezvous, caller, answered)?;
        let mut channel = channel.with_most_bytes(most_bytes);
        channel.send(&say(patience).encode(), answered)?;
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
            other => Err(turned_away(other)),
        }
    }
}

/// Why an answer is not the one that was hoped for.
fn turned_away(answer: Option<Down>) -> Error {
    Error::Refused {
        why: match answer {
            Some(Down::Refused(why)) => why,
            _ => "its answer has another form: install the same farandole everywhere".into(),
        },
    }
}
