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
use super::losses::{Departed, Hearing};
use super::message::{Ballot, MemberMessage, Place, Report, Vote};
use super::peer::{Grade, Peer};
use super::{
    Generation, Introduction, Limits, Loss, MemberId, MembershipEffect, VoteRecord, Waiting, WitnessAnswer,
    WitnessRequest,
};

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
    /// The members without which this one has voted.
    pub(super) record: VoteRecord,
    /// Who has asked last, and is told when the report changes.
    report_to: Option<MemberId>,
    /// What this member does as the coordinator.
    pub(super) change: Option<Change>,
    /// Another coordinator, whose ballot is higher, and until when this member does not begin one of its own.
    pub(super) yields: Option<(MemberId, Duration)>,
    /// The highest base in which somebody has voted without this member. Kept for strangers, too: they may be members
    /// of a generation of which this one does not know yet.
    pub(super) votes_without_me: BTreeMap<MemberId, u64>,
    /// How complete the messages of each process are to which there is a connection; strangers as well.
    pub(super) hearing: BTreeMap<MemberId, Hearing>,
    /// Processes that have ended or left, with their records; strangers as well.
    pub(super) departed: BTreeMap<MemberId, Departed>,
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
            generation: Arc::new(Generation { number: 0, members: Vec::new(), left_out: Vec::new(), witness: false }),
            peers: BTreeMap::new(),
            payload: None,
            promised: Ballot::default(),
            vote: None,
            record: VoteRecord::default(),
            report_to: None,
            change: None,
            yields: None,
            votes_without_me: BTreeMap::new(),
            hearing: BTreeMap::new(),
            departed: BTreeMap::new(),
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
            self.broadcast(&MemberMessage::Leave(self.record.clone()));
        }
    }

    /// Everything that was sent to this process before may be lost: a connection is new, or another one to it has
    /// broken. The first message on the connection that is used from now on repeats a vote without it. A connection
    /// that breaks although others remain is first told as [`Broken`](super::LossEvidence::Broken).
    pub fn meet(&mut self, peer: MemberId, now: Duration) {
        if self.stage == Stage::Over {
            return;
        }
        if self.stage == Stage::Candidate {
            // Whoever it is may be a member soon, and let this one join.
            self.peers.entry(peer).or_insert_with(|| Peer::new(now, None));
        }
        self.hearing.entry(peer).or_insert(Hearing::Met);
        self.note_heard(peer, now);
        let base = self.generation.number;
        if self.record.leaves_out(peer, base) {
            self.send(peer, MemberMessage::LeftOut { base });
        }
        self.greet(peer);
        self.ask_again(|member| member == peer);
        self.repeat_confirm(|member| member == peer);
        if self.report_to == Some(peer) {
            self.report_again();
        }
        self.consider(now);
    }

    /// A message has come.
    pub fn hear(&mut self, from: MemberId, message: MemberMessage, now: Duration) {
        if self.stage == Stage::Over {
            return;
        }
        if let Some(hearing) = self.hearing.get_mut(&from) {
            *hearing = Hearing::Complete;
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
            self.ask_witness_again();
        }
        self.consider(now);
    }

    fn note_heard(&mut self, from: MemberId, now: Duration) {
        if self.peers.get_mut(&from).is_some_and(|peer| peer.hear(now)) {
            self.report_again();
        }
    }

    fn hear_as_candidate(&mut self, from: MemberId, message: MemberMessage, now: Duration) {
        if message.base().is_some_and(|base| base < self.generation.number) {
            // The members of a generation may all have died before one that is in it heard of it.
            return self.teach(from);
        }
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
            MemberMessage::Leave(record) => self.see_off(from, record),
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
            MemberMessage::Confirm { nonce, .. } => self.answer_confirm(from, nonce),
            MemberMessage::Confirmed { nonce, .. } => self.take_confirmed(from, nonce),
            MemberMessage::Leave(record) if self.is_candidate(from) => {
                self.note_departure(from, record, "it has left");
                self.peers.remove(&from);
            }
            MemberMessage::Leave(record) => self.see_off(from, record),
        }
    }

    pub(super) fn is_candidate(&self, peer: MemberId) -> bool {
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
    pub(super) fn be_called(&mut self, by: MemberId) {
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
        let certain = mine().filter(|(id, peer)| self.is_certainly_lost(**id, peer)).map(|(id, _)| *id);
        let suspected = mine().filter(|(_, peer)| peer.is_lost() && !peer.is_dead()).map(|(id, _)| *id);
        let (certain, suspected) = (certain.collect(), suspected.collect());
        Report { vote: self.vote.clone(), payload: self.payload.clone(), certain, suspected }
    }

    /// Tells whoever has asked that the answer is another one now.
    pub(super) fn report_again(&mut self) {
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

    /// Votes. First the members that do not take part are recorded and told.
    pub(super) fn cast(&mut self, vote: Vote) {
        let base = self.generation.number;
        let left_out: Vec<MemberId> = self.generation.ids().filter(|id| !vote.voters.contains(id)).collect();
        if self.record.add(base, &left_out) {
            self.effects.push(MembershipEffect::Record(self.record.clone()));
        }
        for member in left_out {
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
        for (id, peer) in &mut self.peers {
            if let Some(departed) = self.departed.get(id) {
                peer.loss.get_or_insert((Grade::Dead, Arc::clone(&departed.cause)));
            }
        }
        if self.payload.is_some() && self.peers.values().any(Peer::is_dead) {
            // Nobody could work in it. This member stays at the boundary, which is now that of the new generation.
            return self.greet(self.coordinator());
        }
        self.payload = None;
        self.effects.push(MembershipEffect::Installed(generation));
        // Whom this member suspects it still suspects, although the others do not.
        for (id, peer) in &self.peers {
            if let (Some(cause), None) = (peer.cause(), &peer.candidate) {
                let loss = if peer.is_dead() { Loss::Certain } else { Loss::Suspected };
                self.effects.push(MembershipEffect::Lost { member: *id, loss, cause });
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

    /// The witness has answered.
    pub fn hear_witness(&mut self, answer: WitnessAnswer, now: Duration) {
        if self.stage == Stage::Member {
            self.take_witness_answer(answer, now);
            self.consider(now);
        }
    }

    pub(super) fn ask_witness(&mut self, request: WitnessRequest) {
        self.effects.push(MembershipEffect::AskWitness(request));
    }

    /// Shows somebody who and where this process is.
    pub(super) fn greet(&mut self, peer: MemberId) {
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
