//! What goes wrong in a simulated job, by seed.

use std::time::Duration;

use farandole_plan::membership::Limits;

use super::random::Random;
use super::sim::{BEAT, MILLISECOND, SILENCE};

/// Which faults a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Processes die, leave and join; the network is well.
    Deaths,
    /// Besides, processes are stopped, and connections break.
    Stops,
    /// Besides, the network is cut, in both directions or in one.
    Cuts,
}

/// What goes wrong, or changes.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Kill(usize),
    Stop(usize),
    Continue(usize),
    Leave(usize),
    Join,
    /// Cuts some directions, which are healed later.
    Cut(Vec<(usize, usize)>),
    Heal(Vec<(usize, usize)>),
    Break(usize, usize),
    /// Somebody believes that a member is in trouble, and is wrong.
    Doubt {
        node: usize,
        about: usize,
    },
}

/// What a run has.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) members: usize,
    pub(crate) limits: Limits,
    pub(crate) faults: Vec<(u64, Fault)>,
    /// From then on everything is well, whatever the faults were.
    pub(crate) quiet_from: u64,
    /// Of 256 ends of processes, so many are not heard.
    pub(crate) lost_ends: u64,
    /// The longest that a message takes; once everything is well, a heartbeat.
    pub(crate) slowest: u64,
    /// Of 256 messages, so many come twice.
    pub(crate) duplicates: u64,
}

/// When the last fault begins.
const FAULTS_END: u64 = 4 * SILENCE;

/// What happens in the run of a seed.
pub(crate) fn plan(weather: Weather, random: &mut Random) -> Plan {
    let members = 1 + random.below(6) as usize;
    let silence = Some(Duration::from_micros(SILENCE));
    let max_members = members + random.below(3) as usize;
    let min_members = if random.below(4) == 0 { 1 + random.below(members as u64) as usize } else { 1 };
    let mut faults = Vec::new();
    // Whoever dies before connections are there has not been heard to the end by anybody.
    let connected = 15 * MILLISECOND;
    let mut at = if weather == Weather::Deaths { connected } else { random.below(2) * random.below(connected) };
    for _ in 0..1 + random.below(6) {
        // Often at the same time or during the recovery, sometimes long after.
        at += match random.below(4) {
            0 => 0,
            1 => random.below(5 * MILLISECOND),
            2 => random.below(50 * MILLISECOND),
            _ => random.below(SILENCE),
        };
        strike(weather, members, at.min(FAULTS_END), random, &mut faults);
    }
    let lost_ends = if weather == Weather::Cuts { 24 } else { 0 };
    let duplicates = random.below(2) * 8;
    let limits = Limits { min_members, max_members, silence };
    let slowest = if weather == Weather::Deaths { BEAT } else { SILENCE };
    Plan { members, limits, faults, quiet_from: FAULTS_END + 2 * SILENCE, lost_ends, slowest, duplicates }
}

fn strike(weather: Weather, members: usize, at: u64, random: &mut Random, faults: &mut Vec<(u64, Fault)>) {
    let mut somebody = || random.below(members as u64) as usize;
    let (one, other) = (somebody(), somebody());
    let kinds = match weather {
        Weather::Deaths => 8,
        Weather::Stops => 12,
        Weather::Cuts => 17,
    };
    match random.below(kinds) {
        0..=3 => faults.push((at, Fault::Kill(one))),
        4..=6 => faults.push((at, Fault::Join)),
        7 => faults.push((at, Fault::Leave(one))),
        8 | 9 => {
            faults.push((at, Fault::Stop(one)));
            faults.push((at + random.below(3 * SILENCE), Fault::Continue(one)));
        }
        10 => faults.push((at, Fault::Break(one, other))),
        11 => faults.push((at, Fault::Doubt { node: one, about: other })),
        kind => {
            let side = random.below(1 << members);
            let is_on_side = |node: usize| side >> node & 1 == 1;
            let all = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
            let directions: Vec<(usize, usize)> = match kind {
                12 => vec![(one, other), (other, one)],
                13 => vec![(one, other)],
                14 => all.filter(|(from, to)| is_on_side(*from) && !is_on_side(*to)).collect(),
                _ => all.filter(|(from, to)| is_on_side(*from) != is_on_side(*to)).collect(),
            };
            if random.below(3) == 0 {
                directions.iter().for_each(|(from, to)| faults.push((at + 2 * SILENCE, Fault::Break(*from, *to))));
            }
            faults.push((at, Fault::Cut(directions.clone())));
            if random.below(2) == 0 {
                return faults.push((at + random.below(4 * SILENCE), Fault::Heal(directions)));
            }
            // Not everything heals at the same time.
            let mut moments = [0; 3].map(|_| at + random.below(4 * SILENCE));
            moments.sort_unstable();
            for (from, to) in directions {
                let moment = moments[(random.below(2) as usize + from.min(to)) % 3];
                faults.push((moment, Fault::Heal(vec![(from, to)])));
            }
        }
    }
}
