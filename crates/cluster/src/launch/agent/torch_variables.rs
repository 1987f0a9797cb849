//! The variables by which torchrun introduces ranks, so that a script of `torch.distributed` with `env://` runs under
//! `farandole run` without any import of ours.
//!
//! **The store.** Rank 0 of such a script listens at `MASTER_PORT` for the others. The port has to be the same in the
//! environment of all ranks and free on rank 0's host until that script gets so far. So every agent reserves one
//! ([`StorePort`]) before any rank is started, and the launcher passes that of rank 0's host on to all agents.
//!
//! **Invariant:** what torchrun has set for the launcher itself never reaches a rank: with `MASTER_PORT` of an outer
//! job, or with `TORCHELASTIC_USE_AGENT_STORE`, ranks would look for a store of that job.
//!
//! Members of an elastic job get none of these: their ranks change, and a process group does not. `MASTER_ADDR` and
//! `MASTER_PORT` stay as the user gives them by `-x`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

use crate::launch::message::{RankSlot, StartRanks};

/// Where the store is.
pub(crate) const STORE: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// The same once more, by which our package for torch sees whether it is still the one that the launcher has chosen.
const MARK: &str = "FARANDOLE_TORCH_STORE";

/// What of torchrun's a rank must not inherit.
pub(super) const OF_TORCHRUN: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    STORE[0],
    STORE[1],
    MARK,
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
];

/// A port of this host that is kept for the store of the job's ranks.
///
/// The socket is bound and does not listen. With `SO_REUSEADDR` on both, which torch's store sets, Linux lets a rank
/// listen at the port all the same, and gives it to nobody who asks for any free port or connects to somewhere.
#[derive(Debug)]
pub(super) struct StorePort {
    pub(super) port: u16,
    _socket: OwnedFd,
}

impl StorePort {
    /// Reserves a port for both families, or for IPv4 on a host without IPv6.
    pub(super) fn reserve() -> io::Result<StorePort> {
        let both = StorePort::at(AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        both.or_else(|_| StorePort::at(AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
    }

    fn at(family: AddressFamily, any: IpAddr) -> io::Result<StorePort> {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if family == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        bind(&socket, &SocketAddr::new(any, 0))?;
        let address = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(StorePort { port: address.port(), _socket: socket })
    }
}

/// What torchrun would tell a rank. `host` is the number of its host.
pub(super) fn variables_of(slot: &RankSlot, start: &StartRanks, host: u32) -> Vec<(&'static str, String)> {
    if start.elastic.is_some() {
        return Vec::new();
    }
    let mut variables = vec![
        ("RANK", slot.rank.to_string()),
        ("WORLD_SIZE", start.size.to_string()),
        ("LOCAL_RANK", slot.local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", slot.local_size.to_string()),
        ("GROUP_RANK", host.to_string()),
    ];
    if let Some(store) = start.store {
        let place = STORE.into_iter().zip([store.ip().to_string(), store.port().to_string()]);
        let is_given = |name: &str| start.variables.iter().any(|(given, _)| given == name.as_bytes());
        variables.extend(place.filter(|(name, _)| !is_given(name)));
        variables.push((MARK, format!("{}:{}", store.ip(), store.port())));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::message::ElasticStart;

    fn start() -> StartRanks {
        StartRanks { size: 4, store: Some("10.0.0.1:4711".parse().unwrap()), ..StartRanks::default() }
    }

    fn value(start: &StartRanks, name: &str) -> Option<String> {
        let slot = RankSlot { rank: 3, local_rank: 1, local_size: 2, cross_rank: 1, cross_size: 2 };
        variables_of(&slot, start, 1).into_iter().find(|(set, _)| *set == name).map(|(_, value)| value)
    }

    #[test]
    fn a_rank_is_told_what_torchrun_would_tell_it() {
        let told = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
            .map(|name| value(&start(), name).unwrap_or_default());
        assert_eq!(told, ["3", "4", "1", "2", "1", "10.0.0.1", "4711"]);
    }

    #[test]
    fn a_store_that_the_user_names_counts_and_a_rank_does_not() {
        let given = [(b"MASTER_PORT".to_vec(), b"29500".to_vec()), (b"RANK".to_vec(), b"0".to_vec())];
        let start = StartRanks { variables: given.to_vec(), ..start() };
        assert_eq!(value(&start, "MASTER_PORT"), None, "the user's is set before these are");
        assert_eq!(value(&start, "MASTER_ADDR").as_deref(), Some("10.0.0.1"));
        assert_eq!(value(&start, "RANK").as_deref(), Some("3"));
    }

    #[test]
    fn members_of_an_elastic_job_are_not_told_a_rank_that_changes() {
        let elastic = Some(ElasticStart { min_np: 1, max_np: None, timeout_ms: 0, slots: 2 });
        assert_eq!(value(&StartRanks { elastic, ..start() }, "RANK"), None);
    }

    #[test]
    fn a_rank_can_listen_at_the_reserved_port_and_no_other_reservation_has_it() {
        let reserved: Vec<StorePort> = (0..50).map(|_| StorePort::reserve().unwrap()).collect();
        let mut ports: Vec<u16> = reserved.iter().map(|reserved| reserved.port).collect();
        // As libuv and gloo listen: the standard library sets SO_REUSEADDR, too.
        let listeners = ports.iter().map(|&port| std::net::TcpListener::bind(("127.0.0.1", port)).unwrap());
        assert_eq!(listeners.collect::<Vec<_>>().len(), ports.len());
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), reserved.len());
    }
}
