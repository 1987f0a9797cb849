//! The side of a rendezvous that the ranks come to, as whoever hosts it sees it.
//!
//! A [`Server`] serves all ranks of a job and decides everything itself ([`Server::serve`]), or those of one host and
//! tells its owner what happens ([`Server::serve_part`]), who answers with [`Server::tell`], [`Server::refuse`] and
//! [`Server::pronounce`]. In an elastic job the owner of each host's server ([`Server::serve_elastic`]) says when the
//! job begins and who has ended, and the server tells whoever comes later whom to call. All the work is done by one
//! thread (`server_loop`); this handle sends it commands.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farandole_plan::Rank;
use farandole_transport::descriptors::make_room;
use farandole_transport::{JobId, Key};

use super::address::Address;
use super::arrivals::Arrivals;
use super::generation::Generation;
use super::server_loop::{Rule, ServerLoop, Size};
use crate::error::{Error, Result};
use crate::failure_notice::FailureNotice;
use crate::live::JobState;
use crate::mailbox::Mailbox;

/// What the owner of a part is told. It is told on the server's thread and must not keep it waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousEvent {
    /// All ranks have arrived. They wait for [`Server::tell`].
    Gathered {
        /// How often the ranks have met before.
        epoch: u64,
        /// Their messages.
        blobs: Vec<(Rank, Vec<u8>)>,
    },
    /// A rank of a full table does not wait any more.
    Withdrawn {
        /// For which meeting it had come.
        epoch: u64,
        /// Who.
        rank: Rank,
    },
    /// A rank has waited for as long as it wanted to. It is told who is missing by [`Server::refuse`], or before long
    /// by the server itself, which knows who is missing here.
    Overdue {
        /// For which meeting it has come.
        epoch: u64,
        /// Who is missing here.
        missing: Vec<Rank>,
    },
    /// The answer to [`Server::count`].
    Missing {
        /// At which meeting.
        epoch: u64,
        /// Who has not come here.
        ranks: Vec<Rank>,
    },
    /// A rank's connection has ended without a goodbye: its process is dead or dying.
    Lost {
        /// Who.
        rank: Rank,
        /// What was seen of it.
        how: String,
    },
    /// A rank has sent nothing for longer than it promised.
    Silent {
        /// Who.
        rank: Rank,
        /// For how long.
        since: Duration,
    },
    /// A rank has left in order.
    Left {
        /// Who.
        rank: Rank,
    },
    /// Everything that a rank has said here is told: the answer to [`Server::drain`], whose process has ended.
    Drained {
        /// Who.
        rank: Rank,
    },
    /// A rank's collective has failed.
    Blamed {
        /// Whose.
        by: Rank,
        /// The peer that it saw fail, if it was one.
        peer: Option<Rank>,
        /// What it saw.
        cause: String,
    },
    /// A rank says what it is doing.
    Sampled {
        /// Who.
        rank: Rank,
        /// In the words of `farandole_trace::live`.
        sample: Vec<u8>,
    },
    /// A process of an elastic job has come before the job began. It waits for [`Server::found`].
    Entered {
        /// Its number.
        member: u64,
        /// What the others are to know of it.
        blob: Vec<u8>,
    },
    /// It does not wait any more.
    EntryWithdrawn {
        /// Its number.
        member: u64,
    },
    /// A member of an elastic job has entered a generation that no member has told of here, or with another list.
    Entering(Generation),
    /// A member of an elastic job asks the witness.
    WitnessAsked {
        /// Its number.
        member: u64,
        /// The question.
        question: Vec<u8>,
    },
}

/// Whom the owner of a part is told by.
pub type OnEvent = Box<dyn Fn(RendezvousEvent) + Send + Sync>;

/// Hosts a rendezvous, and watches over those who stay, for as long as it lives.
pub struct Server {
    address: Address,
    commands: Mailbox<Command>,
    /// The process that has the thread: a fork of it has a copy of this handle and hosts nothing.
    pid: u32,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Hosts the rendezvous of the `ranks` ranks of `job`, who hold `key`; ranks of other jobs may hold it, too. TCP is
    /// bound to exactly the given address. Publishes what the ranks do in `state`.
    pub fn serve(at: &Address, job: JobId, ranks: usize, key: &Key, state: Arc<JobState>) -> Result<Server> {
        let arrivals = Arrivals::new(job, ranks, (0..ranks).map(Rank::from));
        Server::start(at, arrivals, key, Rule::Whole(state), Size::Fixed)
    }

