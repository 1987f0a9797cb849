//! What one member knows of the ends of others: evidence, suspicion, and whose loss is certain.
//!
//! **Invariant:** the loss of a member is certain only if its process has ended or has left, and if it has not voted in
//! this base without this one. A vote without this member may be lost with a connection, so a stream proves this only
//! while it has no gap ([`Hearing`]), and a record always.
//!
//! Not here: what follows from a loss (`change`).

use std::sync::Arc;
use std::time::Duration;

use super::machine::{Membership, Stage};
use super::message::MemberMessage;
use super::peer::{Grade, Peer};
use super::{Loss, LossEvidence, MemberId, MembershipEffect, VoteRecord};

/// Ends of processes that are remembered: more than leave a job of usual size within a few generations. A process that
/// is forgotten only loses the certainty of its loss.
const MOST_DEPARTED: usize = 4096;

/// Whether a vote without this member may have been lost. It may have been while there is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// There is a new connection. The first message repeats what may have been lost, and has not arrived.
    Met,
    /// Everything was received since that first message.
    Complete,
}

/// The end of a process, as it was proved by a record.
#[derive(Clone, Debug)]
pub(super) struct Departed {
    pub(super) record: VoteRecord,
    pub(super) cause: Arc<str>,
}

impl Membership {
    /// Something was seen of somebody.
    pub fn learn(&mut self, member: MemberId, evidence: LossEvidence, cause: &str, now: Duration) {
        // A peer that is well is heard once in a heartbeat, or a little later.
        let soon = now + 2 * self.limits.beat();
        if self.stage == Stage::Over {
            return;
        }
        if evidence == LossEvidence::Broken {
            self.hearing.remove(&member);
        }
        if let LossEvidence::Reaped(record) = &evidence {
            self.note_departure(member, record.clone(), cause);
        }
        let Some(peer) = self.peers.get_mut(&member) else { return };
        if peer.candidate.is_some() && evidence != LossEvidence::Doubted {
            self.peers.remove(&member);
            return self.consider(now);
        }
        match evidence {
            LossEvidence::Ended => self.lose(member, Grade::Ended, cause),
            LossEvidence::Reaped(_) if peer.is_dead() => self.report_again(),
            LossEvidence::Reaped(_) | LossEvidence::Dead => self.lose(member, Grade::Dead, cause),
            LossEvidence::Broken | LossEvidence::Doubted => {
                peer.doubted.get_or_insert(soon);
            }
        }
        self.consider(now);
    }

    /// Whoever is in a later generation may have voted for it without this member.
    pub(super) fn note_generation(&mut self, from: MemberId, message: &MemberMessage) {
        let theirs = match message {
            MemberMessage::Decided { generation } => generation.number,
            other => other.base().unwrap_or_default(),
        };
        if theirs > self.generation.number {
            self.note_vote_without_me(from, theirs - 1);
        }
    }

    pub(super) fn note_vote_without_me(&mut self, from: MemberId, base: u64) {
        let highest = self.votes_without_me.entry(from).or_default();
        *highest = base.max(*highest);
    }

    /// Whether a process has ended of which it is known that it has not voted in this base without this member.
    pub(super) fn is_certainly_lost(&self, member: MemberId, peer: &Peer) -> bool {
        let base = self.generation.number;
        if self.departed.get(&member).is_some_and(|departed| departed.record.clears(self.me, base)) {
            return true;
        }
        let is_complete = self.hearing.get(&member) == Some(&Hearing::Complete);
        peer.was_read_to_its_end() && is_complete && !self.was_left_out_by(member)
    }

    /// Whether a member of this base has voted without this one.
    pub(super) fn was_left_out_by(&self, member: MemberId) -> bool {
        self.votes_without_me.get(&member).is_some_and(|base| *base >= self.generation.number)
    }

    pub(super) fn suspect_the_silent(&mut self, now: Duration) {
        let Some(silence) = self.limits.silence else { return self.suspect_the_doubted(now) };
        let too_long = |peer: &Peer| !peer.is_lost() && now.saturating_sub(peer.heard) >= silence;
        let silent: Vec<MemberId> = self.peers.iter().filter(|(_, peer)| too_long(peer)).map(|(id, _)| *id).collect();
        for member in silent {
            if self.is_candidate(member) {
                self.peers.remove(&member);
            } else {
                self.lose(
                    member,
                    Grade::Silent,
                    &format!("nothing was heard of it for {:.1} s", silence.as_secs_f64()),
                );
            }
        }
        self.suspect_the_doubted(now);
    }

    fn suspect_the_doubted(&mut self, now: Duration) {
        let overdue = |peer: &Peer| !peer.is_lost() && peer.doubted.is_some_and(|until| now >= until);
        let doubted: Vec<MemberId> = self.peers.iter().filter(|(_, peer)| overdue(peer)).map(|(id, _)| *id).collect();
        for member in doubted {
            self.lose(member, Grade::Silent, "its connection broke, and it was not heard of since");
        }
    }

    pub(super) fn note_departure(&mut self, member: MemberId, record: VoteRecord, cause: &str) {
        self.departed.entry(member).or_insert_with(|| Departed { record, cause: cause.into() });
        if self.departed.len() > MOST_DEPARTED {
            let generation = Arc::clone(&self.generation);
            let oldest = self.departed.keys().copied().find(|id| !generation.contains(*id));
            oldest.and_then(|id| self.departed.remove(&id));
        }
    }

    /// A member leaves in order. This is not a loss.
    pub(super) fn see_off(&mut self, member: MemberId, record: VoteRecord) {
        let cause = "it has left";
        self.note_departure(member, record, cause);
        let Some(peer) = self.peers.get_mut(&member) else { return };
        peer.loss = Some((Grade::Dead, cause.into()));
        self.yields = self.yields.filter(|(coordinator, _)| *coordinator != member);
        if self.stage == Stage::Member {
            self.be_called(member);
        }
        self.report_again();
    }

    /// A member is lost, or more is known about its loss.
    pub(super) fn lose_dead(&mut self, member: MemberId, cause: &str) {
        self.lose(member, Grade::Dead, cause);
    }

    pub(super) fn lose(&mut self, member: MemberId, grade: Grade, cause: &str) {
        let is_mine = self.stage == Stage::Member && self.generation.contains(member);
        let Some(peer) = self.peers.get_mut(&member) else { return };
        let before = peer.loss.as_ref().map(|(grade, _)| *grade);
        if before >= Some(grade) {
            return;
        }
        peer.doubted = None;
        let cause: Arc<str> = peer.cause().filter(|_| before > Some(Grade::Silent)).unwrap_or_else(|| cause.into());
        peer.loss = Some((grade, Arc::clone(&cause)));
        self.yields = self.yields.filter(|(coordinator, _)| *coordinator != member);
        if is_mine {
            let loss = if grade == Grade::Silent { Loss::Suspected } else { Loss::Certain };
            if before.is_none_or(|before| before == Grade::Silent) {
                self.effects.push(MembershipEffect::Lost { member, loss, cause });
            }
            self.report_again();
        }
    }
}
