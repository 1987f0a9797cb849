//! Random programs: collectives, sizes, element types, factors, groups, joins, batches, priorities, orders and ways of
//! waiting, on two to eight ranks. Each program is run on every path: its requests in memory, in shared memory, over
//! TCP, on two hosts, on a plane that was added and on pretended devices, with different limits of fusion; and those of
//! the first iteration that concern the whole world also as direct calls, on each of these and by each algorithm.
//! Results are compared with a plain reference and between the paths, bit by bit.
//!
//! A program is a list of *rounds* that is gone through several times (*iterations*), so that the ranks learn its order
//! and replay it; now and then an iteration differs from the others, so that they have to talk again. At the end of a
//! round every rank waits for its tickets. Each rank joins before some round of the last iteration and takes no part in
//! the world from then on.
//!
//! `FARANDOLE_PROGRAMS=10000` runs that many programs, half of them in each of the two tests,
//! `FARANDOLE_PROGRAMS_SEED=2500` begins with that one. The number of a program is its seed, so several processes can
//! share the work. A test says how many it ran, and from which seed on.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::harness;
use crate::harness::direct_paths;
use crate::harness::pretend_device;
use crate::harness::reference;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::reference::{Call, Dice, Inputs, Solved};
use crate::harness::{Transport, direct_ranks, ranks_with, request};
use farandole_engine::config::DevicePlaneChoice;
use farandole_engine::{Config, Engine, Outcome, Submission, wait_all};
use farandole_plan::request::Batch;
use farandole_plan::{Collective, Dtype, GroupId, Rank, ReduceOp};
use farandole_testing::Deadline;

/// Programs run unless told otherwise, half of them by each test, and the time after which no new one is begun.
const PROGRAMS: u64 = 300;
const TIME: Duration = Duration::from_secs(35);

/// Somebody who runs ten thousand programs wants to see that they go on.
const SAY_EVERY: u64 = 500;

/// The serial number under which a rank tells who joined last.
const JOIN: usize = usize::MAX;

#[derive(Clone, Debug)]
struct Program {
    seed: u64,
    size: usize,
    groups: Vec<Vec<Rank>>,
    iterations: Vec<Vec<Round>>,
    /// The round of the last iteration before which each rank joins.
    joins: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Round {
    calls: Vec<Call>,
    /// Whether all ranks make the calls one after the other, or each in its own order and at once.
    blocking: bool,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut dice = Dice::new(seed);
        let size = 2 + dice.below(7) as usize;
        let groups = groups(&mut dice, size);
        let rounds: Vec<Round> = (0..1 + dice.below(4)).map(|_| round(&mut dice, size, &groups)).collect();
        let iterations = (0..1 + dice.below(6))
            .map(|_| rounds.iter().map(|same| vary(&mut dice, same, size, &groups)).collect())
            .collect();
        let joins = (0..size).map(|_| dice.below(rounds.len() as u64 + 1) as usize).collect();
        Program { seed, size, groups, iterations, joins }
    }

    fn members(&self, group: GroupId) -> Vec<Rank> {
        match group {
            GroupId::WORLD => (0..self.size).map(Rank::from).collect(),
            GroupId(number) => self.groups[number as usize - 1].clone(),
        }
    }

    /// World ranks that have joined before a round.
    fn joined(&self, iteration: usize, round: usize) -> Vec<bool> {
        let last = iteration + 1 == self.iterations.len();
        self.joins.iter().map(|&join| last && join <= round).collect()
    }

    /// Whether a call can be made although some have joined.
    fn is_possible(&self, call: &Call, joined: &[bool]) -> bool {
        if call.group != GroupId::WORLD {
            return true;
        }
        let root_is_here = call.collective.root().is_none_or(|root| !joined[root.index()]);
        root_is_here && joined.iter().any(|joined| !joined)
    }

    /// Which members of a call's group have joined before it.
    fn absent(&self, call: &Call, joined: &[bool]) -> Vec<bool> {
        let members = self.members(call.group);
        members.iter().map(|rank| call.group == GroupId::WORLD && joined[rank.index()]).collect()
    }

    /// All calls that are made, in the order of the program, by their serial number.
    fn solve(&self) -> Vec<Option<Solved>> {
        let mut solved = Vec::new();
        for (iteration, rounds) in self.iterations.iter().enumerate() {
            for (number, round) in rounds.iter().enumerate() {
                let joined = self.joined(iteration, number);
                for call in &round.calls {
                    let salt = self.seed.wrapping_add(solved.len() as u64);
                    let possible = self.is_possible(call, &joined);
                    solved.push(possible.then(|| Solved::new(call, salt, &self.absent(call, &joined))));
                }
            }
        }
        solved
    }

