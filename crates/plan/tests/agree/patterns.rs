//! Programs that change their pattern at random, on a network with delays: how long requests wait, and how often the
//! ranks negotiate.
//!
//! A program is a list of *sections*. A section repeats one pattern: a set of requests of one to three groups, with
//! waits, and with pauses in which ranks compute. Ranks are ahead of each other. The next section has another pattern:
//! other names, some of the names of the one before, the same names in another order, or with other waits.
//!
//! Time is virtual. A message takes up to [`DELAY`], nothing else takes any time but what programs compute. A thread
//! that waits says so to the agreement of the group (`Member::awaits`), as the engine does.
//!
//! What must hold: when all ranks wait in the group of a request that all have made, it runs within [`MOST_TRIPS`]; a
//! change costs a bounded number of rounds; and what is repeated long enough needs no more messages.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::Rank;
use farandole_plan::agree::{Action, Bucket, Member, Operation, RequestId, Settings};
use farandole_plan::message::Message;
use farandole_plan::request::Request;

use crate::sim::{Random, allreduce};

/// The longest that a message takes.
const DELAY: Duration = Duration::from_micros(50);

/// Trips of a message from when all ranks wait until the request runs, at most: a replay begins while it is announced
/// (2); a rank stops, the others are halted and stop, all resume and agree (4); and what the break has abandoned is
/// announced after that (2).
const MOST_TRIPS: u32 = 8;

/// Rounds that a section takes at most in a group: its first request ends the replay before; a replay that is learned
/// while ranks still differ in what they wait for ends early, and with each the repeats double that the next one needs.
const MOST_ROUNDS: u64 = 4;

/// Iterations of a section after which the agreement has seen enough: as many repeats as it ever asks for, and the
/// rounds before.
const LONG_SECTION: usize = 150;

#[derive(Clone, Debug)]
enum Step {
    Submit(usize, Request),
    /// Waits for all requests but the last ones.
    WaitAllBut(usize),
    Compute(Duration),
    /// Notes how many messages have passed.
    CountMessages,
}

/// A request that was made.
struct Made {
    group: usize,
    name: Arc<str>,
    /// When this rank first waited in the group after it had made the request.
    waited: Option<Duration>,
    ended: Option<Duration>,
}

#[derive(Default)]
struct Program {
    steps: VecDeque<Step>,
    made: Vec<Made>,
    /// All before this one have ended.
    first_left: usize,
    computes_until: Duration,
}

struct Group {
    members: Vec<Member>,
    links: Vec<Vec<VecDeque<(Duration, Message)>>>,
    ids: Vec<HashMap<RequestId, usize>>,
    running: Vec<Option<Bucket>>,
    entered: BTreeMap<Operation, usize>,
    messages: usize,
}

struct World {
    size: usize,
    now: Duration,
    random: Random,
    groups: Vec<Group>,
    programs: Vec<Program>,
    /// Messages at each `CountMessages` of rank 0, of all groups.
    counted: Vec<usize>,
}

impl World {
    fn new(size: usize, groups: usize, seed: u64) -> World {
        let group = |_| Group {
            members: (0..size).map(|rank| Member::new(Rank::from(rank), size, Settings::default())).collect(),
            links: vec![vec![VecDeque::new(); size]; size],
            ids: vec![HashMap::new(); size],
            running: vec![None; size],
            entered: BTreeMap::new(),
            messages: 0,
        };
        let programs = (0..size).map(|_| Program::default()).collect();
        let groups = (0..groups).map(group).collect();
        World { size, now: Duration::ZERO, random: Random(seed), groups, programs, counted: Vec::new() }
    }

    fn run(&mut self) {
        for _ in 0..2_000_000_u64 {
            if self.step() {
                continue;
            }
            let Some(next) = self.next_event() else {
                let left: Vec<_> = self.programs.iter().map(|program| program.steps.front()).collect();
                assert!(left.iter().all(Option::is_none), "stuck at {:?}: {left:?}", self.now);
                return;
            };
            self.now = next;
        }
        panic!("no end in sight");
    }

