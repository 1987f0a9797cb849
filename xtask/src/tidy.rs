//! Reads the tree and says where it has left the rules that no compiler checks.
//!
//! Each rule is a function from text to complaints, in a file of its own, with tests on small strings; this file reads
//! the tree once and hands it round. A complaint names file and line and says what to do. Rules that clippy has are
//! left to clippy, save one: that each unsafe block explains itself is worth hearing twice.

mod arrows;
mod clocks;
mod code;
mod documents;
mod fakes;
mod habits;
mod lines;
mod sizes;
mod tree;
mod type_names;
mod unsafe_code;

use std::fmt;

use anyhow::{Result, bail};

use crate::no_words;
use crate::shell::Shell;
use crate::tally::Tally;
use crate::wheel;
use tree::Tree;

/// One place where the tree has left a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Complaint {
    /// The file, relative to the root.
    file: String,
    /// The line, counted from one; zero where the whole file is meant.
    line: usize,
    /// What is wrong and what to do.
    what: String,
    /// Whether it fails the run.
    weight: Weight,
}

/// Whether a complaint fails the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// It does.
    Fault,
    /// It does not; somebody should look.
    Hint,
}

impl Complaint {
    fn fault(file: &str, line: usize, what: impl Into<String>) -> Complaint {
        Complaint { file: file.to_owned(), line, what: what.into(), weight: Weight::Fault }
    }

    fn hint(file: &str, line: usize, what: impl Into<String>) -> Complaint {
        Complaint { weight: Weight::Hint, ..Complaint::fault(file, line, what) }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        let weight = if self.weight == Weight::Hint { " (hint)" } else { "" };
        write!(f, ": {}{weight}", self.what)
    }
}

/// `cargo xtask tidy`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    no_words("tidy", words)?;
    check().map(drop)
}

/// Applies every rule to the tree. Counts no tests: it is not one.
pub(crate) fn check() -> Result<Tally> {
    let tree = Tree::read()?;
    let metadata = Shell::cargo(&["metadata", "--format-version", "1", "--no-deps"]).read()?;
    let packages = arrows::packages(&metadata)?;
    let mut complaints = arrows::check(&packages);
    for released in [&wheel::COMMAND[..], &wheel::LIBRARY[..]] {
        let tree = ["tree", "--edges", "normal,build", "--prefix", "none", "--format", fakes::FORMAT];
        complaints.extend(fakes::check(&Shell::cargo(&tree).words(released).read()?));
    }
    for file in &tree.files {
        complaints.extend(clocks::check(file));
        complaints.extend(habits::check(file));
        complaints.extend(lines::check(file));
        if file.is_rust() {
            complaints.extend(sizes::check(file));
            complaints.extend(unsafe_code::check(file));
        }
        if file.is_markdown() {
            complaints.extend(documents::check_links(file, &tree));
        }
    }
    complaints.extend(documents::check_map(&tree));
    complaints.extend(type_names::check(&tree));
    complaints.sort();
    for complaint in &complaints {
        println!("{complaint}");
    }
    let faults = complaints.iter().filter(|complaint| complaint.weight == Weight::Fault).count();
    if faults > 0 {
        bail!("{faults} places are not tidy");
    }
    println!("{} files are tidy", tree.files.len());
    Ok(Tally::default())
}