    /// The calls of the first iteration that all ranks make, as they would be made directly.
    fn solve_direct(&self) -> Vec<Solved> {
        let calls = self.iterations[0].iter().flat_map(|round| &round.calls);
        let world = calls.enumerate().filter(|(_, call)| call.group == GroupId::WORLD);
        world.map(|(index, call)| Solved::new(call, self.seed ^ index as u64, &vec![false; self.size])).collect()
    }
}

fn groups(dice: &mut Dice, size: usize) -> Vec<Vec<Rank>> {
    let mut groups: Vec<Vec<Rank>> = Vec::new();
    for _ in 0..dice.below(3) {
        let ranks: Vec<Rank> = (0..size).filter(|_| dice.below(2) == 0).map(Rank::from).collect();
        if !ranks.is_empty() && ranks.len() < size && !groups.contains(&ranks) {
            groups.push(ranks);
        }
    }
    groups
}

fn round(dice: &mut Dice, size: usize, groups: &[Vec<Rank>]) -> Round {
    let mut calls: Vec<Call> = (0..1 + dice.below(8)).map(|number| call(dice, number, size, groups)).collect();
    if dice.below(4) == 0 {
        batch(&mut calls);
    }
    Round { calls, blocking: dice.below(3) == 0 }
}

/// Makes one batch of the allreduces of the world.
fn batch(calls: &mut [Call]) {
    let is_member =
        |call: &Call| call.group == GroupId::WORLD && matches!(call.collective, Collective::Allreduce { .. });
    let members = calls.iter().filter(|call| is_member(call)).count() as u32;
    for call in calls.iter_mut().filter(|call| is_member(call)) {
        call.batch = Some(Batch { name: "batch".into(), members });
    }
}

fn call(dice: &mut Dice, number: u64, size: usize, groups: &[Vec<Rank>]) -> Call {
    let group = GroupId(dice.below(groups.len() as u64 + 1) as u32);
    let members = if group == GroupId::WORLD { size } else { groups[group.0 as usize - 1].len() } as u64;
    let op = ReduceOp::ALL[dice.below(6) as usize];
    let mut dtype = Dtype::ALL[dice.below(13) as usize];
    if op == ReduceOp::Adasum {
        dtype = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::BF16][dice.below(4) as usize];
    }
    // Powers of two before the fold, so that it stays exact; anything after it.
    let (prescale, postscale) = match dice.below(4) {
        0 => ([0.25, 0.5, 2.0, 4.0][dice.below(4) as usize], [1.0, 0.5, 0.3, 3.0][dice.below(4) as usize]),
        1 => (1.0, [0.25, 0.1, 1.5, 7.0][dice.below(4) as usize]),
        _ => (1.0, 1.0),
    };
    let inputs = if dice.below(2) == 0 { Inputs::Small } else { Inputs::Extreme };
    let root = Rank(dice.below(members) as u32);
    let collective = match dice.below(15) {
        0 => Collective::Allgather,
        1 => Collective::Broadcast { root },
        2 => Collective::Alltoall { splits: None },
        3 if op != ReduceOp::Adasum => Collective::ReduceScatter { op, prescale, postscale },
        4 => Collective::Barrier,
        5 if op != ReduceOp::Adasum => Collective::Reduce { root, op, prescale, postscale },
        6 => Collective::Gather { root },
        7 => Collective::Scatter { root, splits: None },
        _ => Collective::Allreduce { op, prescale, postscale },
    };
    let row_elems = [1, 1, 3, 5, 64, 1000][dice.below(6) as usize];
    // Mostly small, now and then beyond every threshold below which things are copied.
    let rows = if dice.below(20) == 0 { 100_000 / row_elems } else { dice.below(40) };
    let priority = dice.below(3) as i32;
    Call { number, group, collective, dtype, rows, row_elems, batch: None, priority, inputs }
}

/// The round of one iteration: usually the same.
fn vary(dice: &mut Dice, same: &Round, size: usize, groups: &[Vec<Rank>]) -> Round {
    let mut round = same.clone();
    match dice.below(12) {
        0 => round = self::round(dice, size, groups),
        1 => round.calls[0].rows += 1,
        2 if round.calls[0].batch.is_none() => drop(round.calls.remove(0)),
        _ => {}
    }
    round
}

