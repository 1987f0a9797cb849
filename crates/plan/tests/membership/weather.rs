//! What goes wrong in a simulated job, by seed.

use std::time::Duration;

use farandole_plan::membership::Limits;

use super::network::StreamEnd;
use super::random::Random;
use super::sim::{BEAT, MILLISECOND, MOST_NODES, SILENCE};

/// Which faults a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Processes die, leave and join; the network is well.
    Deaths,
    /// Besides, processes are stopped, connections break, and agents and the launcher are lost.
    Stops,
    /// Besides, one member is cut off with some of its connections broken, and one of those that continue is lost.
    Resets,
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
    /// All connections of two members break, and both live.
    Break {
        one: usize,
        other: usize,
        end: StreamEnd,
    },
    /// One of the connections of two members breaks.
    BreakOne {
        one: usize,
        other: usize,
        end: StreamEnd,
    },
    /// Two members are connected once more.
    Double(usize, usize),
    /// It dies while it votes.
    KillMidway(usize),
    /// It cannot open its record.
    LoseRecord(usize),
    /// The connection between the agent of a host and the launcher breaks.
    LoseAgent(usize),
    KillLauncher,
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
    /// The host of each process, of those that join as well.
    pub(crate) hosts: Vec<usize>,
    /// Whether there is a launcher, which is the witness, with an agent on each host.
    pub(crate) has_agents: bool,
    /// Whether processes of one host see the others end.
    pub(crate) has_pidfds: bool,
    pub(crate) limits: Limits,
    pub(crate) faults: Vec<(u64, Fault)>,
    /// From then on everything is well, whatever the faults were.
    pub(crate) quiet_from: u64,
    /// Of 256 ends of processes, this many are not noticed by processes of other hosts.
    pub(crate) lost_ends: u64,
    /// Of 256 ends of processes, this many are never reported by an agent.
    pub(crate) lost_reports: u64,
    /// The longest that a message takes; once everything is well, a heartbeat.
    pub(crate) slowest: u64,
    /// Of 256 messages, so many come twice.
    pub(crate) duplicates: u64,
}

/// When the last fault begins.
const FAULTS_END: u64 = 4 * SILENCE;

/// What happens in the run of a seed.
pub(crate) fn plan(weather: Weather, random: &mut Random) -> Plan {
    let members = match weather {
        Weather::Resets => 2 + random.below(3) as usize,
        _ => 1 + random.below(6) as usize,
    };
    let count = 1 + random.below(3);
    let hosts = (0..MOST_NODES).map(|_| random.below(count) as usize).collect();
    let (has_agents, has_pidfds) = (random.below(3) > 0, random.below(8) > 0);
    let silence = Some(Duration::from_micros(SILENCE));
    let max_members = members + random.below(3) as usize;
    let min_members = if random.below(4) == 0 { 1 + random.below(members as u64) as usize } else { 1 };
    let mut faults = Vec::new();
    // Whoever dies before connections are there has not been heard to the end by anybody.
    let connected = 15 * MILLISECOND;
    let mut at = if weather == Weather::Deaths { connected } else { random.below(2) * random.below(connected) };
    let mut count = 1 + random.below(6);
    if weather == Weather::Resets {
        isolate(members, connected + random.below(BEAT), random, &mut faults);
        count = random.below(3);
    }
    for _ in 0..count {
        // Often at the same time or during the recovery, sometimes long after.
        at += match random.below(4) {
            0 => 0,
            1 => random.below(5 * MILLISECOND),
            2 => random.below(50 * MILLISECOND),
            _ => random.below(SILENCE),
        };
        strike(weather, members, at.min(FAULTS_END), random, &mut faults);
    }
    let (lost_ends, lost_reports) = if weather == Weather::Deaths { (0, 0) } else { (24, 48) };
    let duplicates = random.below(2) * 8;
    let limits = Limits { min_members, max_members, silence };
    let slowest = if weather == Weather::Deaths { BEAT } else { SILENCE };
    let quiet_from = FAULTS_END + 2 * SILENCE;
    Plan {
        members,
        hosts,
        has_agents,
        has_pidfds,
        limits,
        faults,
        quiet_from,
        lost_ends,
        lost_reports,
        slowest,
        duplicates,
    }
}

impl Plan {
    /// Whether the end of every process is proved to the members that are left.
    pub(crate) fn proves_ends(&self) -> bool {
        let is_one_host = self.hosts.iter().all(|host| *host == self.hosts[0]);
        self.has_agents || self.has_pidfds && is_one_host
    }
}

