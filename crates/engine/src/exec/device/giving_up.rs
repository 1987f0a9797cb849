//! How a rank whose group has failed gets its device memory back: [`GivingUp`].
//!
//! A peer that runs late may have a fold in its stream that stores to memory of this rank. That fold may wait for a
//! word of a dead rank, so it may run long after this rank has seen the failure. A program that gets an error may save
//! or restore its tensors at once. So memory is given back only when no live peer can store to it.
//!
//! 1. Each rank publishes that its group has *failed*, and the last value that its stream tells (`peer_words`). From
//!    then on its driver queues nothing.
//! 2. A rank sets the words of a peer ahead (*lets go*) only if that peer is gone, is quiet, or has failed and its
//!    stream has told its last value. So streams of live ranks complete in their order: an event behind a bucket still
//!    means that all live ranks have done their share of that bucket.
//! 3. A rank is *quiet* when its streams are empty, and publishes that.
//! 4. When all peers are gone or quiet, no device uses memory of this rank.
//!
//! Every step is a poll; the driver never waits. No rank waits for another one in a cycle: step 1 needs no peer, and in
//! step 2 the first bucket in the common order that a live stream has not completed waits only for words of ranks that
//! are gone, or that have failed without queueing it. Both are let go.
//!
//! A peer is gone when the kernel has closed its connection, or its process has exited. Its devices do nothing more.

use farandole_device::Event;
use farandole_plan::Rank;
use farandole_tensor::SharedOwner;
use farandole_transport::shm::Windows;

use super::{DevicePlane, PlaneWords, peer_words};

/// What a plane keeps from the failure of its group until its memory is free.
#[derive(Debug, Default)]
pub(super) struct GivingUp {
    /// Events behind everything that this rank has queued.
    last: Vec<Event>,
    /// Owners of memory that finished buckets have used.
    memory: Vec<SharedOwner>,
    is_quiet: bool,
    is_free: bool,
}

impl DevicePlane {
    /// The group has failed, and this rank queues nothing more.
    pub(crate) fn begin_giving_up(&mut self, windows: Option<&Windows>) {
        let mut giving_up = GivingUp::default();
        for opened in self.opened.values() {
            let streams = std::iter::once(&opened.stream).chain(&opened.returns);
            // A device that has failed does nothing more.
            giving_up.last.extend(streams.filter_map(|stream| stream.record().ok()));
        }
        if let Some(windows) = windows {
            let last_told = if let PlaneWords::On(_, words) = &self.words { words.last_told() } else { 0 };
            peer_words::note_failed(windows, last_told);
        }
        self.giving_up = Some(giving_up);
    }

    /// Does what can be done now. Says whether no device uses memory of this rank any more. `is_gone` says which peers
    /// have exited.
    pub(crate) fn advance_giving_up(&mut self, windows: Option<&Windows>, is_gone: impl Fn(Rank) -> bool) -> bool {
        let Some(giving_up) = &mut self.giving_up else { return self.trailing.is_empty() };
        if giving_up.is_free {
            return true;
        }
        let is_over =
            |windows: &Windows, peer: usize| is_gone(windows.rank(peer)) || peer_words::has_given_up(windows, peer);
        if let (PlaneWords::On(_, words), Some(windows)) = (&self.words, windows) {
            let peers = windows.peers().filter(|&peer| is_over(windows, peer) || words.has_come_to_rest(windows, peer));
            // At each poll: a stream of a peer may have overwritten a word since.
            peers.for_each(|peer| words.let_go(peer));
        }
        let all_done = self.trailing.take_ended(&mut giving_up.memory);
        giving_up.last.retain(|event| matches!(event.has_happened(), Ok(false)));
        if all_done && giving_up.last.is_empty() && !giving_up.is_quiet {
            giving_up.is_quiet = true;
            windows.into_iter().for_each(peer_words::note_given_up);
        }
        let no_peer_stores = || windows.is_none_or(|windows| windows.peers().all(|peer| is_over(windows, peer)));
        giving_up.is_free = giving_up.is_quiet && (self.opened.is_empty() || no_peer_stores());
        if giving_up.is_free {
            giving_up.memory.clear();
        }
        giving_up.is_free
    }

    /// The peers that may still store to memory of this rank.
    pub(crate) fn users(&self, windows: &Windows, is_gone: impl Fn(Rank) -> bool) -> Vec<Rank> {
        let peers = windows.peers().filter(|&peer| !peer_words::has_given_up(windows, peer));
        peers.map(|peer| windows.rank(peer)).filter(|&rank| !is_gone(rank)).collect()
    }

    /// Lets this rank's streams go on whatever they wait for, when waiting for peers has taken too long.
    pub(crate) fn let_all_go(&self) {
        if let PlaneWords::On(_, words) = &self.words {
            words.let_all_go();
        }
    }

    /// Keeps all memory that a device may still use until this process exits.
    pub(super) fn keep_for_good(&mut self) {
        let is_used = self.giving_up.as_ref().is_some_and(|giving_up| !giving_up.is_free);
        if is_used || !self.trailing.take_ended(&mut Vec::new()) {
            std::mem::forget(std::mem::take(&mut self.opened));
            std::mem::forget(std::mem::replace(&mut self.words, PlaneWords::Impossible));
            std::mem::forget(std::mem::take(&mut self.trailing));
            std::mem::forget(self.giving_up.take());
        }
    }
}
