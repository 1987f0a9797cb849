//! What goes wrong in a simulated job, by seed.

use std::time::Duration;

use farandole_cluster::membership::Limits;

use super::channel::SimulatedKind;
use super::disk::DiskFaults;
use super::kernel::{MILLISECOND, Weather};
use super::random::Random;
use super::world::{BEAT, SILENCE};

/// Which faults a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Menu {
    /// Processes die, leave and join; the network is well.
    Deaths,
    /// Besides, processes are stopped, and refuse connections.
    Stops,
    /// Besides, the network between hosts is cut and resets connections.
    Network,
    /// A member that may have two connections to a stopped one votes without it; one of the two breaks, and the voter
    /// dies.
    SecondConnection,
    /// A member votes without a stopped one that has not answered for long, and dies.
    LongSilence,
}

/// What goes wrong, or changes.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Kill(usize),
    /// The process is killed within a turn, after this number of writes.
    KillWithin(usize, u32),
    Stop(usize),
    Continue(usize),
    Leave(usize),
    Join,
    /// Cuts directions between hosts, which are healed later.
    Cut(Vec<(usize, usize)>),
    Heal(Vec<(usize, usize)>),
    /// A middlebox resets all connections of two processes.
    Reset(usize, usize),
    /// A middlebox closes them.
    Finish(usize, usize),
    /// One side learns that its connections are reset, the other one does not.
    HalfOpen(usize, usize),
    /// One of the connections of two processes breaks at both ends, and what was not read is lost.
    Damage(usize, usize),
    Refuse(usize),
    Accept(usize),
    /// A process believes that a member is in trouble, and is wrong.
    Doubt {
        node: usize,
        about: usize,
    },
}

/// What a run has.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The host of each member.
    pub(crate) hosts: Vec<usize>,
    pub(crate) limits: Limits,
    pub(crate) faults: Vec<(u64, Fault)>,
    /// From then on everything is well, whatever the faults were.
    pub(crate) quiet_from: u64,
    pub(crate) weather: Weather,
    /// Of 256 deaths, as many are reported by the agent of the host.
    pub(crate) reported: u64,
    /// The longest that such a report takes.
    pub(crate) report_delay: u64,
    pub(crate) disk: DiskFaults,
    /// Whether the launcher, on host 0, is the witness.
    pub(crate) witness: bool,
    /// When all hosts lose their power, if they do; nothing is simulated after that.
    pub(crate) power_cut: Option<u64>,
}

/// When the last fault begins.
const FAULTS_END: u64 = 5 * SILENCE;

/// What happens in the run of a seed.
pub(crate) fn plan(menu: Menu, channels: SimulatedKind, random: &mut Random) -> Plan {
    match menu {
        Menu::Deaths | Menu::Stops | Menu::Network => any_job(menu, channels, random),
        Menu::SecondConnection => {
            let voted = 2000 * MILLISECOND + SILENCE + random.below(SILENCE / 2);
            let faults = vec![
                (50 * MILLISECOND, Fault::Join),
                (1500 * MILLISECOND, Fault::Kill(1)),
                (2000 * MILLISECOND, Fault::Stop(2)),
                (voted, Fault::Damage(0, 2)),
                (voted + random.below(10 * MILLISECOND), Fault::Kill(0)),
                (voted + SILENCE, Fault::Continue(2)),
            ];
            one_host(2, 1, faults, channels)
        }
        Menu::LongSilence => {
            let joined = (30 + random.below(15)) * SILENCE / 2;
            let died = joined + 50 * MILLISECOND + random.below(SILENCE);
            let faults = vec![
                (1000 * MILLISECOND, Fault::Stop(1)),
                (joined, Fault::Join),
                (died, Fault::Kill(0)),
                (died, Fault::Kill(2)),
                (died + random.below(SILENCE), Fault::Continue(1)),
                (died + random.below(SILENCE), Fault::Join),
            ];
            one_host(2, 2, faults, channels)
        }
    }
}

/// A job on one host, whose kernel reports all deaths and whose agent reports none.
fn one_host(members: usize, min_members: usize, faults: Vec<(u64, Fault)>, channels: SimulatedKind) -> Plan {
    let quiet_from = faults.iter().map(|(at, _)| *at).max().unwrap_or_default() + SILENCE;
    let (slowest, buffer_bytes) = (MILLISECOND, 200_000);
    Plan {
        hosts: vec![0; members],
        limits: Limits { min_members, max_members: 4, silence: Some(Duration::from_micros(SILENCE)) },
        faults,
        quiet_from,
        weather: Weather { slowest, buffer_bytes, lost_process_ends: 0, heirs: 0, channels, broken: None },
        reported: 0,
        report_delay: 1,
        disk: DiskFaults { slowest_sync: MILLISECOND, room: usize::MAX, lost_writes: 0, ignores_syncs: false },
        witness: false,
        power_cut: None,
    }
}

