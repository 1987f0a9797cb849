//! One name, one thing: public types of one name in different crates need a reason.
//!
//! A public type is an item that begins a line with `pub struct`, `pub enum`, `pub trait`, `pub type` or `pub union`
//! under a crate's `src`. Items of nested modules are indented and do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::Complaint;
use super::code::Lines;
use super::tree::{File, Tree};

/// Names that several crates may have, and why.
const SHARED: [(&str, &str); 11] = [
    ("Error", "every library crate calls its one error type so"),
    ("Result", "the alias that goes with a crate's Error"),
    ("Device", "plan says on which device a tensor lies; device has the device itself, as CUDA calls it"),
    ("Element", "tensor has the trait of all elements; data has a list of those that batches can have"),
    ("Event", "trace records events; a stream of a device has events, as CUDA calls them"),
    ("Flag", "settings has flags of the command line, shared memory has flags that ranks set: both are the usual word"),
    ("Generation", "plan has what members decide on; cluster has what servers pass on of it to whoever comes later"),
    ("Loss", "insight has losses of time, as POP calls them; members of a job are lost: both are the usual word"),
    ("Layout", "shared memory has a layout of its flags; data has that of batches, as frameworks call it"),
    ("Plane", "plan names the planes that it chooses among; engine has the trait that a plane implements"),
    ("Step", "plan has the steps of a schedule; data has those of a recipe for images, as torchvision chains them"),
];

/// Where this rule's list stands.
const HERE: &str = "xtask/src/tidy/type_names.rs";

/// Where a type is defined: its crate, file and line.
type Definition = (String, String, usize);

/// Complaints about public types that share a name without a reason, and about reasons that nobody needs any more.
pub(super) fn check(tree: &Tree) -> Vec<Complaint> {
    complaints(tree.files.iter(), &SHARED)
}

fn complaints<'a>(files: impl Iterator<Item = &'a File>, shared: &[(&str, &str)]) -> Vec<Complaint> {
    let mut found = Vec::new();
    let definitions = definitions(files);
    let is_shared = |name: &str| {
        let crates: BTreeSet<&String> = definitions.get(name).into_iter().flatten().map(|(krate, ..)| krate).collect();
        crates.len() > 1
    };
    for (name, places) in definitions.iter().filter(|(name, _)| is_shared(name)) {
        if shared.iter().any(|(allowed, _)| allowed == name) {
            continue;
        }
        for (krate, file, line) in places {
            let others: BTreeSet<&str> =
                places.iter().map(|(other, ..)| other.as_str()).filter(|other| other != krate).collect();
            let others: Vec<&str> = others.into_iter().collect();
            let what = format!(
                "`{name}` is also a public type of {}: give it a name of its own, or a reason in {HERE}",
                others.join(", ")
            );
            found.push(Complaint::fault(file, *line, what));
        }
    }
    let unused = shared.iter().filter(|(name, _)| !is_shared(name));
    found.extend(unused.map(|(name, _)| Complaint::fault(HERE, 0, format!("no two crates share `{name}` any more"))));
    found
}

/// All public types by name.
fn definitions<'a>(files: impl Iterator<Item = &'a File>) -> BTreeMap<String, Vec<Definition>> {
    let mut definitions: BTreeMap<String, Vec<Definition>> = BTreeMap::new();
    for file in files.filter(|file| file.is_rust()) {
        let mut folders = file.path.split('/');
        let (Some("crates"), Some(krate), Some("src")) = (folders.next(), folders.next(), folders.next()) else {
            continue;
        };
        for (index, code) in Lines::of(&file.text).code.iter().enumerate() {
            if let Some(name) = public_type(code) {
                let definition = (krate.to_owned(), file.path.clone(), index + 1);
                definitions.entry(name.to_owned()).or_default().push(definition);
            }
        }
    }
    definitions
}

/// The name of the public type that begins on this line.
fn public_type(code: &str) -> Option<&str> {
    let (kind, rest) = code.strip_prefix("pub ")?.split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (["struct", "enum", "trait", "type", "union"].contains(&kind) && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], shared: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        let files: Vec<File> = files.iter().map(file).collect();
        complaints(files.iter(), shared).iter().map(|complaint| complaint.to_string()).collect()
    }

    const TWO: [(&str, &str); 2] = [
        ("crates/a/src/x.rs", "//! X.\npub struct Order<T>(T);\n"),
        ("crates/b/src/lib.rs", "pub enum Order {\n    One,\n}\n"),
    ];

    #[test]
    fn one_name_in_two_crates_is_a_fault_in_both() {
        let words = found(&TWO, &[]);
        assert_eq!(words.len(), 2, "{words:?}");
        assert!(words[0].starts_with("crates/a/src/x.rs:2: `Order` is also a public type of b"), "{words:?}");
        assert!(words[1].starts_with("crates/b/src/lib.rs:1: `Order` is also a public type of a"), "{words:?}");
    }

    #[test]
    fn a_reason_allows_it_until_it_is_needed_no_more() {
        assert_eq!(found(&TWO, &[("Order", "for a test")]), [""; 0]);
        let stale = found(&TWO[..1], &[("Order", "for a test")]);
        assert_eq!(stale, [format!("{HERE}: no two crates share `Order` any more")]);
    }

    #[test]
    fn what_is_private_or_in_one_crate_or_in_tests_may_share_names() {
        let others = [
            ("crates/a/src/x.rs", "pub struct Order;\n// pub struct Job;\n"),
            ("crates/a/src/y.rs", "pub type Order = u8;\npub fn Job() {}\n"),
            ("crates/b/src/lib.rs", "pub(crate) struct Order;\nstruct Job;\n"),
            ("crates/b/src/z.rs", "mod inner {\n    pub struct Order;\n}\n"),
            ("crates/b/tests/all.rs", "pub struct Order;\n"),
        ];
        assert_eq!(found(&others, &[]), [""; 0]);
    }
}
