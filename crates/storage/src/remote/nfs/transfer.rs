//! Ranges of a file, in spite of errors that pass: [`Transfer`].
//!
//! A range is read in parts of what the server likes to send at once, some of them at the same time. When a connection
//! ends within an answer, the bytes of it that had arrived are used, and the next attempt asks for those behind them,
//! after a pause that doubles with each attempt that brought nothing.
//!
//! **Invariant:** the bytes that are handed out are those of one content of the file, each once, in their place. A file
//! that has changed is an error, never a mixture.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use bytes::Bytes;

use super::super::parts::{PartRead, Parts, Piece};
use super::super::patience::Patience;
use super::failure::Failure;
use super::protocol::{self, Attributes, FileKind, ReadBytes};
use super::rpc;
use super::server::Server;
use crate::ObjectVersion;
use crate::counters::{Count, StorageCounters};

/// A read of a range in parts, some of them at once.
pub(super) struct Transfer {
    server: Arc<Server>,
    path: String,
    parts: Parts,
    expected: ObjectVersion,
    patience: Patience,
    counters: Arc<StorageCounters>,
}

impl Transfer {
    pub(super) fn new(
        server: Arc<Server>,
        path: &str,
        range: Range<u64>,
        expected: ObjectVersion,
        patience: Patience,
        counters: Arc<StorageCounters>,
    ) -> Transfer {
        let parts = Parts::new(range, server.read_bytes());
        Transfer { server, path: path.to_owned(), parts, expected, patience, counters }
    }

    /// Asks once for what is missing, and hands out what arrives.
    async fn attempt(&self, at: &mut u64, end: u64, pieces: &Sender<Piece<Failure>>) -> Result<(), Failure> {
        let found = self.server.handle(&self.path).await?;
        if let Some(attributes) = found.attributes {
            self.check(&attributes)?;
        }
        let (got, failure) = match self.server.read(&found.handle, *at, end - *at).await {
            Ok(got) => (got, None),
            Err(Failure::Begun(failure, begun)) => match arrived(begun) {
                Some(got) => (got, Some(*failure)),
                None => return Err(*failure),
            },
            Err(failure) => return Err(failure),
        };
        match (&got.attributes, &failure) {
            (Some(attributes), _) => self.check(attributes)?,
            // Servers may leave them out; then they are asked for, after the bytes were read.
            (None, None) => self.check(&self.server.attributes(&found.handle).await?)?,
            (None, Some(failure)) => return Err(failure.clone()),
        }
        let mut bytes = got.bytes;
        bytes.truncate(usize::try_from(end - *at).unwrap_or(usize::MAX));
        let count = bytes.len() as u64;
        if count > 0 {
            self.counters.add(Count::BytesFetched, count);
            if pieces.send(Piece::Bytes(self.parts.place(*at), bytes)).is_err() {
                return Err(Failure::TimedOut);
            }
            *at += count;
        }
        match failure {
            Some(failure) => Err(failure),
            None if got.at_end && *at < end => Err(Failure::Ends(*at)),
            None if count == 0 => Err(Failure::Empty),
            None => Ok(()),
        }
    }

    fn check(&self, attributes: &Attributes) -> Result<(), Failure> {
        let is_same = attributes.kind == FileKind::File && attributes.version() == self.expected;
        if is_same { Ok(()) } else { Err(Failure::Changed) }
    }
}

impl PartRead for Transfer {
    type Failure = Failure;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn until(&self) -> Instant {
        self.patience.until
    }

    async fn part(&self, part: Range<u64>, pieces: &Sender<Piece<Failure>>) -> Result<(), Failure> {
        let Range { start: mut at, end } = part;
        let mut fruitless = 0;
        // All calls share a connection: what breaks is the answer of one of them, and the others bring nothing without
        // any fault of their own.
        let mut of_all = self.counters.look().bytes_fetched;
        let mut last = None;
        while at < end {
            let before = at;
            let failure = match self.patience.within(self.attempt(&mut at, end, pieces)).await {
                Some(Ok(())) => {
                    last = None;
                    continue;
                }
                Some(Err(failure)) => failure,
                // Slow, or kept by what kept the attempt before.
                None if at > before => return Err(Failure::TimedOut),
                None => return Err(last.unwrap_or(Failure::TimedOut)),
            };
            if failure.is_stale() {
                self.server.forget_handles();
            }
            let others = std::mem::replace(&mut of_all, self.counters.look().bytes_fetched);
            let is_fruitful = at > before || failure.is_about_connection() && of_all > others;
            fruitless = if is_fruitful { 0 } else { fruitless + 1 };
            let pause = failure.may_pass().then(|| self.patience.pause(fruitless)).flatten();
            let Some(pause) = pause else { return Err(failure) };
            self.counters.count(Count::Retry);
            log::debug!("{}, from byte {at} on, again in {pause:?}: {failure:?}", self.path);
            last = Some(failure);
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}

/// The bytes of a file in the beginning of an answer; none if it ends before them, or is a refusal.
fn arrived(begun: Bytes) -> Option<ReadBytes> {
    let results = rpc::results(begun).ok()?;
    protocol::read_bytes(results).ok()?.ok().filter(|got| !got.bytes.is_empty())
}

/// Repeats an attempt until it succeeds or patience ends; then the failure is that of the last one that ended.
pub(super) async fn insist<T, F>(
    server: &Server,
    patience: Patience,
    counters: &StorageCounters,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut fruitless = 0;
    let mut last = None;
    loop {
        let failure = match patience.within(attempt()).await {
            Some(Ok(value)) => return Ok(value),
            Some(Err(failure)) => failure,
            None => return Err(last.unwrap_or(Failure::TimedOut)),
        };
        if failure.is_stale() {
            server.forget_handles();
        }
        fruitless += 1;
        let pause = failure.may_pass().then(|| patience.pause(fruitless)).flatten();
        let Some(pause) = pause else { return Err(failure) };
        last = Some(failure);
        counters.count(Count::Retry);
        tokio::time::sleep(pause).await;
    }
}
