//! Jobs by seed: thousands of runs, and what must hold in the end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use farandole_plan::membership::{Membership, Waiting};

use farandole_cluster::membership::simulated::Rule;

use super::channel::SimulatedKind;
use super::faults::{Menu, plan};
use super::node::{Doing, member};
use super::random::Random;
use super::world::{BEAT, SILENCE, World};

/// After the last fault, a decision takes at most this long: connections are made again, silence is noticed, engines
/// give up waiting for a process that was cut off, and all of that twice.
const SETTLED: u64 = 14 * SILENCE;

/// Where a run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Some process has something to do.
    Moving,
    /// Everybody who is there works in one generation.
    AtWork,
    /// Those who are left must not continue, and can say why.
    Stuck,
    /// No member is left.
    Over,
    /// There is no power.
    Cut,
}

/// What a run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// A hash of all that happened.
    log: u64,
    verdict: Verdict,
    steps: u64,
    publications: u64,
}

impl Run {
    fn of(world: &World, verdict: Verdict) -> Run {
        let publications = world.disk.borrow().publications;
        Run { log: world.witness.log, verdict, steps: world.witness.steps, publications }
    }
}

fn look(world: &World) -> Verdict {
    let up: Vec<usize> = (0..world.nodes.len()).filter(|node| world.nodes[*node].is_up()).collect();
    let Some(newest) = up.iter().map(|node| world.nodes[*node].number()).max() else {
        return Verdict::Over;
    };
    let list = world.witness.history.generations().get(&newest);
    let is_in = |node: &usize| list.is_some_and(|list| list.contains(member(*node)));
    let members: Vec<usize> = up.iter().copied().filter(is_in).collect();
    if members.is_empty() {
        // Candidates, perhaps, which no member can let in.
        return Verdict::Over;
    }
    let works = |node: &usize| {
        let node = &world.nodes[*node];
        node.doing == Doing::Training && node.number() == newest
    };
    let size = list.map_or(0, |list| list.members.len());
    let is_full = size >= world.plan.limits.max_members;
    // A process that has contacts of the dead alone waits until its deadline.
    let is_lost = |node: &usize| match world.nodes[*node].generation() {
        Some(known) if known.number > 0 => !members.iter().any(|other| known.contains(member(*other))),
        _ => !members.iter().any(|other| other < node),
    };
    let expected = up.iter().filter(|node| !is_lost(node)).count();
    if members.len() == size && members.iter().all(works) && (is_full || size == expected) {
        return Verdict::AtWork;
    }
    let waiting = |node: usize| world.nodes[node].machine().and_then(Membership::waiting);
    let must_wait = |node: usize| {
        matches!(waiting(node), Some(Waiting::Majority { .. } | Waiting::Candidates { .. } | Waiting::Witness { .. }))
    };
    let is_stuck = |node: &usize| match waiting(*node) {
        _ if world.nodes[*node].doing == Doing::Training => false,
        Some(Waiting::Coordinator(coordinator)) => must_wait(coordinator.0 as usize),
        _ => must_wait(*node),
    };
    if members.iter().all(is_stuck) { Verdict::Stuck } else { Verdict::Moving }
}

/// Runs a job to its end.
fn run(menu: Menu, channels: SimulatedKind, seed: u64, is_verbose: bool) -> Run {
    run_with(menu, channels, None, seed, is_verbose)
}

fn run_with(menu: Menu, channels: SimulatedKind, broken: Option<Rule>, seed: u64, is_verbose: bool) -> Run {
    let mut random = Random::new(seed);
    let mut plan = plan(menu, channels, &mut random);
    plan.weather.broken = broken;
    let quiet_from = plan.quiet_from;
    let power_cut = plan.power_cut;
    let mut world = World::new(plan, random, is_verbose);
    world.run_until(power_cut.unwrap_or(quiet_from));
    if power_cut.is_some() {
        world.cut_power();
        return Run::of(&world, Verdict::Cut);
    }
    world.calm_down();
    let mut verdict = look(&world);
    while world.now < quiet_from + SETTLED && !matches!(verdict, Verdict::AtWork | Verdict::Over) {
        let next_look = world.now + BEAT;
        world.run_until(next_look);
        verdict = look(&world);
    }
    assert_ne!(verdict, Verdict::Moving, "every process knows what to do after a while:\n{}", describe(&world));
    world.cut_power();
    Run::of(&world, verdict)
}

fn describe(world: &World) -> String {
    let mut text = format!("{:?}\n", world.plan);
    for (id, node) in world.nodes.iter().enumerate() {
        let ids: Vec<u64> = node.generation().map_or(Vec::new(), |list| list.ids().map(|id| id.0).collect());
        text += &format!("{id}: alive {} {:?} in {} {ids:?}", node.alive, node.doing, node.number());
        text += &format!(" waits for {:?}\n", node.machine().and_then(Membership::waiting));
    }
    text
}

