//! What a member was told, as values, so that it can be written down and told again.
//!
//! A [`Membership`] is changed by inputs and by nothing else: equal inputs at equal times give equal effects. So the
//! inputs of a member that has run, in their order, give its decisions once more ([`Replay`]), and whoever has written
//! down the effects, too, can compare. [`GenerationHistory`] has what must hold over all members: a generation number
//! has one list, and the order is stable.
//!
//! Not here: files and encodings (`farandole-cluster`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Generation, Limits, LossEvidence, MemberId, MemberMessage, Membership, MembershipEffect, WitnessAnswer};

/// How a process begins to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipStart {
    /// In the first generation ([`Membership::member`]).
    Founder {
        /// Its number.
        me: MemberId,
        /// The first generation.
        generation: Arc<Generation>,
        /// What is set.
        limits: Limits,
    },
    /// As somebody who wants to join ([`Membership::candidate`]).
    Candidate {
        /// Its number.
        me: MemberId,
        /// Where it listens.
        contact: Arc<[u8]>,
        /// What is set.
        limits: Limits,
    },
}

impl MembershipStart {
    /// The process's side of the agreement.
    pub fn begin(self, now: Duration) -> Membership {
        match self {
            MembershipStart::Founder { me, generation, limits } => Membership::member(me, generation, limits, now),
            MembershipStart::Candidate { me, contact, limits } => Membership::candidate(me, contact, limits, now),
        }
    }
}

/// What a member can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipInput {
    /// [`Membership::come`].
    Come(Arc<[u8]>),
    /// [`Membership::leave`].
    Leave,
    /// [`Membership::meet`].
    Meet(MemberId),
    /// [`Membership::learn`].
    Learn {
        /// About whom.
        member: MemberId,
        /// What was seen.
        evidence: LossEvidence,
        /// In which words.
        cause: Arc<str>,
    },
    /// [`Membership::hear`].
    Hear {
        /// Who said it.
        from: MemberId,
        /// What.
        message: MemberMessage,
    },
    /// [`Membership::hear_witness`].
    HearWitness(WitnessAnswer),
    /// [`Membership::tick`].
    Tick,
    /// [`Membership::confirm`].
    Confirm(u64),
}

impl Membership {
    /// Tells this member something, and returns what is to be done.
    pub fn take(&mut self, input: MembershipInput, now: Duration) -> Vec<MembershipEffect> {
        match input {
            MembershipInput::Come(payload) => self.come(payload, now),
            MembershipInput::Leave => self.leave(),
            MembershipInput::Meet(peer) => self.meet(peer, now),
            MembershipInput::Learn { member, evidence, cause } => self.learn(member, evidence, &cause, now),
            MembershipInput::Hear { from, message } => self.hear(from, message, now),
            MembershipInput::HearWitness(answer) => self.hear_witness(answer, now),
            MembershipInput::Tick => self.tick(now),
            MembershipInput::Confirm(nonce) => self.confirm(nonce, now),
        }
        self.take_effects()
    }
}

/// A member that is told again what it was told.
#[derive(Debug)]
pub struct Replay {
    machine: Membership,
    entered: u64,
}

impl Replay {
    /// A process that begins, and the generation that it is in.
    pub fn begin(
        start: MembershipStart,
        at: Duration,
        history: &mut GenerationHistory,
    ) -> Result<Replay, TwoHistories> {
        let mut replay = Replay { machine: start.begin(at), entered: 0 };
        replay.look(history)?;
        Ok(replay)
    }

    /// Tells the next thing. The effects are those of the member that has run.
    pub fn take(
        &mut self,
        input: MembershipInput,
        at: Duration,
        history: &mut GenerationHistory,
    ) -> Result<Vec<MembershipEffect>, TwoHistories> {
        let effects = self.machine.take(input, at);
        self.look(history)?;
        Ok(effects)
    }

    /// The member, as it is now.
    pub fn machine(&self) -> &Membership {
        &self.machine
    }

    /// Candidates know only generations that were decided, too.
    fn look(&mut self, history: &mut GenerationHistory) -> Result<(), TwoHistories> {
        let generation = self.machine.generation();
        if generation.number == self.entered {
            return Ok(());
        }
        self.entered = generation.number;
        history.enter(generation)
    }
}

