//! How a block is fetched that is neither in memory nor on disk: from another rank of the job, or from the storage
//! behind, its *origin*.
//!
//! Who wants a block first asks the rank that fetches it for the whole job (`peers`), unless that is this one, or the
//! origin is faster. If the rank has no answer, the origin is read. Both are done by one thread of a process at a time,
//! and, where there is a disk, by one process of a host: others wait for it.
//!
//! **Invariant:** a rank that answers another one reads the origin and asks nobody, and on the way to the origin nobody
//! waits for a thread or a process that asks. So ranks never wait for each other in a circle, also when each of two
//! believes that the other one fetches the block.

use std::sync::Arc;
use std::time::Instant;

use super::super::StorageError;
use super::super::counters::Count;
use super::disk::{Found, LeaseKind, Leased};
use super::flights::Boarding;
use super::peers::{Block, Question};
use super::{AskPeers, Key, Shared, Span};

impl Shared {
    /// The whole block, fetched by this thread or by another one.
    pub(super) fn fetch(&self, key: Key, span: &Span) -> Result<Block, StorageError> {
        match self.flights.board(key) {
            Boarding::Fetch(duty) => {
                // It may have arrived since this thread looked.
                let block = self.memory.get(key).or_else(|| self.fetch_from_peer(key, span));
                let block = block.map_or_else(|| self.fetch_from_origin(key, span), Ok);
                duty.fulfil(block.clone());
                block
            }
            Boarding::Wait(flight) => {
                self.counters.count(Count::Wait);
                flight.wait(self.options.patience).unwrap_or_else(|| self.read_origin(key, span))
            }
        }
    }

    /// The block that another rank asks for, if this cache is of the same storage and has seen the same content.
    pub(super) fn answer(&self, question: &Question) -> Option<Block> {
        if question.storage != *self.identity.as_bytes() {
            return None;
        }
        let version = self.inner.version(&question.path).ok()?;
        let (key, span) = self.block(&question.path, version, question.number)?;
        if key.0 != question.key {
            return None;
        }
        let kept = self.memory.get(key).or_else(|| self.read_disk(key, &span));
        let block = kept.or_else(|| self.fetch_from_origin(key, &span).ok())?;
        self.counters.count(Count::ForPeer);
        Some(block)
    }

    fn fetch_from_peer(&self, key: Key, span: &Span) -> Option<Block> {
        let job = self.options.peers.as_ref()?.job()?;
        let storage = match self.options.ask_peers {
            AskPeers::WhereFaster => self.pace.seconds_per_byte(),
            AskPeers::Always => None,
        };
        let rank = job.whom_to_ask(key, self.disk.is_some(), storage)?;
        let lease = self.disk.as_ref().map(|disk| disk.lease(key, LeaseKind::Ask, self.options.patience));
        if let Some(Leased::Mine(_) | Leased::Arrived) = lease
            && let Some(block) = self.read_disk(key, span)
        {
            return Some(block);
        }
        let number = span.begin / self.options.block_bytes as u64;
        let question = Question { storage: *self.identity.as_bytes(), key: key.0, number, path: span.path.clone() };
        let block = job.ask(rank, &question, span.bytes, self.options.patience)?;
        self.counters.count(Count::FromPeer);
        Some(self.keep(key, block))
    }

    /// Reads a block from the origin, unless another thread or process does, or did.
    fn fetch_from_origin(&self, key: Key, span: &Span) -> Result<Block, StorageError> {
        match self.origin_flights.board(key) {
            Boarding::Fetch(duty) => {
                let block = self.memory.get(key).map_or_else(|| self.read_origin_for_host(key, span), Ok);
                duty.fulfil(block.clone());
                block
            }
            Boarding::Wait(flight) => {
                self.counters.count(Count::Wait);
                flight.wait(self.options.patience).unwrap_or_else(|| self.read_origin(key, span))
            }
        }
    }

    fn read_origin_for_host(&self, key: Key, span: &Span) -> Result<Block, StorageError> {
        let lease = self.disk.as_ref().map(|disk| disk.lease(key, LeaseKind::Read, self.options.patience));
        if let Some(Leased::Mine(_) | Leased::Arrived) = lease
            && let Some(block) = self.read_disk(key, span)
        {
            return Ok(block);
        }
        // The lease is kept until the block is on disk.
        self.read_origin(key, span)
    }

    fn read_origin(&self, key: Key, span: &Span) -> Result<Block, StorageError> {
        self.counters.count(Count::Miss);
        let mut block = vec![0; span.bytes];
        let began = Instant::now();
        self.inner.read_at(&span.path, span.begin, &mut block)?;
        self.pace.note(block.len(), began.elapsed());
        Ok(self.keep(key, block))
    }

    /// A whole block from disk, which is then in memory, too.
    fn read_disk(&self, key: Key, span: &Span) -> Option<Block> {
        let disk = self.disk.as_ref()?;
        let mut block = vec![0; span.bytes];
        if disk.read(key, span.bytes, 0..span.bytes, &mut block) != Found::Hit {
            return None;
        }
        self.counters.count(Count::DiskHit);
        let block = Arc::new(block);
        self.memory.insert(key, Arc::clone(&block));
        Some(block)
    }

    fn keep(&self, key: Key, block: Vec<u8>) -> Block {
        let block = Arc::new(block);
        self.memory.insert(key, Arc::clone(&block));
        if let Some(disk) = &self.disk {
            disk.write(key, &block);
        }
        block
    }
}
