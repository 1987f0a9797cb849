//! The coordinator's part of a change: a ballot, from the first question to the decision.
//!
//! Everything is looked at anew after each input ([`Membership::consider`]), so there is no order in which answers,
//! losses and candidates have to come.
//!
//! **Invariant:** only the member that began a ballot decides it, and not after it has promised a higher one. So a
//! coordinator that takes part in a later ballot shows that its own was not decided.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::machine::{Membership, Stage};
use super::message::{Ballot, MemberMessage, Report, Vote, VoteKind};
use super::quorum::may_decide;
use super::{Generation, Introduction, MemberId, Waiting};

/// A ballot that this member coordinates.
#[derive(Clone, Debug)]
pub(super) struct Change {
    ballot: Ballot,
    asked: BTreeSet<MemberId>,
    reports: BTreeMap<MemberId, Report>,
    /// What was proposed, and who has accepted.
    proposal: Option<(Vote, BTreeSet<MemberId>)>,
    /// Two members that do not hear each other have time until then to meet.
    strangers_until: Option<Duration>,
}

impl Change {
    /// When something is to be done although nothing has happened.
    pub(super) fn due(&self) -> Option<Duration> {
        self.strangers_until
    }
}

/// What a coordinator can do next.
enum Next {
    Propose(Vote),
    Wait(Waiting),
}

impl Membership {
    /// Does what this member can do for the next generation, if it is at the boundary.
    pub(super) fn consider(&mut self, now: Duration) {
        self.looked = now;
        self.settle_confirmations(now);
        while self.stage == Stage::Member && self.payload.is_some() {
            let coordinator = self.coordinator();
            if coordinator != self.me {
                self.change = None;
                return self.wait_for(Waiting::Coordinator(coordinator));
            }
            if self.change.is_none() {
                if self.yields.is_some_and(|(_, until)| now < until) {
                    return;
                }
                self.begin();
            }
            if self.has_lost_a_voter() {
                // Somebody who would be in it is lost: again, with a higher ballot.
                self.change = None;
                continue;
            }
            self.ask_those_who_came_back();
            if self.has_proposed() {
                match self.votes_to_come() {
                    votes if votes.is_empty() => self.decide(now),
                    votes => return self.wait_for(Waiting::Votes(votes)),
                }
            } else {
                match self.next(now) {
                    Next::Propose(vote) => self.propose(vote),
                    Next::Wait(waiting) => return self.wait_for(waiting),
                }
            }
        }
    }

    /// The first member that is not lost.
    pub(super) fn coordinator(&self) -> MemberId {
        let mut present = self.generation.ids().filter(|id| !self.is_lost(*id));
        present.next().expect("invariant: this member is in its generation, and not lost to itself")
    }

    fn is_lost(&self, member: MemberId) -> bool {
        member != self.me && self.peers.get(&member).is_none_or(|peer| peer.is_lost())
    }

    fn begin(&mut self) {
        let ballot = Ballot { round: self.promised.round + 1, coordinator: self.me.0 };
        (self.promised, self.yields) = (ballot, None);
        let (asked, reports) = Default::default();
        self.change = Some(Change { ballot, asked, reports, proposal: None, strangers_until: None });
    }

    /// Asks everybody who is not lost and was not asked in this ballot.
    fn ask_those_who_came_back(&mut self) {
        let generation = Arc::clone(&self.generation);
        let own = self.report();
        let present: Vec<MemberId> = generation.ids().filter(|id| *id != self.me && !self.is_lost(*id)).collect();
        let Some(change) = &mut self.change else { return };
        change.reports.insert(self.me, own);
        let ballot = change.ballot;
        let new: Vec<MemberId> = present.into_iter().filter(|id| change.asked.insert(*id)).collect();
        for member in new {
            self.send(member, MemberMessage::Collect { base: generation.number, ballot });
        }
    }

    /// Repeats what has not been answered: messages are lost with the connections that carried them.
    pub(super) fn ask_again(&mut self, is_meant: impl Fn(MemberId) -> bool) {
        let base = self.generation.number;
        let Some(change) = &self.change else { return };
        let mut messages = Vec::new();
        for member in &change.asked {
            let report = change.reports.get(member);
            if report.is_none_or(|report| report.payload.is_none()) {
                messages.push((*member, MemberMessage::Collect { base, ballot: change.ballot }));
            }
        }
        if let Some((vote, accepted)) = &change.proposal {
            let wanted = vote.voters.iter().copied().chain(vote.generation.ids());
            for member in wanted.filter(|id| !accepted.contains(id)).collect::<BTreeSet<_>>() {
                messages.push((member, MemberMessage::Propose { base, vote: vote.clone() }));
            }
        }
        for (member, message) in messages.into_iter().filter(|(member, _)| is_meant(*member)) {
            self.send(member, message);
        }
    }

