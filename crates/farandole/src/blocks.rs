//! Blocks of data sets among the ranks of a world: [`BlockShare`].
//!
//! Caches of remote objects in this process find the exchange by themselves (`farandole_cluster::blocks`). A program
//! that reads no remote data pays for two sockets, and no thread.

use std::net::SocketAddr;
use std::sync::Arc;

use farandole_cluster::RendezvousAccess;
use farandole_cluster::blocks::{BlockContact, BlockExchange, BlockListener, BlockPeer, CurrentExchange};

/// This process as one that gives its blocks to the other ranks and gets theirs. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct BlockShare(Arc<BlockExchange>);

/// Reserves where this rank would give blocks. None where that cannot be: it then neither gives nor asks.
pub(crate) fn reserve(host: &str, at: &[SocketAddr]) -> Option<BlockListener> {
    let reserved = BlockListener::reserve(host, at);
    reserved.inspect_err(|error| log::warn!("this rank shares no blocks of remote objects: {error}")).ok()
}

impl BlockShare {
    /// The share of this rank, in a job whose ranks have these contacts.
    pub(crate) fn join(
        rank: usize,
        contacts: Vec<BlockContact>,
        listener: BlockListener,
        access: &RendezvousAccess,
    ) -> BlockShare {
        let own = BlockPeer { key: access.key.clone(), job: access.job, rank };
        let exchange = Arc::new(BlockExchange::new(own, listener, contacts));
        CurrentExchange::of_this_process().set(Arc::clone(&exchange));
        BlockShare(exchange)
    }
}

impl Drop for BlockShare {
    fn drop(&mut self) {
        CurrentExchange::of_this_process().clear(&self.0);
    }
}