/// What the environment asks for.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs the seeds below `count`, or as many as the environment asks for, which all cores then share.
fn run_many(menu: Menu, channels: SimulatedKind, count: u64) {
    if let Some(seed) = number("FARANDOLE_SIMULATION_SEED") {
        eprintln!("{:?}", run(menu, channels, seed, true));
        return;
    }
    let (count, threads) = match number("FARANDOLE_SIMULATION_SEEDS") {
        Some(count) => (count, std::thread::available_parallelism().expect("cores can be counted").get()),
        None => (count, 1),
    };
    let tally = std::thread::scope(|scope| {
        let run_share = |first| move || Tally::of(menu, channels, (first as u64..count).step_by(threads));
        let shares: Vec<_> = (0..threads).map(|first| scope.spawn(run_share(first))).collect();
        let tallies: Vec<_> = shares.into_iter().map(|share| share.join()).collect();
        tallies.into_iter().map(|tally| tally.expect("no seed fails")).reduce(Tally::plus).expect("there are threads")
    });
    let ([_, at_work, stuck, over, cut], Tally { steps, publications, .. }) = (tally.verdicts, tally);
    eprintln!("{menu:?}: {at_work} at work, {stuck} may not continue, {over} have no member left, {cut} have no power");
    eprintln!("{menu:?}: {steps} steps, {publications} checkpoints");
    let is_lethal = matches!(menu, Menu::SecondConnection | Menu::LongSilence);
    assert!(is_lethal || at_work > count / 3, "most jobs survive");
}

/// What many runs have come to.
#[derive(Clone, Copy, Default)]
struct Tally {
    verdicts: [u64; 5],
    steps: u64,
    publications: u64,
}

impl Tally {
    fn of(menu: Menu, channels: SimulatedKind, seeds: impl Iterator<Item = u64>) -> Tally {
        let mut tally = Tally::default();
        for seed in seeds {
            match catch_unwind(AssertUnwindSafe(|| run(menu, channels, seed, false))) {
                Ok(run) => {
                    tally.verdicts[run.verdict as usize] += 1;
                    tally.steps += run.steps;
                    tally.publications += run.publications;
                }
                Err(_) => panic!("{menu:?}: FARANDOLE_SIMULATION_SEED={seed} repeats it"),
            }
        }
        tally
    }

    fn plus(self, other: Tally) -> Tally {
        let verdicts = std::array::from_fn(|verdict| self.verdicts[verdict] + other.verdicts[verdict]);
        let (steps, publications) = (self.steps + other.steps, self.publications + other.publications);
        Tally { verdicts, steps, publications }
    }
}

#[test]
fn jobs_survive_deaths_departures_and_joins() {
    run_many(Menu::Deaths, SimulatedKind::Plain, 1_000);
}

#[test]
fn jobs_survive_stopped_processes() {
    run_many(Menu::Stops, SimulatedKind::Plain, 1_000);
}

#[test]
fn jobs_survive_a_network_that_resets_and_cuts() {
    run_many(Menu::Network, SimulatedKind::Plain, 1_000);
}

#[test]
fn a_vote_before_a_death_is_known_to_those_who_survive() {
    run_many(Menu::SecondConnection, SimulatedKind::Plain, 500);
    run_many(Menu::LongSilence, SimulatedKind::Plain, 500);
}

#[test]
fn a_reset_that_counts_as_a_death_is_noticed() {
    is_noticed(Rule::ResetProvesNothing, Menu::Network);
}

#[test]
fn jobs_with_sealed_channels_survive() {
    run_many(Menu::Network, SimulatedKind::Sealed, 40);
}

/// Breaks a rule in all endpoints, and looks for a seed that shows it.
fn is_noticed(rule: Rule, menu: Menu) {
    let fails = |seed: &u64| {
        let run = || run_with(menu, SimulatedKind::Plain, Some(rule), *seed, false);
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    let found = (0..MOST_SEEDS).find(fails);
    eprintln!("{rule:?}: seed {found:?}");
    assert!(found.is_some(), "{rule:?} can be broken without being noticed in {MOST_SEEDS} runs");
}

/// A rule that can be broken for this number of runs is not tested.
const MOST_SEEDS: u64 = 10_000;

#[test]
fn a_refusal_that_counts_as_a_death_is_noticed() {
    is_noticed(Rule::RefusalProvesNothing, Menu::Stops);
}

#[test]
fn a_broken_second_connection_that_is_ignored_is_noticed() {
    is_noticed(Rule::EveryConnectionCounts, Menu::SecondConnection);
}

#[test]
fn a_dropped_message_that_must_arrive_is_noticed() {
    is_noticed(Rule::MustArrive, Menu::LongSilence);
}

#[test]
fn a_disk_that_ignores_syncs_is_noticed() {
    let tears = |seed: &u64| {
        let run = || {
            let mut random = Random::new(*seed);
            let mut plan = plan(Menu::Deaths, SimulatedKind::Plain, &mut random);
            plan.disk.ignores_syncs = true;
            let until = plan.power_cut.unwrap_or(plan.quiet_from);
            let mut world = World::new(plan, random, false);
            world.run_until(until);
            world.cut_power();
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    assert!((0..MOST_SEEDS).any(|seed| tears(&seed)));
}

#[test]
fn a_seed_repeats_itself_exactly() {
    for menu in [Menu::Deaths, Menu::Stops, Menu::Network] {
        for seed in 0..20 {
            let once = || run(menu, SimulatedKind::Plain, seed, false);
            assert_eq!(once(), once(), "{menu:?} {seed}");
        }
    }
}
