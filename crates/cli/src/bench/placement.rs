//! Which rank runs on which host, and how a command gets there.
//!
//! A *host* is whatever can be entered by putting words before a command: a network namespace (`ip netns exec name`), a
//! container. All hosts share the files of this machine, because the ranks meet the driver and each other at sockets
//! with names in the file system; those work between network namespaces, unlike abstract ones. Without such words hosts
//! are only pretended: farandole then believes in them, and its peers run as on one host.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use farandole_cluster::environment;

use crate::peer::start::this_program;

/// What stands for the number of the host in the words that enter it.
const HOST_MARK: &str = "{host}";

/// Where the ranks of a run are.
#[derive(Clone, Debug)]
pub(crate) struct BenchPlacement {
    /// Number of ranks.
    pub(crate) ranks: usize,
    /// Number of hosts. Neighbouring ranks share one.
    pub(crate) hosts: usize,
    entry: Option<Entry>,
}

/// How real hosts are entered and reached.
#[derive(Clone, Debug)]
struct Entry {
    /// Words before a command, with [`HOST_MARK`] in them.
    words: Vec<String>,
    /// The address of each host.
    addresses: Vec<IpAddr>,
}

impl BenchPlacement {
    /// Ranks on this machine alone, on hosts that are pretended if there are several.
    pub(crate) fn here(ranks: usize, hosts: usize) -> BenchPlacement {
        BenchPlacement { ranks, hosts, entry: None }
    }

    /// Ranks on hosts that `prefix` enters and `addresses` reach.
    pub(crate) fn spread(ranks: usize, hosts: usize, prefix: &str, addresses: &[IpAddr]) -> Result<BenchPlacement> {
        let words: Vec<String> = prefix.split_whitespace().map(str::to_owned).collect();
        ensure!(
            prefix.contains(HOST_MARK),
            "--host-prefix '{prefix}': {HOST_MARK} must stand for the number of the host"
        );
        ensure!(
            addresses.len() == hosts,
            "--host-addresses: {} addresses for {hosts} hosts; every host has one",
            addresses.len()
        );
        Ok(BenchPlacement { ranks, hosts, entry: Some(Entry { words, addresses: addresses.to_vec() }) })
    }

    /// Whether hosts are more than pretended.
    pub(crate) fn is_spread(&self) -> bool {
        self.entry.is_some()
    }

    /// The host of a rank.
    pub(crate) fn host_of(&self, rank: usize) -> usize {
        rank * self.hosts / self.ranks
    }

    /// How many ranks a host has.
    pub(crate) fn ranks_on(&self, host: usize) -> usize {
        (0..self.ranks).filter(|&rank| self.host_of(rank) == host).count()
    }

    /// The address at which other hosts reach this one.
    pub(crate) fn address_of(&self, host: usize) -> Option<IpAddr> {
        self.entry.as_ref().map(|entry| entry.addresses[host])
    }

    /// The words that enter a host; none where hosts are pretended.
    pub(crate) fn entry_words(&self, host: usize) -> Vec<String> {
        let words = self.entry.iter().flat_map(|entry| &entry.words);
        words.map(|word| word.replace(HOST_MARK, &host.to_string())).collect()
    }

    /// Replaces this process, a rank, by the same command on the rank's host, under host identity `number`; returns
    /// if that has happened before.
    pub(crate) fn enter(&self, rank: usize, number: usize) -> Result<()> {
        let identity = format!("host {number} of this run");
        if std::env::var_os(environment::HOST).is_some_and(|host| host == *identity) {
            return Ok(());
        }
        let mut command = self.command(self.host_of(rank), this_program()?);
        command.args(std::env::args_os().skip(1)).env(environment::HOST, &identity);
        Err(command.exec()).with_context(|| format!("entering {identity} with {:?}", command.get_program()))
    }

    /// A command for this program on this host, without words of its own so far.
    pub(crate) fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut words = self.entry_words(host).into_iter();
        let Some(first) = words.next() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(words).arg(program);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn ranks_fill_hosts_in_blocks() {
        let hosts = |ranks, hosts| -> Vec<usize> {
            let placement = BenchPlacement::here(ranks, hosts);
            (0..ranks).map(|rank| placement.host_of(rank)).collect()
        };
        assert_eq!(hosts(4, 2), [0, 0, 1, 1]);
        assert_eq!(hosts(3, 2), [0, 0, 1]);
        assert_eq!(hosts(2, 1), [0, 0]);
        assert_eq!(BenchPlacement::here(3, 2).ranks_on(0), 2);
    }

    #[test]
    fn commands_enter_their_host() {
        let placement = BenchPlacement::spread(2, 2, "ip netns exec n{host}", &[address(1), address(2)]).unwrap();
        let command = placement.command(1, "rank");
        let words: Vec<&OsStr> = command.get_args().collect();
        assert_eq!(
            (command.get_program(), &words[..]),
            (OsStr::new("ip"), &["netns", "exec", "n1", "rank"].map(OsStr::new)[..])
        );
        assert_eq!(placement.address_of(1), Some(address(2)));
        assert_eq!(BenchPlacement::here(2, 2).command(1, "rank").get_program(), "rank");
    }

    #[test]
    fn a_prefix_that_leads_everybody_to_one_host_is_refused() {
        let addresses = [address(1), address(2)];
        let problem =
            |prefix, addresses: &[IpAddr]| BenchPlacement::spread(2, 2, prefix, addresses).unwrap_err().to_string();
        assert!(problem("ip netns exec n", &addresses).contains("{host} must stand"));
        assert!(problem("ip netns exec n{host}", &addresses[..1]).contains("1 addresses for 2 hosts"));
    }
}
