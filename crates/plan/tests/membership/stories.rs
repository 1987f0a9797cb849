//! Some stories that matter, told step by step: every message is carried, held back or lost as the story wants it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::membership::{
    Generation, Introduction, Limits, Loss, LossEvidence, MemberId, MemberMessage, Membership, MembershipEffect,
    VoteRecord, Waiting, Witness,
};

const SILENCE: Duration = Duration::from_secs(1);

/// The members of a story, whose messages are carried when it says so.
struct Stage {
    members: Vec<Membership>,
    alive: Vec<bool>,
    now: Duration,
    under_way: VecDeque<(u64, u64, MemberMessage)>,
    /// Answers at once while members reach it.
    witness: Option<Witness>,
    /// What each of them has recorded.
    records: Vec<VoteRecord>,
    /// What each of them was told besides, in order.
    told: Vec<Vec<MembershipEffect>>,
}

impl Stage {
    /// Members 0 to `count`, connected, in their first generation.
    fn new(count: u64, min_members: usize) -> Stage {
        Stage::with(count, min_members, None)
    }

    fn with(count: u64, min_members: usize, witness: Option<Witness>) -> Stage {
        let limits = Limits { min_members, max_members: 8, silence: Some(SILENCE) };
        let introduce = |id: u64| Introduction { id: MemberId(id), contact: Arc::default(), payload: Arc::default() };
        let members = (0..count).map(introduce).collect();
        let first = Arc::new(Generation { number: 1, members, left_out: Vec::new(), witness: witness.is_some() });
        let member = |id| Membership::member(MemberId(id), Arc::clone(&first), limits, Duration::ZERO);
        let members: Vec<Membership> = (0..count).map(member).collect();
        let (alive, told) = (vec![true; members.len()], vec![Vec::new(); members.len()]);
        let records = vec![VoteRecord::default(); members.len()];
        let (now, under_way) = (Duration::ZERO, VecDeque::new());
        let mut stage = Stage { members, alive, now, under_way, witness, records, told };
        for one in 0..count {
            (0..count).filter(|other| *other != one).for_each(|other| stage.meet(one, other));
        }
        stage.carry(|_, _| true);
        stage
    }

    fn act(&mut self, who: u64, act: impl FnOnce(&mut Membership, Duration)) {
        if !self.alive[who as usize] {
            return;
        }
        act(&mut self.members[who as usize], self.now);
        let mut effects = VecDeque::from(self.members[who as usize].take_effects());
        while let Some(effect) = effects.pop_front() {
            match effect {
                MembershipEffect::Send { to, message } => self.under_way.push_back((who, to.0, message)),
                MembershipEffect::Record(record) => self.records[who as usize] = record,
                MembershipEffect::AskWitness(request) => {
                    if let Some(witness) = &mut self.witness {
                        let machine = &mut self.members[who as usize];
                        machine.hear_witness(witness.take(request), self.now);
                        effects.extend(machine.take_effects());
                    }
                }
                other => self.told[who as usize].push(other),
            }
        }
    }

    fn meet(&mut self, who: u64, peer: u64) {
        self.act(who, |machine, now| machine.meet(MemberId(peer), now));
    }

    fn come(&mut self, who: u64) {
        self.act(who, |machine, now| machine.come(Arc::from([who as u8]), now));
    }

    /// Somebody wants to join, whom nobody has met yet. It has the next number.
    fn join(&mut self, who: u64) {
        let limits = Limits { min_members: 2, max_members: 8, silence: Some(SILENCE) };
        self.members.push(Membership::candidate(MemberId(who), Arc::default(), limits, self.now));
        self.alive.push(true);
        self.told.push(Vec::new());
        self.records.push(VoteRecord::default());
        self.come(who);
    }

    fn learn(&mut self, who: u64, about: u64, evidence: LossEvidence) {
        self.act(who, |machine, now| machine.learn(MemberId(about), evidence, "it was seen", now));
    }

    /// Carries everything that may pass, and what follows from it; what may not waits.
    fn carry(&mut self, may_pass: impl Fn(u64, u64) -> bool) {
        let mut held = VecDeque::new();
        while let Some((from, to, message)) = self.under_way.pop_front() {
            if may_pass(from, to) {
                self.act(to, |machine, now| machine.hear(MemberId(from), message, now));
            } else {
                held.push_back((from, to, message));
            }
        }
        self.under_way = held;
    }

