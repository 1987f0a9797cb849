//! Which rank runs on which host.
//!
//! Hosts are filled in the order in which they were named, each up to its slots, as Horovod does: ranks of a host are neighbours, and
//! the first host has rank 0. A host that was named twice is one host with the slots of both, at the place of the first;
//! so is this host under two of its names. Hosts that get no rank are no part of the placement. Every rank has one place,
//! and its local and cross ranks are those that [`farandole_plan::Topology`] finds for the same hosts. Whether a host can be reached is not known here.

use std::collections::HashMap;

use farandole_plan::{Rank, Topology};

use super::hosts::is_this_host;
use super::order::HostSlots;
use crate::error::{Error, Result};

/// More ranks than this can only be a slip of the finger.
const MOST_RANKS: usize = 1 << 20;

/// Places for all ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    hosts: Vec<HostSlots>,
    topology: Topology,
}

/// Where one rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
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

impl Placement {
    /// So many ranks on this host.
    pub fn here(ranks: usize) -> Result<Placement> {
        Placement::fill(vec![HostSlots { name: "localhost".to_owned(), slots: ranks }], Some(ranks))
    }

    /// Fills hosts with ranks, or with as many ranks as they have slots where no number is given.
    pub fn fill(named: Vec<HostSlots>, ranks: Option<usize>) -> Result<Placement> {
        let mut hosts = together(named);
        let slots = hosts.iter().fold(0_usize, |sum, host| sum.saturating_add(host.slots));
        let ranks = ranks.unwrap_or(slots);
        if !(1..=MOST_RANKS).contains(&ranks) {
            return Err(Error::order(format!("-np {ranks}"), format!("a job has 1 to {MOST_RANKS} ranks")));
        }
        if ranks > slots {
            return Err(Error::order(format!("-np {ranks}"), too_few(&hosts, slots, ranks)));
        }
        let mut host_of = Vec::with_capacity(ranks);
        for (index, host) in hosts.iter().enumerate() {
            host_of.extend(std::iter::repeat_n(index, host.slots.min(ranks - host_of.len())));
        }
        hosts.truncate(host_of[ranks - 1] + 1);
        Ok(Placement { hosts, topology: Topology::from_host_names(&host_of) })
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
    pub fn place(&self, rank: Rank) -> Place {
        Place {
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

    /// The same placement as the planner sees it.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
}

/// One entry for each host: slots of the same name, or of several names of this host, add up.
fn together(named: Vec<HostSlots>) -> Vec<HostSlots> {
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
    let mut shown: Vec<String> =
        hosts.iter().take(MOST_SHOWN).map(|host| format!("{}:{}", host.name, host.slots)).collect();
    if hosts.len() > MOST_SHOWN {
        shown.push(format!("… {} hosts in all", hosts.len()));
    }
    format!(
        "the hosts have {slots} slots ({}), {} too few; ask for at most {slots} ranks, or give hosts more slots than cores",
        shown.join(", "),
        ranks - slots
    )
}