    /// Does all that can be done at this moment.
    fn step(&mut self) -> bool {
        let mut moved = false;
        for rank in 0..self.size {
            moved |= self.take_step(rank);
            for group in 0..self.groups.len() {
                moved |= self.hear(group, rank) | self.finish(group, rank);
                let member = &mut self.groups[group].members[rank];
                if member.next_timeout().is_some_and(|due| due <= self.now) {
                    member.handle_timeout(self.now);
                }
                moved |= self.poll(group, rank);
            }
        }
        moved
    }

    fn next_event(&self) -> Option<Duration> {
        let links = self.groups.iter().flat_map(|group| group.links.iter().flatten());
        let messages = links.filter_map(|link| link.front().map(|(due, _)| *due));
        let members = self.groups.iter().flat_map(|group| &group.members);
        let timeouts = members.filter_map(Member::next_timeout);
        let programs = self.programs.iter().map(|program| program.computes_until);
        messages.chain(timeouts).chain(programs).filter(|due| *due > self.now).min()
    }

    fn hear(&mut self, group: usize, rank: usize) -> bool {
        let Group { members, links, .. } = &mut self.groups[group];
        let mut moved = false;
        for (from, to_all) in links.iter_mut().enumerate() {
            while let Some((_, message)) = to_all[rank].pop_front_if(|(due, _)| *due <= self.now) {
                members[rank].receive(Rank::from(from), message, self.now).expect("all ranks keep the protocol");
                moved = true;
            }
        }
        moved
    }

    /// A bucket ends when all ranks have entered it.
    fn finish(&mut self, group: usize, rank: usize) -> bool {
        let Group { members, ids, running, entered, .. } = &mut self.groups[group];
        let is_over = |bucket: &mut Bucket| entered[&bucket.operation] == self.size;
        let Some(bucket) = running[rank].take_if(is_over) else { return false };
        members[rank].finished(bucket.operation, self.now);
        for id in bucket.requests.into_iter().flatten() {
            let number = ids[rank].remove(&id).expect("an id is used while it is valid");
            self.programs[rank].made[number].ended = Some(self.now);
        }
        true
    }

    fn poll(&mut self, group: usize, rank: usize) -> bool {
        let (now, mut moved) = (self.now, false);
        let Group { members, links, running, entered, messages, .. } = &mut self.groups[group];
        loop {
            if let Some((to, message)) = members[rank].poll_send(now) {
                let link = &mut links[rank][to.index()];
                let due = now + DELAY.mul_f64(self.random.below(101) as f64 / 100.0);
                link.push_back((link.back().map_or(due, |(before, _)| due.max(*before)), message));
                *messages += 1;
            } else {
                match members[rank].poll_action(now) {
                    Some(Action::Run(bucket)) => {
                        *entered.entry(bucket.operation).or_default() += 1;
                        running[rank] = Some(bucket);
                    }
                    Some(Action::Abandon { .. }) => running[rank] = None,
                    Some(other) => panic!("{other:?}"),
                    None => return moved,
                }
            }
            moved = true;
        }
    }

    fn take_step(&mut self, rank: usize) -> bool {
        let now = self.now;
        let program = &mut self.programs[rank];
        if program.computes_until > now {
            return false;
        }
        match program.steps.front() {
            None => return false,
            Some(Step::CountMessages) => {
                if rank == 0 {
                    self.counted.push(self.groups.iter().map(|group| group.messages).sum());
                }
            }
            Some(Step::Compute(time)) => program.computes_until = now + *time,
            Some(Step::Submit(group, request)) => {
                let number = program.made.len();
                let Group { members, ids, .. } = &mut self.groups[*group];
                let id = members[rank].submit(request.clone(), now).expect("names are not in flight");
                ids[rank].insert(id, number);
                program.made.push(Made { group: *group, name: Arc::clone(&request.name), waited: None, ended: None });
            }
            Some(Step::WaitAllBut(last)) => {
                let end = program.made.len().saturating_sub(*last);
                let left = (program.first_left..end).find(|number| program.made[*number].ended.is_none());
                program.first_left = left.unwrap_or(program.first_left.max(end));
                if let Some(left) = left {
                    let (group, name) = (program.made[left].group, Arc::clone(&program.made[left].name));
                    let in_group = program.made[left..].iter_mut().filter(|made| made.group == group);
                    in_group.for_each(|made| made.waited = made.waited.or(Some(now)));
                    self.groups[group].members[rank].awaits(&name);
                    return false;
                }
            }
        }
        program.steps.pop_front();
        true
    }

