//! Which rank runs on which host.
//!
//! Hosts are filled in the order in which they were named, each up to its slots, as Horovod does: ranks of a host are
//! neighbours, and the first host has rank 0. A host that was named twice is one host with the slots of both, at the
//! place of the first; so is this host under two of its names. Hosts that get no rank are no part of the placement.
//! Every rank has one place, and its local and cross ranks are those that [`farandole_plan::Topology`] finds for the
//! same hosts. Whether a host can be reached is not known here.

use std::collections::HashMap;

use farandole_plan::{Rank, Topology};

use super::hosts::is_this_host;
use super::job_spec::HostSlots;
use crate::error::{Error, Result};

/// More ranks than this can only be a slip of the finger.
const MOST_RANKS: usize = 1 << 20;

/// Places for all ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlacement {
    hosts: Vec<HostSlots>,
    topology: Topology,
}

/// Where one rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlacement {
    /// Index of its host.
    pub host: usize,
    /// How many ranks of its host come before it.
    pub local_rank: usize,
    /// How many ranks its host has.
    pub local_size: usize,
    /// How many hosts before its own have its local rank.
    pub cross_rank: usize,
    /// How many hosts have its local rank.
    pub cross_size: usize,
}

impl JobPlacement {
    /// So many ranks on this host.
    pub fn here(ranks: usize) -> Result<JobPlacement> {
        JobPlacement::fill(vec![HostSlots { name: "localhost".to_owned(), slots: ranks }], Some(ranks))
    }

    /// Fills hosts with ranks, or with as many ranks as they have slots where no number is given.
    pub fn fill(named: Vec<HostSlots>, ranks: Option<usize>) -> Result<JobPlacement> {
        let mut hosts = together(named);
        let slots = hosts.iter().fold(0_usize, |sum, host| sum.saturating_add(host.slots));
        let ranks = ranks.unwrap_or(slots);
        if !(1..=MOST_RANKS).contains(&ranks) {
            return Err(Error::job_spec(format!("-np {ranks}"), format!("a job has 1 to {MOST_RANKS} ranks")));
        }
        if ranks > slots {
            return Err(Error::job_spec(format!("-np {ranks}"), too_few(&hosts, slots, ranks)));
        }
        let mut host_of = Vec::with_capacity(ranks);
        for (index, host) in hosts.iter().enumerate() {
            host_of.extend(std::iter::repeat_n(index, host.slots.min(ranks - host_of.len())));
        }
        hosts.truncate(host_of[ranks - 1] + 1);
        Ok(JobPlacement { hosts, topology: Topology::from_host_names(&host_of) })
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.topology.size()
    }

    /// The hosts, in order. Each has one rank at least.
    pub fn hosts(&self) -> &[HostSlots] {
        &self.hosts
    }

    /// The ranks of a host, in order.
    pub fn ranks_on(&self, host: usize) -> &[Rank] {
        self.topology.ranks_on(host)
    }

    /// Where a rank runs.
    pub fn place(&self, rank: Rank) -> RankPlacement {
        RankPlacement {
            host: self.topology.host_of(rank),
            local_rank: self.topology.local_rank(rank),
            local_size: self.topology.local_size(rank),
            cross_rank: self.topology.cross_rank(rank),
            cross_size: self.topology.cross_size(rank),
        }
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: Rank) -> &HostSlots {
        &self.hosts[self.topology.host_of(rank)]
    }

    /// Whether a host is the one on which this process runs.
    pub fn is_local(&self, host: usize) -> bool {
        is_this_host(&self.hosts[host].name)
    }
}

/// One entry for each host: slots of the same name, or of several names of this host, add up.
pub fn together(named: Vec<HostSlots>) -> Vec<HostSlots> {
    let mut hosts: Vec<HostSlots> = Vec::with_capacity(named.len());
    let mut index_of: HashMap<String, usize> = HashMap::new();
    for host in named.into_iter().filter(|host| host.slots > 0) {
        let key = if is_this_host(&host.name) { String::new() } else { host.name.to_ascii_lowercase() };
        match index_of.get(&key) {
            Some(&index) => hosts[index].slots = hosts[index].slots.saturating_add(host.slots),
            None => {
                index_of.insert(key, hosts.len());
                hosts.push(host);
            }
        }
    }
    hosts
}

/// So many hosts are shown in a message; of more, the first ones say as much.
const MOST_SHOWN: usize = 4;

