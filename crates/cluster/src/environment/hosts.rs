//! Lists of hosts as batch systems write them.
//!
//! `gpu[01-03,7],login` is gpu01, gpu02, gpu03, gpu7 and login. A name may have several pairs of brackets, and every
//! combination of what they stand for is meant, the last pair counting fastest. Numbers keep the leading zeros of the
//! first one.

use crate::rendezvous::Address;

/// More hosts than any job has; a list that stands for more is a mistake, and is not worth the memory.
const MOST_HOSTS: usize = 100_000;

/// All hosts of a list, in its order. `None`: it is not a list of hosts.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for pattern in split_outside_brackets(list)? {
        hosts.extend(expand_name(pattern)?);
        if hosts.len() > MOST_HOSTS {
            return None;
        }
    }
    Some(hosts)
}

/// `host:port` as an address; IPv6 addresses get their brackets.
pub(super) fn address(host: &str, port: u16) -> Address {
    let is_bare_v6 = host.contains(':') && !host.starts_with('[');
    Address::Tcp(if is_bare_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

fn split_outside_brackets(list: &str) -> Option<Vec<&str>> {
    let mut inside = false;
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, letter) in list.char_indices() {
        match (letter, inside) {
            ('[', false) => inside = true,
            (']', true) => inside = false,
            ('[', true) | (']', false) => return None,
            (',', false) => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    (!inside).then_some(parts)
}

fn expand_name(pattern: &str) -> Option<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, behind)) = rest.split_once('[') {
        let (inside, after) = behind.split_once(']')?;
        let numbers: Vec<String> = inside.split(',').map(expand_range).collect::<Option<Vec<_>>>()?.concat();
        if names.len().saturating_mul(numbers.len()) > MOST_HOSTS {
            return None;
        }
        names =
            names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}"))).collect();
        rest = after;
    }
    let names: Vec<String> = names.into_iter().map(|name| name + rest).collect();
    names.iter().all(|name| !name.is_empty()).then_some(names)
}

fn expand_range(range: &str) -> Option<Vec<String>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    if !is_number(first) || !is_number(last) {
        return None;
    }
    let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    if to < from || to - from >= MOST_HOSTS {
        return None;
    }
    let digits = first.len();
    Some((from..=to).map(|number| format!("{number:0digits$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_stand_for_their_hosts_in_order() {
        for (list, hosts) in [
            ("vm", &["vm"][..]),
            ("a,b-c", &["a", "b-c"]),
            ("gpu[01-03,7],login", &["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
            ("n[9-11].site", &["n9.site", "n10.site", "n11.site"]),
            ("r[1-2]n[08-09]", &["r1n08", "r1n09", "r2n08", "r2n09"]),
        ] {
            assert_eq!(expand(list).unwrap(), hosts, "{list}");
        }
    }

    #[test]
    fn other_texts_are_not_lists() {
        for text in ["", "a,", "a[", "a]", "a[1", "a[1-]", "a[-2]", "a[x]", "a[3-1]", "a[[1]]", "a[]", "a[0-999999999]"]
        {
            assert_eq!(expand(text), None, "{text}");
        }
        assert_eq!(expand("a[0-9999]b[0-9999]"), None, "more hosts than there are");
        assert_eq!(expand(&format!("a[0-{}]", "9".repeat(40))), None);
    }
}
