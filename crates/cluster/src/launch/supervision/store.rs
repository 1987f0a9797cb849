//! Where a store of `torch.distributed` can be: at the port that the agent of rank 0's host has reserved.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Supervision;
use crate::launch::message::StartRanks;

impl Supervision {
    /// An agent has reserved a port, which concerns the ranks of all hosts if rank 0 is on its own.
    pub(super) fn port_reserved(&mut self, host: usize, port: u16) {
        if holds_rank_zero(&self.settings.starts[host]) {
            let store = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
            self.settings.starts.iter_mut().for_each(|start| start.store = Some(store));
        }
    }

    /// In a job on several hosts, the store is at an address of rank 0's host that the others reach.
    pub(super) fn place_store(&mut self) {
        let first = self.settings.starts.iter().find(|start| holds_rank_zero(start));
        let Some(address) = first.and_then(|start| start.addresses.first().copied()) else { return };
        let stores = self.settings.starts.iter_mut().filter_map(|start| start.store.as_mut());
        stores.for_each(|store| store.set_ip(address));
    }
}

fn holds_rank_zero(start: &StartRanks) -> bool {
    start.ranks.iter().any(|slot| slot.rank == 0)
}
