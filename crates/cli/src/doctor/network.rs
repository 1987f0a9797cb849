//! The network as this machine sees it: its addresses, its name, and its ssh client.
//!
//! Every address is listed, and none is preferred: a job finds out by connecting which of them its hosts can reach. The
//! name is looked up as any other program would do it, which may ask a server that does not answer; so the doctor waits
//! for the lookup only for a while.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::ask::ask;
use super::finding::{Finding, Group};

/// A resolver that takes longer than this for its own name makes every program that asks it slow.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(3);

/// `ssh -V` reads nothing and asks nobody; on the slowest file system it needs a second.
const SSH_PATIENCE: Duration = Duration::from_secs(5);

/// What the resolver said about this machine's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// These addresses; none is listed twice.
    Addresses(Vec<IpAddr>),
    /// No address, with the resolver's words.
    Failed(String),
    /// Nothing in time.
    TooSlow,
}

/// The network of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Addresses by interface, only of interfaces that are up, only those by which somebody else could reach us.
    pub(crate) interfaces: BTreeMap<String, Vec<IpAddr>>,
    pub(crate) host: String,
    pub(crate) lookup: Lookup,
    /// Version of the ssh client; `None` if there is none.
    pub(crate) ssh: Option<String>,
}

impl Network {
    /// Asks the kernel, the resolver and ssh.
    pub(crate) fn of_this_machine() -> Network {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Network { interfaces: interfaces(), lookup: look_up(&host), host, ssh: ssh_version() }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        vec![self.addresses(), self.name(), self.ssh()]
    }

    fn own_addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.interfaces.values().flatten()
    }

    fn addresses(&self) -> Finding {
        let why = "Other hosts connect to one of these; which one is found out by connecting, not by interface name.";
        if self.interfaces.is_empty() {
            let why = "Ranks on this host find each other without; ranks on other hosts cannot reach it.";
            return Finding::note(Group::Network, "addresses", "none but loopback", why)
                .with_fix("for a job over several hosts, bring an interface up and give it an address.");
        }
        let interfaces = self.interfaces.iter().map(|(name, addresses)| {
            format!("{name} {}", addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" "))
        });
        Finding::ok(Group::Network, "addresses", interfaces.collect::<Vec<_>>().join(", "), why)
    }

    fn name(&self) -> Finding {
        let Network { host, lookup, .. } = self;
        let why = "Farandole does not look it up, but torchrun, MPI and others may.";
        let hosts_line = match self.own_addresses().next() {
            Some(address) => format!("add the line `{address} {host}` to /etc/hosts, or mend the DNS entry."),
            None => format!("add the line `127.0.0.1 {host}` to /etc/hosts."),
        };
        let (found, well) = match lookup {
            Lookup::Failed(words) => (format!("{host} has no address: {words}"), false),
            Lookup::TooSlow => (format!("looking up {host} takes more than {} s", LOOKUP_PATIENCE.as_secs()), false),
            Lookup::Addresses(addresses) => {
                let list = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
                let ours = addresses.iter().any(|address| self.own_addresses().any(|own| own == address));
                if ours || self.interfaces.is_empty() {
                    (format!("{host} is {list}"), true)
                } else if addresses.iter().all(IpAddr::is_loopback) {
                    (format!("{host} is {list}, which only this machine can reach"), false)
                } else {
                    (format!("{host} is {list}, which is no address of this machine"), false)
                }
            }
        };
        if well {
            return Finding::ok(Group::Network, "host-name", found, why);
        }
        Finding::note(Group::Network, "host-name", found, why).with_fix(hosts_line)
    }

    fn ssh(&self) -> Finding {
        match &self.ssh {
            Some(version) => Finding::ok(
                Group::Network,
                "ssh",
                format!("{version}; no server is needed on this host"),
                "Ranks on other hosts are started through it; they need a server, this host does not.",
            ),
            None => Finding::note(
                Group::Network,
                "ssh",
                "no ssh in PATH",
                "Ranks on other hosts are started through it. A job on this host alone does without.",
            )
            .with_fix("`apt install openssh-client`, or what your system calls it."),
        }
    }
}

