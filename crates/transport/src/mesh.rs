//! All links of one rank within one group.
//!
//! For each peer there is a [`Control`] line and a [`Link`]; the ranks of this host may share [`Windows`] besides.
//! Groups do not share connections, so one group can never hold up another. How the connections come about is in
//! [`crate::connect`] (processes) and [`crate::memory`] (threads).

use std::time::{Duration, Instant};

use farandole_plan::{ErrorClass, Rank, Topology};

use crate::error::Error;
use crate::identity::ProcessId;
use crate::link::{Control, Link};
use crate::shm::Windows;
use crate::wait::Waiter;

/// One peer.
pub struct Peer {
    /// Its rank in the group.
    pub rank: Rank,
    /// Messages, and the news of its death.
    pub control: Box<dyn Control>,
    /// Data.
    pub link: Box<dyn Link>,
    /// Its process, if it is on the same host.
    pub process: Option<ProcessId>,
}

/// All peers of one rank within one group.
pub struct Mesh {
    me: Rank,
    topology: Topology,
    /// Indexed by rank; nothing at `me`.
    peers: Vec<Option<Peer>>,
    /// The shared memory of the ranks of this host, if there are several and they use it.
    pub windows: Option<Windows>,
    /// Whether the ranks of each host have one PID namespace. The same on all ranks.
    pub has_common_pids: bool,
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh").field("me", &self.me).field("size", &self.size()).finish_non_exhaustive()
    }
}

impl Mesh {
    /// A mesh of these peers, which are all ranks of the topology but `me`, in any order.
    pub fn new(me: Rank, topology: Topology, peers: Vec<Peer>) -> Mesh {
        let mut by_rank: Vec<Option<Peer>> = (0..topology.size()).map(|_| None).collect();
        assert_eq!(peers.len() + 1, by_rank.len(), "a mesh joins a rank to all others");
        for peer in peers {
            let place = &mut by_rank[peer.rank.index()];
            assert!(place.is_none() && peer.rank != me, "a mesh has one link to each peer");
            *place = Some(peer);
        }
        Mesh { me, topology, peers: by_rank, windows: None, has_common_pids: true }
    }

    /// Lets data for the ranks of this host go through shared memory.
    pub fn open_windows(&mut self, windows: Windows) {
        for local_rank in windows.peers() {
            let link = Box::new(windows.link(local_rank));
            self.peer_mut(windows.rank(local_rank)).link = link;
        }
        self.windows = Some(windows);
    }

    /// This rank.
    pub fn me(&self) -> Rank {
        self.me
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// Where the ranks are.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The peer with this rank. There is no peer with the rank of this mesh itself.
    pub fn peer_mut(&mut self, rank: Rank) -> &mut Peer {
        self.peers[rank.index()].as_mut().expect("a rank is not its own peer")
    }

    /// All peers, in the order of their ranks.
    pub fn peers_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.peers.iter_mut().flatten()
    }

    /// Replaces control line and link of every peer, for wrappers such as [`crate::fault`].
    pub fn map_peers(self, wrap: impl FnMut(Peer) -> Peer) -> Mesh {
        let mut wrap = wrap;
        Mesh { peers: self.peers.into_iter().map(|peer| peer.map(&mut wrap)).collect(), ..self }
    }

    /// Tells all peers why this rank gives up, of which class that is, and who is to blame if one can be named. Peers
    /// that cannot be told any more will notice by themselves.
    pub fn abort(&mut self, blamed: Option<Rank>, class: ErrorClass, cause: &str) {
        for peer in self.peers_mut() {
            let _ = peer.control.send_abort(blamed, class, cause);
        }
    }

    /// The first cause behind an error. A peer that gives up says why on its control line and then closes everything,
    /// so a link that breaks is often the second thing to be seen: this waits a little for the control lines to say
    /// more, and returns what they say, or the error itself. Messages that have not been taken yet are dropped: the
    /// mesh has failed.
    pub fn first_cause(&mut self, error: Error, waiter: &Waiter, patience: Duration) -> Error {
        if !matches!(error, Error::PeerGone { .. }) {
            return error;
        }
        let (began, accused) = (Instant::now(), error.peer());
        loop {
            let mut settled = false;
            for peer in self.peers_mut() {
                match last_word(&mut *peer.control) {
                    Some(aborted @ Error::PeerAborted { .. }) => return aborted,
                    Some(_) if Some(peer.rank) == accused => settled = true,
                    _ => {}
                }
            }
            let left = patience.saturating_sub(began.elapsed());
            if settled || left.is_zero() || waiter.wait(left).is_err() {
                return error;
            }
        }
    }
}

/// Reads a control line to the end of what is there now.
fn last_word(control: &mut dyn Control) -> Option<Error> {
    loop {
        match control.recv() {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some(error),
        }
    }
}