fn too_few(hosts: &[HostSlots], slots: usize, ranks: usize) -> String {
    let mut shown: Vec<String> = hosts.iter().take(MOST_SHOWN).map(HostSlots::to_string).collect();
    if hosts.len() > MOST_SHOWN {
        shown.push(format!("… {} hosts in all", hosts.len()));
    }
    let missing = ranks - slots;
    let remedy = match hosts.split_last() {
        Some((last, others)) if hosts.len() <= MOST_SHOWN => {
            let last = HostSlots { slots: last.slots + missing, ..last.clone() };
            let enough: Vec<String> = others.iter().chain([&last]).map(HostSlots::to_string).collect();
            format!("write -H {} to run more ranks than slots", enough.join(","))
        }
        _ => "ask for fewer ranks, or give hosts more slots".to_owned(),
    };
    format!("the hosts have {slots} slots ({}), {missing} too few; {remedy}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::hosts::parse_list;
    use proptest::prelude::*;

    fn filled(hosts: &str, ranks: Option<usize>) -> JobPlacement {
        JobPlacement::fill(parse_list(hosts).unwrap(), ranks).unwrap()
    }

    fn refused(hosts: &str, ranks: Option<usize>) -> String {
        JobPlacement::fill(parse_list(hosts).unwrap(), ranks).unwrap_err().to_string()
    }

    #[test]
    fn hosts_are_filled_in_order() {
        let placement = filled("h1:2,h2:4,h3:1", Some(5));
        let names: Vec<&str> = (0..5).map(|rank| placement.host_of(Rank(rank)).name.as_str()).collect();
        assert_eq!(names, ["h1", "h1", "h2", "h2", "h2"]);
        assert_eq!(placement.hosts().len(), 2, "a host without ranks is no part of the job");
        let last = RankPlacement { host: 1, local_rank: 2, local_size: 3, cross_rank: 0, cross_size: 1 };
        assert_eq!(placement.place(Rank(4)), last);
        let middle = RankPlacement { host: 1, local_rank: 1, local_size: 3, cross_rank: 1, cross_size: 2 };
        assert_eq!(placement.place(Rank(3)), middle);
    }

    #[test]
    fn without_a_number_all_slots_are_filled() {
        assert_eq!(filled("h1:2,h2:4", None).size(), 6);
    }

    #[test]
    fn a_host_named_twice_is_one_host() {
        let placement = filled("h1:1,h2:1,H1:2", None);
        assert_eq!(placement.hosts().len(), 2);
        assert_eq!(placement.ranks_on(0), [Rank(0), Rank(1), Rank(2)]);
        let placement = filled("localhost:1,h2:1,127.0.0.1:1,[::1]:1", None);
        assert_eq!(placement.ranks_on(0).len(), 3, "this host under three names");
        assert!(placement.is_local(0) && !placement.is_local(1));
    }

    #[test]
    fn too_many_ranks_are_refused_with_both_numbers_and_the_cure() {
        let error = refused("h1:2,h2:4", Some(8));
        assert_eq!(
            error,
            "-np 8: the hosts have 6 slots (h1:2, h2:4), 2 too few; write -H h1:2,h2:6 to run more ranks than slots"
        );
        assert!(
            refused("localhost:1", Some(2)).ends_with("1 too few; write -H localhost:2 to run more ranks than slots")
        );
        assert!(refused("bob@[fe80::1]", Some(2)).contains("write -H bob@[fe80::1]:2 "));
        assert!(refused("a,b,c,d,e,f", Some(7)).contains("a:1, b:1, c:1, d:1, … 6 hosts in all"));
        assert_eq!(refused("h1", Some(0)), "-np 0: a job has 1 to 1048576 ranks");
    }

    #[test]
    fn ranks_can_be_put_on_this_host() {
        let placement = JobPlacement::here(3).unwrap();
        assert!(placement.is_local(0));
        assert_eq!(placement.ranks_on(0).len(), 3);
        assert!(JobPlacement::here(0).is_err());
    }

    proptest! {
        #[test]
        fn every_rank_has_one_place_that_the_planner_agrees_with(
            slots in prop::collection::vec((0..6_u8, 1..9_usize), 1..12),
            fewer in 0..20_usize,
        ) {
            let named: Vec<HostSlots> =
                slots.iter().map(|(name, slots)| HostSlots { name: format!("h{name}"), slots: *slots }).collect();
            let room: usize = slots.iter().map(|(_, slots)| slots).sum();
            let ranks = room.saturating_sub(fewer).max(1);
            let placement = JobPlacement::fill(named, Some(ranks)).unwrap();
            prop_assert_eq!(placement.size(), ranks);

            let listed: Vec<Rank> = (0..placement.hosts().len()).flat_map(|host| placement.ranks_on(host).to_vec()).collect();
            prop_assert_eq!(listed, (0..ranks).map(Rank::from).collect::<Vec<_>>(), "each rank once, hosts in order");

            let names: Vec<&str> = (0..ranks).map(|rank| placement.host_of(Rank::from(rank)).name.as_str()).collect();
            let topology = Topology::from_host_names(&names);
            for rank in (0..ranks).map(Rank::from) {
                let place = placement.place(rank);
                prop_assert_eq!(place.host, topology.host_of(rank));
                prop_assert_eq!(placement.ranks_on(place.host)[place.local_rank], rank);
                prop_assert_eq!(place.local_size, placement.ranks_on(place.host).len());
                prop_assert!(place.local_size <= placement.hosts()[place.host].slots);
                prop_assert_eq!((place.cross_rank, place.cross_size), (topology.cross_rank(rank), topology.cross_size(rank)));
                prop_assert_eq!(topology.cross_ranks(place.local_rank)[place.cross_rank], rank);
            }
        }
    }
}