    /// Somebody has come to the boundary whose report does not say so: perhaps it did not know this generation when it
    /// was asked.
    pub(super) fn ask_late_comer(&mut self, member: MemberId) {
        let Some(change) = &self.change else { return };
        let is_known = change.reports.get(&member).is_some_and(|report| report.payload.is_some());
        if change.asked.contains(&member) && !is_known {
            let (base, ballot) = (self.generation.number, change.ballot);
            self.send(member, MemberMessage::Collect { base, ballot });
        }
    }

    pub(super) fn take_report(&mut self, from: MemberId, ballot: Ballot, report: Report) {
        let Some(change) = self.change.as_mut().filter(|change| change.ballot == ballot) else { return };
        let dead = report.certain.clone();
        change.reports.insert(from, report);
        for member in dead {
            self.lose_dead(member, "its process has ended");
        }
    }

    pub(super) fn take_accepted(&mut self, from: MemberId, ballot: Ballot) {
        let change = self.change.as_mut().filter(|change| change.ballot == ballot);
        if let Some((_, accepted)) = change.and_then(|change| change.proposal.as_mut()) {
            accepted.insert(from);
        }
    }

    /// Somebody has promised a higher ballot than this member's.
    pub(super) fn take_refusal(&mut self, promised: Ballot, now: Duration) {
        if self.change.as_ref().is_some_and(|change| change.ballot < promised) {
            let own = Ballot { round: promised.round.max(self.promised.round), coordinator: self.promised.coordinator };
            self.yield_to(MemberId(promised.coordinator), own, now);
        }
    }

