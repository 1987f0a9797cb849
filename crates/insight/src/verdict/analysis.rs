//! What the rules read: a history, its split and efficiencies, and a few figures that several rules need.

use std::collections::BTreeMap;

use super::Location;
use crate::efficiency::Efficiencies;
use crate::history::{Activity, History, HotSpots};
use crate::loss::TimeSplit;
use crate::profile::{DEFAULT_BOUNDS_BYTES, Filter, Profile, ProfileRow, ProfileView};

/// A history and what is known of it already.
#[derive(Debug)]
pub struct Analysis<'a> {
    /// What happened.
    pub history: &'a History,
    /// Where the time went.
    pub split: &'a TimeSplit,
    /// How much of it was work.
    pub efficiencies: &'a Efficiencies,
    /// Messages by size, as they travelled.
    pub messages: Profile,
}

impl<'a> Analysis<'a> {
    /// Works the figures out.
    pub fn of(history: &'a History, split: &'a TimeSplit, efficiencies: &'a Efficiencies) -> Analysis<'a> {
        let messages = Profile::of(history, ProfileView::Fused, Filter::default(), &DEFAULT_BOUNDS_BYTES);
        Analysis { history, split, efficiencies, messages }
    }

    /// All messages together.
    pub fn traffic(&self) -> ProfileRow {
        self.messages.total()
    }

    /// Iterations, and one where none are marked: what "for each iteration" divides by.
    pub fn iterations(&self) -> f64 {
        self.history.iterations().max(1) as f64
    }

    /// Operations of an iteration.
    pub fn operations_per_iteration(&self) -> f64 {
        self.history.operations.len() as f64 / self.iterations()
    }

    /// Time in which a rank waited for its own input.
    pub fn input_ns(&self, rank: usize) -> u64 {
        self.history.ranks[rank].spent_ns(Activity::Input)
    }

    /// Time in which ranks waited for copies from their devices.
    pub fn copying_ns(&self) -> u64 {
        self.history.ranks.iter().map(|rank| rank.spent_ns(Activity::Copy)).sum()
    }

    /// How long some ranks and the other ones did this, on average.
    pub fn mean_ns(&self, ranks: &[usize], activity: Activity) -> (u64, u64) {
        let mean = |chosen: &dyn Fn(usize) -> bool| {
            let of_each = self.history.recorded().filter(|&rank| chosen(rank));
            let (sum, count) = of_each
                .fold((0, 0), |(sum, count), rank| (sum + self.history.ranks[rank].spent_ns(activity), count + 1));
            sum / u64::max(count, 1)
        };
        (mean(&|rank| ranks.contains(&rank)), mean(&|rank| !ranks.contains(&rank)))
    }

    /// Where these ranks, or all if there are none, were seen in own code.
    pub fn hot_spots(&self, ranks: &[usize]) -> HotSpots {
        let wanted = self.history.recorded().filter(|rank| ranks.is_empty() || ranks.contains(rank));
        HotSpots::of(wanted.flat_map(|rank| &self.history.ranks[rank].samples))
    }

    /// In which phases a rank works longer than the others on average, and by how much; most first. Work in no phase
    /// has no name.
    pub fn longer_in(&self, rank: usize) -> Vec<(Option<String>, u64)> {
        let mut others: BTreeMap<Option<&str>, u64> = BTreeMap::new();
        for other in self.history.recorded().filter(|&other| other != rank) {
            for (phase, ns) in self.history.ranks[other].useful_by_phase() {
                *others.entry(phase).or_default() += ns;
            }
        }
        let count = self.history.recorded_size().saturating_sub(1).max(1) as u64;
        let mut longer: Vec<(Option<String>, u64)> = self.history.ranks[rank]
            .useful_by_phase()
            .into_iter()
            .map(|(phase, ns)| {
                let mean_ns = others.get(&phase).copied().unwrap_or(0) / count;
                (phase.map(str::to_owned), ns.saturating_sub(mean_ns))
            })
            .filter(|&(_, ns)| ns > 0)
            .collect();
        longer.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
        longer
    }

    /// The part of communication that most time is lost to. What is true of all parts is said of this one.
    pub fn largest_part(&self) -> &'static str {
        let mut largest = "agreement";
        for part in ["packing", "transfer"] {
            if self.split.lost_ns(part) > self.split.lost_ns(largest) {
                largest = part;
            }
        }
        largest
    }

    /// Useful time of all ranks.
    pub fn useful_ns(&self) -> u64 {
        self.split.useful_ns
    }

    /// The names of the hosts, each with its number of ranks, in the order of ranks.
    pub fn ranks_by_host(&self) -> Vec<(String, usize)> {
        let mut hosts: Vec<(String, usize)> = Vec::new();
        for rank in self.history.recorded().map(|rank| &self.history.ranks[rank]) {
            match hosts.iter_mut().find(|(name, _)| name == rank.host_name()) {
                Some((_, count)) => *count += 1,
                None => hosts.push((rank.host_name().to_owned(), 1)),
            }
        }
        hosts
    }

    /// Where a rank runs.
    pub fn location(&self, rank: usize) -> Location {
        let host = self.history.ranks[rank].host_name().to_owned();
        Location { host, only_host: self.history.hosts() == 1 }
    }

    /// A setting of the engine that is a number.
    pub fn setting(&self, name: &str) -> Option<u64> {
        self.history.settings.get(name)?.parse().ok()
    }
}
