//! Blocks of data sets among the ranks of a world: [`BlockShare`].
//!
//! Joins the caches of remote storage in this process (`farandole_storage::cache::peers`) with the sockets between
//! ranks (`farandole_cluster::blocks`), for as long as the world lasts. A program that reads no remote data pays for
//! two sockets, and no thread.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farandole_cluster::RendezvousAccess;
use farandole_cluster::blocks::{BlockExchange, BlockListener, BlockPeer};
use farandole_storage::cache::peers::{BlockPeers, PeerCaches};

/// This process as one that gives its blocks to the other ranks and gets theirs. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct BlockShare(Arc<dyn BlockPeers>);

/// Reserves where this rank would give blocks. None where that cannot be: it then neither gives nor asks.
pub(crate) fn reserve(host: &str, at: &[SocketAddr]) -> Option<BlockListener> {
    let reserved = BlockListener::reserve(host, at);
    reserved.inspect_err(|error| log::warn!("this rank shares no blocks of remote objects: {error}")).ok()
}

impl BlockShare {
    /// The share of this rank, in a job whose ranks are on these hosts and have these contacts.
    pub(crate) fn join(
        rank: usize,
        hosts: Vec<String>,
        contacts: Vec<Vec<u8>>,
        listener: BlockListener,
        access: &RendezvousAccess,
    ) -> BlockShare {
        let own = BlockPeer { key: access.key.clone(), job: access.job, host: hosts[rank].clone(), rank: rank as u32 };
        let exchange = BlockExchange::new(own, listener, contacts);
        let peers: Arc<dyn BlockPeers> = Arc::new(RankPeers { rank, hosts, exchange });
        PeerCaches::of_this_process().join(Arc::clone(&peers));
        BlockShare(peers)
    }
}

impl Drop for BlockShare {
    fn drop(&mut self) {
        PeerCaches::of_this_process().leave(&self.0);
    }
}

/// The other ranks, by their sockets.
#[derive(Debug)]
struct RankPeers {
    rank: usize,
    hosts: Vec<String>,
    exchange: BlockExchange,
}

impl BlockPeers for RankPeers {
    fn own_rank(&self) -> usize {
        self.rank
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn serve(&self, caches: Weak<PeerCaches>) {
        let serving = self.exchange.serve(Arc::new(move |question| caches.upgrade()?.answer(question)));
        if let Err(error) = serving {
            log::warn!("this rank gives no blocks of remote objects to others: {error}");
        }
    }

    fn ask(
        &self,
        rank: usize,
        question: &[u8],
        bytes: usize,
        patience: Duration,
    ) -> io::Result<Option<(Vec<u8>, Duration)>> {
        let answer = self.exchange.ask(rank, question, bytes, patience)?;
        Ok(answer.map(|answer| (answer.block, answer.on_its_way)))
    }
}
