//! Random histories of elastic jobs: whatever happens in whatever order, some things always hold.
//!
//! Members are killed, fail, end well, are stopped, enter and form generations; hosts are lost, come, go, fall silent;
//! time passes. After each event: nobody is started on a host that is not offered or is barred, no slot is used twice,
//! no number is given twice, the bound is kept, and every loss is known. At the end, when nothing happens any more but
//! time, the job is over or has enough members, or waits and says so.

use std::collections::BTreeSet;

use super::story::{Story, settings};
use super::*;
use crate::launch::message::HowEnded;

/// Numbers by chance that a seed repeats (SplitMix64).
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

const HISTORIES: u64 = 1000;
const EVENTS: usize = 60;

#[test]
fn whatever_happens_some_things_always_hold() {
    for seed in 0..HISTORIES {
        let mut chance = Chance::new(seed);
        let hosts: Vec<usize> = (0..1 + chance.below(3)).map(|_| 1 + chance.below(3) as usize).collect();
        let mut settings = settings(&hosts);
        settings.on_one_host = false;
        settings.min_np = 1 + chance.below(settings.np as u64) as usize;
        settings.max_np = settings.np + chance.below(3) as usize;
        settings.spares = chance.below(2) as usize;
        settings.reset_limit = (chance.below(3) == 0).then(|| chance.below(6));
        let most = settings.max_np + settings.spares;
        let mut story = Story::new(settings);
        let mut offered = hosts;
        for _ in 0..EVENTS {
            happen(&mut story, &mut offered, &mut chance);
            check(&story, &offered, most, seed);
        }
        settle(&mut story, seed);
    }
}

fn happen(story: &mut Story, offered: &mut Vec<usize>, chance: &mut Chance) {
    let some = |story: &Story, chance: &mut Chance| {
        (!story.running.is_empty()).then(|| story.running[chance.below(story.running.len() as u64) as usize])
    };
    let hosts = story.supervision.hosts.len() as u64;
    match chance.below(20) {
        0..=4 => {
            let Some((member, ..)) = some(story, chance) else { return };
            let how = [HowEnded::Signalled(9), HowEnded::Exited(1)][chance.below(2) as usize];
            story.ended(member, how);
        }
        5 if chance.below(4) == 0 => {
            let Some((member, ..)) = some(story, chance) else { return };
            story.ended(member, HowEnded::Exited(0));
        }
        6 => {
            let Some((member, host, _)) = some(story, chance) else { return };
            story.hear(host, AgentReport::Stopped { rank: member, signal: 19 });
        }
        7..=9 => {
            let Some((member, host, _)) = some(story, chance) else { return };
            story.hear(host, AgentReport::Entered { member, blob: vec![1] });
        }
        10 => {
            let number = story.supervision.generation.as_ref().map(|known| known.number + 1 + chance.below(3));
            let (Some(number), Some((_, host, _))) = (number, some(story, chance)) else { return };
            let members = story.numbers().iter().map(|&member| (u64::from(member), vec![2])).collect();
            story.hear(host, AgentReport::Entering(Generation { number, members }));
        }
        11 => story.lose_host(chance.below(hosts) as usize),
        12 => {
            let host = chance.below(hosts) as usize;
            story.dead = if chance.below(2) == 0 { vec![host] } else { Vec::new() };
        }
        13..=14 => {
            if chance.below(3) == 0 && offered.len() < 4 {
                offered.push(0);
            }
            let at = chance.below(offered.len() as u64) as usize;
            offered[at] = chance.below(4) as usize;
            story.find(offered);
        }
        15 => story.pass(Duration::from_secs(6), &[chance.below(hosts) as usize]),
        _ => story.pass(Duration::from_millis(100 * (1 + chance.below(30))), &[]),
    }
}

fn check(story: &Story, offered: &[usize], most: usize, seed: u64) {
    let supervision = &story.supervision;
    let mut slots = BTreeSet::new();
    for (member, host, slot) in &story.running {
        assert!(slots.insert((host, slot)), "seed {seed}: two members in one slot");
        assert!((*member as usize) < supervision.members.len(), "seed {seed}: a member that nobody knows");
        let name = &supervision.hosts[*host].name;
        let slots = name[1..].parse().ok().and_then(|at: usize| offered.get(at)).copied().unwrap_or(0);
        let has_slot = (*slot as usize) < slots;
        assert!(has_slot || story.finished, "seed {seed}: member {member} has no slot on {name}: {:?}", story.said);
    }
    assert!(story.running.len() <= most, "seed {seed}: {} processes, at most {most}", story.running.len());
    let known: BTreeSet<u32> = supervision.live().map(|member| member as u32).collect();
    let running: BTreeSet<u32> = story.numbers().into_iter().collect();
    assert_eq!(known, running, "seed {seed}: who is believed to run does, and nobody else");
    let replacements: Vec<u32> = supervision.losses.iter().filter_map(|loss| loss.replaced_by).collect();
    let different: BTreeSet<u32> = replacements.iter().copied().collect();
    assert_eq!(replacements.len(), different.len(), "seed {seed}: one process takes one place");
}

/// When nothing more happens the job comes to rest.
fn settle(story: &mut Story, seed: u64) {
    story.dead.clear();
    for member in story.numbers() {
        let host = story.running.iter().find(|(number, ..)| *number == member).map_or(0, |(_, host, _)| *host);
        story.hear(host, AgentReport::Continued { rank: member });
    }
    story.pass(Duration::from_secs(130), &[]);
    if story.finished {
        assert!(story.running.is_empty(), "seed {seed}: processes are left");
        let failed = matches!(story.supervision.ending, Ending::Badly(_));
        assert_eq!(failed, story.supervision.exit_code() != 0, "seed {seed}");
        assert_eq!(failed, story.supervision.may_restart(), "seed {seed}");
        return;
    }
    let supervision = &story.supervision;
    let slots: usize = supervision.hosts.iter().map(|host| host.slots).sum();
    let live = story.running.len();
    if !supervision.finishing {
        assert_eq!(live, slots.min(supervision.wanted()), "seed {seed}: room is left, {:?}", story.said);
        assert_eq!(supervision.short.is_some(), live < supervision.settings.min_np, "seed {seed}");
    }
}
