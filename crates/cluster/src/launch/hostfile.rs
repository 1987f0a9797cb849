//! Files that list hosts, in the syntaxes that are around.
//!
//! | syntax | a line |
//! |---|---|
//! | Horovod | `h1 slots=2` |
//! | Open MPI | `h1 slots=2 max_slots=4`, `h1` for one slot, `h1:2` |
//! | MPICH, Hydra | `h1:2` |
//!
//! One reader takes all of them, mixed if need be: a line is a host as in [`super::hosts`], then settings. `#` starts a
//! comment. A host on several lines has the slots of all of them; `max_slots` bounds that sum. Every complaint names
//! file, line and what was expected. Bindings of ranks to cores and interfaces of Hydra are refused and not overlooked:
//! whoever wrote them relies on them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::hosts;
use super::job_spec::HostSlots;
use crate::error::{Error, Result};

/// What a line may look like, for messages.
const EXPECTED: &str = "expected 'host', 'host:2', 'host slots=2' or 'host slots=2 max_slots=4'";

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<HostSlots>> {
    let bytes =
        fs::read(path).map_err(|error| Error::local(format!("reading the host file {}", path.display()), error))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Error::job_spec(path.display().to_string(), "is not a text file; expected one host on each line")
    })?;
    parse(&path.display().to_string(), &text)
}

/// Reads a text; `file` is its name in messages.
pub fn parse(file: &str, text: &str) -> Result<Vec<HostSlots>> {
    let mut listed: Vec<HostSlots> = Vec::new();
    let mut counts: HashMap<String, Count> = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let at = |problem| Error::job_spec(format!("{file}, line {}", index + 1), problem);
        let Some(line) = parse_line(line).map_err(at)? else { continue };
        let count = counts.entry(line.name.clone()).or_default();
        count.slots = count.slots.saturating_add(line.slots);
        count.most = count.most.or(line.most).map(|most| most.min(line.most.unwrap_or(most)));
        if let Some(most) = count.most.filter(|&most| count.slots > most) {
            let problem = format!("{} has {} slots, more than its max_slots={most}", line.name, count.slots);
            return Err(at(problem));
        }
        listed.push(HostSlots { name: line.name, slots: line.slots });
    }
    if listed.is_empty() {
        return Err(Error::job_spec(file, format!("names no host; {EXPECTED} on each line")));
    }
    Ok(listed)
}

/// What the lines so far say about one host.
#[derive(Default)]
struct Count {
    slots: usize,
    most: Option<usize>,
}

struct Line {
    name: String,
    slots: usize,
    most: Option<usize>,
}

fn parse_line(line: &str) -> std::result::Result<Option<Line>, String> {
    let content = line.split('#').next().unwrap_or_default();
    // Open MPI lets users write `slots = 2`.
    let joined = content.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    let mut words = joined.split_whitespace();
    let Some(host) = words.next() else { return Ok(None) };
    if host.contains('=') {
        return Err(format!("'{host}' is no host; {EXPECTED}"));
    }
    let (name, mut slots) = hosts::split_slots(host).map_err(|problem| format!("{problem}; {EXPECTED}"))?;
    let mut most = None;
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is not understood; {EXPECTED}"))?;
        let number = || hosts::parse_slots(word, value);
        let place = match key.to_ascii_lowercase().replace('-', "_").as_str() {
            "slots" | "count" | "cpu" => &mut slots,
            "max_slots" | "slots_max" | "cpu_max" => &mut most,
            "ifname" => return Err(format!("'{word}': use --network-interface; {EXPECTED}")),
            _ => return Err(format!("'{key}' is not known; {EXPECTED}")),
        };
        if place.replace(number()?).is_some() {
            return Err(format!("'{word}': the number is given twice; {EXPECTED}"));
        }
    }
    Ok(Some(Line { name, slots: slots.unwrap_or(1), most }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed(text: &str) -> Vec<(String, usize)> {
        parse("hosts", text).unwrap().into_iter().map(|host| (host.name, host.slots)).collect()
    }

    fn refused(text: &str) -> String {
        parse("hosts", text).unwrap_err().to_string()
    }

    #[test]
    fn horovod_open_mpi_and_mpich_syntaxes_are_read() {
        let horovod = "h1 slots=2\nh2 slots=4\n";
        let open_mpi = "# two machines\nh1  slots=2 max_slots=2 # small\n\n\th2 slots = 4 max-slots=8\r\n";
        let mpich = "h1:2\nh2:4   # large\n";
        for text in [horovod, open_mpi, mpich] {
            assert_eq!(listed(text), [("h1".to_owned(), 2), ("h2".to_owned(), 4)], "{text}");
        }
        assert_eq!(listed("h1\nbob@[fe80::1]:3"), [("h1".to_owned(), 1), ("bob@fe80::1".to_owned(), 3)]);
        assert_eq!(listed("fe80::1 slots=2"), [("fe80::1".to_owned(), 2)]);
    }

    #[test]
    fn a_host_on_several_lines_may_not_exceed_its_max_slots() {
        assert_eq!(listed("h1\nh1\nh2\nh1 slots=2 max_slots=4").len(), 4);
        let error = refused("h1 slots=2 max_slots=3\nh2\nh1 slots=2");
        assert_eq!(error, "hosts, line 3: h1 has 4 slots, more than its max_slots=3");
    }

    #[test]
    fn a_wrong_line_is_named_with_what_was_expected() {
        for (text, line, explanation) in [
            ("h1\nh2 slots=two", 2, "'two' is no number of slots"),
            ("h1 slots=", 1, "'' is no number of slots"),
            ("\n\nh1 slots=0", 3, "expected 1 to"),
            ("h1 2", 1, "'2' is not understood"),
            ("h1 slot=2", 1, "'slot' is not known"),
            ("slots=2", 1, "'slots=2' is no host"),
            ("h1:2 slots=2", 1, "given twice"),
            ("h1 slots=2 slots=2", 1, "given twice"),
            ("h1 ifname=eth0", 1, "--network-interface"),
            ("h1:2 binding=user:0", 1, "'binding' is not known"),
            ("h1,h2", 1, "no name of a host"),
            ("-oProxyCommand=x", 1, "is no host"),
        ] {
            let error = refused(text);
            assert!(error.starts_with(&format!("hosts, line {line}: ")), "{text}: {error}");
            assert!(error.contains(explanation), "{text}: {error}");
            assert!(error.contains("expected"), "{text}: {error}");
        }
        assert!(refused("# nobody\n\n").starts_with("hosts: names no host"));
    }

    #[test]
    fn a_missing_or_binary_file_is_named() {
        let error = read(Path::new("/nowhere/hosts")).unwrap_err().to_string();
        assert!(error.starts_with("reading the host file /nowhere/hosts: "), "{error}");
        let executable = std::env::current_exe().unwrap();
        assert!(read(&executable).unwrap_err().to_string().contains("is not a text file"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_fall_over(text in r"(\PC|[\n\r\t #=:]){0,200}|([a-z0-9.:@\[\]]{0,6}( slots=[0-9]{0,3})?\n){0,8}") {
            match parse("hosts", &text) {
                Ok(hosts) => prop_assert!(!hosts.is_empty() && hosts.iter().all(|host| host.slots > 0)),
                Err(error) => prop_assert!(error.to_string().starts_with("hosts")),
            }
        }
    }
}
