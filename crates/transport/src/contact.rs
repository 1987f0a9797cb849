//! Where a rank can be reached, as it travels through a rendezvous.
//!
//! ```text
//! u8 format 3 · u16 connections · process: 20 bytes (`identity`) · host: u16 length, bytes ·
//!     unix: u16 length, bytes (empty: none) · u8 addresses · each: u8 4 or 6 · 4 or 16 bytes · u16 port · (6 only) u32 scope
//! ```
//! Numbers are little-endian. Decoding is total: any bytes give a contact or nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::identity::ProcessId;

/// Where one rank can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Identity of its host: ranks with equal hosts share a boot of the machine and a network namespace.
    pub host: String,
    /// Name of its abstract Unix socket, for ranks of the same host.
    pub unix: Option<String>,
    /// Its TCP addresses, in the order in which they are to be tried.
    pub addresses: Vec<SocketAddr>,
    /// How many connections for data it suggests; two ranks use the larger of their numbers.
    pub connections: u16,
    /// Its process.
    pub process: ProcessId,
}

/// How many connections for data suit this machine.
///
/// Measured with two cores and much else going on, 64 MiB at a time over loopback: one connection 0.75 GB/s, two 0.70,
/// four 0.58, because every connection wants a core for the kernel's copying; on a line of 1 Gbit/s any number fills
/// it. With cores to spare, several are better wherever the network or a cloud limits the rate of each.
pub fn suggested_connections() -> u16 {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        0..=4 => 1,
        5..=16 => 2,
        _ => 4,
    }
}

const FORMAT: u8 = 3;

/// Whether ranks of the same host are in the same PID namespace, for all hosts.
pub(crate) fn have_common_pids(contacts: &[Contact]) -> bool {
    let mut namespaces = HashMap::new();
    contacts.iter().all(|contact| {
        *namespaces.entry(&contact.host).or_insert(contact.process.namespace) == contact.process.namespace
    })
}

impl Contact {
    /// Whether two ranks talk through sockets and memory of their common host.
    pub fn is_local_to(&self, other: &Contact) -> bool {
        self.host == other.host && self.unix.is_some() && other.unix.is_some()
    }

    /// The contact as bytes. Names are cut at 64 KiB, addresses after the 255th.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&self.connections.to_le_bytes());
        bytes.extend_from_slice(&self.process.encode());
        for text in [&self.host, self.unix.as_deref().unwrap_or_default()] {
            let text = &text.as_bytes()[..text.len().min(u16::MAX.into())];
            bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        let addresses = &self.addresses[..self.addresses.len().min(u8::MAX.into())];
        bytes.push(addresses.len() as u8);
        for address in addresses {
            match address {
                SocketAddr::V4(v4) => {
                    bytes.push(4);
                    bytes.extend_from_slice(&v4.ip().octets());
                    bytes.extend_from_slice(&v4.port().to_le_bytes());
                }
                SocketAddr::V6(v6) => {
                    bytes.push(6);
                    bytes.extend_from_slice(&v6.ip().octets());
                    bytes.extend_from_slice(&v6.port().to_le_bytes());
                    bytes.extend_from_slice(&v6.scope_id().to_le_bytes());
                }
            }
        }
        bytes
    }

    /// The contact that these bytes are, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<Contact> {
        let mut rest = bytes;
        if take::<1>(&mut rest)? != [FORMAT] {
            return None;
        }
        let connections = u16::from_le_bytes(take(&mut rest)?);
        let process = ProcessId::decode(&take(&mut rest)?)?;
        let host = take_text(&mut rest)?;
        let unix = Some(take_text(&mut rest)?).filter(|name| !name.is_empty());
        let [count] = take::<1>(&mut rest)?;
        let addresses = (0..count).map(|_| take_address(&mut rest)).collect::<Option<Vec<_>>>()?;
        rest.is_empty().then_some(Contact { host, unix, addresses, connections, process })
    }
}

fn take<const COUNT: usize>(rest: &mut &[u8]) -> Option<[u8; COUNT]> {
    let (taken, behind) = rest.split_first_chunk::<COUNT>()?;
    *rest = behind;
    Some(*taken)
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let length = usize::from(u16::from_le_bytes(take(rest)?));
    let (text, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    String::from_utf8(text.to_vec()).ok()
}

fn take_address(rest: &mut &[u8]) -> Option<SocketAddr> {
    match take::<1>(rest)? {
        [4] => {
            let ip = Ipv4Addr::from(take::<4>(rest)?);
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_le_bytes(take(rest)?)))
        }
        [6] => {
            let ip = Ipv6Addr::from(take::<16>(rest)?);
            let (port, scope) = (u16::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?));
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_contact_survives_the_rendezvous() {
        let contact = Contact {
            host: "node-7".to_owned(),
            unix: Some("farandole-1".to_owned()),
            addresses: vec!["10.0.0.7:4000".parse().unwrap(), "[fe80::1%3]:4001".parse().unwrap()],
            connections: 3,
            process: ProcessId { pid: 77, namespace: 1 << 40, start_time: 4711 },
        };
        assert_eq!(Contact::decode(&contact.encode()), Some(contact.clone()));
        let apart = Contact { unix: None, addresses: Vec::new(), ..contact };
        assert_eq!(Contact::decode(&apart.encode()), Some(apart));
    }

    #[test]
    fn pid_namespaces_are_compared_within_hosts() {
        let contact = |host: &str, namespace| Contact {
            host: host.to_owned(),
            unix: None,
            addresses: Vec::new(),
            connections: 1,
            process: ProcessId { pid: 1, namespace, start_time: 1 },
        };
        assert!(have_common_pids(&[contact("a", 1), contact("b", 2), contact("a", 1)]));
        assert!(!have_common_pids(&[contact("a", 1), contact("b", 2), contact("a", 2)]));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            if let Some(contact) = Contact::decode(&bytes) {
                prop_assert_eq!(contact.encode(), bytes);
            }
        }
    }
}