/// Addresses by which others may reach this machine: no loopback, nothing that only counts on one cable.
fn interfaces() -> BTreeMap<String, Vec<IpAddr>> {
    let mut interfaces: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for interface in if_addrs::get_if_addrs().unwrap_or_default() {
        let address = interface.ip();
        let for_others = !interface.is_loopback() && !interface.is_link_local() && !address.is_unspecified();
        if for_others && is_up(&interface.name) {
            interfaces.entry(interface.name).or_default().push(address);
        }
    }
    interfaces
}

/// Whether the interface has a carrier. Some virtual ones do not say; they count as up.
fn is_up(interface: &str) -> bool {
    let state = std::fs::read_to_string(format!("/sys/class/net/{interface}/operstate")).unwrap_or_default();
    !matches!(state.trim(), "down" | "lowerlayerdown" | "notpresent")
}

/// Asks the resolver on a thread of its own, which is left to itself if it takes too long.
fn look_up(host: &str) -> Lookup {
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    thread::spawn(move || {
        let lookup = match (name.as_str(), 0).to_socket_addrs() {
            Ok(found) => {
                let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
                addresses.sort();
                addresses.dedup();
                Lookup::Addresses(addresses)
            }
            Err(error) => Lookup::Failed(resolver_words(&error.to_string())),
        };
        // Nobody listens any more if this was too slow.
        let _ = sender.send(lookup);
    });
    receiver.recv_timeout(LOOKUP_PATIENCE).unwrap_or(Lookup::TooSlow)
}

/// The standard library puts a preamble before what the resolver said.
fn resolver_words(error: &str) -> String {
    error.trim_start_matches("failed to lookup address information: ").to_owned()
}

/// The first words of `ssh -V`, such as `OpenSSH_9.2p1 Debian-2`.
fn ssh_version() -> Option<String> {
    let answer = ask(Command::new("ssh").arg("-V"), SSH_PATIENCE);
    if !answer.is_good() {
        return None;
    }
    let line = answer.stderr.lines().chain(answer.stdout.lines()).next()?;
    Some(line.split(',').next().unwrap_or(line).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn network(own: &[&str], lookup: Lookup) -> Network {
        let addresses: Vec<IpAddr> = own.iter().map(|text| text.parse().unwrap()).collect();
        let interfaces = if own.is_empty() { BTreeMap::new() } else { BTreeMap::from([("eth0".into(), addresses)]) };
        Network { interfaces, host: "node7".into(), lookup, ssh: None }
    }

    fn addresses(list: &[&str]) -> Lookup {
        Lookup::Addresses(list.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn a_name_that_is_one_of_our_addresses_is_well() {
        let finding = network(&["10.0.0.7", "fd00::7"], addresses(&["fd00::7"])).name();
        assert_eq!((finding.state, finding.found.as_str()), (State::Ok, "node7 is fd00::7"));
    }

    #[test]
    fn names_that_lead_nowhere_or_elsewhere_are_noted_with_the_line_that_mends_it() {
        for (lookup, words) in [
            (addresses(&["127.0.1.1"]), "only this machine"),
            (addresses(&["10.9.9.9"]), "no address of this machine"),
            (Lookup::Failed("Name or service not known".into()), "has no address"),
            (Lookup::TooSlow, "more than"),
        ] {
            let finding = network(&["10.0.0.7"], lookup).name();
            assert_eq!(finding.state, State::Note);
            assert!(finding.found.contains(words), "{}", finding.found);
            assert!(finding.fix.unwrap().contains("`10.0.0.7 node7`"));
        }
    }

    #[test]
    fn a_machine_without_a_network_runs_jobs_of_its_own() {
        let lonely = network(&[], addresses(&["127.0.0.1"]));
        assert_eq!(lonely.addresses().state, State::Note);
        assert_eq!(lonely.name().state, State::Ok);
    }

    #[test]
    fn both_families_are_listed() {
        let finding = network(&["10.0.0.7", "fd00::7"], Lookup::TooSlow).addresses();
        assert_eq!(finding.found, "eth0 10.0.0.7 fd00::7");
    }
}
