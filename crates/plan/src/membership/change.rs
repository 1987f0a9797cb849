//! The coordinator's part of a change: a ballot, from the first question to the decision.
//!
//! Everything is looked at anew after each input ([`Membership::consider`]), so there is no order in which answers,
//! losses and candidates have to come.
//!
//! **Invariant:** only the member that began a ballot decides it, and not after it has promised a higher one. So a
//! coordinator that takes part in a later ballot shows that its own was not decided.
//!
//! Not here: the proof that a base has one list (`super`), and the witness's side of a ballot (`witness`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::machine::{Membership, Stage};
use super::message::{Ballot, MemberMessage, Report, Vote, VoteKind};
use super::quorum::Quorum;
use super::{Generation, Introduction, MemberId, Waiting, WitnessAnswer, WitnessRequest};

/// A ballot that this member coordinates.
#[derive(Clone, Debug)]
pub(super) struct Change {
    ballot: Ballot,
    asked: BTreeSet<MemberId>,
    reports: BTreeMap<MemberId, Report>,
    witness: WitnessPart,
    proposal: Option<Proposal>,
    /// Two members that do not hear each other have time until then to meet.
    strangers_until: Option<Duration>,
}

/// What the coordinator of a tie knows of the witness.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WitnessPart {
    Unasked,
    Asked,
    /// It has promised; its last vote in this base.
    Promised(Option<Vote>),
}