/// What one rank does. Returns a hash of every result, by the serial number of its call.
fn play(engine: &Engine, program: &Program, solved: &[Option<Solved>]) -> Vec<(usize, u64)> {
    let me = engine.rank();
    let mut dice = Dice::new(program.seed ^ (u64::from(me.0) + 1) << 32);
    for ranks in &program.groups {
        engine.add_group(ranks).unwrap();
    }
    let mut hashes = Vec::new();
    let mut serial = 0;
    let mut join = None;
    for (iteration, rounds) in program.iterations.iter().enumerate() {
        for (number, round) in rounds.iter().enumerate() {
            let joined = program.joined(iteration, number);
            if joined[me.index()] && join.is_none() {
                let request = request("join", Collective::Join, Dtype::U8, &[]);
                join = Some(engine.submit(Submission::without_memory(request)).unwrap());
            }
            let first = serial;
            serial += round.calls.len();
            let mut order: Vec<usize> = (0..round.calls.len())
                .filter(|&index| program.is_possible(&round.calls[index], &joined))
                .filter(|&index| program.members(round.calls[index].group).contains(&me))
                .filter(|&index| round.calls[index].group != GroupId::WORLD || !joined[me.index()])
                .collect();
            let has_batch = round.calls.iter().any(|call| call.batch.is_some());
            let blocking = round.blocking && !has_batch;
            if !blocking {
                dice.shuffle(&mut order);
            }
            let outcomes = make_calls(engine, program, &solved[first..], &order, blocking, &mut dice);
            for (&index, outcome) in order.iter().zip(outcomes) {
                let members = program.members(round.calls[index].group);
                let me = members.iter().position(|&rank| rank == me).unwrap();
                let solved = solved[first + index].as_ref().unwrap();
                hashes.extend(check(solved, me, outcome).map(|hash| (first + index, hash)));
            }
        }
    }
    let join = join.unwrap_or_else(|| {
        engine.submit(Submission::without_memory(request("join", Collective::Join, Dtype::U8, &[]))).unwrap()
    });
    let last = join.wait().unwrap().last_joined.unwrap();
    hashes.push((JOIN, u64::from(last.0)));
    hashes
}

fn make_calls(
    engine: &Engine,
    program: &Program,
    solved: &[Option<Solved>],
    order: &[usize],
    blocking: bool,
    dice: &mut Dice,
) -> Vec<Outcome> {
    let submission = |index: usize| {
        let solved = solved[index].as_ref().unwrap();
        let members = program.members(solved.call.group);
        let me = members.iter().position(|&rank| rank == engine.rank()).unwrap();
        pretend_device::moved_in_turns(engine, solved.submission(me, members.len()))
    };
    if blocking {
        return order.iter().map(|&index| engine.run(submission(index)).unwrap()).collect();
    }
    let tickets: Vec<_> = order.iter().map(|&index| engine.submit(submission(index)).unwrap()).collect();
    match dice.below(3) {
        0 => wait_all(tickets).into_iter().map(Result::unwrap).collect(),
        1 => tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect(),
        _ => {
            let all_are_done = || tickets.iter().all(|ticket| ticket.is_done());
            farandole_testing::wait_until("all tickets", farandole_testing::NEVER, all_are_done);
            tickets.iter().map(|ticket| ticket.poll().unwrap().unwrap()).collect()
        }
    }
}

fn check(solved: &Solved, me: usize, outcome: Outcome) -> Option<u64> {
    let result = pretend_device::contents(&pretend_device::when_there(outcome).into_result()?);
    if let Some(expected) = &solved.expected {
        assert!(*result == *expected[me], "rank {me} got a wrong result of {:?}", solved.call);
    }
    Some(reference::hash(&result))
}

/// The limit of fusion on each transport: nothing is fused, some, or as much as can be.
fn config(transport: Transport) -> Config {
    let fusion_threshold_bytes = match transport {
        Transport::Memory => 0,
        Transport::Tcp => 8 << 10,
        Transport::Shm
        | Transport::Hosts
        | Transport::Plane
        | Transport::Device
        | Transport::DeviceHosts
        | Transport::Nccl => Config::default().fusion_threshold_bytes,
    };
    let mut config = Config { fusion_threshold_bytes, ..harness::config() };
    match transport {
        Transport::Nccl => config.plane = DevicePlaneChoice::PreferNccl,
        // Shorter than many tensors, and than the shards of large ones by far.
        Transport::DeviceHosts => config.slice_bytes = 1 << 10,
        _ => {}
    }
    config
}