    /// Lets time pass, heartbeat by heartbeat.
    fn pass(&mut self, time: Duration, may_pass: impl Fn(u64, u64) -> bool) {
        let until = self.now + time;
        while self.now < until {
            self.now += SILENCE / 4;
            for who in 0..self.members.len() as u64 {
                self.act(who, |machine, now| machine.tick(now));
            }
            self.carry(&may_pass);
        }
    }

    /// Ends a process; those who hear its end have received all that it sent.
    fn kill(&mut self, who: u64, heard_by: &[u64]) {
        self.alive[who as usize] = false;
        self.carry(|from, to| from == who && heard_by.contains(&to));
        self.under_way.retain(|(from, to, _)| *from != who && *to != who);
        heard_by.iter().for_each(|peer| self.learn(*peer, who, LossEvidence::Ended));
    }

    /// Ends a process of which nothing arrives any more but the record, from its agent.
    fn reap(&mut self, who: u64, told: &[u64]) {
        self.alive[who as usize] = false;
        self.under_way.retain(|(from, to, _)| *from != who && *to != who);
        let record = self.records[who as usize].clone();
        told.iter().for_each(|peer| self.learn(*peer, who, LossEvidence::Reaped(record.clone())));
    }

    fn generation(&self, who: u64) -> (u64, Vec<u64>) {
        let generation = self.members[who as usize].generation();
        (generation.number, generation.ids().map(|id| id.0).collect())
    }

    fn waits_for_a_majority(&self, who: u64) -> bool {
        matches!(self.members[who as usize].waiting(), Some(Waiting::Majority { .. }))
    }

    fn is_evicted(&self, who: u64) -> bool {
        self.told[who as usize].iter().any(|effect| matches!(effect, MembershipEffect::Evicted { .. }))
    }
}

fn everywhere(_: u64, _: u64) -> bool {
    true
}

#[test]
fn survivors_of_a_death_decide_in_two_round_trips_and_a_word() {
    let mut stage = Stage::new(4, 1);
    stage.kill(0, &[1, 2, 3]);
    let lost = MembershipEffect::Lost { member: MemberId(0), loss: Loss::Certain, cause: "it was seen".into() };
    assert!((1..4).all(|who| stage.told[who].contains(&lost)));
    (1..4).for_each(|who| stage.come(who));
    stage.carry(everywhere);
    assert!((1..4).all(|who| stage.generation(who) == (2, vec![1, 2, 3])));
    let payloads: Vec<&[u8]> = stage.members[3].generation().members.iter().map(|member| &*member.payload).collect();
    assert_eq!(payloads, [[1], [2], [3]]);
}

/// Three of five go on without two that are cut off, and then two of the three die. The two that were cut off hear
/// those two to their end, and the third not at all: they must not go on, because the third does.
fn schism(break_connections: bool) -> Stage {
    let mut stage = Stage::new(5, 1);
    let is_far = |who: u64| who >= 3;
    let within = move |from: u64, to: u64| is_far(from) == is_far(to);
    stage.pass(2 * SILENCE, within);
    (0..5).for_each(|who| stage.come(who));
    stage.carry(within);
    assert_eq!(stage.generation(0), (2, vec![0, 1, 2]));
    assert!(stage.waits_for_a_majority(3), "{:?}", stage.members[3].waiting());
    if break_connections {
        stage.under_way.clear();
        for far in [3, 4] {
            for near in [0, 1] {
                stage.learn(far, near, LossEvidence::Broken);
                stage.learn(far, near, LossEvidence::Dead);
            }
        }
        stage.kill(0, &[1, 2]);
        stage.kill(1, &[2]);
    } else {
        // What they decided is held back, but not that they voted.
        stage.under_way.retain(|(_, _, message)| !matches!(message, MemberMessage::Decided { .. }));
        stage.kill(0, &[1, 2, 3, 4]);
        stage.kill(1, &[2, 3, 4]);
    }
    stage.come(2);
    stage.carry(within);
    stage.pass(2 * SILENCE, within);
    stage
}

#[test]
fn whoever_was_left_out_does_not_take_the_dead_for_its_side() {
    for break_connections in [false, true] {
        let mut stage = schism(break_connections);
        assert_eq!(stage.generation(2).1, [2], "the one that is left of the three goes on");
        assert!(stage.waits_for_a_majority(3), "{:?}", stage.members[3].waiting());
        assert_eq!((stage.generation(3).0, stage.generation(4).0), (1, 1));
        // When the cut heals, they learn that they are out.
        stage.pass(SILENCE, everywhere);
        assert!(stage.is_evicted(3) && stage.is_evicted(4));
    }
}

