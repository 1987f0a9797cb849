//! Cores: how many there are, and how many of them this process gets.
//!
//! Three things bound it: what is online, the affinity mask, and the quota of the control group. The engine goes by the
//! least.

use super::cgroup::Allowance;
use super::finding::{Finding, Group, Planned};

/// The cores of this machine, from where this process stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cores {
    /// Cores of the machine.
    pub(crate) online: usize,
    /// Those in the affinity mask.
    pub(crate) mask: usize,
    /// What the control group grants, in whole cores and parts of them.
    pub(crate) quota: Option<f64>,
}

impl Cores {
    /// Asks the kernel.
    pub(crate) fn of_this_process(allowance: &Allowance) -> Cores {
        let mask = rustix::thread::sched_getaffinity(None).map(|set| set.count() as usize).unwrap_or(1);
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        Cores { online: count(&list).unwrap_or(mask), mask, quota: allowance.cores }
    }

    /// Cores that can be kept busy at once: at least one.
    pub(crate) fn usable(&self) -> usize {
        let granted = self.quota.map_or(usize::MAX, |cores| cores.floor() as usize);
        self.online.min(self.mask).min(granted).max(1)
    }

    pub(crate) fn finding(&self, planned: Planned) -> Finding {
        let mut found = format!("{} of {} usable", self.usable(), self.online);
        let mut bounds = Vec::new();
        if self.mask < self.online {
            bounds.push(format!("the affinity mask has {}", self.mask));
        }
        if let Some(cores) = self.quota {
            bounds.push(format!("the control group grants {cores}"));
        }
        if bounds.is_empty() {
            bounds.push("no affinity mask, no quota".to_owned());
        }
        found += &format!(" ({})", bounds.join(", "));
        if planned.local_ranks <= self.usable() {
            return Finding::ok(Group::Machine, "cores", found, "Each rank has a core of its own and waits awake.");
        }
        let why = format!(
            "{} ranks on {} core{}: ranks take turns, and one that waits lets others run instead of watching. It works, \
             but no faster than with as many ranks as cores.",
            planned.local_ranks,
            self.usable(),
            if self.usable() == 1 { "" } else { "s" }
        );
        let fix = match (self.quota, self.mask < self.online) {
            (Some(_), _) => "start fewer ranks here, or raise the container's quota (Docker: `--cpus`).",
            (None, true) => "start fewer ranks here, or widen the mask (`taskset`, the batch system's cores per task).",
            (None, false) => "start fewer ranks here, or spread them over hosts with `-H`.",
        };
        Finding::note(Group::Machine, "cores", found, why).with_fix(fix)
    }
}

/// The number of cores in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    const TWO: Planned = Planned { ranks: 2, local_ranks: 2 };

    #[test]
    fn the_least_of_machine_mask_and_quota_is_usable() {
        let cores = |online, mask, quota| Cores { online, mask, quota }.usable();
        assert_eq!(cores(8, 8, None), 8);
        assert_eq!(cores(8, 2, None), 2);
        assert_eq!(cores(8, 4, Some(3.9)), 3);
        assert_eq!(cores(8, 4, Some(0.5)), 1);
    }

    #[test]
    fn more_ranks_than_cores_is_a_note_that_names_what_binds() {
        let quota = Cores { online: 8, mask: 8, quota: Some(1.5) }.finding(TWO);
        assert_eq!(quota.state, State::Note);
        assert!(quota.found.contains("grants 1.5") && quota.fix.unwrap().contains("--cpus"));
        let mask = Cores { online: 8, mask: 1, quota: None }.finding(TWO);
        assert!(mask.found.contains("mask has 1") && mask.fix.unwrap().contains("taskset"));
        assert_eq!(Cores { online: 8, mask: 2, quota: None }.finding(TWO).state, State::Ok);
    }

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(count("0-3,8,10-11\n"), Some(7));
        assert_eq!(count(""), None);
    }
}
