//! Rules that protect the one history, each broken on purpose: the simulator must find two histories soon.

use super::random::Random;
use super::seeds::SETTLED;
use super::sim::World;
use super::weather::{Weather, plan};

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Between hosts the end of a stream counts as the end of the process.
    CloseIsProof,
    /// Between hosts a reset counts as the end of the process.
    ResetIsProof,
    /// The report of an end without a record counts as one with an empty record.
    MissingRecordIsEmpty,
    /// The record of a process that has ended is not read.
    RecordIsIgnored,
    /// A vote is recorded after its messages are sent.
    RecordFollowsVote,
    /// A connection that breaks while another one remains is not told to the state machine.
    SecondConnectionLeavesNoGap,
    /// A new connection proves, before its first message, that nothing was lost.
    HelloClosesGap,
    /// The first message on a new connection does not repeat a vote.
    VoteIsNotRepeated,
    /// Members that do not take part in a vote are not told.
    VoteIsNotSaid,
    /// A member that leaves does not say without which members it has voted.
    LeaveHidesVotes,
    /// The witness votes in a ballot lower than the one it has promised.
    WitnessBreaksPromise,
    /// The witness does not report its vote to the next coordinator.
    WitnessForgetsVote,
    /// The half that has the first member does not ask the witness.
    FirstNeedsNoWitness,
}

/// A broken rule is found within this many seeds of one of the weathers.
const SEEDS: u64 = 10_000;

/// The first seed that shows two histories, and which.
fn find(mutation: Mutation) -> Option<(Weather, u64, String)> {
    let weathers = [Weather::Resets];
    let all = (0..SEEDS).flat_map(|seed| weathers.map(|weather| (weather, seed)));
    all.into_iter().find_map(|(weather, seed)| Some((weather, seed, violation(weather, seed, mutation)?)))
}

fn violation(weather: Weather, seed: u64, mutation: Mutation) -> Option<String> {
    let mut random = Random::new(seed);
    let plan = plan(weather, &mut random);
    let until = plan.quiet_from + SETTLED / 2;
    let quiet_from = plan.quiet_from;
    let mut world = World::new(plan, random);
    world.mutation = Some(mutation);
    while world.now < until && world.watch.violation.is_none() {
        if world.now >= quiet_from {
            world.calm_down();
        }
        world.step();
    }
    world.watch.violation
}

macro_rules! found {
    ($($name:ident: $mutation:ident,)*) => {
        $(
            #[test]
            fn $name() {
                let found = find(Mutation::$mutation);
                eprintln!("{:?}: {found:?}", Mutation::$mutation);
                assert!(found.is_some(), "{SEEDS} seeds show no fault of {:?}", Mutation::$mutation);
            }
        )*
    };
}

found! {
    a_closed_connection_that_counts_as_proof_is_found: CloseIsProof,
    a_reset_that_counts_as_proof_is_found: ResetIsProof,
    a_missing_record_that_counts_as_empty_is_found: MissingRecordIsEmpty,
    a_record_that_is_ignored_is_found: RecordIsIgnored,
    a_record_that_follows_its_vote_is_found: RecordFollowsVote,
    a_second_connection_that_leaves_no_gap_is_found: SecondConnectionLeavesNoGap,
    a_hello_that_closes_a_gap_is_found: HelloClosesGap,
    a_vote_that_is_not_repeated_is_found: VoteIsNotRepeated,
    a_vote_that_is_not_said_is_found: VoteIsNotSaid,
    a_leave_that_hides_votes_is_found: LeaveHidesVotes,
    a_witness_that_breaks_its_promise_is_found: WitnessBreaksPromise,
    a_witness_that_forgets_its_vote_is_found: WitnessForgetsVote,
    a_first_half_that_asks_no_witness_is_found: FirstNeedsNoWitness,
}
