//! What the devices did: busy, waiting for collectives, or idle, for each rank; and how often caches of device memory
//! had what they were asked for.
//!
//! A device is *idle* while it has nothing to do because its rank gives it nothing: the rank waits for input, is in its
//! own code or writes a checkpoint, and the work that it gave before is done. *Communication* is the time that a rank
//! is blocked in an operation or in a copy to the host. The rest it is *busy*: it computes, or is being given work.
//! The three sum to the time in which the rank was there.

use crate::history::{Activity, History, PhaseKind, RankHistory};
use farandole_trace::event::{DeviceCache, DeviceStep};

/// See the module's text. Empty in a job without devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// The ranks whose devices were watched.
    pub ranks: Vec<DeviceUse>,
    /// Caches that were asked for something.
    pub caches: Vec<CacheRate>,
}

/// Where the time of one rank's device went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// The rank.
    pub rank: usize,
    /// It had work.
    pub busy_ns: u64,
    /// Its rank waited for an operation.
    pub communication_ns: u64,
    /// It had nothing to do.
    pub idle_ns: u64,
    /// Waits for input that lay behind its work: no loss.
    pub hidden_input_ns: u64,
    /// What it took for operations: packing, folding, unpacking. On its own clock, and behind other work, too.
    pub steps_ns: [(DeviceStep, u64); 3],
}

/// What a cache was asked for on all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRate {
    /// Which one.
    pub cache: DeviceCache,
    /// How often it was there.
    pub hits: u64,
    /// How often it was not.
    pub misses: u64,
}

impl DeviceUse {
    /// All of its time.
    pub fn total_ns(&self) -> u64 {
        self.busy_ns + self.communication_ns + self.idle_ns
    }

    /// A part of it, in percent.
    pub fn percent(&self, ns: u64) -> f64 {
        100.0 * ns as f64 / self.total_ns().max(1) as f64
    }

    fn of(number: usize, rank: &RankHistory) -> DeviceUse {
        let mut of_device = DeviceUse {
            rank: number,
            busy_ns: rank.useful_ns(),
            communication_ns: 0,
            idle_ns: 0,
            hidden_input_ns: hidden_input_ns(rank),
            steps_ns: [DeviceStep::Pack, DeviceStep::Fold, DeviceStep::Unpack]
                .map(|step| (step, rank.device.took_ns(step))),
        };
        for stretch in &rank.lane {
            match stretch.activity {
                Activity::Blocked(_) | Activity::Copy => of_device.communication_ns += stretch.ns(),
                Activity::Input | Activity::Own | Activity::Checkpoint => of_device.idle_ns += stretch.ns(),
                Activity::Compute | Activity::NotBegun | Activity::Ended => {}
            }
        }
        of_device
    }
}

impl CacheRate {
    /// How often it was there, in percent.
    pub fn hit_percent(&self) -> f64 {
        100.0 * self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

impl Devices {
    /// What is known of the devices of a history.
    pub fn of(history: &History) -> Devices {
        let ranks = history.recorded().map(|number| (number, &history.ranks[number]));
        let watched = ranks.filter(|(_, rank)| rank.device.watched);
        let cache = |&cache: &DeviceCache| {
            let all = history.ranks.iter().map(|rank| rank.device.hits(cache));
            let (hits, misses) = all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (hits + misses > 0).then_some(CacheRate { cache, hits, misses })
        };
        Devices {
            ranks: watched.map(|(number, rank)| DeviceUse::of(number, rank)).collect(),
            caches: DeviceCache::ALL.iter().filter_map(cache).collect(),
        }
    }

    /// Whether nothing is known of any.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.caches.is_empty()
    }

    /// How much of the waits for input of all ranks lay behind work.
    pub fn hidden_input_ns(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.hidden_input_ns).sum()
    }
}

/// How much of its waits for input a rank did not lose: what is marked as such and is work in its lane.
fn hidden_input_ns(rank: &RankHistory) -> u64 {
    let waits = rank.phases.iter().filter(|phase| phase.kind == PhaseKind::Input);
    let work = waits.flat_map(|wait| rank.lane_between(wait.from_ns, wait.to_ns));
    work.filter(|stretch| stretch.activity == Activity::Compute).map(|stretch| stretch.ns()).sum()
}