/// What was proposed, and which processes have accepted.
#[derive(Clone, Debug)]
struct Proposal {
    vote: Vote,
    accepted: BTreeSet<MemberId>,
    witness_accepted: bool,
    /// Members of the base that were lost then.
    lost: Vec<MemberId>,
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
    AskWitness(Waiting),
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
            if self.has_lost_a_voter() || self.can_do_without_the_witness() {
                self.change = None;
                continue;
            }
            self.ask_those_who_came_back();
            if self.has_proposed() {
                match self.votes_to_come() {
                    Some(waiting) => return self.wait_for(waiting),
                    None => self.decide(now),
                }
            } else {
                match self.next(now) {
                    Next::Propose(vote) => self.propose(vote),
                    Next::AskWitness(waiting) => {
                        self.collect_from_witness();
                        return self.wait_for(waiting);
                    }
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
        let (asked, reports, witness) = (BTreeSet::new(), BTreeMap::new(), WitnessPart::Unasked);
        self.change = Some(Change { ballot, asked, reports, witness, proposal: None, strangers_until: None });
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
        if let Some(Proposal { vote, accepted, .. }) = &change.proposal {
            let wanted = vote.voters.iter().copied().chain(vote.generation.ids());
            for member in wanted.filter(|id| !accepted.contains(id)).collect::<BTreeSet<_>>() {
                messages.push((member, MemberMessage::Propose { base, vote: vote.clone() }));
            }
        }
        for (member, message) in messages.into_iter().filter(|(member, _)| is_meant(*member)) {
            self.send(member, message);
        }
    }

    /// Repeats what the witness has not answered.
    pub(super) fn ask_witness_again(&mut self) {
        let base = self.generation.number;
        let Some(change) = &self.change else { return };
        let request = match (&change.proposal, &change.witness) {
            (Some(Proposal { vote, witness_accepted: false, .. }), _) if vote.witness => {
                WitnessRequest::Propose { base, vote: vote.clone() }
            }
            (None, WitnessPart::Asked) => WitnessRequest::Collect { base, ballot: change.ballot },
            _ => return,
        };
        self.ask_witness(request);
    }

    fn collect_from_witness(&mut self) {
        let base = self.generation.number;
        let Some(change) = self.change.as_mut().filter(|change| change.witness == WitnessPart::Unasked) else { return };
        change.witness = WitnessPart::Asked;
        let request = WitnessRequest::Collect { base, ballot: change.ballot };
        self.ask_witness(request);
    }

    pub(super) fn take_witness_answer(&mut self, answer: WitnessAnswer, now: Duration) {
        let own = self.generation.number;
        match answer {
            WitnessAnswer::Report { base, ballot, vote } if base == own => {
                if let Some(change) = self.change.as_mut().filter(|change| change.ballot == ballot) {
                    change.witness = WitnessPart::Promised(vote);
                }
            }
            WitnessAnswer::Accepted { base, ballot } if base == own => {
                let change = self.change.as_mut().filter(|change| change.ballot == ballot);
                if let Some(proposal) = change.and_then(|change| change.proposal.as_mut()) {
                    proposal.witness_accepted = true;
                }
            }
            WitnessAnswer::Refused { base, promised } if base == own => self.take_refusal(promised, now),
            // Of another base: old, or the other half has continued, which its members will say.
            _ => {}
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
        if let Some(proposal) = change.and_then(|change| change.proposal.as_mut()) {
            proposal.accepted.insert(from);
        }
    }

    /// Somebody has promised a higher ballot than this member's.
    pub(super) fn take_refusal(&mut self, promised: Ballot, now: Duration) {
        if self.change.as_ref().is_some_and(|change| change.ballot < promised) {
            let own = Ballot { round: promised.round.max(self.promised.round), coordinator: self.promised.coordinator };
            self.yield_to(MemberId(promised.coordinator), own, now);
        }
    }

    fn proposal(&self) -> Option<&Proposal> {
        self.change.as_ref().and_then(|change| change.proposal.as_ref())
    }

    fn has_proposed(&self) -> bool {
        self.proposal().is_some()
    }

    /// Whether a member of the proposal is lost: a higher ballot goes without it.
    fn has_lost_a_voter(&self) -> bool {
        let Some(Proposal { vote, .. }) = self.proposal() else { return false };
        match vote.kind {
            VoteKind::First => vote.generation.ids().any(|id| self.is_lost(id)),
            VoteKind::Repeated => vote.voters.iter().any(|id| self.is_lost(*id)),
        }
    }

    /// Whether the vote of the witness is missing, and a member is back with which a higher ballot may not need it.
    fn can_do_without_the_witness(&self) -> bool {
        let Some(Proposal { vote, witness_accepted, lost, .. }) = self.proposal() else { return false };
        vote.witness && !witness_accepted && lost.iter().any(|id| !self.is_lost(*id))
    }

    /// Which votes are missing.
    fn votes_to_come(&self) -> Option<Waiting> {
        let Proposal { vote, accepted, witness_accepted, .. } = self.proposal()?;
        let missing = |id: &MemberId| *id != self.me && !accepted.contains(id);
        let votes: Vec<MemberId> = match vote.kind {
            // All voters are in the list.
            VoteKind::First => vote.generation.ids().filter(missing).collect(),
            VoteKind::Repeated => vote.voters.iter().copied().filter(missing).collect(),
        };
        if !votes.is_empty() {
            return Some(Waiting::Votes(votes));
        }
        let suspected = || self.generation.ids().filter(|id| !vote.voters.contains(id)).collect();
        let waits = vote.witness && !witness_accepted;
        waits.then(|| Waiting::Witness { present: vote.voters.len(), suspected: suspected() })
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
        let suspected = || base.ids().filter(|id| !present.contains(id) && !certain.contains(id)).collect();
        let witness = match Quorum::of(base.ids(), |id| present.contains(&id), |id| certain.contains(&id)) {
            Quorum::Majority => false,
            Quorum::Tie { .. } if base.witness => {
                if !matches!(change.witness, WitnessPart::Promised(_)) {
                    let (present, suspected) = (present.len(), suspected());
                    return Next::AskWitness(Waiting::Witness { present, suspected });
                }
                true
            }
            Quorum::Tie { has_first: true } => false,
            _ => return Next::Wait(Waiting::Majority { present: present.len(), suspected: suspected() }),
        };
        let voters: Arc<[MemberId]> = present.into();
        let ballot = change.ballot;
        match earlier(&reports().collect::<Vec<_>>(), &change.witness) {
            Earlier::Free => {}
            Earlier::Repeat(vote) => {
                let generation = Arc::clone(&vote.generation);
                return Next::Propose(Vote { ballot, generation, voters, kind: VoteKind::Repeated, witness });
            }
            Earlier::Ambiguous => {
                return Next::Wait(Waiting::Majority { present: present.len(), suspected: suspected() });
            }
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
        let (number, left_out) = (base.number + 1, self.left_out(present));
        let generation = Arc::new(Generation { number, members, left_out, witness: base.witness });
        Next::Propose(Vote { ballot, generation, voters, kind: VoteKind::First, witness })
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
        let lost = self.generation.ids().filter(|id| self.is_lost(*id)).collect();
        if let Some(change) = &mut self.change {
            let (accepted, witness_accepted) = (BTreeSet::new(), false);
            change.proposal = Some(Proposal { vote: vote.clone(), accepted, witness_accepted, lost });
        }
        for member in asked {
            self.send(member, MemberMessage::Propose { base, vote: vote.clone() });
        }
        if vote.witness {
            self.ask_witness(WitnessRequest::Propose { base, vote });
        }
    }

    fn decide(&mut self, now: Duration) {
        let Some(Proposal { vote, .. }) = self.change.take().and_then(|change| change.proposal) else { return };
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

/// What earlier ballots of the base leave to this one.
#[derive(Debug, PartialEq, Eq)]
enum Earlier<'a> {
    /// None of them was decided.
    Free,
    /// This one may have been.
    Repeat(&'a Vote),
    /// One of several may have been, with different lists.
    Ambiguous,
}

/// Finds the vote that may have been decided before. The module's text has the proof.
fn earlier<'a>(reports: &[(MemberId, &'a Report)], witness: &'a WitnessPart) -> Earlier<'a> {
    let promised = match witness {
        WitnessPart::Promised(vote) => Some(vote.as_ref()),
        WitnessPart::Unasked | WitnessPart::Asked => None,
    };
    let votes: Vec<&Vote> =
        reports.iter().filter_map(|(_, report)| report.vote.as_ref()).chain(promised.flatten()).collect();
    let mut open = votes.iter().filter(|vote| {
        let is_first = vote.kind == VoteKind::First;
        !(is_first && (is_refuted(vote, reports, promised) || votes.iter().any(|later| supersedes(later, vote))))
    });
    let Some(highest) = open.clone().max_by_key(|vote| vote.ballot) else { return Earlier::Free };
    match open.all(|vote| vote.generation == highest.generation) {
        true => Earlier::Repeat(highest),
        false => Earlier::Ambiguous,
    }
}

/// Whether an acceptor of a first vote has not voted for it, or its coordinator has not decided it, and never will.
fn is_refuted(vote: &Vote, reports: &[(MemberId, &Report)], witness: Option<Option<&Vote>>) -> bool {
    let has_not_voted = |last: Option<&Vote>| last.is_none_or(|last| last.ballot < vote.ballot);
    let refutes = |(member, report): &(MemberId, &Report)| match vote.voters.contains(member) {
        true => has_not_voted(report.vote.as_ref()) || member.0 == vote.ballot.coordinator,
        // Those whose loss is certain to a member have not voted without it.
        false => report.certain.iter().any(|certain| vote.voters.contains(certain)),
    };
    vote.witness && witness.is_some_and(has_not_voted) || reports.iter().any(refutes)
}

/// Whether the coordinator of a later ballot has heard an acceptor of the earlier one, and has chosen another list.
fn supersedes(later: &Vote, earlier: &Vote) -> bool {
    let have_common_acceptor =
        || later.witness && earlier.witness || later.voters.iter().any(|member| earlier.voters.contains(member));
    later.ballot > earlier.ballot && later.generation != earlier.generation && have_common_acceptor()
}
