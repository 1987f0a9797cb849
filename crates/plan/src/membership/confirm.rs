//! Whether this member is still in the job: a round of messages that a quorum of its generation answers.
//!
//! ```text
//! asker                                  every other member of its generation
//!     Confirm { base, nonce }   ───────▶   answers unless it has voted for a generation without the asker
//!     ◀───────  Confirmed { base, nonce }
//! ```
//!
//! The asker is confirmed when it and those that have answered may decide for the generation ([`Quorum`]).
//! **Invariant:** then there was a moment after the question at which no generation without the asker was decided. A
//! decision needs a set of voters that may decide. If one of them has answered the asker, it has voted later than that.
//! If none has, the two sets exclude each other by the proof of the partition rule (`super`), unless the voters hold
//! those that answered for certainly lost; these have answered before they were lost.
//!
//! Questions are repeated with every heartbeat and on every new connection. A member that is in a later generation
//! answers with that one, as it does to every message of an earlier generation, and the asker learns that it is
//! evicted. After the longest silence that is allowed the asker stops waiting.
//!
//! The answer is about the past. What the asker does next may come too late, if it is stopped in between.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::machine::{Membership, Stage};
use super::quorum::Quorum;
use super::{MemberId, MemberMessage, MembershipEffect, names};

/// One question of this member.
#[derive(Clone, Debug)]
pub(super) struct Confirmation {
    until: Duration,
    answered: BTreeSet<MemberId>,
}

/// Why a member is not confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfirmRefusal {
    /// The others have decided on a generation without it.
    LeftOut {
        /// That generation.
        generation: u64,
    },
    /// The members have agreed on a next generation, and it is in it.
    Changed {
        /// That generation.
        generation: u64,
    },
    /// It has not joined, or it has left.
    NotMember,
    /// Too few members have answered in time.
    NoMajority {
        /// The generation.
        generation: u64,
        /// Those that have not answered and may be alive.
        silent: Vec<MemberId>,
    },
}

impl fmt::Display for ConfirmRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfirmRefusal::LeftOut { generation } => {
                write!(f, "this rank is no longer in the job: generation {generation} went on without it")
            }
            ConfirmRefusal::Changed { generation } => {
                write!(f, "the generation of this rank has ended: generation {generation} has begun; enter it first")
            }
            ConfirmRefusal::NotMember => f.write_str("this process is not in a generation of the job; join it first"),
            ConfirmRefusal::NoMajority { generation, silent } => {
                write!(f, "cannot reach a majority of generation {generation}: {} did not answer", names(silent))
            }
        }
    }
}

impl Membership {
    /// Asks whether this member is still in the job. [`MembershipEffect::Confirmed`] with the same nonce answers. A
    /// nonce is used once.
    pub fn confirm(&mut self, nonce: u64, now: Duration) {
        if self.stage != Stage::Member {
            return self.answer(nonce, Err(ConfirmRefusal::NotMember));
        }
        let until = now + self.limits.longest_silence();
        self.confirmations.insert(nonce, Confirmation { until, answered: BTreeSet::new() });
        self.repeat_confirm(|_| true);
        self.consider(now);
    }

    /// Asks those that have not answered once more.
    pub(super) fn repeat_confirm(&mut self, is_meant: impl Fn(MemberId) -> bool) {
        let (base, me) = (self.generation.number, self.me);
        let others: Vec<MemberId> = self.generation.ids().filter(|id| *id != me && is_meant(*id)).collect();
        let asks = |(nonce, confirmation): (&u64, &Confirmation)| {
            let waits = |id: &&MemberId| !confirmation.answered.contains(*id);
            others.iter().filter(waits).map(|id| (*id, *nonce)).collect::<Vec<_>>()
        };
        let asked: Vec<(MemberId, u64)> = self.confirmations.iter().flat_map(asks).collect();
        for (member, nonce) in asked {
            self.send(member, MemberMessage::Confirm { base, nonce });
        }
    }

    /// Another member of this generation asks.
    pub(super) fn answer_confirm(&mut self, from: MemberId, nonce: u64) {
        if self.generation.contains(from) && self.votes_with(from) {
            self.send(from, MemberMessage::Confirmed { base: self.generation.number, nonce });
        }
    }

    /// Another member of this generation has answered.
    pub(super) fn take_confirmed(&mut self, from: MemberId, nonce: u64) {
        if let Some(confirmation) = self.confirmations.get_mut(&nonce) {
            confirmation.answered.insert(from);
        }
    }

