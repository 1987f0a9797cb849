//! One member's side of the agreement: whom it hears, what it has promised and voted for, which generation it is in.
//!
//! The module's text (`super`) has the protocol. What a coordinator does besides is in `change`.
//!
//! **Invariant:** what was promised and voted for in a base is forgotten only when the next generation is installed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::change::Change;
use super::confirm::{ConfirmRefusal, Confirmation};
use super::message::{Ballot, MemberMessage, Place, Report, Vote};
use super::peer::{Grade, Peer};
use super::{Generation, Introduction, Limits, Loss, LossEvidence, MemberId, MembershipEffect, Waiting};

/// One member's side of the agreement. Time is awake time, counted from any fixed start.
#[derive(Clone, Debug)]
pub struct Membership {
    pub(super) me: MemberId,
    contact: Arc<[u8]>,
    pub(super) limits: Limits,
    pub(super) stage: Stage,
    /// The generation that this member is in; for a candidate the newest that it knows of, with number 0 at first.
    pub(super) generation: Arc<Generation>,
    /// The other members of the generation, and candidates.
    pub(super) peers: BTreeMap<MemberId, Peer>,
    /// What this member brings along, while it is at the boundary.
    pub(super) payload: Option<Arc<[u8]>>,
    /// No lower ballot gets an answer.
    pub(super) promised: Ballot,
    pub(super) vote: Option<Vote>,
    /// Who has asked last, and is told when the report changes.
    report_to: Option<MemberId>,
    /// What this member does as the coordinator.
    pub(super) change: Option<Change>,
    /// Another coordinator, whose ballot is higher, and until when this member does not begin one of its own.
    pub(super) yields: Option<(MemberId, Duration)>,
    /// The highest base in which somebody has voted without this member. Kept for strangers, too: they may be members
    /// of a generation of which this one does not know yet.
    votes_without_me: BTreeMap<MemberId, u64>,
    next_beat: Duration,
    /// Whether this member knows that somebody does not work in its generation any more.
    is_called: bool,
    /// When this member last considered what to do.
    pub(super) looked: Duration,
    pub(super) waiting: Option<Waiting>,
    /// Questions of this member whether it is still in the job, by nonce.
    pub(super) confirmations: BTreeMap<u64, Confirmation>,
    pub(super) effects: Vec<MembershipEffect>,
}

/// What a process is in the agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits to be in a generation.
    Candidate,
    /// It is in.
    Member,
    /// It has left, given up or was evicted.
    Over,
}

impl Membership {
    /// A member of a generation that all its members know already: the first one.
    pub fn member(me: MemberId, generation: Arc<Generation>, limits: Limits, now: Duration) -> Membership {
        let own = generation.rank(me).map(|rank| Arc::clone(&generation.members[rank].contact));
        let contact = own.expect("invariant: whoever founds a generation is in it");
        let peers = generation.ids().filter(|id| *id != me).map(|id| (id, Peer::new(now, None))).collect();
        Membership { generation, peers, ..Membership::start(me, contact, Stage::Member, limits, now) }
    }

    /// A process that wants to join. It has to be connected to some member, or to several.
    pub fn candidate(me: MemberId, contact: Arc<[u8]>, limits: Limits, now: Duration) -> Membership {
        Membership::start(me, contact, Stage::Candidate, limits, now)
    }

    fn start(me: MemberId, contact: Arc<[u8]>, stage: Stage, limits: Limits, now: Duration) -> Membership {
        Membership {
            me,
            contact,
            limits,
            stage,
            generation: Arc::new(Generation { number: 0, members: Vec::new(), left_out: Vec::new() }),
            peers: BTreeMap::new(),
            payload: None,
            promised: Ballot::default(),
            vote: None,
            report_to: None,
            change: None,
            yields: None,
            votes_without_me: BTreeMap::new(),
            next_beat: now,
            is_called: false,
            looked: now,
            waiting: None,
            confirmations: BTreeMap::new(),
            effects: Vec::new(),
        }
    }

    /// The number of this process.
    pub fn id(&self) -> MemberId {
        self.me
    }

    /// The generation that this member is in; for a candidate the newest that it knows of.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Whom this process should be connected to, and where they listen.
    pub fn contacts(&self) -> impl Iterator<Item = (MemberId, &Arc<[u8]>)> {
        let wanted =
            |id: &MemberId| self.stage != Stage::Over && self.peers.get(id).is_some_and(|peer| !peer.is_dead());
        self.generation.members.iter().map(|member| (member.id, &member.contact)).filter(move |(id, _)| wanted(id))
    }