/// Runs a program on every path. Says how many results of direct calls were compared.
fn try_program(seed: u64) -> usize {
    let program = Arc::new(Program::new(seed));
    let solved = Arc::new(program.solve());
    let direct = Arc::new(program.solve_direct());
    // Which rank of the world got which result.
    let mut results: HashMap<(usize, usize), u64> = HashMap::new();
    let mut directly = 0;
    for transport in Transport::EVERY.into_iter().chain([Transport::Device, Transport::DeviceHosts, Transport::Nccl]) {
        let (played, solved) = (Arc::clone(&program), Arc::clone(&solved));
        let of_all =
            ranks_with(program.size, transport, config(transport), move |engine| play(&engine, &played, &solved));
        let mut last_joined = None;
        for (rank, (serial, hash)) in
            of_all.into_iter().enumerate().flat_map(|(rank, hashes)| hashes.into_iter().map(move |hash| (rank, hash)))
        {
            if serial == JOIN {
                // Who joins last is a matter of time; the ranks must agree on it.
                let last = *last_joined.get_or_insert(hash);
                assert_eq!(last, hash, "the ranks disagree about who joined last");
                continue;
            }
            let first = *results.entry((rank, serial)).or_insert(hash);
            assert_eq!(first, hash, "call {serial} gave rank {rank} another result in {transport:?} than before");
        }
        if matches!(transport, Transport::Device | Transport::DeviceHosts | Transport::Nccl) {
            continue; // Direct calls work in host memory.
        }
        let direct = Arc::clone(&direct);
        let made = direct_ranks(program.size, transport, direct_paths::settings(), move |mut communicator| {
            direct.iter().map(|solved| direct_paths::check(&mut communicator, solved)).sum::<usize>()
        });
        directly += made.iter().sum::<usize>();
    }
    check_ranks_agree(&program, &results);
    directly
}

/// Results that all members of a group share are the same on all of them.
fn check_ranks_agree(program: &Program, results: &HashMap<(usize, usize), u64>) {
    let calls: Vec<&Call> = program.iterations.iter().flatten().flat_map(|round| &round.calls).collect();
    let mut seen = HashMap::new();
    for (&(rank, serial), &hash) in results {
        let differs = match calls[serial].collective {
            Collective::Reduce { .. } | Collective::ReduceScatter { .. } => true,
            ref other => other.exchanges(),
        };
        if !differs {
            let first = *seen.entry(serial).or_insert(hash);
            assert_eq!(first, hash, "call {serial}: rank {rank} got another result than others");
        }
    }
}

// Two tests, so that they share the cores.

#[test]
fn random_programs_give_the_same_bits_on_every_path() {
    assert!(try_programs(0) > 0, "a run without a program shows nothing");
}

#[test]
fn more_random_programs_give_the_same_bits_on_every_path() {
    try_programs(1);
}

/// The first or the second half of the programs. Says how many were run.
fn try_programs(half: usize) -> u64 {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let time = Deadline::after(TIME);
    let programs = number("FARANDOLE_PROGRAMS");
    let (all, begin) = (programs.unwrap_or(PROGRAMS), number("FARANDOLE_PROGRAMS_SEED").unwrap_or(0));
    let halves = [begin, begin + all.div_ceil(2), begin + all];
    let (first, end) = (halves[half], halves[half + 1]);
    let (mut ran, mut directly) = (0, 0);
    for seed in first..end {
        if programs.is_none() && time.is_over() {
            break;
        }
        let watch = SayOnPanic(seed);
        directly += try_program(seed);
        std::mem::forget(watch);
        ran += 1;
        if ran % SAY_EVERY == 0 {
            println!("{ran} programs so far");
        }
    }
    println!(
        "{ran} programs, from seed {first} on, on {} transports, {directly} results of direct calls besides",
        Transport::EVERY.len(),
    );
    ran
}

/// Says which program it was.
struct SayOnPanic(u64);

impl Drop for SayOnPanic {
    fn drop(&mut self) {
        let seed = self.0;
        eprintln!(
            "program {seed} failed; FARANDOLE_PROGRAMS=1 FARANDOLE_PROGRAMS_SEED={seed} runs it alone:\n{:#?}",
            Program::new(seed)
        );
    }
}
