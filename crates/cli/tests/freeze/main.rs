//! Jobs that are stopped for a while, as a whole or in part, and go on as if nothing had happened.
//!
//! A job is frozen by SIGSTOP to its launcher, its agent, its ranks or all of them, and continued by SIGCONT: Ctrl-Z, a
//! container that is paused, a suspended allocation, a laptop that is closed. However long that takes, and whenever it
//! happens, nobody may take anybody else for dead; the job must end well and its results must be right.

#![allow(clippy::unwrap_used, missing_docs)]

mod chance;
mod job;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chance::Chance;
use farandole_testing::lapse;
use job::{Job, Part};

/// How many rounds: few in an ordinary run of the tests, many for `cargo xtask freeze`.
const ROUNDS: &str = "FARANDOLE_TEST_FREEZE_ROUNDS";
const FEW: usize = 6;

/// How many jobs at a time; a frozen one needs no processor.
const JOBS: &str = "FARANDOLE_TEST_FREEZE_JOBS";
const AT_ONCE: usize = 3;

/// Where chance begins.
const SEED: &str = "FARANDOLE_TEST_FREEZE_SEED";

/// The longest silence that counts as no death by default.
const SILENCE: Duration = Duration::from_secs(5);

/// Longer than that, by far more than anybody is late.
const BEYOND: Duration = Duration::from_secs(8);

/// One round, as chance has it.
#[derive(Debug)]
struct Round {
    ranks: usize,
    work: Duration,
    silence: Duration,
    freezes: Vec<Freeze>,
}

/// Which part is stopped, when after the start or the last freeze, and for how long.
#[derive(Debug)]
struct Freeze {
    part: Part,
    after: Duration,
    lasting: Duration,
}

impl Round {
    fn by(chance: &mut Chance) -> Round {
        let silence = if chance.one_in(2) { SILENCE } else { Duration::from_secs(2) };
        let work = Duration::from_millis(chance.between(100, 1500));
        let freezes = (0..chance.between(1, 3)).map(|number| {
            let part = match chance.between(0, 9) {
                0..=3 => Part::All,
                4 | 5 => Part::Launcher,
                6 | 7 => Part::LauncherAndAgent,
                8 => Part::Agent,
                _ => Part::OneRank,
            };
            let longest = match part {
                // A rank alone that stays stopped for longer is a failure of that rank.
                Part::OneRank => silence.mul_f64(0.4),
                _ if chance.one_in(2) => silence + Duration::from_secs(3),
                _ => Duration::from_secs(1),
            };
            // The first comes at any moment from before the agent is there until after the ranks have left.
            let latest = if number == 0 { work + Duration::from_millis(400) } else { Duration::from_millis(500) };
            let after = Duration::from_millis(chance.between(0, latest.as_millis() as u64));
            Freeze { part, after, lasting: Duration::from_millis(chance.between(50, longest.as_millis() as u64)) }
        });
        let freezes = freezes.collect();
        Round { ranks: chance.between(2, 4) as usize, work, silence, freezes }
    }

    /// Plays it; says how many processes were stopped in each freeze, or what went wrong.
    fn play(&self, chance: &mut Chance) -> Result<Vec<usize>, String> {
        let job = Job::start(self.ranks, self.work, self.silence, None);
        let mut stopped = Vec::new();
        for freeze in &self.freezes {
            lapse("the job, which works", freeze.after);
            let frozen = job.freeze(freeze.part, chance);
            stopped.push(frozen.count());
            lapse("the processes that are stopped", freeze.lasting);
            frozen.thaw(chance);
        }
        job.end_well(self.ranks)?;
        Ok(stopped)
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "whoever asks for many rounds wants to see them pass")]
fn jobs_that_are_frozen_at_any_moment_end_well() {
    let number = |name: &str, otherwise: usize| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (rounds, at_once, seed) = (number(ROUNDS, FEW), number(JOBS, AT_ONCE), number(SEED, 1) as u64);
    let next = AtomicUsize::new(0);
    let play = || {
        let mut failures = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= rounds {
                return failures;
            }
            let mut chance = Chance::new(seed, number as u64);
            let round = Round::by(&mut chance);
            match round.play(&mut chance) {
                Ok(stopped) => println!("round {number}: well; stopped {stopped:?} processes; {round:?}"),
                Err(why) => {
                    println!("round {number}: FAILED; {round:?}\n{why}");
                    failures.push(format!("round {number}: {why}"));
                }
            }
        }
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let players: Vec<_> = (0..at_once).map(|_| scope.spawn(play)).collect();
        players.into_iter().flat_map(|player| player.join().unwrap()).collect()
    });
    println!("seed {seed}: {rounds} rounds, {at_once} jobs at a time, {} failed", failures.len());
    assert!(failures.is_empty(), "seed {seed}: {} of {rounds} failed\n{}", failures.len(), failures.join("\n"));
}

/// Stops a part of a working job for longer than every silence limit, and lets it go on.
fn goes_on(part: Part, limit: Option<Duration>) {
    let mut chance = Chance::new(2, 0);
    let mut job = Job::start(2, Duration::from_secs(2), SILENCE, limit);
    job.wait_until_all_work(2);
    let frozen = job.freeze(part, &mut chance);
    assert!(frozen.count() >= part.least(2), "{part:?}: only {} were stopped", frozen.count());
    lapse("the processes that are stopped", BEYOND);
    frozen.thaw_one_by_one();
    job.end_well(2).unwrap_or_else(|why| panic!("{part:?}: {why}"));
}

#[test]
fn a_job_that_was_stopped_as_a_whole_goes_on() {
    goes_on(Part::All, None);
}

#[test]
fn a_job_whose_launcher_was_stopped_goes_on() {
    goes_on(Part::Launcher, None);
}

#[test]
fn a_job_whose_launcher_and_agent_were_stopped_goes_on() {
    goes_on(Part::LauncherAndAgent, None);
}

#[test]
fn a_job_whose_agent_was_stopped_goes_on() {
    goes_on(Part::Agent, None);
}

/// The user's limit on operations in which nothing moves counts awake time as well.
#[test]
fn a_job_that_was_stopped_for_longer_than_the_users_limit_goes_on() {
    goes_on(Part::All, Some(Duration::from_secs(4)));
}
