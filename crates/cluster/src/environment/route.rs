//! Which address of this host another host reaches.
//!
//! The system's routes know: the address that a datagram to the other host would leave from is the one at which that host
//! reaches us. Connecting a datagram socket asks for it without sending anything. Interface names and lists of addresses say less, and are
//! not looked at.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Addresses that documents use and nobody has; the way to them is the way out of this network.
const FAR_AWAY: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The address of this host on the way to a place, with any free port.
pub(super) fn towards(host_and_port: &str) -> io::Result<SocketAddr> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in host_and_port.to_socket_addrs()? {
        match source_for(address) {
            Ok(own) => return Ok(own),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where to listen so that others, who look `host_and_port` up, can connect.
///
/// Hosts often know themselves by a loopback address (Debian's `127.0.1.1`), at which nobody else would find them. Then the
/// address on the way out of this network is taken. A place that is written as loopback is meant as such.
pub(super) fn to_listen_at(host_and_port: &str) -> io::Result<SocketAddr> {
    let mut found: Vec<SocketAddr> = host_and_port.to_socket_addrs()?.collect();
    found.sort_by_key(|address| address.ip().is_loopback());
    let Some(&first) = found.first() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    };
    let as_written = host_and_port.parse::<SocketAddr>().is_ok() || host_and_port.starts_with("localhost:");
    if as_written || !first.ip().is_loopback() {
        return Ok(first);
    }
    let outward = FAR_AWAY.into_iter().find_map(|far| source_for(SocketAddr::new(far, 9)).ok());
    let outward = outward.ok_or_else(|| {
        io::Error::new(io::ErrorKind::AddrNotAvailable, "this host knows itself by a loopback address only")
    })?;
    Ok(SocketAddr::new(outward.ip(), first.port()))
}

fn source_for(target: SocketAddr) -> io::Result<SocketAddr> {
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
        assert_eq!(towards("127.0.0.1:80").unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(towards("[::1]:80").unwrap(), "[::1]:0".parse().unwrap());
        assert!(towards("no-such-host.invalid:80").is_err());
    }

    #[test]
    fn an_address_is_listened_at_as_it_is_written() {
        for text in ["127.0.0.1:4000", "[::1]:4000", "203.0.113.77:5"] {
            assert_eq!(to_listen_at(text).unwrap().to_string(), text);
        }
        assert!(to_listen_at("localhost:7").unwrap().ip().is_loopback());
    }
}
