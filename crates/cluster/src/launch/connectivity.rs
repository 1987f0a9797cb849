//! Which hosts can reach which, found out by connecting.
//!
//! Interface names and routing tables say little about a path with firewalls, bridges and private networks on it. So
//! every agent listens at each of its addresses (`ProbeListener`) and connects to the addresses of all other hosts
//! (`probe_all`), and the launcher collects the results (`ReachMap`): the ranks of a host listen at addresses that
//! other hosts have reached. If a host reaches another at no address, the table of attempts is the error message.
//!
//! An address counts as reached only if the right host answers: the addresses of container bridges are the same on
//! every machine. Both sides first prove that they hold the job's key.

mod map;
mod prober;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub(crate) use map::{ReachGap, ReachMap};
pub(crate) use prober::{ProbeListener, probe_all};

/// An address to probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProbe {
    /// The host that should answer.
    pub host: u32,
    /// Where it is.
    pub address: SocketAddr,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The probe.
    pub probe: HostProbe,
    /// Microseconds until the host had answered, or the error.
    pub outcome: Result<u64, String>,
}

/// All probes of one host.
pub(crate) fn probes(from: usize, probe_addresses: &[Vec<SocketAddr>]) -> Vec<HostProbe> {
    let others = probe_addresses.iter().enumerate().filter(|(host, _)| *host != from);
    others
        .flat_map(|(host, probe_addresses)| {
            probe_addresses.iter().map(move |&address| HostProbe { host: host as u32, address })
        })
        .collect()
}