fn any_job(menu: Menu, channels: SimulatedKind, random: &mut Random) -> Plan {
    let members = 1 + random.below(5) as usize;
    let most_hosts = 1 + random.below(3);
    let hosts: Vec<usize> = (0..members).map(|_| random.below(most_hosts) as usize).collect();
    let silence = Some(Duration::from_micros(SILENCE));
    let max_members = members + random.below(3) as usize;
    let min_members = if random.below(4) == 0 { 1 + random.below(members as u64) as usize } else { 1 };
    let mut faults = Vec::new();
    let connected = 100 * MILLISECOND;
    let mut at = if menu == Menu::Deaths { connected } else { random.below(2) * random.below(connected) };
    for _ in 0..1 + random.below(6) {
        // Often at the same time or during the recovery, sometimes long after.
        at += match random.below(4) {
            0 => 0,
            1 => random.below(5 * MILLISECOND),
            2 => random.below(300 * MILLISECOND),
            _ => random.below(SILENCE),
        };
        strike(menu, &hosts, at.min(FAULTS_END), random, &mut faults);
    }
    let buffer_bytes = match random.below(4) {
        0 => 2_000 + random.below(4_000) as usize,
        _ => 200_000,
    };
    let weather = Weather {
        slowest: if menu == Menu::Deaths { BEAT } else { SILENCE },
        buffer_bytes,
        lost_process_ends: if random.below(4) == 0 { 128 } else { 0 },
        heirs: if random.below(4) == 0 { 128 } else { 0 },
        channels,
        broken: None,
    };
    Plan {
        limits: Limits { min_members, max_members, silence },
        faults,
        quiet_from: FAULTS_END + 2 * SILENCE,
        weather,
        reported: [0, 200, 256][random.below(3) as usize],
        report_delay: [10 * MILLISECOND, SILENCE][random.below(2) as usize],
        disk: DiskFaults {
            slowest_sync: [5 * MILLISECOND, SILENCE, 2 * SILENCE][random.below(3) as usize],
            room: if random.below(4) == 0 { 10_000 + random.below(20_000) as usize } else { usize::MAX },
            lost_writes: if random.below(8) == 0 { 8 } else { 0 },
            ignores_syncs: false,
        },
        witness: random.below(2) == 0,
        power_cut: (random.below(4) == 0).then(|| random.below(FAULTS_END + 4 * SILENCE)),
        hosts,
    }
}

fn strike(menu: Menu, hosts: &[usize], at: u64, random: &mut Random, faults: &mut Vec<(u64, Fault)>) {
    let members = hosts.len();
    let mut any = || random.below(members as u64) as usize;
    let (one, other) = (any(), any());
    let kinds = match menu {
        Menu::Deaths => 9,
        Menu::Stops => 14,
        _ => 24,
    };
    match random.below(kinds) {
        0..=2 => faults.push((at, Fault::Kill(one))),
        3 | 4 => faults.push((at, Fault::KillWithin(one, random.below(12) as u32))),
        5..=7 => faults.push((at, Fault::Join)),
        8 => faults.push((at, Fault::Leave(one))),
        9..=11 => {
            faults.push((at, Fault::Stop(one)));
            faults.push((at + random.below(3 * SILENCE), Fault::Continue(one)));
        }
        12 => faults.push((at, Fault::Doubt { node: one, about: other })),
        13 => {
            faults.push((at, Fault::Refuse(one)));
            faults.push((at + random.below(2 * SILENCE), Fault::Accept(one)));
        }
        14 | 15 => faults.push((at, Fault::Reset(one, other))),
        16 => faults.push((at, Fault::Finish(one, other))),
        17 => faults.push((at, Fault::HalfOpen(one, other))),
        kind => {
            let count = hosts.iter().max().map_or(0, |host| host + 1);
            let side = random.below(1 << count);
            let is_on_side = |host: usize| side >> host & 1 == 1;
            let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
            let all = all.filter(|(from, to)| from != to);
            let directions: Vec<(usize, usize)> = match kind {
                18 => vec![(hosts[one], hosts[other])],
                19 => all.filter(|(from, to)| is_on_side(*from) && !is_on_side(*to)).collect(),
                _ => all.filter(|(from, to)| is_on_side(*from) != is_on_side(*to)).collect(),
            };
            let directions: Vec<_> = directions.into_iter().filter(|(from, to)| from != to).collect();
            // What a firewall holds it may reset later.
            if random.below(3) == 0 {
                faults.push((at + random.below(2 * SILENCE), Fault::Reset(one, other)));
            }
            faults.push((at, Fault::Cut(directions.clone())));
            let mut moments = [0; 3].map(|_| at + random.below(4 * SILENCE));
            moments.sort_unstable();
            let at_once = random.below(2) == 0;
            for (from, to) in directions {
                let place = if at_once { 0 } else { (random.below(2) as usize + from.min(to)) % 3 };
                faults.push((moments[place], Fault::Heal(vec![(from, to)])));
            }
        }
    }
}