    /// The longest time from when all ranks waited for a request until it had ended on the last one.
    fn longest_wait(&self) -> Duration {
        let mut requests: HashMap<(usize, &str, usize), Vec<&Made>> = HashMap::new();
        for program in &self.programs {
            let mut times: HashMap<(usize, &str), usize> = HashMap::new();
            for made in &program.made {
                let time = times.entry((made.group, &*made.name)).or_default();
                requests.entry((made.group, &*made.name, *time)).or_default().push(made);
                *time += 1;
            }
        }
        let wait = |ranks: &Vec<&Made>| {
            assert_eq!(ranks.len(), self.size);
            let waited = ranks.iter().map(|made| made.waited).collect::<Option<Vec<_>>>()?.into_iter().max()?;
            let ended = ranks.iter().map(|made| made.ended.expect("all have ended")).max()?;
            Some(ended.saturating_sub(waited))
        };
        requests.values().filter_map(wait).max().unwrap_or_default()
    }

    fn rounds(&self) -> u64 {
        let last = |group: &Group| group.entered.keys().next_back().map_or(0, |operation| u64::from(operation.round()));
        self.groups.iter().map(last).sum()
    }
}

/// One pattern: requests with their groups, and how an iteration waits.
#[derive(Clone)]
struct Pattern {
    requests: Vec<(usize, Request)>,
    /// After which request ranks wait for all so far, besides the end.
    wait_after: Option<usize>,
    /// How many requests the wait at the end leaves in flight.
    leaves: usize,
    /// After which request ranks pause longer than the agreement is patient.
    pause_after: Option<usize>,
}

fn any_pattern(random: &mut Random, groups: usize, before: Option<&Pattern>, prefix: &str) -> Pattern {
    let made = |random: &mut Random, count: usize| {
        (0..count).map(|n| (random.below(groups), allreduce(&format!("{prefix}{n}"), 1 + n as u64))).collect()
    };
    let mut requests: Vec<(usize, Request)> = match before {
        // Some of the names, as when a parameter is frozen.
        Some(before) if random.one_in(3) => {
            let kept = 1 + random.below(before.requests.len());
            before.requests[..kept].to_vec()
        }
        // Some more.
        Some(before) if random.one_in(3) => {
            let more: Vec<(usize, Request)> = made(random, 2);
            before.requests.iter().cloned().chain(more).collect()
        }
        // Others, as in an evaluation.
        _ => {
            let count = 1 + random.below(8);
            made(random, count)
        }
    };
    if random.one_in(3) {
        random.shuffle(&mut requests);
    }
    let count = requests.len();
    let wait_after = random.one_in(3).then(|| random.below(count));
    let leaves = if random.one_in(4) { random.below(count) } else { 0 };
    let pause_after = random.one_in(5).then(|| random.below(count));
    Pattern { requests, wait_after, leaves, pause_after }
}

