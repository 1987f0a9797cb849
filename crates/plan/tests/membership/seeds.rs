//! Jobs by seed: thousands of runs, and what must hold in the end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use farandole_plan::membership::Waiting;

use super::node::Doing;
use super::random::Random;
use super::sim::{BEAT, SILENCE, World, member};
use super::weather::{Weather, plan};

/// After the last fault, a decision takes at most this long: connections are made again, silence is noticed, engines
/// give up waiting for somebody who was cut off, and all of that twice.
pub(crate) const SETTLED: u64 = 12 * SILENCE;

/// Where a run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Somebody has something to do.
    Moving,
    /// Everybody who is there works in one generation.
    AtWork,
    /// Those who are left must not go on, and can say why.
    Stuck,
    /// No member is left.
    Over,
}

fn look(world: &World) -> Verdict {
    let up: Vec<usize> = (0..world.nodes.len()).filter(|node| world.nodes[*node].is_up()).collect();
    let Some(newest) = up.iter().map(|node| world.nodes[*node].machine.generation().number).max() else {
        return Verdict::Over;
    };
    let list = world.watch.history.generations().get(&newest);
    let is_in = |node: &usize| list.is_some_and(|list| list.contains(member(*node)));
    let members: Vec<usize> = up.iter().copied().filter(is_in).collect();
    if members.is_empty() {
        // Candidates, perhaps, whom nobody can let in.
        return Verdict::Over;
    }
    let works = |node: &usize| {
        let node = &world.nodes[*node];
        node.doing == Doing::Training && node.machine.generation().number == newest
    };
    let size = list.map_or(0, |list| list.members.len());
    let is_full = size >= world.plan.limits.max_members;
    if members.len() == size && members.iter().all(works) && (is_full || size == up.len()) {
        return Verdict::AtWork;
    }
    let waiting = |node: usize| world.nodes[node].machine.waiting();
    // The witness answers unless it is out of reach, or a later generation exists.
    let has_witness = |node: usize| world.launcher_is_alive && world.nodes[node].is_linked;
    let must_wait = |node: usize| match waiting(node) {
        Some(Waiting::Majority { .. } | Waiting::Candidates { .. }) => true,
        Some(Waiting::Witness { .. }) => {
            !has_witness(node) || world.witness_base > world.nodes[node].machine.generation().number
        }
        _ => false,
    };
    let is_stuck = |node: &usize| match waiting(*node) {
        _ if world.nodes[*node].doing == Doing::Training => false,
        Some(Waiting::Coordinator(coordinator)) => must_wait(coordinator.0 as usize),
        _ => must_wait(*node),
    };
    if members.iter().all(is_stuck) { Verdict::Stuck } else { Verdict::Moving }
}

/// Runs a job to its end. Returns a hash of all that happened, and how it ended.
fn run(weather: Weather, seed: u64) -> (u64, Verdict) {
    let mut random = Random::new(seed);
    let plan = plan(weather, &mut random);
    let quiet_from = plan.quiet_from;
    let only_deaths = weather == Weather::Deaths;
    let mut world = World::new(plan, random);
    while world.now < quiet_from {
        world.step_well();
    }
    world.calm_down();
    let mut verdict = look(&world);
    while world.now < quiet_from + SETTLED && !matches!(verdict, Verdict::AtWork | Verdict::Over) {
        let next_look = world.now + BEAT;
        while world.now < next_look {
            world.step_well();
        }
        verdict = look(&world);
    }
    assert_ne!(verdict, Verdict::Moving, "everybody knows what to do after a while:\n{}", describe(&world));
    if only_deaths {
        let is_member = |id: usize| world.nodes[id].machine.generation().contains(member(id));
        let left = (0..world.nodes.len()).filter(|id| world.nodes[*id].is_up() && is_member(*id)).count();
        let enough = left >= world.plan.limits.min_members;
        assert_eq!(world.watch.evictions, 0, "nobody who is alive is evicted");
        let may_stop = !enough || !world.plan.proves_ends();
        assert!(verdict != Verdict::Stuck || may_stop, "survivors go on:\n{}", describe(&world));
    }
    (world.watch.log, verdict)
}

fn describe(world: &World) -> String {
    let mut text = format!("{:?}\n", world.plan);
    for (id, node) in world.nodes.iter().enumerate() {
        let generation = node.machine.generation();
        let ids: Vec<u64> = generation.ids().map(|id| id.0).collect();
        text += &format!("{id}: alive {} {:?} in {} {ids:?}", node.alive, node.doing, generation.number);
        text += &format!(" waits for {:?}\n", node.machine.waiting());
    }
    text
}

/// What the environment asks for, or the default.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number of seeds"))
}

fn run_many(weather: Weather, count: u64) {
    if let Ok(one) = std::env::var("FARANDOLE_MEMBERSHIP_SEED") {
        eprintln!("{:?}", run(weather, one.parse().expect("a seed")));
        return;
    }
    let count = number("FARANDOLE_MEMBERSHIP_SEEDS", count);
    let mut verdicts = [0; 4];
    for seed in 0..count {
        match catch_unwind(AssertUnwindSafe(|| run(weather, seed))) {
            Ok((_, verdict)) => verdicts[verdict as usize] += 1,
            Err(_) => panic!("{weather:?}: FARANDOLE_MEMBERSHIP_SEED={seed} repeats it"),
        }
    }
    let [_, at_work, stuck, over] = verdicts;
    eprintln!("{weather:?}: {at_work} at work, {stuck} may not go on, {over} have nobody left");
    assert!(at_work > count / 2, "most jobs survive");
}

#[test]
fn jobs_survive_deaths_departures_and_joins() {
    run_many(Weather::Deaths, 25_000);
}

#[test]
fn jobs_survive_stopped_processes_and_broken_connections() {
    run_many(Weather::Stops, 25_000);
}

#[test]
fn jobs_survive_resets() {
    run_many(Weather::Resets, 25_000);
}

#[test]
fn jobs_survive_cut_networks() {
    run_many(Weather::Cuts, 25_000);
}

#[test]
fn a_seed_repeats_itself_exactly() {
    for weather in [Weather::Deaths, Weather::Stops, Weather::Resets, Weather::Cuts] {
        for seed in 0..200 {
            assert_eq!(run(weather, seed), run(weather, seed), "{weather:?} {seed}");
        }
    }
    assert_ne!(run(Weather::Cuts, 1).0, run(Weather::Cuts, 2).0, "another seed is another job");
}
