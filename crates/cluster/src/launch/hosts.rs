//! Hosts as users write them: `h1:2,h2:4`.
//!
//! A host is a name or an address, possibly with `user@` before it, and `:slots` after it; without slots it has one.
//! IPv6 addresses stand in brackets where something could follow them: `[fe80::1]:2`. What comes out is safe to give to
//! ssh as a word: it starts with no dash and has no character that a shell or ssh's own substitutions would notice.
//! Names are not resolved here: a name server may take seconds to answer, and ssh may know a name by its own table.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use super::job_spec::HostSlots;
use crate::error::{Error, Result};

/// More slots than this on one host can only be a slip of the finger.
pub(super) const MOST_SLOTS: usize = 1 << 16;

/// The hosts of a list with commas.
pub fn parse_list(text: &str) -> Result<Vec<HostSlots>> {
    let at = || format!("-H {text}");
    if text.trim().is_empty() {
        return Err(Error::job_spec(at(), "names no host; write for instance -H h1:2,h2:4"));
    }
    text.split(',').map(|word| parse(word.trim()).map_err(|problem| Error::job_spec(at(), problem))).collect()
}

/// One host, with its slots if it has any.
pub(super) fn parse(word: &str) -> std::result::Result<HostSlots, String> {
    let (name, slots) = split_slots(word)?;
    Ok(HostSlots { name, slots: slots.unwrap_or(1) })
}

/// The name of a host, and the slots that were written behind it.
pub(super) fn split_slots(word: &str) -> std::result::Result<(String, Option<usize>), String> {
    let (user, rest) = match word.split_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, word),
    };
    if user.is_some_and(|user| !is_plain(user, ".-_+")) {
        return Err(format!("'{word}': what stands before @ is no user name"));
    }
    let (host, slots) = split_host(word, rest)?;
    let slots = slots.map(|slots| parse_slots(word, slots)).transpose()?;
    Ok((user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}")), slots))
}

fn split_host<'a>(word: &str, rest: &'a str) -> std::result::Result<(&'a str, Option<&'a str>), String> {
    if let Some(inside) = rest.strip_prefix('[') {
        let (address, behind) =
            inside.split_once(']').ok_or_else(|| format!("'{word}': the bracket [ is not closed"))?;
        if !is_ipv6(address) {
            return Err(format!("'{word}': brackets hold an IPv6 address, and '{address}' is none"));
        }
        return match behind.strip_prefix(':') {
            Some(slots) => Ok((address, Some(slots))),
            None if behind.is_empty() => Ok((address, None)),
            None => Err(format!("'{word}': after ] comes nothing, or : and a number of slots")),
        };
    }
    if is_ipv6(rest) {
        // Of fe80::1:2 nobody can say whether 2 counts slots; of fe80::1 one can, since fe80: is no address.
        let (before, last) = rest.rsplit_once(':').unwrap_or((rest, ""));
        if is_ipv6(before) {
            return Err(format!("'{word}' could be two things; write [{before}]:{last} or [{rest}]"));
        }
        return Ok((rest, None));
    }
    let (host, slots) = match rest.split_once(':') {
        Some((host, slots)) => (host, Some(slots)),
        None => (rest, None),
    };
    if host.is_empty() {
        return Err(format!("'{word}': expected the name of a host, such as h1 or h1:2"));
    }
    if !is_plain(host, ".-_") {
        return Err(format!(
            "'{word}': '{host}' is no name of a host; IPv6 addresses stand in brackets, as in [fe80::1]:2"
        ));
    }
    Ok((host, slots))
}

pub(super) fn parse_slots(word: &str, text: &str) -> std::result::Result<usize, String> {
    let slots: Option<usize> = text.parse().ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
    slots.ok_or_else(|| format!("'{word}': '{text}' is no number of slots; expected 1 to {MOST_SLOTS}"))
}

/// Whether this is an address, possibly with a zone (`fe80::1%eth0`).
fn is_ipv6(text: &str) -> bool {
    match text.split_once('%') {
        Some((address, zone)) => address.parse::<Ipv6Addr>().is_ok() && is_plain(zone, ".-_"),
        None => text.parse::<Ipv6Addr>().is_ok(),
    }
}

/// Letters, digits and the given characters, but no dash in front: nothing that could be taken for an option.
fn is_plain(text: &str, also: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text.chars().all(|character| character.is_ascii_alphanumeric() || also.contains(character))
}

/// Whether this name is one of this host's: `localhost`, an address of its interfaces, the name that the kernel gives
/// it, with or without its domain, or a name that `/etc/hosts` gives one of its addresses. A name with a user is not:
/// `bob@localhost` asks ssh to become bob.
pub fn is_this_host(name: &str) -> bool {
    static HERE: LazyLock<OwnNames> = LazyLock::new(OwnNames::read);
    HERE.contains(name)
}

/// The names and addresses of a host. Read once: a job's hosts must not change sides while it runs.
struct OwnNames {
    /// As the kernel says.
    node: String,
    addresses: HashSet<IpAddr>,
    /// Lower-case names of these addresses.
    listed: HashSet<String>,
}