    /// Hosts the part of a rendezvous to which the ranks `local` come, of `world` in all. `key` was made for their job
    /// alone. `on_event` is told what happens.
    pub fn serve_part(at: &Address, world: usize, local: &[Rank], key: &Key, on_event: OnEvent) -> Result<Server> {
        let arrivals = Arrivals::new(JobId::of_key(key), world, local.iter().copied());
        Server::start(at, arrivals, key, Rule::Part(on_event), Size::Fixed)
    }

    /// Hosts the part of an elastic job's rendezvous to which the processes of this host come, whoever they are. `key`
    /// was made for their job alone. `on_event` is told what happens; numbers of members stand where ranks do.
    pub fn serve_elastic(at: &Address, key: &Key, on_event: OnEvent) -> Result<Server> {
        let arrivals = Arrivals::new(JobId::of_key(key), 0, std::iter::empty());
        Server::start(at, arrivals, key, Rule::Part(on_event), Size::Elastic)
    }

    fn start(at: &Address, arrivals: Arrivals, key: &Key, rule: Rule, size: Size) -> Result<Server> {
        let listening = |error| Error::local(format!("listening at {at}"), error);
        let ranks = arrivals.expected();
        make_room(ranks as u64, || format!("a rendezvous of {ranks} ranks"))
            .map_err(|error| listening(std::io::Error::other(error)))?;
        let (listener, address) = at.listen().map_err(listening)?;
        listener.set_nonblocking().map_err(listening)?;
        let commands = Mailbox::new().map_err(listening)?;
        let server_loop = ServerLoop::new(listener, arrivals, key.clone(), rule, size, commands.clone());
        let thread = std::thread::Builder::new()
            .name("rendezvous".into())
            .spawn(move || server_loop.run())
            .map_err(|e| Error::local("starting a thread", e))?;
        Ok(Server { address, commands, pid: std::process::id(), thread: Some(thread) })
    }

    /// Where ranks connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Answers the ranks of a gathered part with the messages of all ranks of the world, in rank order.
    pub fn tell(&self, blobs: Vec<Vec<u8>>) {
        self.commands.post(Command::Tell(blobs));
    }

    /// Answers the ranks that have waited here for as long as they wanted to that these ranks, here or elsewhere, did
    /// not come.
    pub fn refuse(&self, missing: Vec<Rank>) {
        self.commands.post(Command::Refuse(missing));
    }

    /// Asks who has not come; the answer is an event.
    pub fn count(&self) {
        self.commands.post(Command::Count);
    }

    /// Tells the owner whatever a rank, whose process has ended, has said before; then that this was all.
    pub fn drain(&self, rank: Rank) {
        self.commands.post(Command::Drain(rank));
    }

    /// Tells every rank that stays what has become of the job, and turns those away who still wait.
    pub fn pronounce(&self, notice: &FailureNotice) {
        self.commands.post(Command::Pronounce(notice.clone(), None));
    }

    /// Tells the ranks that have met in this epoch, and only these, why they cannot go on. They may meet again.
    pub fn pronounce_in(&self, epoch: u64, notice: &FailureNotice) {
        self.commands.post(Command::Pronounce(notice.clone(), Some(epoch)));
    }

    /// An elastic job begins with this generation: who waits and is in it is told so, everybody else whom to call.
    pub fn found(&self, generation: Generation) {
        self.commands.post(Command::Found(generation));
    }

    /// A generation of the job that a member on another host has entered, for candidates on this one.
    pub fn learn(&self, generation: Generation) {
        self.commands.post(Command::Learn(generation));
    }

    /// Nobody is left who could begin an elastic job: if it has not begun, all who wait or still come are refused.
    pub fn abandon(&self, why: &str) {
        self.commands.post(Command::Abandon(why.to_owned()));
    }

    /// Tells all other members on this host what has become of one of an elastic job, with the record of its votes if
    /// its agent has read it.
    pub fn lost(&self, member: u64, notice: &FailureNotice, votes: Option<Vec<u8>>) {
        self.commands.post(Command::Lost(member, notice.clone(), votes));
    }

    /// Passes on the answer of the witness to a member.
    pub fn answer_as_witness(&self, member: u64, answer: Vec<u8>) {
        self.commands.post(Command::AnswerAsWitness(member, answer));
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // The thread did not come along into this process.
            std::mem::forget(self.thread.take());
            return;
        }
        self.commands.post(Command::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Address::UnixPath(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What the server's thread is to do.
#[derive(Debug)]
pub(super) enum Command {
    Tell(Vec<Vec<u8>>),
    Refuse(Vec<Rank>),
    Count,
    Drain(Rank),
    /// To everybody, or to those of one epoch.
    Pronounce(FailureNotice, Option<u64>),
    Found(Generation),
    Learn(Generation),
    Abandon(String),
    Lost(u64, FailureNotice, Option<Vec<u8>>),
    AnswerAsWitness(u64, Vec<u8>),
    Close,
}