    /// Answers the questions that are decided, or too old.
    pub(super) fn settle_confirmations(&mut self, now: Duration) {
        if self.confirmations.is_empty() || self.stage != Stage::Member {
            return;
        }
        let (me, generation) = (self.me, std::sync::Arc::clone(&self.generation));
        let certain = self.report().certain;
        let takes_part = self.votes_with(me);
        for (nonce, Confirmation { until, answered }) in self.confirmations.clone() {
            let has_answered = |id: MemberId| answered.contains(&id) || id == me && takes_part;
            let quorum = Quorum::of(generation.ids(), has_answered, |id| certain.contains(&id));
            // The other half may decide with the witness, which is not asked here.
            let may_decide = match quorum {
                Quorum::Majority => true,
                Quorum::Tie { has_first } => has_first && !generation.witness,
                Quorum::Minority => false,
            };
            let outcome = if may_decide {
                Ok(generation.number)
            } else if now >= until {
                let silent = generation.ids().filter(|id| !has_answered(*id) && !certain.contains(id)).collect();
                Err(ConfirmRefusal::NoMajority { generation: generation.number, silent })
            } else {
                continue;
            };
            self.confirmations.remove(&nonce);
            self.answer(nonce, outcome);
        }
    }

    /// Refuses all questions: the generation about which they were has ended.
    pub(super) fn refuse_confirmations(&mut self, refusal: &ConfirmRefusal) {
        for nonce in std::mem::take(&mut self.confirmations).into_keys() {
            self.answer(nonce, Err(refusal.clone()));
        }
    }

    /// When the oldest question is refused.
    pub(super) fn confirmations_due(&self) -> Option<Duration> {
        self.confirmations.values().map(|confirmation| confirmation.until).min()
    }

    /// Whether this member has not voted for a generation without `member`.
    fn votes_with(&self, member: MemberId) -> bool {
        self.vote.as_ref().is_none_or(|vote| vote.generation.contains(member))
    }

    fn answer(&mut self, nonce: u64, outcome: Result<u64, ConfirmRefusal>) {
        self.effects.push(MembershipEffect::Confirmed { nonce, outcome });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Generation, Introduction, Limits, LossEvidence, MembershipInput, VoteRecord};
    use super::*;

    const SILENCE: Duration = Duration::from_secs(4);

    /// Members that are connected with each other, except those that are cut off.
    struct Job {
        members: Vec<Membership>,
        cut: Vec<u64>,
        now: Duration,
        answers: Vec<(u64, Result<u64, ConfirmRefusal>)>,
    }

    impl Job {
        fn new(count: u64) -> Job {
            Job::of(count, false)
        }

        /// A job in which a witness decides ties.
        fn with_witness(count: u64) -> Job {
            Job::of(count, true)
        }

        fn of(count: u64, witness: bool) -> Job {
            let introduce = |id| Introduction { id: MemberId(id), contact: Arc::from([]), payload: Arc::from([]) };
            let members = (0..count).map(introduce).collect();
            let generation = Arc::new(Generation { number: 1, members, left_out: Vec::new(), witness });
            let limits = Limits { min_members: 1, max_members: 8, silence: Some(SILENCE) };
            let begin = |id| Membership::member(MemberId(id), Arc::clone(&generation), limits, Duration::ZERO);
            Job { members: (0..count).map(begin).collect(), cut: Vec::new(), now: Duration::ZERO, answers: Vec::new() }
        }

        fn take(&mut self, member: u64, input: MembershipInput) {
            for effect in self.members[member as usize].take(input, self.now) {
                match effect {
                    MembershipEffect::Send { to, message }
                        if !self.cut.contains(&to.0) && !self.cut.contains(&member) =>
                    {
                        self.take(to.0, MembershipInput::Hear { from: MemberId(member), message });
                    }
                    MembershipEffect::Confirmed { outcome, .. } => self.answers.push((member, outcome)),
                    _ => {}
                }
            }
        }

        fn ask(&mut self, member: u64) -> Option<Result<u64, ConfirmRefusal>> {
            let before = self.answers.len();
            self.take(member, MembershipInput::Confirm(before as u64));
            self.answers.get(before).map(|(_, outcome)| outcome.clone())
        }

        /// Lets time pass until a silence has lasted too long.
        fn wait(&mut self) {
            for _ in 0..5 {
                self.now += SILENCE / 4;
                (0..self.members.len() as u64).for_each(|member| self.take(member, MembershipInput::Tick));
            }
        }

        /// The members that are not cut off agree on a generation without the others.
        fn go_on_without(&mut self, cut: &[u64]) {
            self.cut = cut.to_vec();
            self.wait();
            let staying: Vec<u64> = (0..self.members.len() as u64).filter(|id| !cut.contains(id)).collect();
            for member in &staying {
                self.take(*member, MembershipInput::Come(Arc::from([])));
            }
            assert!(staying.iter().all(|id| self.members[*id as usize].generation().number == 2));
        }
    }

