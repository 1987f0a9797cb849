//! Members that fall silent, and members that blame a peer: when the server investigates, and what it tells whom.
//!
//! What follows from silence is judged in `liveness`. The owner of a part is told and decides itself.

use std::time::Instant;

use farandole_plan::Rank;
use farandole_transport::ProcessState;

use super::super::liveness::{Blame, SilenceAction, judge};
use super::super::message::Down;
use super::super::server::RendezvousEvent;
use super::{BLAME_PATIENCE, Connection, ConnectionId, LOOK_PATIENCE, Rule, ServerLoop, Stage};
use crate::failure_notice::{FailureKind, FailureNotice};

impl ServerLoop {
    /// A member has been silent for too long.
    pub(super) fn miss(&mut self, id: ConnectionId, now: Instant) {
        let Some(Connection { stage: Stage::Member(silent), .. }) = self.connections.get_mut(&id) else { return };
        let since = now.saturating_duration_since(silent.heard);
        let allowed = silent.silence.unwrap_or(since);
        silent.look_again = Some(now + LOOK_PATIENCE.min(allowed));
        let silent = silent.clone();
        match &self.rule {
            Rule::Part(on_event) => {
                on_event(RendezvousEvent::Silent { rank: silent.rank, since });
                self.stop_looking(id, now + allowed);
            }
            Rule::Whole(_) if silent.epoch < self.judged_before => self.stop_looking(id, now + allowed),
            Rule::Whole(_) if silent.host == self.server_process.host => {
                self.stop_looking(id, now + allowed);
                let notice = silent.notice_on(silent.process.state(), now);
                self.pronounce_in(silent.epoch, &notice);
            }
            Rule::Whole(_) => {
                let neighbours = self.members().filter(|(other, member)| *other != id && member.host == silent.host);
                match judge(&silent, neighbours, now) {
                    SilenceAction::Ask(neighbour) => {
                        if let Some(Connection { stage: Stage::Member(silent), .. }) = self.connections.get_mut(&id) {
                            silent.asked.push(neighbour);
                        }
                        self.say(neighbour, &Down::Look { rank: silent.rank, process: silent.process });
                    }
                    SilenceAction::Pronounce(notice) => {
                        self.stop_looking(id, now + allowed);
                        self.pronounce_in(silent.epoch, &notice);
                    }
                }
            }
        }
    }

    /// Enough was said about a silent member for now.
    fn stop_looking(&mut self, id: ConnectionId, until: Instant) {
        if let Some(Connection { stage: Stage::Member(silent), .. }) = self.connections.get_mut(&id) {
            silent.look_again = Some(until);
        }
    }

    /// A neighbour has looked at the process of a silent member.
    pub(super) fn take_sight(&mut self, rank: Rank, epoch: u64, state: Option<ProcessState>, now: Instant) {
        let silent =
            self.members().map(|(_, member)| member).find(|member| (member.rank, member.epoch) == (rank, epoch));
        // It may have been heard meanwhile.
        if let Some(silent) = silent.filter(|silent| !silent.asked.is_empty()).cloned() {
            self.pronounce_in(epoch, &silent.notice_on(state, now));
        }
    }

    pub(super) fn take_blame(&mut self, blame: Blame, epoch: u64, now: Instant) {
        match &self.rule {
            Rule::Part(on_event) => {
                on_event(RendezvousEvent::Blamed { by: blame.by, peer: blame.peer, cause: blame.cause });
            }
            Rule::Whole(_) if self.blame.is_none() && epoch >= self.judged_before && epoch + 1 == self.epoch => {
                self.blame = Some((now + BLAME_PATIENCE, blame));
            }
            Rule::Whole(_) => {}
        }
    }

    /// Nothing better has come to light than what a rank says of its peer.
    pub(super) fn believe(&mut self, blame: Blame, now: Instant) {
        let epoch = self.epoch.saturating_sub(1);
        let members = self.members().map(|(_, member)| member).filter(|member| member.epoch == epoch);
        let peer = members.into_iter().find(|member| Some(member.rank) == blame.peer);
        let seen =
            peer.filter(|peer| peer.host == self.server_process.host).and_then(|peer| match peer.process.state() {
                None | Some(ProcessState::Alive) => None,
                state => Some(peer.notice_on(state, now)),
            });
        // Words about the rank that it blames need no other name before them.
        let whole = blame.peer.filter(|peer| blame.cause.starts_with(&format!("rank {peer} ")));
        let believed = || match whole {
            Some(peer) => FailureNotice { text: blame.cause, ..FailureNotice::new(FailureKind::Other).on_rank(peer) },
            None => FailureNotice::new(FailureKind::Other).on_rank(blame.by).saying(blame.cause),
        };
        self.pronounce_in(epoch, &seen.unwrap_or_else(believed));
    }

    /// The first notice on an epoch, to its members.
    pub(super) fn pronounce_in(&mut self, epoch: u64, notice: &FailureNotice) {
        if epoch < self.judged_before {
            return;
        }
        self.judged_before = epoch + 1;
        self.blame = None;
        self.pronounce(notice, Some(epoch));
    }
}