    fn has_proposed(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.proposal.is_some())
    }

    fn has_lost_a_voter(&self) -> bool {
        let Some((vote, _)) = self.change.as_ref().and_then(|change| change.proposal.as_ref()) else { return false };
        match vote.kind {
            VoteKind::First => vote.generation.ids().any(|id| self.is_lost(id)),
            VoteKind::Repeated => vote.voters.iter().any(|id| self.is_lost(*id)),
        }
    }

    fn votes_to_come(&self) -> Vec<MemberId> {
        let Some((vote, accepted)) = self.change.as_ref().and_then(|change| change.proposal.as_ref()) else {
            return Vec::new();
        };
        let missing = |id: &MemberId| *id != self.me && !accepted.contains(id);
        match vote.kind {
            // All voters are in the list.
            VoteKind::First => vote.generation.ids().filter(missing).collect(),
            VoteKind::Repeated => vote.voters.iter().copied().filter(missing).collect(),
        }
    }

    /// What follows from the reports.
    fn next(&mut self, now: Duration) -> Next {
        let beat = self.limits.beat();
        let mut present: Vec<MemberId> = self.generation.ids().filter(|id| !self.is_lost(*id)).collect();
        let change = self.change.as_mut().expect("invariant: a coordinator that looks at reports has begun");
        let silent: Vec<MemberId> = present.iter().copied().filter(|id| !change.reports.contains_key(id)).collect();
        if !silent.is_empty() {
            return Next::Wait(Waiting::Answers(silent));
        }
        match strangers(&present, &change.reports) {
            None => change.strangers_until = None,
            Some((one, other)) if now < *change.strangers_until.get_or_insert(now + beat) => {
                return Next::Wait(Waiting::Acquaintance(one, other));
            }
            Some(_) => {
                while let Some((_, later)) = strangers(&present, &change.reports) {
                    present.retain(|id| *id != later);
                }
            }
        }
        self.next_with(&present, now)
    }

    /// What follows from the reports of those who take part.
    fn next_with(&self, present: &[MemberId], now: Duration) -> Next {
        let change = self.change.as_ref().expect("invariant: a coordinator that looks at reports has begun");
        let base = &self.generation;
        let reports = || present.iter().filter_map(|id| Some((*id, change.reports.get(id)?)));
        let certain: BTreeSet<MemberId> = reports().flat_map(|(_, report)| &report.certain).copied().collect();
        if !may_decide(base.ids(), |id| present.contains(&id), |id| certain.contains(&id)) {
            let suspected = base.ids().filter(|id| !present.contains(id) && !certain.contains(id)).collect();
            return Next::Wait(Waiting::Majority { present: present.len(), suspected });
        }
        let voters: Arc<[MemberId]> = present.into();
        if let Some(vote) = vote_to_repeat(reports()) {
            let generation = Arc::clone(&vote.generation);
            return Next::Propose(Vote { ballot: change.ballot, generation, voters, kind: VoteKind::Repeated });
        }
        let absent: Vec<MemberId> =
            reports().filter(|(_, report)| report.payload.is_none()).map(|(id, _)| id).collect();
        if !absent.is_empty() {
            return Next::Wait(Waiting::Boundary(absent));
        }
        let members = self.next_members(&change.reports, present, now);
        if members.len() < self.limits.min_members {
            return Next::Wait(Waiting::Candidates { present: members.len(), needed: self.limits.min_members });
        }
        let generation = Arc::new(Generation { number: base.number + 1, members, left_out: self.left_out(present) });
        Next::Propose(Vote { ballot: change.ballot, generation, voters, kind: VoteKind::First })
    }

    /// Those who are present in their order, and as many candidates as there is room for, by number.
    fn next_members(
        &self,
        reports: &BTreeMap<MemberId, Report>,
        present: &[MemberId],
        now: Duration,
    ) -> Vec<Introduction> {
        let stays = |member: &&Introduction| present.contains(&member.id);
        let staying = self.generation.members.iter().filter(stays).map(|member| {
            let payload = reports.get(&member.id).and_then(|report| report.payload.clone()).unwrap_or_default();
            Introduction { payload, ..member.clone() }
        });
        let joining = self.lively_candidates(now).cloned();
        let most = self.limits.max_members.max(present.len());
        staying.chain(joining).take(most).collect()
    }

    fn left_out(&self, present: &[MemberId]) -> Vec<(MemberId, Arc<str>)> {
        let gone = self.generation.ids().filter(|id| !present.contains(id));
        let cause = |id: &MemberId| self.peers.get(id).and_then(|peer| peer.cause());
        gone.map(|id| (id, cause(&id).unwrap_or_else(|| "another member does not hear it".into()))).collect()
    }

    fn propose(&mut self, vote: Vote) {
        let base = self.generation.number;
        self.cast(vote.clone());
        let asked: BTreeSet<MemberId> = vote.voters.iter().copied().chain(vote.generation.ids()).collect();
        if let Some(change) = &mut self.change {
            change.proposal = Some((vote.clone(), BTreeSet::new()));
        }
        for member in asked {
            self.send(member, MemberMessage::Propose { base, vote: vote.clone() });
        }
    }

    fn decide(&mut self, now: Duration) {
        let Some((vote, _)) = self.change.take().and_then(|change| change.proposal) else { return };
        let generation = vote.generation;
        for member in vote.voters.iter().copied().chain(generation.ids()).collect::<BTreeSet<_>>() {
            let generation = Arc::clone(&generation);
            self.send(member, MemberMessage::Decided { generation });
        }
        if generation.contains(self.me) {
            self.install(generation, now);
        } else {
            self.be_evicted(&generation);
        }
    }
}

/// Two who take part, and one of whom does not hear the other; the earlier one first.
fn strangers(present: &[MemberId], reports: &BTreeMap<MemberId, Report>) -> Option<(MemberId, MemberId)> {
    let place = |member: MemberId| present.iter().position(|id| *id == member);
    let pairs = present.iter().enumerate().flat_map(|(at, id)| {
        let unheard = reports.get(id).map_or(&[][..], |report| &report.suspected);
        unheard.iter().filter_map(move |other| Some((at, place(*other)?)))
    });
    pairs.map(|(at, other)| (present[at.min(other)], present[at.max(other)])).next()
}

/// The vote that may have been decided before, if there is one: the one of the highest ballot, unless it is a first one
/// that was not accepted by everybody who takes part in both ballots, or whose coordinator is here and has not decided
/// it. Then no lower ballot was decided either, because its coordinator was free to choose.
fn vote_to_repeat<'a>(reports: impl Iterator<Item = (MemberId, &'a Report)> + Clone) -> Option<&'a Vote> {
    let votes = reports.clone().filter_map(|(_, report)| report.vote.as_ref());
    let highest = votes.max_by_key(|vote| vote.ballot)?;
    let refutes = |(member, report): (MemberId, &Report)| {
        let took_part = highest.voters.contains(&member);
        let voted = report.vote.as_ref().is_some_and(|vote| vote.ballot == highest.ballot);
        took_part && (!voted || member.0 == highest.ballot.coordinator)
    };
    let is_refuted = highest.kind == VoteKind::First && reports.clone().any(refutes);
    (!is_refuted).then_some(highest)
}
