//! Looks at the dependencies: licences, sources, duplicates; on request the list of known holes.
//!
//! The rules are in `deny.toml`. The list of known holes is a git repository that must be fetched from GitHub, so it is
//! not part of `ci`, which runs wherever crates can be downloaded.

use anyhow::{Result, bail};

use crate::shell::Shell;
use crate::tally::Tally;
use crate::tools;

/// `cargo xtask deny [--advisories]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    tools::need_subcommand(tools::DENY)?;
    match words {
        [] => check().map(drop),
        [word] if word == "--advisories" => Shell::cargo(&["deny", "check"]).run().map(drop),
        [word, ..] => bail!("`cargo xtask deny` knows only --advisories, not `{word}`"),
    }
}

/// All checks that need nothing but the crates themselves.
pub(crate) fn check() -> Result<Tally> {
    Shell::cargo(&["deny", "check", "bans", "licenses", "sources"]).run()
}