#[test]
fn a_new_connection_begins_with_what_the_old_one_has_lost() {
    let mut stage = Stage::new(3, 1);
    let within = |from: u64, to: u64| (from == 2) == (to == 2);
    stage.pass(2 * SILENCE, within);
    // 0 votes without 2, in a ballot that is not decided, because 1 does not hear of it; and that word is lost.
    stage.come(0);
    stage.come(1);
    stage.carry(|from, to| within(from, to) && (from, to) != (1, 0));
    stage.pass(SILENCE / 2, |from, to| (from, to) == (1, 0));
    assert!(
        stage
            .under_way
            .iter()
            .any(|(from, to, m)| (*from, *to) == (0, 2) && matches!(m, MemberMessage::LeftOut { .. }))
    );
    stage.under_way.clear();
    stage.learn(2, 0, LossEvidence::Broken);
    stage.meet(2, 0);
    stage.meet(0, 2);
    let greeting: Vec<_> = stage.under_way.iter().filter(|(from, to, _)| (*from, *to) == (0, 2)).collect();
    assert!(
        greeting.iter().any(|(_, _, message)| matches!(message, MemberMessage::LeftOut { base: 1 })),
        "{greeting:?}"
    );
    stage.carry(|from, to| (from, to) == (0, 2));
    stage.kill(0, &[2]);
    stage.under_way.clear();
    stage.come(2);
    // Of the two others one is suspected and one has voted without it, dead as it is.
    stage.pass(2 * SILENCE, |_, _| false);
    assert!(stage.waits_for_a_majority(2), "{:?}", stage.members[2].waiting());
}

#[test]
fn of_two_connections_one_may_have_lost_what_the_other_did_not_carry() {
    for broken in [false, true] {
        let mut stage = Stage::new(2, 1);
        if broken {
            stage.learn(1, 0, LossEvidence::Broken);
        }
        stage.kill(0, &[1]);
        stage.come(1);
        assert_eq!(stage.waits_for_a_majority(1), broken);
    }
}

#[test]
fn a_decision_that_only_one_has_heard_of_stands() {
    let mut stage = Stage::new(4, 1);
    (0..4).for_each(|who| stage.come(who));
    let is_decision = |message: &MemberMessage| matches!(message, MemberMessage::Decided { .. });
    while !stage.under_way.iter().any(|(_, _, message)| is_decision(message)) {
        let (from, to, message) = stage.under_way.pop_front().unwrap();
        stage.act(to, |machine, now| machine.hear(MemberId(from), message, now));
    }
    assert_eq!(stage.generation(0), (2, vec![0, 1, 2, 3]));
    stage.under_way.retain(|(_, to, _)| *to == 1);
    stage.kill(0, &[1, 2, 3]);
    assert_eq!((stage.generation(1).0, stage.generation(2).0), (2, 1));
    stage.come(1);
    stage.carry(everywhere);
    assert!((1..4).all(|who| stage.generation(who) == (3, vec![1, 2, 3])));
}

#[test]
fn a_decision_that_nobody_has_heard_of_may_stand_and_is_repeated() {
    let mut stage = Stage::new(4, 1);
    (0..4).for_each(|who| stage.come(who));
    while stage.generation(0).0 == 1 {
        let (from, to, message) = stage.under_way.pop_front().unwrap();
        stage.act(to, |machine, now| machine.hear(MemberId(from), message, now));
    }
    stage.under_way.clear();
    stage.kill(0, &[1, 2, 3]);
    stage.carry(everywhere);
    // Generation 2 has the dead one, so nobody begins to work in it; 3 follows at once.
    assert!((1..4).all(|who| stage.generation(who) == (3, vec![1, 2, 3])));
    let installed =
        |who: usize| stage.told[who].iter().filter(|effect| matches!(effect, MembershipEffect::Installed(_))).count();
    assert!((1..4).all(|who| installed(who) == 1));
}

#[test]
fn two_who_do_not_hear_each_other_cannot_both_stay() {
    let mut stage = Stage::new(4, 1);
    let except = |from: u64, to: u64| (from.min(to), from.max(to)) != (1, 3);
    stage.pass(2 * SILENCE, except);
    (0..4).for_each(|who| stage.come(who));
    stage.pass(2 * SILENCE, except);
    assert_eq!(stage.generation(0), (2, vec![0, 1, 2]));
    assert!(stage.is_evicted(3));
}

