//! Blocks of data sets, from the cache of one rank to another rank of the job: [`BlockExchange`].
//!
//! Every rank tells at the rendezvous where it would answer ([`BlockListener`]), and answers from the moment on that it
//! has a cache ([`BlockExchange::serve`]); until then whoever connects is refused at once. A rank that wants a block
//! sends a *question* over a channel and waits for the *answer*: the block, or that it is not to be had. While the
//! other rank fetches the block, it says so several times a second; silence means that it is lost or stopped.
//! Channels stay open for the next question, for a while.
//!
//! **Invariant:** asking takes no longer than the caller's patience, or, of a rank that is lost or stopped, than the
//! limits below. A rank that asks too many at once, or something that is no question, loses its connection and nothing
//! else happens.
//!
//! What is deliberately not here: what questions and blocks are (bytes), whom to ask, whether that is worth while, and
//! what to do when there is no answer. `farandole-storage` decides all that.

mod client;
mod current;
mod server;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farandole_transport::{JobId, Key, ProcessId};

use self::client::Client;
pub use self::current::CurrentExchange;
use self::server::Server;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use self::wire::check_any_word;
use crate::peer_listener::PeerListener;

/// For a connection and its handshake. A rank that is well answers in milliseconds; one that does not is passed over,
/// and the block comes from storage.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(2);

/// A rank that fetches a block says so four times in this time; one that is silent for so long is lost or stopped.
const SILENCE: Duration = Duration::from_secs(2);

/// How often a rank that fetches a block says so.
const WAIT_WORD_EVERY: Duration = Duration::from_millis(500);

/// The longest question: a path of an object store has at most 1 KiB, one of a file system 4.
pub const MOST_QUESTION_BYTES: usize = 16 << 10;

/// How a block was got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockAnswer {
    /// The block.
    pub block: Vec<u8>,
    /// How long question and answer were on their way: without the time in which the connection was made, and in which
    /// the other rank fetched the block.
    pub on_its_way: Duration,
}

/// What answers questions: the block, or none if it is not to be had here. Called by threads of the exchange.
pub type Answer = Arc<dyn Fn(&[u8]) -> Option<Arc<Vec<u8>>> + Send + Sync>;

/// A rank, as others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockContact {
    /// Identity of its host.
    pub host: String,
    /// Where it answers ([`BlockListener::contact`]); empty if it does not.
    pub place: Vec<u8>,
}

/// A process as a side of the exchange.
#[derive(Clone, Debug)]
pub struct BlockPeer {
    /// The job's key.
    pub key: Key,
    /// Which job this is; others may have the same key.
    pub job: JobId,
    /// This rank.
    pub rank: usize,
}

/// Where a rank will answer. Nobody gets through before [`BlockExchange::serve`].
#[derive(Debug)]
pub struct BlockListener {
    listeners: Vec<PeerListener>,
    contact: Vec<u8>,
}

impl BlockListener {
    /// Reserves sockets on this host and at these addresses.
    ///
    /// # Errors
    /// If there is no descriptor or no port left.
    pub fn reserve(host: &str, at: &[SocketAddr]) -> io::Result<BlockListener> {
        let (listeners, contact) = PeerListener::reserve_all("blocks", host, at)?;
        Ok(BlockListener { listeners, contact })
    }

    /// What others need to know.
    pub fn contact(&self) -> &[u8] {
        &self.contact
    }
}

/// See the module's text. Dropping it ends all connections.
#[derive(Debug)]
pub struct BlockExchange {
    own: BlockPeer,
    hosts: Vec<String>,
    client: Client,
    server: Mutex<Serving>,
    /// The process that reserved the sockets. A forked child shares them.
    process: ProcessId,
}

#[derive(Debug)]
enum Serving {
    NotYet(BlockListener),
    Yes(#[expect(dead_code, reason = "dropping it ends it")] Server),
    No,
}

impl BlockExchange {
    /// The exchange of a job whose ranks have these contacts, in rank order.
    pub fn new(own: BlockPeer, listener: BlockListener, contacts: Vec<BlockContact>) -> BlockExchange {
        let hosts = contacts.iter().map(|contact| contact.host.clone()).collect();
        let (client, server) = (Client::new(own.clone(), contacts), Mutex::new(Serving::NotYet(listener)));
        BlockExchange { own, hosts, client, server, process: ProcessId::own() }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.own.rank
    }

    /// The identity of every rank's host, in rank order.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Answers the others' questions from now on. Later calls change nothing. A forked child does not answer: it shares
    /// the sockets of its parent, which would listen on after the exit of the child, and accept nothing.
    ///
    /// # Errors
    /// If no thread can be started or a socket cannot listen: the others are refused as before.
    pub fn serve(&self, answer: Answer) -> io::Result<()> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if self.process != ProcessId::own() {
            return Ok(());
        }
        match std::mem::replace(&mut *server, Serving::No) {
            Serving::NotYet(listener) => *server = Serving::Yes(Server::start(&self.own, listener.listeners, answer)?),
            before => *server = before,
        }
        Ok(())
    }

    /// Asks a rank for a block of so many bytes; `None` if it does not have it.
    ///
    /// # Errors
    /// If it cannot be reached, falls silent, or does not have the block within `patience`.
    pub fn ask(
        &self,
        rank: usize,
        question: &[u8],
        bytes: usize,
        patience: Duration,
    ) -> io::Result<Option<BlockAnswer>> {
        self.client.ask(rank, question, bytes, patience)
    }
}
