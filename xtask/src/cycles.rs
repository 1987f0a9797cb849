//! Starts and stops a job very often, and looks for what it left behind.
//!
//! The looking is done by a test, which continuous integration runs with a few cycles
//! (`crates/cli/tests/hosts/cycles.rs`); here it gets as many as one likes, of the release build, and no deadline.

use anyhow::{Context as _, Result, bail};

use crate::shell::Shell;
use crate::tools;

/// Cycles unless `--count` says otherwise: enough for a leak of one in a few hundred to show.
const COUNT: usize = 1000;

/// `cargo xtask cycles [--count N]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let count: usize = match words {
        [] => COUNT,
        [flag, count] if flag == "--count" => count.parse().context("--count takes a number")?,
        _ => bail!("`cargo xtask cycles` takes `--count N` and nothing else"),
    };
    tools::need_packages(&[tools::IPROUTE, tools::SSH, tools::SSHD])?;
    let release = ["--release", "--package", "farandole-cli"];
    Shell::cargo(&["build"]).words(&release).words(&["--example", "obedient_rank"]).run()?;
    Shell::cargo(&["test"])
        .words(&release)
        .words(&["--test", "hosts", "--", "--exact", "cycles::starting_and_stopping_leaves_nothing", "--nocapture"])
        .env("FARANDOLE_TEST_CYCLES", count.to_string())
        .run()
        .map(drop)
}
