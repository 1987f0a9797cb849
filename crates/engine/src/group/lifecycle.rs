//! How a group ends: in good order, or for a cause.
//!
//! A rank that wants to leave waits until the messages that it has sent were received. Then it says so to the agreement
//! (*closing*), which lets it go when no request is under way. When its own messages are done, it says goodbye and
//! *lingers*: it waits for the goodbyes of its peers, so that nobody takes the end of a connection for a failure. A
//! group that fails tells its peers the cause first, fails all requests, and lingers, too.

use std::sync::Arc;
use std::time::Duration;

use farandole_plan::{Rank, RankDeparture};
use farandole_transport::{ProcessId, ProcessState, Progress};

use super::control::SAYS_GOODBYE;
use super::{Group, State, TurnInput};
use crate::error::{Error, PeerLeft};
use crate::pending::Pending;

/// How long a rank that wants to leave waits for the others to agree. What has been agreed before still runs, so this
/// is longer than any bucket takes; a coordinator that is alive answers at once otherwise.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long a failed or closed group waits for its peers' last words.
const LINGER: Duration = Duration::from_secs(2);

/// The same after an abort handle that names no rank: some of the peers will never answer, and those that live have
/// heard it themselves. Long enough to let our own words out, short beside the time that a launcher gives ranks to end.
const ABORTED_LINGER: Duration = Duration::from_millis(200);

/// Longest time for which a failed group withholds tickets whose device memory a live peer may still store to. Longer
/// than a scheduling delay of a peer: its driver needs one turn. After that, the peer may be stopped: tickets resolve
/// without their memory, which is kept until this process exits.
const WITHHELD_AT_MOST: Duration = Duration::from_secs(10);

/// Between two polls of devices and peers after a failure. Peers do not ring when their streams are empty.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Requests of a failed group whose device memory a live peer may still store to (`exec::device::giving_up`).
#[derive(Debug, Default)]
pub(super) struct Withheld {
    requests: Vec<(Pending, Error)>,
    /// The end of waiting, while device memory is in use.
    until: Option<Duration>,
    next_poll: Duration,
}

/// How far leaving has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// This rank wants to, and waits for those who receive what it has sent.
    Wanted,
    /// It has asked the agreement.
    Asked,
    /// The ranks have agreed; messages between them may still be under way.
    Agreed,
}

impl Group {
    /// Wants to leave in good order; `departure` says why, if this rank leaves the job.
    pub(crate) fn close(&mut self, departure: Option<RankDeparture>, now: Duration) {
        if self.state == State::Open {
            self.state = State::Closing(now);
            self.leaving = Leaving::Wanted;
            self.departure = departure;
            self.ask_to_leave();
        }
    }

    /// Goes on with leaving, now that messages between ranks may be done. Says whether anything moved.
    pub(super) fn go_on_leaving(&mut self, turn: &TurnInput<'_>) -> bool {
        match self.leaving {
            Leaving::No | Leaving::Asked => false,
            Leaving::Wanted => self.ask_to_leave(),
            Leaving::Agreed => {
                let is_idle = self.transfers.is_idle() && !self.trails();
                if is_idle {
                    self.say_goodbye(turn);
                }
                is_idle
            }
        }
    }

    fn ask_to_leave(&mut self) -> bool {
        // What a device computes for others is still to come.
        let all_received = self.transfers.all_received() && self.computing.is_empty() && !self.trails();
        if all_received {
            self.leaving = Leaving::Asked;
            self.member.close(self.departure.take());
        }
        all_received
    }

    /// Whether something is queued on a device that was not seen done. A communicator of NCCL's ends in order only
    /// after that.
    fn trails(&self) -> bool {
        self.device.as_ref().is_some_and(|device| !device.trailing.is_empty())
    }

    /// The ranks have agreed that the group ends.
    pub(super) fn agree_to_leave(&mut self, turn: &TurnInput<'_>) {
        if self.state == State::Open {
            self.state = State::Closing(turn.now);
        }
        self.leaving = Leaving::Agreed;
        self.go_on_leaving(turn);
    }