#[test]
fn somebody_who_was_stopped_for_long_is_told_that_it_is_out() {
    let mut stage = Stage::new(3, 1);
    let awake = |from: u64, to: u64| from != 1 && to != 1;
    // Its clock stands still, too; the story has no need of it.
    let stopped = stage.members[1].clone();
    stage.pass(2 * SILENCE, awake);
    stage.members[1] = stopped;
    stage.come(0);
    stage.come(2);
    stage.carry(awake);
    assert_eq!(stage.generation(2), (2, vec![0, 2]));
    stage.carry(everywhere);
    assert!(stage.is_evicted(1));
    let cause = stage.told[1].iter().find_map(|effect| match effect {
        MembershipEffect::Evicted { generation: 2, cause } => Some(cause.to_string()),
        _ => None,
    });
    assert_eq!(cause.unwrap(), "nothing was heard of it for 1.0 s");
}

#[test]
fn below_the_least_number_members_wait_for_a_candidate() {
    let mut stage = Stage::new(2, 2);
    stage.kill(0, &[1]);
    stage.come(1);
    assert_eq!(stage.members[1].waiting(), Some(&Waiting::Candidates { present: 1, needed: 2 }));
    stage.join(2);
    stage.meet(2, 1);
    stage.meet(1, 2);
    stage.carry(everywhere);
    assert_eq!((stage.generation(1), stage.generation(2)), ((2, vec![1, 2]), (2, vec![1, 2])));
}

/// A network that was cut on one side let the job go from one generation to the next, without end and without the
/// candidate.
#[test]
fn a_candidate_whom_the_coordinator_does_not_hear_is_no_reason_for_a_generation() {
    let mut stage = Stage::new(3, 1);
    stage.join(3);
    for who in 0..3 {
        stage.meet(3, who);
        stage.meet(who, 3);
    }
    let except = |from: u64, to: u64| (from, to) != (3, 0);
    stage.pass(SILENCE, except);
    let candidates = |stage: &Stage| (0..3).map(|who| stage.members[who].candidates()).collect::<Vec<_>>();
    assert_eq!(candidates(&stage), [0, 0, 0]);
    stage.pass(SILENCE, everywhere);
    assert_eq!(candidates(&stage), [1, 0, 0]);
    // Nor is one that was just heard of no more.
    stage.pass(3 * SILENCE / 4, except);
    assert_eq!(candidates(&stage), [0, 0, 0]);
    stage.pass(SILENCE, everywhere);
    (0..3).for_each(|who| stage.come(who));
    stage.carry(everywhere);
    assert_eq!(stage.generation(3), (2, vec![0, 1, 2, 3]));
}

/// The half without the first member had to wait, even if the other host was lost for ever.
#[test]
fn of_two_halves_either_continues_with_the_witness_and_only_one() {
    for first in [0, 1] {
        let mut stage = Stage::with(2, 1, Some(Witness::default()));
        stage.pass(2 * SILENCE, |_, _| false);
        stage.come(first);
        assert_eq!(stage.generation(first), (2, vec![first]));
        // The other half comes later, and the witness tells it what is decided.
        stage.come(1 - first);
        stage.pass(SILENCE, |_, _| false);
        assert!(stage.is_evicted(1 - first), "{:?}", stage.members[1 - first as usize].waiting());
    }
}

#[test]
fn without_an_answer_of_the_witness_a_tie_waits_and_says_so() {
    let mut stage = Stage::with(2, 1, Some(Witness::default()));
    let witness = stage.witness.take();
    stage.pass(2 * SILENCE, |_, _| false);
    stage.come(0);
    let waiting = stage.members[0].waiting().unwrap().to_string();
    assert!(waiting.starts_with("member 1 cannot be reached and may be alive"), "{waiting}");
    assert!(waiting.contains("the launcher"), "{waiting}");
    stage.witness = witness;
    stage.pass(SILENCE, |_, _| false);
    assert_eq!(stage.generation(0), (2, vec![0]), "the question is repeated");
}

