//! Ranges of an object, in spite of errors that pass: [`Fetch`].
//!
//! A range is asked for with the content that is expected. When the answer breaks, the range from the first missing
//! byte on is asked for again, of the same content (`If-Match`), after a pause that doubles with each attempt that
//! brought nothing and is between a half and the whole of that by chance, so that many ranks do not come back at once.
//!
//! **Invariant:** the bytes that are handed out are those of one content of the object, each once, in their place. An
//! object that has changed is an error, never a mixture.
//!
//! What is deliberately not here: taking parts and waiting for the whole (`parts`), and words for people (`explain`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use futures_util::StreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};

use super::super::ObjectVersion;
use super::super::counters::{Count, StorageCounters};
use super::parts::{PartRead, Parts, Piece};
use super::patience::Patience;
use super::trouble::Trouble;

/// Why there are no bytes.
#[derive(Debug)]
pub(super) enum Failure {
    /// The store's error.
    Store(object_store::Error),
    /// The object has another content than before.
    Changed,
    /// The object ends at this byte, and that is within the range.
    Ends(u64),
    /// The server sends whole objects only, and this one has this many bytes.
    TooLarge(u64),
    /// An answer has fewer bytes than it promised.
    Short,
    /// Time is over.
    TimedOut,
}

/// A read of a range in parts, some of them at once.
pub(super) struct Fetch {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    pub(super) parts: Parts,
    pub(super) expected: Option<ObjectVersion>,
    pub(super) patience: Patience,
    pub(super) whole_bytes: u64,
    /// Whether the server was found to send whole objects only. Set by any read, for all later ones.
    pub(super) no_ranges: Arc<AtomicBool>,
    pub(super) counters: Arc<StorageCounters>,
}

impl Fetch {
    /// Notes that a server sends whole objects only, when it first shows.
    fn reads_whole_from_now_on(&self, failure: &Failure) -> bool {
        let shows = failure.trouble() == Some(&Trouble::NoRanges);
        if shows {
            self.no_ranges.store(true, Ordering::Relaxed);
        }
        shows
    }

    /// Asks once for what is missing, and hands out what arrives.
    async fn attempt(
        &self,
        at: &mut u64,
        end: u64,
        etag: &mut Option<String>,
        pieces: &Sender<Piece<Failure>>,
    ) -> Result<(), Failure> {
        let is_whole = self.no_ranges.load(Ordering::Relaxed);
        let range = (!is_whole).then_some(GetRange::Bounded(*at..end));
        let options = GetOptions { range, if_match: etag.clone(), ..GetOptions::default() };
        let got = self.store.get_opts(&self.path, options).await.map_err(Failure::Store)?;
        let version = version_of(&got.meta);
        if self.expected.is_some_and(|expected| !is_same(expected, version)) {
            return Err(Failure::Changed);
        }
        if got.meta.size < end {
            return Err(Failure::Ends(got.meta.size));
        }
        if is_whole && got.meta.size > self.whole_bytes {
            return Err(Failure::TooLarge(got.meta.size));
        }
        if etag.is_none() {
            etag.clone_from(&got.meta.e_tag);
            let _ = pieces.send(Piece::Version(version));
        }
        let mut skip = if is_whole { *at } else { 0 };
        let mut stream = got.into_stream();
        while *at < end {
            let Some(piece) = stream.next().await else { return Err(Failure::Short) };
            let mut piece = piece.map_err(Failure::Store)?;
            let skipped = skip.min(piece.len() as u64);
            skip -= skipped;
            piece = piece.slice(skipped as usize..);
            piece.truncate(usize::try_from(end - *at).unwrap_or(usize::MAX));
            if piece.is_empty() {
                continue;
            }
            let count = piece.len() as u64;
            self.counters.add(Count::BytesFetched, count);
            if pieces.send(Piece::Bytes(self.parts.place(*at), piece)).is_err() {
                return Err(Failure::TimedOut);
            }
            *at += count;
        }
        Ok(())
    }
}

impl PartRead for Fetch {
    type Failure = Failure;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn until(&self) -> Instant {
        self.patience.until
    }

    async fn part(&self, part: Range<u64>, pieces: &Sender<Piece<Failure>>) -> Result<(), Failure> {
        let Range { start: mut at, end } = part;
        let mut etag = None;
        let mut fruitless = 0;
        let mut last = None;
        loop {
            let before = at;
            let failure = match self.patience.within(self.attempt(&mut at, end, &mut etag, pieces)).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(failure)) => failure,
                // Slow, or kept by what kept the attempt before.
                None if at > before => return Err(Failure::TimedOut),
                None => return Err(last.unwrap_or(Failure::TimedOut)),
            };
            if self.reads_whole_from_now_on(&failure) {
                continue;
            }
            fruitless = if at > before { 0 } else { fruitless + 1 };
            match failure.may_pass().then(|| self.patience.pause(fruitless)).flatten() {
                Some(pause) => {
                    self.counters.count(Count::Retry);
                    log::debug!("{}, from byte {at} on, again in {pause:?}: {failure:?}", self.path);
                    last = Some(failure);
                    tokio::time::sleep(pause).await;
                }
                None => return Err(failure),
            }
        }
    }
}

impl Failure {
    /// Whether another attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Failure::Store(_) => self.trouble().is_some_and(Trouble::may_pass),
            Failure::Short => true,
            Failure::Changed | Failure::Ends(_) | Failure::TooLarge(_) | Failure::TimedOut => false,
        }
    }

    /// What went wrong on the way to the server, if that is it.
    pub(super) fn trouble(&self) -> Option<&Trouble> {
        match self {
            Failure::Store(error) => Trouble::within(error),
            _ => None,
        }
    }
}

/// The content that a store tells about.
pub(super) fn version_of(meta: &ObjectMeta) -> ObjectVersion {
    let tag = match &meta.e_tag {
        // Listings and answers differ in quotes.
        Some(etag) => hash(etag.trim_start_matches("W/").trim_matches('"').as_bytes()),
        // A web server that has no ETag has the time of the last change.
        None => hash(format!("{} {}", meta.last_modified.timestamp(), meta.size).as_bytes()),
    };
    ObjectVersion { bytes: meta.size, tag }
}

/// Whether two contents may be the same: a tag of 0 is not known.
pub(super) fn is_same(one: ObjectVersion, other: ObjectVersion) -> bool {
    one.bytes == other.bytes && (one.tag == other.tag || one.tag == 0 || other.tag == 0)
}

/// The first part of a hash; never 0, which stands for a content that nobody knows.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let first = hash.as_bytes().first_chunk().expect("invariant: a hash has 32 bytes");
    u64::from_le_bytes(*first).max(1)
}
