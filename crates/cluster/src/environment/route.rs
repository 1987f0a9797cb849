//! Which address of this host another host reaches.
//!
//! The system's routes know: the address that a datagram to the other host would leave from is the one at which that
//! host reaches us. Connecting a datagram socket asks for it without sending anything. Interface names and lists of
//! addresses say less, and are not looked at.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Addresses that documents use and nobody has; the way to them is the way out of this network.
const FAR_AWAY: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// How this host sees the place of a meeting.
#[derive(Debug, PartialEq)]
pub(super) enum Seen {
    /// At an address that its name has.
    AsNamed(SocketAddr),
    /// On this host, at an address that other hosts see.
    Here(SocketAddr),
}

impl Seen {
    pub(super) fn address(self) -> SocketAddr {
        match self {
            Seen::AsNamed(address) | Seen::Here(address) => address,
        }
    }
}

/// Where a meeting is that this host, or another one, knows as `host_and_port`.
///
/// Hosts often know themselves by a loopback address (Debian's `127.0.1.1`), at which nobody else would find them. Then
/// this is the host of the meeting, and the address on the way out of this network is taken, by rank 0, which listens
/// there, and by its neighbours, which visit it. A place that is written as loopback is meant as such.
pub(super) fn meeting_at(host_and_port: &str) -> io::Result<Seen> {
    let found: Vec<SocketAddr> = host_and_port.to_socket_addrs()?.collect();
    let is_literal = host_and_port.parse::<SocketAddr>().is_ok() || host_and_port.starts_with("localhost:");
    let outward = || FAR_AWAY.into_iter().find_map(|far| towards(SocketAddr::new(far, 9)).ok());
    pick(&found, is_literal.then_some(Literal), outward)
}

/// Says that a place is meant as it is written.
struct Literal;

fn pick(
    found: &[SocketAddr],
    literal: Option<Literal>,
    outward: impl FnOnce() -> Option<SocketAddr>,
) -> io::Result<Seen> {
    let reachable = found.iter().find(|address| literal.is_some() || !address.ip().is_loopback());
    match (reachable, found.first()) {
        (Some(address), _) => Ok(Seen::AsNamed(*address)),
        (None, Some(loopback)) => {
            outward().map(|own| Seen::Here(SocketAddr::new(own.ip(), loopback.port()))).ok_or_else(|| {
                io::Error::new(io::ErrorKind::AddrNotAvailable, "this host knows itself by a loopback address only")
            })
        }
        (None, None) => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
    }
}

/// The address of this host on the way to another one, with any free port.
pub(super) fn towards(target: SocketAddr) -> io::Result<SocketAddr> {
    let any = if target.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(target)?;
    let mut own = socket.local_addr()?;
    own.set_port(0);
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_loopback_is_loopback_in_both_families() {
        for (target, own) in [("127.0.0.1:80", "127.0.0.1:0"), ("[::1]:80", "[::1]:0")] {
            assert_eq!(towards(target.parse().unwrap()).unwrap().to_string(), own);
        }
    }

    #[test]
    fn an_address_is_taken_as_it_is_written() {
        for text in ["127.0.0.1:4000", "[::1]:4000", "203.0.113.77:5"] {
            assert_eq!(meeting_at(text).unwrap(), Seen::AsNamed(text.parse().unwrap()));
        }
        assert!(meeting_at("localhost:7").unwrap().address().ip().is_loopback());
    }

    #[test]
    fn a_name_that_means_loopback_here_becomes_the_address_that_others_see() {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let outward = || Some("10.0.0.7:0".parse().unwrap());
        let picked = |texts: &[&str]| pick(&addresses(texts), None, outward).unwrap();
        assert_eq!(picked(&["127.0.1.1:80"]), Seen::Here("10.0.0.7:80".parse().unwrap()));
        assert_eq!(picked(&["127.0.1.1:80", "10.0.0.9:80"]), Seen::AsNamed("10.0.0.9:80".parse().unwrap()));
        assert!(pick(&addresses(&["127.0.1.1:80"]), None, || None).is_err());
        assert!(pick(&[], None, outward).is_err());
    }
}
