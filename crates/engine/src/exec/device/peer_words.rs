//! How the devices of a host's ranks wait for each other, without their hosts: [`PeerWords`].
//!
//! A rank has a word for each peer, in its own segment of shared memory; the peer's stream writes it, and this rank's
//! stream waits for it. In each *round*, which is one bucket, a rank tells its peers twice: that its contribution is
//! there, and that it no longer uses memory of theirs. A word counts up, two for each round, so it is never reset.
//!
//! The invariant: a word is written by one peer and waited for by its owner alone. So a rank whose group has failed can
//! let its own streams go on ([`PeerWords::let_go`]) without telling anything untrue to the streams of others. When it
//! may is said in `giving_up`.

use std::fmt;
use std::sync::atomic::Ordering;

use farandole_device::{Device, Error, Result, Stream, Words};
use farandole_transport::shm::Windows;

/// Words between those of two peers: each has 16 bytes.
const STRIDE: usize = 4;

/// Further than any stream can be ahead, and near enough to be later when counted cyclically.
const FAR_AHEAD: u32 = 1 << 30;

/// Words by which a host tells its peers what came of a failure, behind those of streams: the last value that its
/// stream tells, whether its group has failed, and whether its streams are empty since.
const LAST_TOLD: usize = 509;
const FAILED: usize = 510;
const GIVEN_UP: usize = 511;

/// What a rank tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Its contribution is there.
    Exposed,
    /// It has done its share, and uses no memory of others any more.
    Settled,
}

/// See the module's text.
pub(super) struct PeerWords {
    me: usize,
    /// By local rank, the words in its segment.
    segments: Vec<Words>,
    round: u32,
    /// The last value that this rank's stream tells.
    last_told: u32,
}

impl PeerWords {
    /// The words of a group's ranks on this host, for streams of a device.
    ///
    /// # Errors
    /// If there are more ranks than words, or the device's streams cannot wait for memory.
    pub(super) fn register(device: &Device, windows: &Windows) -> Result<PeerWords> {
        let words_each = windows.device_words(0).as_ref().len();
        if windows.size() * STRIDE > words_each.min(LAST_TOLD) {
            return Err(Error::Unavailable(format!("there are no words for {} ranks", windows.size())));
        }
        let register = |local_rank| device.words(Box::new(windows.device_words(local_rank)));
        let segments = (0..windows.size()).map(register).collect::<Result<Vec<Words>>>()?;
        Ok(PeerWords { me: windows.me(), segments, round: 0, last_told: 0 })
    }

    /// Begins the next round, which all ranks do in the same order. Returns its number.
    pub(super) fn begin_round(&mut self) -> u32 {
        self.round = self.round.wrapping_add(1);
        self.round
    }

    /// Queues telling all peers.
    ///
    /// # Errors
    /// If the driver refuses, or the device has failed.
    pub(super) fn tell(&mut self, stream: &Stream, told: Told) -> Result<()> {
        let (me, value) = (self.me, value(self.round, told));
        // Also if the driver refuses: then some peers may be told.
        self.last_told = value;
        let peers = self.segments.iter().enumerate().filter(|&(local_rank, _)| local_rank != me);
        peers.into_iter().try_for_each(|(_, words)| stream.write_word(words, me * STRIDE, value))
    }

    /// Queues waiting until these ranks have told.
    ///
    /// # Errors
    /// As [`PeerWords::tell`].
    pub(super) fn wait_for(&self, stream: &Stream, ranks: &[usize], told: Told) -> Result<()> {
        let peers = ranks.iter().filter(|&&local_rank| local_rank != self.me);
        let words = &self.segments[self.me];
        peers.into_iter().try_for_each(|peer| stream.wait_word(words, peer * STRIDE, value(self.round, told)))
    }

    /// The first rank whose contribution to a round is not there.
    pub(super) fn first_behind(&self, round: u32) -> Option<usize> {
        let words = &self.segments[self.me];
        let is_behind =
            |&peer: &usize| peer != self.me && !words.has_reached(peer * STRIDE, value(round, Told::Exposed));
        (0..self.segments.len()).find(is_behind)
    }

    /// The last value that this rank's stream tells.
    pub(super) fn last_told(&self) -> u32 {
        self.last_told
    }

    /// Whether a peer's group has failed, and its stream has told this rank all that it ever will.
    pub(super) fn has_come_to_rest(&self, windows: &Windows, peer: usize) -> bool {
        let theirs = windows.device_words(peer);
        let theirs = theirs.as_ref();
        theirs[FAILED].load(Ordering::Acquire) != 0
            && self.segments[self.me].has_reached(peer * STRIDE, theirs[LAST_TOLD].load(Ordering::Relaxed))
    }

    /// Lets this rank's streams go on where they wait for a peer. The group has failed: what they do is void.
    pub(super) fn let_go(&self, peer: usize) {
        let far_ahead = value(self.round, Told::Settled).wrapping_add(FAR_AHEAD);
        self.segments[self.me].set(peer * STRIDE, far_ahead);
    }

    /// The same for all peers.
    pub(super) fn let_all_go(&self) {
        (0..self.segments.len()).for_each(|peer| self.let_go(peer));
    }
}

/// Tells the hosts of the other ranks that this rank's group has failed and what its stream tells last.
pub(super) fn note_failed(windows: &Windows, last_told: u32) {
    let words = windows.device_words(windows.me());
    let words = words.as_ref();
    words[LAST_TOLD].store(last_told, Ordering::Relaxed);
    // Releases the value above, which peers read after they have seen this.
    words[FAILED].store(1, Ordering::Release);
}

/// Tells the hosts of the other ranks that nothing of this one is left on a device.
pub(super) fn note_given_up(windows: &Windows) {
    windows.device_words(windows.me()).as_ref()[GIVEN_UP].store(1, Ordering::Release);
}

/// Whether a rank has told that.
pub(super) fn has_given_up(windows: &Windows, local_rank: usize) -> bool {
    windows.device_words(local_rank).as_ref()[GIVEN_UP].load(Ordering::Acquire) != 0
}

fn value(round: u32, told: Told) -> u32 {
    round.wrapping_mul(2).wrapping_add(if told == Told::Settled { 1 } else { 0 })
}

impl fmt::Debug for PeerWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerWords").field("me", &self.me).field("round", &self.round).finish_non_exhaustive()
    }
}