    /// Whether waiting for an orderly end has become pointless: the coordinator does not answer.
    pub(super) fn cannot_close(&self, now: Duration) -> bool {
        matches!(self.state, State::Closing(since) if now >= since + CLOSE_LIMIT)
    }

    /// Whether the group is over and the mesh can be dropped.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        let State::Ended(until) = self.state else { return false };
        if self.withheld.until.is_some() {
            return false;
        }
        let all_left = (0..self.here.size).all(|rank| rank == self.here.me.index() || self.left[rank]);
        (all_left && !self.unflushed) || now >= until
    }

    pub(super) fn refuse(&mut self, refused: Vec<(Pending, Arc<str>)>, turn: &TurnInput<'_>) {
        turn.tensor_table.leave(self.id(), refused.iter().map(|(pending, _)| &pending.name));
        for (pending, explanation) in refused {
            self.record.failed(&pending, turn.now);
            let error = match self.state {
                State::Open if !self.member.is_closed() => {
                    Error::Refused { name: Arc::clone(&pending.name), explanation }
                }
                _ => self.end_error(),
            };
            pending.fail(error);
        }
    }

    pub(super) fn say_goodbye(&mut self, turn: &TurnInput<'_>) {
        self.state = State::Ended(turn.now + LINGER);
        let error = self.end_error();
        turn.tensor_table.end(self.id(), &error);
        for pending in self.table.take_all().chain(self.computing.take_all()) {
            pending.fail(error.clone());
        }
        self.transfers.fail_all(&error);
        for peer in self.mesh.peers_mut() {
            // A peer that cannot be told has left already.
            self.left[peer.rank.index()] |= peer.control.send(&[SAYS_GOODBYE]).is_err();
        }
        self.unflushed = true;
    }

    /// Why a group that ended in order carries out nothing more: another rank has left the job, or this one.
    pub(super) fn end_error(&self) -> Error {
        let me = self.settings.ranks[self.here.me.index()];
        let Some(departure) = self.member.departure().filter(|departure| departure.rank != me) else {
            return Error::ShutDown;
        };
        let left_by = || Arc::new(PeerLeft::new(departure.clone(), me, Arc::clone(self.record.recorder())));
        Error::PeerLeft(Arc::clone(self.left_by.get_or_init(left_by)))
    }

    /// After the end: lets the last words out and waits for those of the peers.
    pub(super) fn linger(&mut self) -> bool {
        let mut moved = false;
        self.unflushed = false;
        for peer in self.mesh.peers_mut() {
            let left = &mut self.left[peer.rank.index()];
            let flushed = peer.control.flush();
            self.unflushed |= flushed.is_ok_and(|progress| progress != Progress::Done);
            while !*left {
                match peer.control.recv() {
                    Ok(Some(message)) => {
                        moved = true;
                        *left = message == [SAYS_GOODBYE];
                    }
                    Ok(None) => break,
                    Err(_) => *left = true,
                }
            }
        }
        moved
    }

    /// Fails all requests under way, also those of a bucket that was being completed. Withholds those whose memory a
    /// live peer may still store to.
    pub(crate) fn fail_requests(&mut self, error: &Error, now: Duration) {
        let mut failed = Vec::new();
        while let Some((mut pending, outcome)) = self.done.pop() {
            (pending.input, pending.output) = (outcome.input, outcome.output);
            failed.push(pending);
        }
        for pending in self.table.take_all().chain(self.computing.take_all()) {
            self.record.failed(&pending, now);
            failed.push(pending);
        }
        for pending in failed {
            if self.withheld.until.is_some() && pending.is_on_device() {
                self.withheld.requests.push((pending, error.clone()));
            } else {
                pending.fail(error.clone());
            }
        }
        self.transfers.fail_all(error);
    }

    /// Gives device memory back when no device uses it any more. Says whether anything moved.
    pub(super) fn release_withheld(&mut self, now: Duration) -> bool {
        let (Some(until), Some(device)) = (self.withheld.until, &mut self.device) else { return false };
        let mut gone = vec![false; self.here.size];
        for peer in self.mesh.peers_mut() {
            let is_lost = self.lost[peer.rank.index()];
            gone[peer.rank.index()] = peer.control.has_closed() || is_lost && has_exited(peer.process);
        }
        let (windows, is_gone) = (self.mesh.windows.as_ref(), |rank: Rank| gone[rank.index()]);
        if device.advance_giving_up(windows, is_gone) {
            self.withheld.requests.drain(..).for_each(|(pending, error)| pending.fail(error));
        } else if now >= until {
            let users = windows.map_or_else(Vec::new, |windows| device.users(windows, is_gone));
            let users: Vec<Rank> = users.into_iter().map(|rank| self.settings.ranks[rank.index()]).collect();
            log::warn!(
                "device memory of {} requests: in use by ranks {users:?} or by kernels of this rank {} s after the \
                 failure; it is not freed",
                self.withheld.requests.len(),
                WITHHELD_AT_MOST.as_secs()
            );
            device.let_all_go();
            self.withheld.requests.drain(..).for_each(|(pending, error)| pending.fail_without_memory(error));
        } else {
            self.withheld.next_poll = now + POLL_EVERY;
            return false;
        }
        self.withheld.until = None;
        true
    }

    /// When a group that has ended wants its next turn.
    pub(super) fn next_turn_after_end(&self, until: Duration) -> Duration {
        if self.withheld.until.is_some() { self.withheld.next_poll } else { until }
    }

    /// A world rank is lost: its last words are not waited for.
    pub(crate) fn expect_nothing_of(&mut self, world_rank: Rank) {
        if let Some(member) = self.settings.ranks.iter().position(|&rank| rank == world_rank) {
            self.left[member] = true;
            self.lost[member] = true;
        }
    }

    /// Nobody knows which peers will never answer: a group that has ended does not wait long for any.
    pub(crate) fn expect_little(&mut self, now: Duration) {
        if let State::Ended(until) = &mut self.state {
            *until = (*until).min(now + ABORTED_LINGER);
        }
    }

    /// Ends the group for this cause, on all ranks.
    pub(crate) fn fail(&mut self, error: &Error, turn: &TurnInput<'_>) {
        if let State::Ended(_) = self.state {
            return;
        }
        self.state = State::Ended(turn.now + LINGER);
        let active = self.active.take();
        turn.tensor_table.end(self.id(), error);
        let blamed = if let Error::Failed(failure) = error { failure.rank } else { None };
        self.mesh.abort(blamed, error.class(), &error.to_string());
        self.unflushed = true;
        // The others are told before this rank waits for its device.
        self.linger();
        drop(active);
        let mut nccl = self.nccl.take();
        // Whoever sees the results of what is given up here finds that the group has failed.
        if let Some(device) = &mut self.device {
            // What waits for other ranks in kernels of NCCL's goes on when its communicator is aborted.
            if let Some(nccl) = nccl.take_if(|_| !device.trailing.is_empty()) {
                nccl.give_up();
            }
            device.begin_giving_up(self.mesh.windows.as_ref());
            self.withheld.until = Some(turn.now + WITHHELD_AT_MOST);
        }
        // Mostly the peers have not heard of the failure yet, unless this rank has heard of it from them.
        self.release_withheld(turn.now);
        self.record.group_error(&error.to_string(), turn.now);
        self.fail_requests(error, turn.now);
        self.record.all_failed();
        self.linger();
        if let Some(nccl) = nccl {
            nccl.give_up();
        }
    }
}

/// Whether a peer that was reported lost has exited. A lost process may be stopped, and continue.
fn has_exited(process: Option<ProcessId>) -> bool {
    // Ranks that are threads of one process do not exit one by one.
    process.is_none_or(|process| process.is(&ProcessId::own()) || process.state() == Some(ProcessState::Gone))
}