fn strike(weather: Weather, members: usize, at: u64, random: &mut Random, faults: &mut Vec<(u64, Fault)>) {
    let mut any = || random.below(members as u64) as usize;
    let (one, other) = (any(), any());
    let end = [StreamEnd::Closed, StreamEnd::Reset][random.below(2) as usize];
    let kind = match weather {
        Weather::Deaths => random.below(8),
        Weather::Stops => random.below(16),
        Weather::Resets => random.below(16),
        Weather::Cuts => random.below(20),
    };
    match kind {
        0..=2 => faults.push((at, Fault::Kill(one))),
        3 => faults.push((at, Fault::KillMidway(one))),
        4..=6 => faults.push((at, Fault::Join)),
        7 => faults.push((at, Fault::Leave(one))),
        8 => {
            faults.push((at, Fault::Stop(one)));
            faults.push((at + random.below(3 * SILENCE), Fault::Continue(one)));
        }
        9 => faults.push((at, Fault::Break { one, other, end })),
        10 => faults.push((at, Fault::Doubt { node: one, about: other })),
        11 => faults.push((at, Fault::Double(one, other))),
        12 => faults.push((at, Fault::LoseRecord(one))),
        13 => faults.push((at, Fault::LoseAgent(random.below(3) as usize))),
        14 if random.below(2) == 0 => faults.push((at, Fault::KillLauncher)),
        14 | 15 => faults.push((at, Fault::Kill(one))),
        kind => {
            let side = random.below(1 << members);
            let is_on_side = |node: usize| side >> node & 1 == 1;
            let all = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
            let directions: Vec<(usize, usize)> = match kind {
                16 => vec![(one, other), (other, one)],
                17 => vec![(one, other)],
                18 => all.filter(|(from, to)| is_on_side(*from) && !is_on_side(*to)).collect(),
                _ => all.filter(|(from, to)| is_on_side(*from) != is_on_side(*to)).collect(),
            };
            // A middlebox that resets what passes does so at once, a kernel when it has tried for long.
            let breaks_at = match random.below(4) {
                0 => Some(at + 2 * SILENCE),
                1 | 2 if kind == 19 => Some(at),
                _ => None,
            };
            for (one, other) in breaks_at.iter().flat_map(|_| directions.iter().copied()) {
                faults.push((breaks_at.unwrap_or(at), Fault::Break { one, other, end }));
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

/// A member is cut off, and the others continue without it; one of these dies, whose votes the first one may not have
/// received.
fn isolate(members: usize, at: u64, random: &mut Random, faults: &mut Vec<(u64, Fault)>) {
    let far = random.below(members as u64) as usize;
    let dies = (far + 1 + random.below(members as u64 - 1) as usize) % members;
    let pair = |one: usize, other: usize| vec![(one, other), (other, one)];
    let end = [StreamEnd::Closed, StreamEnd::Reset][random.below(2) as usize];
    if random.below(2) == 0 {
        faults.push((at / 2, Fault::Double(far, dies)));
    }
    if random.below(4) == 0 {
        faults.push((at / 2, Fault::LoseRecord(dies)));
    }
    for other in (0..members).filter(|other| *other != far) {
        faults.push((at, Fault::Cut(pair(far, other))));
        // When the others have voted.
        let moment = if other == dies { at + SILENCE } else { at + 3 * SILENCE };
        faults.push((moment + random.below(2 * SILENCE), Fault::Heal(pair(far, other))));
    }
    let healed = faults.iter().rev().find_map(|(when, fault)| match fault {
        Fault::Heal(directions) if directions[0] == (far, dies) => Some(*when),
        _ => None,
    });
    let broken = at + random.below(2 * SILENCE);
    match random.below(4) {
        0 | 1 => faults.push((broken, Fault::BreakOne { one: far, other: dies, end })),
        2 => faults.push((broken, Fault::Break { one: far, other: dies, end })),
        _ => {}
    }
    let voted = at + SILENCE + random.below(30 * MILLISECOND);
    if random.below(3) == 0 {
        for other in (0..members).filter(|other| *other != far && *other != dies) {
            faults.push((voted, Fault::Cut(pair(other, dies))));
            faults.push((voted + 2 * SILENCE, Fault::Heal(pair(other, dies))));
        }
    }
    let around_heal = healed.unwrap_or(at) + random.below(30 * MILLISECOND);
    match random.below(8) {
        0 => faults.push((at, Fault::KillMidway(dies))),
        1 => faults.push((voted + random.below(SILENCE), Fault::Leave(dies))),
        2 | 3 => faults.push((voted + random.below(SILENCE), Fault::Kill(dies))),
        _ => faults.push((around_heal, Fault::Kill(dies))),
    }
}
