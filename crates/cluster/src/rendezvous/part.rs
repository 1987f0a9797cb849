//! The rendezvous of one host's ranks, as the host's agent keeps it. For now: of a job on one host.

use std::time::Duration;

use farandole_plan::Rank;
use farandole_transport::Key;

use super::{Address, Server};
use crate::error::{Error, Result};

/// What has happened to a rank, as all others are told.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The rank, if it was one.
    pub rank: Option<Rank>,
    /// The host.
    pub host: Option<String>,
    /// The process.
    pub pid: Option<u32>,
    /// What happened, for programs.
    pub kind: VerdictKind,
    /// What happened, for people.
    pub text: String,
}

/// What has happened, for programs.
#[derive(Clone, Debug, PartialEq)]
pub enum VerdictKind {
    /// Its process ended with this code.
    Exited {
        /// The code.
        code: i32,
    },
    /// Its process was killed by this signal.
    Signalled {
        /// The signal.
        signal: i32,
    },
    /// Its process is stopped.
    Stopped,
    /// It has not been heard of.
    Silent,
    /// Its host has not been heard of.
    HostLost,
    /// The agent of its host is gone.
    AgentLost,
    /// The launcher is gone.
    LauncherLost,
    /// Something else.
    Other,
}

impl Verdict {
    /// The verdict as bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.text.clone().into_bytes()
    }

    /// The verdict that these bytes are.
    pub fn decode(bytes: &[u8]) -> Option<Verdict> {
        let text = String::from_utf8(bytes.to_vec()).ok()?;
        Some(Verdict { rank: None, host: None, pid: None, kind: VerdictKind::Other, text })
    }
}

/// What happens at a rendezvous.
#[derive(Debug)]
pub enum Event {
    /// All its ranks have come.
    Gathered(Vec<(Rank, Vec<u8>)>),
    /// A rank is not heard of.
    Silent {
        /// Which.
        rank: Rank,
        /// For how long.
        since: Duration,
    },
    /// A rank says whose fault its failure is.
    Blamed {
        /// Who says so.
        by: Rank,
        /// Whose.
        peer: Option<Rank>,
        /// Its words.
        cause: String,
    },
}

impl Server {
    /// Hosts the rendezvous of some of the ranks of a world.
    pub fn serve_part(
        at: &Address,
        world: usize,
        seats: &[Rank],
        key: &Key,
        _on_event: Box<dyn Fn(Event) + Send + Sync>,
    ) -> Result<Server> {
        if seats.len() != world {
            return Err(Error::Refused { why: "jobs of several hosts are not there yet".into() });
        }
        Server::serve(at, world, key)
    }

    /// Answers a gathered round.
    pub fn tell(&self, _messages: Vec<Vec<u8>>) {}

    /// Tells all ranks what has happened.
    pub fn pronounce(&self, _verdict: &Verdict) {}
}