impl OwnNames {
    fn read() -> OwnNames {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let addresses = interfaces.iter().map(if_addrs::Interface::ip).collect();
        let table = std::fs::read("/etc/hosts").unwrap_or_default();
        OwnNames::new(own_name(), addresses, &String::from_utf8_lossy(&table))
    }

    fn new(node: String, addresses: HashSet<IpAddr>, table: &str) -> OwnNames {
        let mut own = OwnNames { node, addresses, listed: HashSet::new() };
        for line in table.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let is_own = words.next().and_then(|word| word.parse().ok()).is_some_and(|address| own.has(address));
            own.listed.extend(words.filter(|_| is_own).map(str::to_ascii_lowercase));
        }
        own
    }

    fn has(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    fn contains(&self, name: &str) -> bool {
        match name.parse::<IpAddr>() {
            Ok(address) => self.has(address),
            Err(_) => is_host_named(name, &self.node) || self.listed.contains(&name.to_ascii_lowercase()),
        }
    }
}

fn is_host_named(name: &str, own: &str) -> bool {
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let same = name.eq_ignore_ascii_case(own);
    // With a domain on both sides the domains count; where one side has none it has nothing to say about it.
    let bare = !name.contains('.') || !own.contains('.');
    !own.is_empty() && (same || bare && short(name) == short(own))
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(name: &str, slots: usize) -> HostSlots {
        HostSlots { name: name.to_owned(), slots }
    }

    #[test]
    fn hosts_are_read_in_every_spelling() {
        for (text, hosts) in [
            ("h1:2,h2:4", vec![slots("h1", 2), slots("h2", 4)]),
            ("h1", vec![slots("h1", 1)]),
            (" h1:2 , h2 ", vec![slots("h1", 2), slots("h2", 1)]),
            ("bob@node-1.example.org:8", vec![slots("bob@node-1.example.org", 8)]),
            ("10.0.0.1:2", vec![slots("10.0.0.1", 2)]),
            ("[fe80::1]:2", vec![slots("fe80::1", 2)]),
            ("[fe80::1%eth0]:2,bob@[::1]", vec![slots("fe80::1%eth0", 2), slots("bob@::1", 1)]),
            ("::1,fe80::1", vec![slots("::1", 1), slots("fe80::1", 1)]),
        ] {
            assert_eq!(parse_list(text).unwrap(), hosts, "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused_with_what_was_expected() {
        for (text, explanation) in [
            ("", "names no host"),
            ("h1,,h2", "expected the name of a host"),
            (":2", "expected the name of a host"),
            ("h1:", "'' is no number of slots"),
            ("h1:0", "expected 1 to 65536"),
            ("h1:-1", "no number of slots"),
            ("h1:two", "'two' is no number of slots"),
            ("h1:99999999999999999999", "no number of slots"),
            ("h1:2:3", "'2:3' is no number of slots"),
            ("fe80::1:2", "write [fe80::1]:2 or [fe80::1:2]"),
            ("[fe80::1:2", "is not closed"),
            ("[h1]:2", "'h1' is none"),
            ("[fe80::1]2", "after ]"),
            ("-oProxyCommand=reboot", "no name of a host"),
            ("bob;reboot@h1", "no user name"),
            ("-l@h1", "no user name"),
            ("h$(reboot)", "no name of a host"),
            ("h1 h2", "no name of a host"),
        ] {
            let error = parse_list(text).unwrap_err().to_string();
            assert!(error.starts_with("-H ") && error.contains(explanation), "{text}: {error}");
        }
    }

    #[test]
    fn this_host_is_known_by_all_its_names() {
        let addresses = HashSet::from(["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()]);
        let table = "10.0.0.7 Seven.example.net seven # storage\n10.0.0.8 eight\n# 10.0.0.7 gone\nnonsense\n";
        let own = OwnNames::new("node7".to_owned(), addresses, table);
        for name in ["localhost", "LOCALHOST", "127.0.0.1", "127.3.2.1", "::1", "node7", "NODE7", "node7.example.org"] {
            assert!(own.contains(name), "{name}");
        }
        for name in ["10.0.0.7", "fd00::7", "fd00:0::7", "seven", "SEVEN", "seven.example.net"] {
            assert!(own.contains(name), "{name}");
        }
        for name in ["node8", "10.0.0.1", "fe80::1", "bob@localhost", "bob@node7", "node", "eight", "gone", "storage"] {
            assert!(!own.contains(name), "{name}");
        }
        assert!(is_host_named("node7", "node7.example.org"));
        assert!(!is_host_named("node7.elsewhere.org", "node7.example.org"));
        assert!(is_this_host(&own_name()));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_fall_over(text in r"\PC{0,40}|[-a-z0-9.:@\[\],%= ]{0,40}") {
            for host in parse_list(&text).unwrap_or_default() {
                prop_assert!(host.slots >= 1 && !host.name.starts_with('-') && !host.name.contains(char::is_whitespace));
            }
        }
    }
}
