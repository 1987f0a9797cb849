//! Which rank runs on which host.
//!
//! Ranks are those of one group, numbered from zero. Hosts are numbered in the order of their first rank. A rank's
//! *local rank* counts the ranks of its host before it; its *cross rank* counts the hosts before its own that have this
//! local rank. Nothing here assumes that hosts hold equally many ranks or that their ranks are contiguous.

use std::collections::HashMap;

use crate::request::Rank;

/// Names of hosts for messages. An identity says what tells a host from all others; the part before its first slash is
/// the name that users know. Hosts that have the same name are numbered: `vm#1`, `vm#2`.
pub fn host_names<S: AsRef<str>>(identities: &[S]) -> Vec<String> {
    let name = |identity: &str| identity.split('/').next().unwrap_or(identity).to_owned();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut alike: HashMap<String, usize> = HashMap::new();
    for identity in identities.iter().map(AsRef::as_ref) {
        numbers.entry(identity).or_insert_with(|| {
            let count = alike.entry(name(identity)).or_default();
            *count += 1;
            *count
        });
    }
    let show = |identity: &str| match (alike[&name(identity)], numbers[identity]) {
        (1, _) => name(identity),
        (_, number) => format!("{}#{number}", name(identity)),
    };
    identities.iter().map(|identity| show(identity.as_ref())).collect()
}

/// Placement of the ranks of one group on hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    host_of: Vec<u32>,
    ranks_on: Vec<Vec<Rank>>,
}

impl Topology {
    /// `host_of[r]` names the host of rank `r`; equal names mean the same host.
    pub fn from_host_names<N: PartialEq>(names: &[N]) -> Topology {
        let mut first_named: Vec<usize> = Vec::new();
        let mut ranks_on: Vec<Vec<Rank>> = Vec::new();
        let mut host_of = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            let host = first_named.iter().position(|&first| names[first] == *name).unwrap_or_else(|| {
                first_named.push(index);
                ranks_on.push(Vec::new());
                first_named.len() - 1
            });
            ranks_on[host].push(Rank::from(index));
            host_of.push(host as u32);
        }
        Topology { host_of, ranks_on }
    }

    /// All ranks on one host.
    pub fn one_host(size: usize) -> Topology {
        Topology::from_host_names(&vec![(); size])
    }

    /// Every rank on a host of its own.
    pub fn all_apart(size: usize) -> Topology {
        Topology::from_host_names(&(0..size).collect::<Vec<_>>())
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.host_of.len()
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.ranks_on.len()
    }

    /// Number of the host on which a rank runs.
    pub fn host_of(&self, rank: Rank) -> usize {
        self.host_of[rank.index()] as usize
    }

    /// The ranks of a host, in order.
    pub fn ranks_on(&self, host: usize) -> &[Rank] {
        &self.ranks_on[host]
    }

    /// Whether two ranks share a host.
    pub fn same_host(&self, a: Rank, b: Rank) -> bool {
        self.host_of(a) == self.host_of(b)
    }

    /// How many ranks of its host come before this one.
    pub fn local_rank(&self, rank: Rank) -> usize {
        self.ranks_on(self.host_of(rank)).iter().position(|&other| other == rank).expect("a rank is on its own host")
    }

    /// How many ranks its host has.
    pub fn local_size(&self, rank: Rank) -> usize {
        self.ranks_on(self.host_of(rank)).len()
    }

    /// The ranks with the same local rank, one for each host that has it, in host order.
    pub fn cross_ranks(&self, local_rank: usize) -> Vec<Rank> {
        self.ranks_on.iter().filter_map(|ranks| ranks.get(local_rank).copied()).collect()
    }

    /// How many hosts before this rank's own have its local rank.
    pub fn cross_rank(&self, rank: Rank) -> usize {
        let local_rank = self.local_rank(rank);
        self.ranks_on[..self.host_of(rank)].iter().filter(|ranks| ranks.len() > local_rank).count()
    }

    /// How many hosts have this rank's local rank.
    pub fn cross_size(&self, rank: Rank) -> usize {
        self.cross_ranks(self.local_rank(rank)).len()
    }

    /// Whether every host holds equally many ranks.
    pub fn is_homogeneous(&self) -> bool {
        self.ranks_on.iter().all(|ranks| ranks.len() == self.ranks_on[0].len())
    }

    /// The placement of a subset of the ranks, renumbered from zero in the given order.
    pub fn subset(&self, ranks: &[Rank]) -> Topology {
        let hosts: Vec<u32> = ranks.iter().map(|rank| self.host_of[rank.index()]).collect();
        Topology::from_host_names(&hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_called_by_their_names_and_numbered_where_these_are_alike() {
        let identities = ["vm/boot-1/net:[1]", "db/boot-2/net:[1]", "vm/boot-3/net:[1]", "vm/boot-1/net:[1]", "plain"];
        assert_eq!(host_names(&identities), ["vm#1", "db", "vm#2", "vm#1", "plain"]);
        assert_eq!(host_names(&["vm/boot-1/net:[1]"; 3]), ["vm"; 3]);
        assert!(host_names::<&str>(&[]).is_empty());
    }
}
