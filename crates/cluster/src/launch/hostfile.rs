//! Files that list hosts, in the syntaxes that are around.
//!
//! | syntax | a line |
//! |---|---|
//! | Horovod | `h1 slots=2` |
//! | Open MPI | `h1 slots=2 max_slots=4`, `h1` for one slot, `h1:2` |
//! | MPICH, Hydra | `h1:2` |
//!
//! One reader takes all of them, mixed if need be: a line is a host as in [`super::hosts`], then settings. `#` starts a comment. A
//! host on several lines has the slots of all of them; `max_slots` bounds that sum. Every complaint names file, line
//! and what was expected. Bindings of ranks to cores and interfaces of Hydra are refused and not overlooked: whoever wrote
//! them relies on them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::hosts;
use super::order::HostSlots;
use crate::error::{Error, Result};

/// What a line may look like, for messages.
const EXPECTED: &str = "expected 'host', 'host:2', 'host slots=2' or 'host slots=2 max_slots=4'";

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<HostSlots>> {
    let bytes =
        fs::read(path).map_err(|error| Error::local(format!("reading the host file {}", path.display()), error))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::order(path.display().to_string(), "is not a text file; expected one host on each line"))?;
    parse(&path.display().to_string(), &text)
}

/// Reads a text; `file` is its name in messages.
pub fn parse(file: &str, text: &str) -> Result<Vec<HostSlots>> {
    let mut listed: Vec<HostSlots> = Vec::new();
    let mut counts: HashMap<String, Count> = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let at = |problem| Error::order(format!("{file}, line {}", index + 1), problem);
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
        return Err(Error::order(file, format!("names no host; {EXPECTED} on each line")));
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