fn push_section(world: &mut World, pattern: &Pattern, iterations: usize) {
    let size = world.size;
    let late = world.random.below(2 * size);
    for _ in 0..iterations {
        for rank in 0..size {
            let ahead = DELAY.mul_f64(world.random.below(300) as f64 / 100.0);
            let ahead = if rank == late { ahead + Duration::from_millis(3) } else { ahead };
            let steps = &mut world.programs[rank].steps;
            steps.push_back(Step::Compute(ahead));
            for (at, (group, request)) in pattern.requests.iter().enumerate() {
                // The one that had this name before.
                steps.push_back(Step::WaitAllBut(pattern.requests.len() - 1));
                steps.push_back(Step::Submit(*group, request.clone()));
                if pattern.pause_after == Some(at) {
                    steps.push_back(Step::Compute(2 * Settings::default().patience + ahead));
                }
                if pattern.wait_after == Some(at) {
                    steps.push_back(Step::WaitAllBut(0));
                }
            }
            steps.push_back(Step::WaitAllBut(pattern.leaves));
        }
    }
}

fn push_end_of_section(world: &mut World) {
    for program in &mut world.programs {
        program.steps.extend([Step::WaitAllBut(0), Step::CountMessages]);
    }
}

#[test]
fn waits_do_not_grow_when_programs_change_their_pattern() {
    let mut replayed_sections = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let (size, groups) = (2 + random.below(4), 1 + random.below(3));
        let mut world = World::new(size, groups, seed);
        let mut before: Option<Pattern> = None;
        let sections = 6 + random.below(8);
        for section in 0..sections {
            let pattern = any_pattern(&mut random, groups, before.as_ref(), &format!("{section}."));
            let iterations = 1 + random.below(30);
            push_section(&mut world, &pattern, iterations);
            push_end_of_section(&mut world);
            before = Some(pattern);
        }
        world.run();
        let longest = world.longest_wait();
        assert!(longest <= MOST_TRIPS * DELAY, "seed {seed}: a request waited for {longest:?}");
        let most = MOST_ROUNDS * sections as u64 * groups as u64;
        assert!(world.rounds() <= most, "seed {seed}: {} rounds, {sections} sections", world.rounds());
        replayed_sections += world.counted.windows(2).filter(|counts| counts[0] == counts[1]).count();
    }
    assert!(replayed_sections > 0, "some sections needed no message at all");
}

#[test]
fn what_is_repeated_needs_no_messages_whatever_came_before() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let (size, groups) = (2 + random.below(3), 1 + random.below(3));
        let mut world = World::new(size, groups, seed);
        let mut before: Option<Pattern> = None;
        for section in 0..6 {
            let pattern = any_pattern(&mut random, groups, before.as_ref(), &format!("{section}."));
            push_section(&mut world, &pattern, 1 + section);
            push_end_of_section(&mut world);
            before = Some(pattern);
        }
        let pattern = before.expect("there was a section");
        push_section(&mut world, &pattern, LONG_SECTION);
        world.programs.iter_mut().for_each(|program| program.steps.push_back(Step::CountMessages));
        push_section(&mut world, &pattern, 20);
        world.programs.iter_mut().for_each(|program| program.steps.push_back(Step::CountMessages));
        push_end_of_section(&mut world);
        world.run();
        let counted = &world.counted[world.counted.len() - 3..];
        assert_eq!(counted[0], counted[1], "seed {seed}: messages in a pattern that has been learned");
    }
}

#[test]
fn rounds_of_a_burst_that_is_no_multiple_of_the_cycle_take_equally_long() {
    // A thousand calls under sixty-four names that come again: each burst ends in the middle of the cycle.
    let mut world = World::new(2, 1, 7);
    for burst in 0..12 {
        for call in 0..1000 {
            let place = (burst * 1000 + call) % 64;
            for program in &mut world.programs {
                program.steps.push_back(Step::WaitAllBut(63));
                program.steps.push_back(Step::Submit(0, allreduce(&format!("c10d.1.{place}"), 256)));
            }
        }
        push_end_of_section(&mut world);
    }
    world.run();
    assert!(world.longest_wait() <= MOST_TRIPS * DELAY, "{:?}", world.longest_wait());
    let per_burst: Vec<usize> = world.counted.windows(2).map(|counts| counts[1] - counts[0]).collect();
    // Two cycles are negotiated, of which each request is announced by itself.
    assert!(per_burst.iter().all(|messages| *messages <= 4 * 64), "messages in each burst: {per_burst:?}");
}
