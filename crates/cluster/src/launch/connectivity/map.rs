//! What the attempts of all hosts say together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Attempt;

/// Who reached whom, and where.
#[derive(Debug)]
pub(crate) struct ReachMap {
    hosts: Vec<String>,
    /// Which host tried, and how it went.
    attempts: Vec<(usize, Attempt)>,
}

/// Why a job cannot be connected: a table, and a line that sums it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReachGap {
    /// One line for each pair of hosts that matters.
    pub(crate) table: Vec<String>,
    /// What a person should know.
    pub(crate) summary: String,
}

impl ReachMap {
    /// The map of these attempts.
    pub(crate) fn new(hosts: Vec<String>, attempts: Vec<(usize, Attempt)>) -> ReachMap {
        ReachMap { hosts, attempts }
    }

    /// For each host, the addresses at which its ranks should listen: the quickest one that everybody reaches, or,
    /// where there is none, the quickest for each of the others.
    pub(crate) fn addresses(&self) -> Result<Vec<Vec<IpAddr>>, ReachGap> {
        let hosts = 0..self.hosts.len();
        let gap = hosts.clone().any(|from| hosts.clone().any(|to| from != to && self.quickest(from, to).is_none()));
        if gap { Err(self.gap()) } else { Ok(hosts.map(|to| self.addresses_of(to)).collect()) }
    }

    fn addresses_of(&self, to: usize) -> Vec<IpAddr> {
        let others = || (0..self.hosts.len()).filter(|&from| from != to);
        let tried: BTreeSet<IpAddr> = self.at(to).map(|(_, attempt)| attempt.probe.address.ip()).collect();
        // For each address that everybody reaches, how long the slowest takes.
        let shared = tried.iter().filter_map(|&address| {
            let times = others().map(|from| self.time(from, to, address)).collect::<Option<Vec<u64>>>()?;
            Some((times.into_iter().max()?, address))
        });
        match shared.min() {
            Some((_, address)) => vec![address],
            None => {
                let chosen: BTreeSet<IpAddr> = others().filter_map(|from| self.quickest(from, to)).collect();
                chosen.into_iter().collect()
            }
        }
    }

    fn at(&self, to: usize) -> impl Iterator<Item = &(usize, Attempt)> {
        self.attempts.iter().filter(move |(_, attempt)| attempt.probe.host as usize == to)
    }

    fn time(&self, from: usize, to: usize, address: IpAddr) -> Option<u64> {
        let mut fitting = self.at(to).filter(|(who, attempt)| *who == from && attempt.probe.address.ip() == address);
        fitting.find_map(|(_, attempt)| attempt.outcome.as_ref().ok().copied())
    }

    /// Whether one host has reached another at all.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        self.quickest(from, to).is_some()
    }

    fn quickest(&self, from: usize, to: usize) -> Option<IpAddr> {
        let reached = self.at(to).filter(|(who, _)| *who == from);
        let times =
            reached.filter_map(|(_, attempt)| Some((*attempt.outcome.as_ref().ok()?, attempt.probe.address.ip())));
        times.min().map(|(_, address)| address)
    }

    fn gap(&self) -> ReachGap {
        let mut table = Vec::new();
        let mut missing = Vec::new();
        for from in 0..self.hosts.len() {
            for to in (0..self.hosts.len()).filter(|&to| to != from) {
                let (here, there) = (&self.hosts[from], &self.hosts[to]);
                if let Some(address) = self.quickest(from, to) {
                    table.push(format!("  {here} -> {there}: reached at {address}"));
                    continue;
                }
                missing.push(format!("{here} cannot reach {there}"));
                let tried: Vec<&Attempt> =
                    self.at(to).filter(|(who, _)| *who == from).map(|(_, attempt)| attempt).collect();
                if tried.is_empty() {
                    table.push(format!(
                        "  {here} -> {there}: {there} offers no address, or there was no answer in time"
                    ));
                }
                for attempt in tried {
                    let why = attempt.outcome.as_ref().err().map_or("", String::as_str);
                    table.push(format!("  {here} -> {there}: not at {}: {why}", attempt.probe.address.ip()));
                }
            }
        }
        let summary = format!(
            "{}; open the ports between them, or name the networks to use (--network-interface)",
            missing.join(", ")
        );
        ReachGap { table, summary }
    }
}

#[cfg(test)]
mod tests {
    use super::super::HostProbe;
    use super::*;

    fn attempt(from: usize, to: u32, address: &str, outcome: Result<u64, &str>) -> (usize, Attempt) {
        let address = std::net::SocketAddr::new(address.parse().unwrap(), 1);
        (from, Attempt { probe: HostProbe { host: to, address }, outcome: outcome.map_err(str::to_owned) })
    }

    fn map(attempts: Vec<(usize, Attempt)>, hosts: usize) -> ReachMap {
        ReachMap::new(["a", "b", "c"][..hosts].iter().map(|name| name.to_string()).collect(), attempts)
    }

    #[test]
    fn ranks_listen_where_everybody_reaches_them() {
        let map = map(
            vec![
                attempt(0, 1, "10.0.0.2", Ok(300)),
                attempt(0, 1, "172.17.0.1", Err("another host is there")),
                attempt(1, 0, "10.0.0.1", Ok(200)),
                attempt(1, 0, "192.168.0.1", Ok(100)),
            ],
            2,
        );
        let addresses = map.addresses().unwrap();
        assert_eq!(addresses, [vec!["192.168.0.1".parse::<IpAddr>().unwrap()], vec!["10.0.0.2".parse().unwrap()]]);
    }

    #[test]
    fn where_no_address_suits_all_each_peer_gets_its_own() {
        let reached = |from, to, address: &str| attempt(from, to, address, Ok(1));
        let map = map(
            vec![
                reached(1, 0, "10.0.0.1"),
                attempt(2, 0, "10.0.0.1", Err("timed out")),
                reached(2, 0, "192.168.0.1"),
                reached(0, 1, "10.0.0.2"),
                reached(2, 1, "10.0.0.2"),
                reached(0, 2, "fd00::3"),
                reached(1, 2, "fd00::3"),
            ],
            3,
        );
        assert_eq!(map.addresses().unwrap()[0].len(), 2);
    }

    #[test]
    fn a_gap_is_a_table_of_what_reached_what() {
        let map =
            map(vec![attempt(0, 1, "10.0.0.2", Ok(300)), attempt(1, 0, "10.0.0.1", Err("connection refused"))], 2);
        let gap = map.addresses().unwrap_err();
        assert_eq!(gap.table, ["  a -> b: reached at 10.0.0.2", "  b -> a: not at 10.0.0.1: connection refused"]);
        assert!(gap.summary.starts_with("b cannot reach a; "), "{}", gap.summary);
    }
}