    #[test]
    fn a_member_of_the_current_generation_is_confirmed() {
        for count in 1..5 {
            let mut job = Job::new(count);
            assert_eq!(job.ask(count - 1), Some(Ok(1)), "{count} members");
        }
    }

    /// A rank that was cut off wrote a checkpoint after the others had gone on without it.
    #[test]
    fn a_member_that_was_left_out_is_refused() {
        let mut job = Job::new(3);
        job.go_on_without(&[0]);
        assert_eq!(job.ask(0), None, "it is cut off, and waits");
        job.cut.clear();
        job.now += SILENCE / 8;
        job.take(0, MembershipInput::Meet(MemberId(1)));
        assert_eq!(job.answers, [(0, Err(ConfirmRefusal::LeftOut { generation: 2 }))]);
        assert_eq!(job.ask(0), Some(Err(ConfirmRefusal::NotMember)));
    }

    #[test]
    fn a_minority_is_refused_after_the_longest_silence() {
        let mut job = Job::new(5);
        job.cut = vec![2, 3, 4];
        assert_eq!(job.ask(0), None);
        job.wait();
        let silent = vec![MemberId(2), MemberId(3), MemberId(4)];
        let refusal = ConfirmRefusal::NoMajority { generation: 1, silent };
        let words = "cannot reach a majority of generation 1: members 2, 3 and 4 did not answer";
        assert_eq!(refusal.to_string(), words);
        assert_eq!(job.answers, [(0, Err(refusal))]);
    }

    #[test]
    fn half_is_enough_with_the_first_member_alone() {
        let mut job = Job::new(2);
        job.cut = vec![0];
        assert_eq!(job.ask(0), Some(Ok(1)));
        assert_eq!(job.ask(1), None);
        let evidence = LossEvidence::Reaped(VoteRecord::default());
        job.take(1, MembershipInput::Learn { member: MemberId(0), evidence, cause: "x".into() });
        assert_eq!(job.answers.last(), Some(&(1, Ok(1))), "a member whose loss is certain is not asked");
    }

    /// The other half could decide with the witness at the same time.
    #[test]
    fn half_is_not_enough_in_a_job_with_a_witness() {
        let mut job = Job::with_witness(2);
        job.cut = vec![0];
        assert_eq!(job.ask(0), None);
        job.wait();
        let refusal = ConfirmRefusal::NoMajority { generation: 1, silent: vec![MemberId(1)] };
        assert_eq!(job.answers, [(0, Err(refusal))]);
    }

    #[test]
    fn a_question_that_was_lost_is_repeated() {
        let mut job = Job::new(3);
        job.cut = vec![0];
        assert_eq!(job.ask(0), None);
        job.cut.clear();
        job.take(0, MembershipInput::Meet(MemberId(2)));
        assert_eq!(job.answers, [(0, Ok(1))]);
        job.cut = vec![0];
        assert_eq!(job.ask(0), None);
        job.cut.clear();
        job.now += SILENCE / 4;
        job.take(0, MembershipInput::Tick);
        assert_eq!(job.answers.len(), 2);
    }

    #[test]
    fn a_member_that_has_voted_without_the_asker_does_not_answer() {
        let mut job = Job::new(3);
        let voter = &mut job.members[1];
        let introduce = |id| Introduction { id: MemberId(id), contact: Arc::from([]), payload: Arc::from([]) };
        let members = vec![introduce(1), introduce(2)];
        let left_out = vec![(MemberId(0), "lost".into())];
        let generation = Arc::new(Generation { number: 2, members, left_out, witness: false });
        let ballot = super::super::Ballot { round: 1, coordinator: 1 };
        let voters = [MemberId(1), MemberId(2)].into();
        let kind = super::super::VoteKind::First;
        voter.vote = Some(super::super::Vote { ballot, generation, voters, witness: false, kind });
        job.cut = vec![2];
        assert_eq!(job.ask(0), None);
        job.members[1].vote = None;
        job.now += SILENCE / 4;
        job.take(0, MembershipInput::Tick);
        assert_eq!(job.answers, [(0, Ok(1))]);
    }

    #[test]
    fn an_answer_to_an_earlier_question_does_not_count() {
        let mut job = Job::new(3);
        job.cut = vec![0];
        job.take(0, MembershipInput::Confirm(7));
        let message = MemberMessage::Confirmed { base: 1, nonce: 6 };
        job.take(0, MembershipInput::Hear { from: MemberId(1), message });
        assert!(job.answers.is_empty());
        let message = MemberMessage::Confirmed { base: 1, nonce: 7 };
        job.take(0, MembershipInput::Hear { from: MemberId(1), message });
        assert_eq!(job.answers, [(0, Ok(1))]);
    }
}