/// A reset between two hosts counted as the end of both processes: each went on alone.
#[test]
fn a_broken_connection_proves_no_end() {
    let mut stage = Stage::new(2, 1);
    stage.learn(0, 1, LossEvidence::Broken);
    stage.learn(1, 0, LossEvidence::Broken);
    assert!((0..2).all(|who| stage.members[who].contacts().count() == 1), "the other one is redialled");
    (0..2).for_each(|who| stage.come(who));
    stage.under_way.clear();
    stage.pass(SILENCE, |_, _| false);
    assert!(stage.waits_for_a_majority(1));
    stage.meet(0, 1);
    stage.meet(1, 0);
    stage.pass(SILENCE, everywhere);
    assert!(stage.is_evicted(1), "the half with the first member has continued");
}

/// One of two connections broke, with a vote in flight, and the other one stayed: the vote was never repeated.
#[test]
fn a_vote_that_one_of_two_connections_has_lost_is_repeated_on_the_other() {
    let mut stage = Stage::new(3, 1);
    let within = |from: u64, to: u64| (from == 2) == (to == 2);
    stage.pass(2 * SILENCE, within);
    stage.come(0);
    stage.come(1);
    stage.carry(|from, to| within(from, to) && (from, to) != (1, 0));
    stage.pass(SILENCE / 2, |from, to| (from, to) == (1, 0));
    stage.under_way.clear();
    stage.learn(2, 0, LossEvidence::Broken);
    stage.meet(2, 0);
    // Until the first message on the connection that is left, the end of the process is not certain.
    let mut ends = stage.members[2].clone();
    ends.learn(MemberId(0), LossEvidence::Ended, "", stage.now);
    ends.come(Arc::default(), stage.now);
    assert!(matches!(ends.waiting(), Some(Waiting::Majority { .. })), "{:?}", ends.waiting());
    stage.learn(0, 2, LossEvidence::Broken);
    stage.meet(0, 2);
    let first = stage.under_way.iter().find(|(from, to, _)| (*from, *to) == (0, 2)).map(|(.., message)| message);
    assert_eq!(first, Some(&MemberMessage::LeftOut { base: 1 }));
}

/// What the agent has read after the end replaces what was lost with the connection.
#[test]
fn the_record_of_a_dead_member_says_what_its_lost_vote_would_have_said() {
    // Member 2 voted with all, or was left out by 1.
    for left_out in [false, true] {
        let mut stage = Stage::new(3, 1);
        if left_out {
            let within = |from: u64, to: u64| (from == 2) == (to == 2);
            stage.pass(2 * SILENCE, within);
            (0..2).for_each(|who| stage.come(who));
            // Generation 2 is decided, and no word of it leaves the two.
            stage.carry(within);
            assert_eq!(stage.generation(0), (2, vec![0, 1]));
        }
        stage.learn(2, 1, LossEvidence::Broken);
        stage.reap(1, &[2]);
        stage.pass(2 * SILENCE, |_, _| false);
        stage.come(2);
        // Of 0 and 2 the first may continue; it is 2 if the ends of both others are certain.
        assert!(stage.waits_for_a_majority(2));
        stage.reap(0, &[2]);
        assert_eq!(stage.waits_for_a_majority(2), left_out);
    }
}

/// The coordinator of a higher ballot had promises of members that died, and proposed another list. That counted as
/// proof that no lower ballot was decided.
#[test]
fn a_higher_ballot_without_a_common_acceptor_does_not_refute_a_decision() {
    let mut stage = Stage::with(3, 1, Some(Witness::default()));
    let within = |from: u64, to: u64| (from == 0) == (to == 0);
    stage.pass(2 * SILENCE, within);
    // Members 1 and 2 promise a ballot of 1, and 2 dies before it votes.
    (1..3).for_each(|who| stage.come(who));
    let is_proposed =
        |stage: &Stage| stage.under_way.iter().any(|(.., message)| matches!(message, MemberMessage::Propose { .. }));
    while !is_proposed(&stage) {
        let (from, to, message) = stage.under_way.pop_front().unwrap();
        if within(from, to) {
            stage.act(to, |machine, now| machine.hear(MemberId(from), message, now));
        }
    }
    stage.reap(2, &[0]);
    // Its end is certain to 0, which is one of two and decides with the witness.
    stage.come(0);
    assert_eq!(stage.generation(0), (2, vec![0]));
    stage.under_way.clear();
    let record = stage.records[2].clone();
    stage.learn(1, 2, LossEvidence::Reaped(record));
    assert!(stage.is_evicted(1), "{:?}", stage.generation(1));
}