/// All generations that some member has entered.
#[derive(Debug, Default)]
pub struct GenerationHistory {
    generations: BTreeMap<u64, Arc<Generation>>,
}

impl GenerationHistory {
    /// The generations, by number.
    pub fn generations(&self) -> &BTreeMap<u64, Arc<Generation>> {
        &self.generations
    }

    /// Somebody has entered a generation. The members may come in any order, and one after the other.
    pub fn enter(&mut self, generation: &Arc<Generation>) -> Result<(), TwoHistories> {
        let number = generation.number;
        if let Some(known) = self.generations.get(&number) {
            let refuse = || TwoHistories(format!("generation {number} is {} and {}", list(known), list(generation)));
            return if known == generation { Ok(()) } else { Err(refuse()) };
        }
        self.generations.insert(number, Arc::clone(generation));
        // One in which nobody could work, because somebody in it was dead, may not have been seen.
        if let Some(before) = self.generations.get(&number.wrapping_sub(1)) {
            follows(before, generation)?;
        }
        match self.generations.get(&(number + 1)) {
            Some(after) => follows(generation, after),
            None => Ok(()),
        }
    }
}

/// Whether one generation can be the next after another.
fn follows(before: &Generation, after: &Generation) -> Result<(), TwoHistories> {
    let refuse = |what: &str| {
        let (one, other) = (list(before), list(after));
        Err(TwoHistories(format!("generation {} is {other} after {one}: {what}", after.number)))
    };
    let stayed: Vec<MemberId> = before.ids().filter(|id| after.contains(*id)).collect();
    let joined: Vec<MemberId> = after.ids().filter(|id| !before.contains(*id)).collect();
    if !joined.is_sorted() {
        return refuse("candidates follow by number");
    }
    if !stayed.into_iter().chain(joined).eq(after.ids()) {
        return refuse("survivors keep their order, and candidates follow");
    }
    let has_cause = |id: MemberId| after.left_out.iter().any(|(left_out, _)| *left_out == id);
    match before.ids().find(|id| !after.contains(*id) && !has_cause(*id)) {
        Some(id) => refuse(&format!("{id} is left out without a cause")),
        None => Ok(()),
    }
}

fn list(generation: &Generation) -> String {
    let ids: Vec<String> = generation.ids().map(|id| id.to_string()).collect();
    format!("[{}]", ids.join(" "))
}

/// Members have not agreed: in words, on what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoHistories(String);

impl fmt::Display for TwoHistories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TwoHistories {}

#[cfg(test)]
mod tests {
    use super::super::Introduction;
    use super::*;

    fn generation(number: u64, members: &[u64], left_out: &[u64]) -> Arc<Generation> {
        let introduce =
            |id: &u64| Introduction { id: MemberId(*id), contact: Arc::from([*id as u8]), payload: Arc::from([]) };
        let left_out = left_out.iter().map(|id| (MemberId(*id), Arc::from("it has left"))).collect();
        Arc::new(Generation { number, members: members.iter().map(introduce).collect(), left_out, witness: false })
    }

    fn enter_all(generations: &[Arc<Generation>]) -> Result<(), TwoHistories> {
        let mut history = GenerationHistory::default();
        generations.iter().try_for_each(|generation| history.enter(generation))
    }

    #[test]
    fn members_tell_one_history_in_any_order() {
        let all = [generation(3, &[2, 4, 5], &[0]), generation(1, &[0, 1, 2], &[]), generation(2, &[0, 2, 4], &[1])];
        assert_eq!(enter_all(&all), Ok(()));
        assert_eq!(enter_all(&[all[0].clone(), all[0].clone()]), Ok(()));
    }

    #[test]
    fn two_histories_are_noticed() {
        let first = || generation(1, &[0, 1, 2], &[]);
        for (wrong, what) in [
            (vec![first(), generation(1, &[0, 1], &[])], "generation 1 is [0 1 2] and [0 1]"),
            (vec![first(), generation(2, &[1, 0, 2], &[])], "keep their order"),
            (vec![generation(2, &[3, 0, 1], &[2]), first()], "candidates follow"),
            (vec![first(), generation(2, &[0, 1, 2, 5, 4], &[])], "by number"),
            (vec![first(), generation(2, &[0, 1], &[])], "2 is left out without a cause"),
        ] {
            let error = enter_all(&wrong).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
