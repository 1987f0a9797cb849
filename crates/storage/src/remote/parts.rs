//! A read of a range in parts, some of them at once: [`read_in_parts`].
//!
//! Tasks of the driver's thread, the lanes, take parts until none is left, and send what arrives; the thread that reads
//! copies it into its buffer. How a part is asked for, and how often, is up to the protocol ([`PartRead`]).
//!
//! **Invariant:** the read is over when all parts are, with the first failure, or at the end of its time; parts end
//! by themselves then.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use bytes::Bytes;

use super::GRACE;
use super::driver::Driver;
use crate::ObjectVersion;

/// What of a read arrives.
#[derive(Debug)]
pub(super) enum Piece<F> {
    /// The content that the bytes are of, where it was not known before.
    Version(ObjectVersion),
    /// Bytes, and where in the buffer they belong.
    Bytes(usize, Bytes),
    /// A lane is done.
    Done,
    /// A part cannot be had.
    Failed(F),
}

/// A range, and which of its parts are taken.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) range: Range<u64>,
    part_bytes: u64,
    /// The next part that no lane has taken. Lanes count it up.
    next: AtomicUsize,
}

/// A read that can ask for a part of its range.
pub(super) trait PartRead: Send + Sync + 'static {
    /// Why there are no bytes.
    type Failure: Send + 'static;

    fn parts(&self) -> &Parts;

    /// Until when it may take.
    fn until(&self) -> Instant;

    /// One part, with as many attempts as patience allows.
    fn part(
        &self,
        part: Range<u64>,
        pieces: &Sender<Piece<Self::Failure>>,
    ) -> impl Future<Output = Result<(), Self::Failure>> + Send;
}

impl Parts {
    pub(super) fn new(range: Range<u64>, part_bytes: u64) -> Parts {
        Parts { range, part_bytes: part_bytes.max(1), next: AtomicUsize::new(0) }
    }

    fn count(&self) -> usize {
        (self.range.end - self.range.start).div_ceil(self.part_bytes) as usize
    }

    fn take(&self) -> Option<Range<u64>> {
        let part = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let begin = self.range.start.saturating_add(part.saturating_mul(self.part_bytes));
        (begin < self.range.end).then(|| begin..self.range.end.min(begin.saturating_add(self.part_bytes)))
    }

    /// Where in the buffer a byte belongs.
    pub(super) fn place(&self, at: u64) -> usize {
        (at - self.range.start) as usize
    }
}

/// Reads the range into the buffer, and hands the contents that answers tell about to `seen`.
pub(super) fn read_in_parts<R: PartRead>(
    driver: &Driver,
    read: R,
    parts_at_once: usize,
    buffer: &mut [u8],
    seen: impl FnMut(ObjectVersion) -> Result<(), R::Failure>,
    timed_out: R::Failure,
) -> Result<(), R::Failure> {
    let read = Arc::new(read);
    let lanes = read.parts().count().min(parts_at_once.max(1));
    let (sender, pieces) = channel();
    let tasks: Vec<_> = (0..lanes).map(|_| driver.spawn(lane(Arc::clone(&read), sender.clone()))).collect();
    let result = gather(&pieces, lanes, read.until() + GRACE, buffer, seen).unwrap_or(Err(timed_out));
    if result.is_err() {
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
    result
}

/// Asks for parts until none is left.
async fn lane<R: PartRead>(read: Arc<R>, pieces: Sender<Piece<R::Failure>>) {
    while let Some(part) = read.parts().take() {
        if let Err(failure) = read.part(part, &pieces).await {
            // Whoever waits has another failure already if nobody listens.
            let _ = pieces.send(Piece::Failed(failure));
            return;
        }
    }
    let _ = pieces.send(Piece::Done);
}

/// Copies what arrives into the buffer, until all lanes are done; nothing if time is over before.
fn gather<F>(
    pieces: &Receiver<Piece<F>>,
    lanes: usize,
    until: Instant,
    buffer: &mut [u8],
    mut seen: impl FnMut(ObjectVersion) -> Result<(), F>,
) -> Option<Result<(), F>> {
    let mut done = 0;
    while done < lanes {
        match pieces.recv_timeout(until.saturating_duration_since(Instant::now())).ok()? {
            Piece::Bytes(at, bytes) => buffer[at..at + bytes.len()].copy_from_slice(&bytes),
            Piece::Version(version) => {
                if let Err(failure) = seen(version) {
                    return Some(Err(failure));
                }
            }
            Piece::Done => done += 1,
            Piece::Failed(failure) => return Some(Err(failure)),
        }
    }
    Some(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_once() {
        for (range, part_bytes) in [(0..10, 3), (7..8, 100), (5..5, 4), (u64::MAX - 5..u64::MAX, 2), (0..4, 0)] {
            let parts = Parts::new(range.clone(), part_bytes);
            let taken: Vec<Range<u64>> = std::iter::from_fn(|| parts.take()).collect();
            assert_eq!(taken.len(), parts.count(), "{range:?}");
            assert_eq!(taken.iter().map(|part| part.end - part.start).sum::<u64>(), range.end - range.start);
            assert!(taken.windows(2).all(|two| two[0].end == two[1].start), "{taken:?}");
            assert_eq!(taken.first().map(|part| part.start), (!range.is_empty()).then_some(range.start));
        }
    }
}
