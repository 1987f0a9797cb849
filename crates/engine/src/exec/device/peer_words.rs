//! How the devices of a host's ranks wait for each other, without their hosts: [`PeerWords`].
//!
//! A rank has a word for each peer, in its own segment of shared memory; the peer's stream writes it, and this rank's
//! stream waits for it. In each *round*, which is one bucket, a rank tells its peers twice: that its contribution is
//! there, and that it no longer uses memory of theirs. A word counts up, two for each round, so it is never reset.
//!
//! The invariant: a word is written by one peer and waited for by its owner alone. So a rank whose group has failed can
//! let its own streams go on ([`PeerWords::let_go`]) without telling anything untrue to the streams of others.

use std::fmt;
use std::sync::atomic::Ordering;

use farandole_device::{Device, Error, Result, Stream, Words};
use farandole_transport::shm::Windows;

/// Words between those of two peers: each has 16 bytes.
const STRIDE: usize = 4;

/// Further than any stream can be ahead, and near enough to be later when counted cyclically.
const FAR_AHEAD: u32 = 1 << 30;

/// The word by which a host tells those of its peers that it has given up; behind those of peers.
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
}

impl PeerWords {
    /// The words of a group's ranks on this host, for streams of a device.
    ///
    /// # Errors
    /// If there are more ranks than words, or the device's streams cannot wait for memory.
    pub(super) fn register(device: &Device, windows: &Windows) -> Result<PeerWords> {
        let words_each = windows.device_words(0).as_ref().len();
        if windows.size() * STRIDE > words_each.min(GIVEN_UP) {
            return Err(Error::Unavailable(format!("there are no words for {} ranks", windows.size())));
        }
        let register = |local_rank| device.words(Box::new(windows.device_words(local_rank)));
        let segments = (0..windows.size()).map(register).collect::<Result<Vec<Words>>>()?;
        Ok(PeerWords { me: windows.me(), segments, round: 0 })
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
    pub(super) fn tell(&self, stream: &Stream, told: Told) -> Result<()> {
        let peers = self.segments.iter().enumerate().filter(|&(local_rank, _)| local_rank != self.me);
        peers.into_iter().try_for_each(|(_, words)| stream.write_word(words, self.me * STRIDE, value(self.round, told)))
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

    /// Lets this rank's streams go on, whatever they wait for. The group has failed: what they do is void.
    pub(super) fn let_go(&self) {
        let words = &self.segments[self.me];
        let far_ahead = value(self.round, Told::Settled).wrapping_add(FAR_AHEAD);
        (0..self.segments.len()).for_each(|peer| words.set(peer * STRIDE, far_ahead));
    }
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
