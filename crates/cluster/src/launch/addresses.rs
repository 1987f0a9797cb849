//! The addresses of this host that others may be offered.

use std::net::IpAddr;

/// Addresses of this host that are worth trying from elsewhere: of interfaces that are up, neither loopback nor
/// link-local. With `networks` (names of interfaces, addresses, or networks like `10.0.0.0/8`) only those among them.
pub(crate) fn offered(networks: &[String]) -> Vec<IpAddr> {
    let Ok(interfaces) = if_addrs::get_if_addrs() else { return Vec::new() };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for interface in interfaces {
        let address = interface.ip();
        let wanted = networks.is_empty()
            || networks.iter().any(|network| *network == interface.name || contains(network, address));
        if wanted && is_worth_trying(address) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

fn is_worth_trying(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        // A link-local address means nothing without the name of an interface on the other side.
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}

/// Whether an address is in a network, written `10.0.0.0/8`, or is the address itself.
fn contains(network: &str, address: IpAddr) -> bool {
    let (base, length) = match network.split_once('/') {
        Some((base, length)) => (base, length.parse::<u32>().ok()),
        None => (network, Some(u32::MAX)),
    };
    let (Ok(base), Some(length)) = (base.parse::<IpAddr>(), length) else { return false };
    match (base, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0);
            base.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
            base.to_bits() & mask == address.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        let inside = |network: &str, address: &str| contains(network, address.parse().unwrap());
        assert!(inside("10.0.0.0/8", "10.250.1.1") && !inside("10.0.0.0/8", "11.0.0.1"));
        assert!(inside("10.0.0.7", "10.0.0.7") && !inside("10.0.0.7", "10.0.0.8"));
        assert!(inside("0.0.0.0/0", "1.2.3.4") && inside("fd00::/8", "fd12::1") && !inside("fd00::/8", "10.0.0.1"));
        assert!(!inside("eth0", "10.0.0.1") && !inside("10.0.0.0/x", "10.0.0.1"));
    }

    #[test]
    fn loopback_is_offered_to_nobody() {
        assert!(offered(&[]).iter().all(|address| !address.is_loopback()));
        assert!(offered(&["lo".to_owned()]).is_empty());
    }
}
