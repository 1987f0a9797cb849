//! The ranks of this process's job as peers of its caches, by the sockets of `farandole_cluster::blocks`.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farandole_cluster::blocks::{BlockExchange, CurrentExchange};

use super::peers::{BlockPeers, PeerCaches};

/// Has caches follow the jobs of this process, from now on.
pub(super) fn follow_job(caches: &Arc<PeerCaches>) {
    let caches = Arc::clone(caches);
    CurrentExchange::of_this_process().watch(move |exchange| match exchange {
        Some(exchange) => caches.join(Arc::new(RankPeers(exchange))),
        None => caches.leave(),
    });
}

#[derive(Debug)]
struct RankPeers(Arc<BlockExchange>);

impl BlockPeers for RankPeers {
    fn own_rank(&self) -> usize {
        self.0.rank()
    }

    fn hosts(&self) -> &[String] {
        self.0.hosts()
    }

    fn serve(&self, caches: Weak<PeerCaches>) {
        let serving = self.0.serve(Arc::new(move |question| caches.upgrade()?.answer(question)));
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
        let answer = self.0.ask(rank, question, bytes, patience)?;
        Ok(answer.map(|answer| (answer.block, answer.on_its_way)))
    }
}