    /// How many candidates the next generation would take in, as far as it is for this member to say: it lets in whom
    /// its coordinator hears. For everybody else there are none; or the job would go on to one generation after the
    /// other for a candidate that only some members hear.
    pub fn candidates(&self) -> usize {
        if self.stage != Stage::Member || self.coordinator() != self.me {
            return 0;
        }
        let room = self.limits.max_members.saturating_sub(self.generation.members.len());
        self.lively_candidates(self.looked).count().min(room)
    }

    /// Candidates that have not missed a heartbeat, by number: others are not waited for.
    pub(super) fn lively_candidates(&self, now: Duration) -> impl Iterator<Item = &Introduction> {
        let recently = self.limits.beat() * 2;
        let lively = self.peers.values().filter(move |peer| peer.was_heard_within(recently, now));
        lively.filter_map(|peer| peer.candidate.as_ref())
    }

    /// Whether this member waits for the next generation.
    pub fn is_at_boundary(&self) -> bool {
        self.payload.is_some()
    }

    /// Whether this process has left, given up or was evicted.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Whether nothing was heard of somebody for too long.
    pub fn suspects(&self, member: MemberId) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.is_lost() && !peer.is_dead())
    }

    /// What this member waits for at the boundary, as far as it knows.
    pub fn waiting(&self) -> Option<&Waiting> {
        self.waiting.as_ref()
    }

    /// What is to be done, in order.
    pub fn take_effects(&mut self) -> Vec<MembershipEffect> {
        std::mem::take(&mut self.effects)
    }

    /// When [`Membership::tick`] should be called, if nothing else happens before.
    pub fn due(&self) -> Option<Duration> {
        if self.stage == Stage::Over {
            return None;
        }
        let silence = self.limits.silence;
        let peers = self.peers.values().filter(|peer| !peer.is_lost());
        let suspicion = peers.filter_map(|peer| peer.doubted.into_iter().chain(silence.map(|s| peer.heard + s)).min());
        let begin = self.yields.map(|(_, until)| until);
        let settle = self.change.as_ref().and_then(Change::due);
        // What was due before the last look at the clock has been dealt with, and waits for something else.
        let ahead = begin.into_iter().chain(settle).filter(|due| *due > self.looked);
        suspicion.chain([self.next_beat]).chain(ahead).chain(self.confirmations_due()).min()
    }

    /// This member is at the boundary and waits for the next generation, to which it brings the payload.
    pub fn come(&mut self, payload: Arc<[u8]>, now: Duration) {
        if self.stage == Stage::Over {
            return;
        }
        self.payload = Some(payload);
        if self.stage == Stage::Candidate {
            self.wait_for(Waiting::Welcome);
            self.next_beat = now;
        }
        if self.stage == Stage::Member {
            // A coordinator that does not know that it is needed has to come, too.
            self.greet(self.coordinator());
        }
        self.report_again();
        self.consider(now);
    }

    /// This member leaves in order. It takes part no more.
    pub fn leave(&mut self) {
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            self.refuse_confirmations(&ConfirmRefusal::NotMember);
            self.broadcast(&MemberMessage::Leave);
        }
    }

    /// A connection to this process is new: everything that was sent before may be lost. The greeting repeats what must
    /// not be.
    pub fn meet(&mut self, peer: MemberId, now: Duration) {
        if self.stage == Stage::Over {
            return;
        }
        if self.stage == Stage::Candidate {
            // Whoever it is may be a member soon, and let this one join.
            self.peers.entry(peer).or_insert_with(|| Peer::new(now, None));
        }
        if let Some(known) = self.peers.get_mut(&peer) {
            known.has_gaps = false;
        }
        self.note_heard(peer, now);
        self.greet(peer);
        let left_out = self.vote.as_ref().is_some_and(|vote| !vote.voters.contains(&peer));
        if left_out && self.generation.contains(peer) {
            self.send(peer, MemberMessage::LeftOut { base: self.generation.number });
        }
        self.ask_again(|member| member == peer);
        self.repeat_confirm(|member| member == peer);
        if self.report_to == Some(peer) {
            self.report_again();
        }
        self.consider(now);
    }

    /// Something was seen of somebody.
    pub fn learn(&mut self, member: MemberId, evidence: LossEvidence, cause: &str, now: Duration) {
        // Whoever is well is heard once in a heartbeat, or a little later.
        let soon = now + 2 * self.limits.beat();
        let Some(peer) = self.peers.get_mut(&member).filter(|_| self.stage != Stage::Over) else { return };
        if peer.candidate.is_some() && evidence != LossEvidence::Doubted {
            self.peers.remove(&member);
            return self.consider(now);
        }
        match evidence {
            LossEvidence::Ended => self.lose(member, Grade::Ended, cause),
            LossEvidence::Dead => self.lose(member, Grade::Dead, cause),
            LossEvidence::Broken => {
                peer.has_gaps = true;
                peer.doubted.get_or_insert(soon);
            }
            LossEvidence::Doubted => {
                peer.doubted.get_or_insert(soon);
            }
        }
        self.consider(now);
    }

    /// A message has come.
    pub fn hear(&mut self, from: MemberId, message: MemberMessage, now: Duration) {
        if self.stage == Stage::Over {
            return;
        }
        self.note_heard(from, now);
        self.note_generation(from, &message);
        match self.stage {
            Stage::Candidate => self.hear_as_candidate(from, message, now),
            _ => self.hear_as_member(from, message, now),
        }
        self.consider(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        if self.stage == Stage::Over {
            return;
        }
        self.suspect_the_silent(now);
        if now >= self.next_beat {
            self.next_beat = now + self.limits.beat();
            let alive: Vec<MemberId> = self.peers.iter().filter(|(_, p)| !p.is_dead()).map(|(id, _)| *id).collect();
            alive.into_iter().for_each(|peer| self.greet(peer));
            self.ask_again(|_| true);
            self.repeat_confirm(|_| true);
        }
        self.consider(now);
    }

    fn note_heard(&mut self, from: MemberId, now: Duration) {
        if self.peers.get_mut(&from).is_some_and(|peer| peer.hear(now)) {
            self.report_again();
        }
    }

    fn hear_as_candidate(&mut self, from: MemberId, message: MemberMessage, now: Duration) {
        match message {
            MemberMessage::Propose { base, vote } if self.payload.is_some() && vote.generation.contains(self.me) => {
                self.send(from, MemberMessage::Accepted { base, ballot: vote.ballot });
            }
            MemberMessage::Decided { generation } if generation.number > self.generation.number => {
                if generation.contains(self.me) {
                    self.stage = Stage::Member;
                    return self.install(generation, now);
                }
                for id in generation.ids().filter(|id| *id != self.me) {
                    self.peers.entry(id).or_insert_with(|| Peer::new(now, None));
                }
                self.generation = generation;
                let members: Vec<MemberId> = self.generation.ids().collect();
                members.into_iter().for_each(|member| self.greet(member));
            }
            // Another candidate, who does not know yet that it is in, perhaps.
            MemberMessage::Join { generation, .. } if generation < self.generation.number => self.teach(from),
            MemberMessage::LeftOut { base } => self.note_vote_without_me(from, base),
            MemberMessage::Leave => self.see_off(from),
            _ => {}
        }
    }

    fn hear_as_member(&mut self, from: MemberId, message: MemberMessage, now: Duration) {
        let own = self.generation.number;
        match message.base() {
            Some(base) if base < own => return self.teach(from),
            // The answer to this shows that this member is behind.
            Some(base) if base > own => return self.greet(from),
            Some(_) if !self.generation.contains(from) && !self.is_candidate(from) => return self.teach(from),
            _ => {}
        }
        match message {
            MemberMessage::Heartbeat { place: Place::Training, .. } => {}
            MemberMessage::Heartbeat { place: Place::Boundary, .. } => {
                self.be_called(from);
                self.ask_late_comer(from);
            }
            MemberMessage::Join { generation, candidate } => self.take_candidate(from, generation, candidate, now),
            MemberMessage::Collect { ballot, .. } => self.promise(from, ballot, now),
            MemberMessage::Report { ballot, report, .. } => self.take_report(from, ballot, report),
            MemberMessage::Propose { vote, .. } => self.vote_for(from, vote, now),
            MemberMessage::Accepted { ballot, .. } => self.take_accepted(from, ballot),
            MemberMessage::LeftOut { base } => self.note_vote_without_me(from, base),
            MemberMessage::Refused { promised, .. } => self.take_refusal(promised, now),
            MemberMessage::Decided { generation } if generation.number > own => {
                if generation.contains(self.me) {
                    self.install(generation, now);
                } else {
                    self.be_evicted(&generation);
                }
            }
            MemberMessage::Decided { .. } => {}
            MemberMessage::Leave if self.is_candidate(from) => drop(self.peers.remove(&from)),
            MemberMessage::Leave => self.see_off(from),
            MemberMessage::Confirm { nonce, .. } => self.answer_confirm(from, nonce),
            MemberMessage::Confirmed { nonce, .. } => self.take_confirmed(from, nonce),
        }
    }

    fn is_candidate(&self, peer: MemberId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.candidate.is_some())
    }

    fn take_candidate(&mut self, from: MemberId, knows: u64, candidate: Introduction, now: Duration) {
        if self.generation.contains(from) {
            // It does not know yet that it is in.
            return self.teach(from);
        }
        self.peers.entry(from).or_insert_with(|| Peer::new(now, None)).candidate = Some(candidate);
        if knows < self.generation.number {
            self.teach(from);
        }
    }

    /// Whoever is in a later generation may have voted for it without this member.
    fn note_generation(&mut self, from: MemberId, message: &MemberMessage) {
        let theirs = match message {
            MemberMessage::Decided { generation } => generation.number,
            other => other.base().unwrap_or_default(),
        };
        if theirs > self.generation.number {
            self.note_vote_without_me(from, theirs - 1);
        }
    }

    fn note_vote_without_me(&mut self, from: MemberId, base: u64) {
        let highest = self.votes_without_me.entry(from).or_default();
        *highest = base.max(*highest);
    }

    /// Answers a coordinator, and gives up a lower ballot of this member's own.
    fn promise(&mut self, coordinator: MemberId, ballot: Ballot, now: Duration) {
        if ballot < self.promised {
            let (base, promised) = (self.generation.number, self.promised);
            return self.send(coordinator, MemberMessage::Refused { base, promised });
        }
        self.yield_to(coordinator, ballot, now);
        self.report_to = Some(coordinator);
        self.report_again();
        self.be_called(coordinator);
    }

    /// Somebody else is at the boundary, or has left.
    fn be_called(&mut self, by: MemberId) {
        if self.payload.is_none() && !std::mem::replace(&mut self.is_called, true) {
            self.effects.push(MembershipEffect::Called { by });
        }
    }

    /// Leaves it to another coordinator for a while; not for long if this member comes first, so that two that take
    /// turns in beating each other are soon out of step. Should the other one be lost, this member need not wait.
    pub(super) fn yield_to(&mut self, coordinator: MemberId, ballot: Ballot, now: Duration) {
        self.promised = ballot;
        self.change = None;
        let place = self.generation.rank(self.me).unwrap_or_default() as u32;
        self.yields = Some((coordinator, now + self.limits.beat() / 4 * (place + 1)));
    }

    /// What this member has to say to a coordinator.
    pub(super) fn report(&self) -> Report {
        let mine = || self.peers.iter().filter(|(id, _)| self.generation.contains(**id));
        let certain = mine().filter(|(id, peer)| peer.has_ended() && !self.was_left_out_by(**id)).map(|(id, _)| *id);
        let suspected = mine().filter(|(_, peer)| peer.is_lost() && !peer.is_dead()).map(|(id, _)| *id);
        let (certain, suspected) = (certain.collect(), suspected.collect());
        Report { vote: self.vote.clone(), payload: self.payload.clone(), certain, suspected }
    }

    /// Whether a member of this base has voted without this one.
    fn was_left_out_by(&self, member: MemberId) -> bool {
        self.votes_without_me.get(&member).is_some_and(|base| *base >= self.generation.number)
    }

    /// Tells whoever has asked that the answer is another one now.
    fn report_again(&mut self) {
        if let Some(coordinator) = self.report_to.filter(|_| self.stage == Stage::Member) {
            let (base, ballot, report) = (self.generation.number, self.promised, self.report());
            self.send(coordinator, MemberMessage::Report { base, ballot, report });
        }
    }

    fn vote_for(&mut self, coordinator: MemberId, vote: Vote, now: Duration) {
        let (base, ballot) = (self.generation.number, vote.ballot);
        if ballot < self.promised {
            return self.send(coordinator, MemberMessage::Refused { base, promised: self.promised });
        }
        self.yield_to(coordinator, ballot, now);
        self.cast(vote);
        self.send(coordinator, MemberMessage::Accepted { base, ballot });
    }

    /// Votes. Those without whom this happens are told first.
    pub(super) fn cast(&mut self, vote: Vote) {
        let base = self.generation.number;
        let generation = Arc::clone(&self.generation);
        for member in generation.ids().filter(|id| !vote.voters.contains(id)) {
            self.send(member, MemberMessage::LeftOut { base });
        }
        self.vote = Some(vote);
    }

    /// Enters a generation that was decided.
    pub(super) fn install(&mut self, generation: Arc<Generation>, now: Duration) {
        debug_assert!(self.generation.number < generation.number, "invariant: generations only grow");
        self.generation = Arc::clone(&generation);
        self.refuse_confirmations(&ConfirmRefusal::Changed { generation: generation.number });
        for id in generation.ids().filter(|id| *id != self.me) {
            self.peers.entry(id).or_insert_with(|| Peer::new(now, None)).candidate = None;
        }
        (self.promised, self.vote, self.report_to, self.change) = Default::default();
        (self.yields, self.next_beat, self.waiting, self.is_called) = (None, now, None, false);
        // Members that are left out, and candidates that are not in it, are told; the former are strangers from now on.
        let others: Vec<MemberId> = self.peers.keys().copied().filter(|id| !generation.contains(*id)).collect();
        others.into_iter().for_each(|id| self.teach(id));
        self.peers.retain(|id, peer| generation.contains(*id) || peer.candidate.is_some());
        self.votes_without_me.retain(|_, base| *base >= generation.number);
        if self.payload.is_some() && self.peers.values().any(Peer::is_dead) {
            // Nobody could work in it. This member stays at the boundary, which is now that of the new generation.
            return self.greet(self.coordinator());
        }
        self.payload = None;
        self.effects.push(MembershipEffect::Installed(generation));
        // Whom this member suspects it still suspects, although the others do not.
        for (id, peer) in &self.peers {
            if let (Some(cause), None) = (peer.cause(), &peer.candidate) {
                self.effects.push(MembershipEffect::Lost { member: *id, loss: Loss::Suspected, cause });
            }
        }
    }

    pub(super) fn be_evicted(&mut self, generation: &Generation) {
        let mut reasons = generation.left_out.iter();
        let reason = reasons.find(|(id, _)| *id == self.me).map(|(_, cause)| Arc::clone(cause));
        let cause = reason.unwrap_or_else(|| "the others went on without it".into());
        self.stage = Stage::Over;
        self.refuse_confirmations(&ConfirmRefusal::LeftOut { generation: generation.number });
        self.effects.push(MembershipEffect::Evicted { generation: generation.number, cause });
    }

    fn suspect_the_silent(&mut self, now: Duration) {
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

    /// Somebody is lost, or more is known about a loss.
    /// Somebody leaves in order, which is not a loss, though it will not be there any more.
    fn see_off(&mut self, member: MemberId) {
        let Some(peer) = self.peers.get_mut(&member) else { return };
        peer.loss = Some((Grade::Ended, "it has left".into()));
        self.yields = self.yields.filter(|(coordinator, _)| *coordinator != member);
        if self.stage == Stage::Member {
            self.be_called(member);
        }
        self.report_again();
    }

    pub(super) fn lose_dead(&mut self, member: MemberId, cause: &str) {
        self.lose(member, Grade::Dead, cause);
    }

    fn lose(&mut self, member: MemberId, grade: Grade, cause: &str) {
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

    /// Shows somebody who and where this process is.
    fn greet(&mut self, peer: MemberId) {
        let generation = self.generation.number;
        let message = match (self.stage, &self.payload) {
            (Stage::Member, None) => MemberMessage::Heartbeat { generation, place: Place::Training },
            (Stage::Member, Some(_)) => MemberMessage::Heartbeat { generation, place: Place::Boundary },
            (Stage::Candidate, Some(payload)) => {
                let (id, contact, payload) = (self.me, Arc::clone(&self.contact), Arc::clone(payload));
                MemberMessage::Join { generation, candidate: Introduction { id, contact, payload } }
            }
            _ => return,
        };
        self.send(peer, message);
    }

    /// Tells somebody the newest generation.
    fn teach(&mut self, peer: MemberId) {
        let generation = Arc::clone(&self.generation);
        self.send(peer, MemberMessage::Decided { generation });
    }

    pub(super) fn send(&mut self, to: MemberId, message: MemberMessage) {
        if to != self.me && self.peers.get(&to).is_none_or(|peer| !peer.is_dead()) {
            self.effects.push(MembershipEffect::Send { to, message });
        }
    }

    fn broadcast(&mut self, message: &MemberMessage) {
        let peers: Vec<MemberId> = self.peers.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.send(peer, message.clone()));
    }

    /// Remembers what this member waits for, and says so when it is news.
    pub(super) fn wait_for(&mut self, waiting: Waiting) {
        if self.waiting.as_ref() != Some(&waiting) {
            self.waiting = Some(waiting.clone());
            self.effects.push(MembershipEffect::Waiting(waiting));
        }
    }
}
