//! Who can reach whom, by trying.
//!
//! Names of interfaces and tables of routes say little about a path with firewalls, bridges and private networks on it.
//! So every agent opens a *door* at each of its addresses (`Doors`), every agent knocks at the doors of all other hosts
//! (`knock_at_all`), and the launcher draws the `Map`: the ranks of a host listen at the addresses that others have
//! really reached, and where a host reaches another at none, the map is the error message.
//!
//! A door counts as reached only if the right host is behind it: the addresses of container bridges are the same
//! on every machine. Both sides prove that they hold the job's key first.

mod door;
mod map;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub(crate) use door::{Doors, knock_at_all};
pub(crate) use map::{Gap, Map};

/// A door to knock at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Which host should be behind it.
    pub host: u32,
    /// Where it is.
    pub door: SocketAddr,
}

/// How knocking at a door went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Where, and who should have been there.
    pub probe: Probe,
    /// Microseconds until the door was open, or what stood in the way.
    pub outcome: Result<u64, String>,
}

/// All doors that a host has to knock at.
pub(crate) fn probes(from: usize, doors: &[Vec<SocketAddr>]) -> Vec<Probe> {
    let others = doors.iter().enumerate().filter(|(host, _)| *host != from);
    others.flat_map(|(host, doors)| doors.iter().map(move |&door| Probe { host: host as u32, door })).collect()
}
