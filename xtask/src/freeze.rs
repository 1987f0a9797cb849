//! Stops jobs for a while at any moment and lets them go on; all must end well.
//!
//! The freezing is done by a test, which continuous integration runs with a few rounds (`crates/cli/tests/freeze`);
//! here it gets as many as one likes. `--seed` repeats the rounds of a run: the same parts are stopped after the same
//! times.

use anyhow::{Result, bail, ensure};

use crate::shell::Shell;

/// Rounds unless `--rounds` says otherwise.
const ROUNDS: u64 = 200;

/// Jobs at a time unless `--jobs` says otherwise. A frozen job needs no processor.
const JOBS: u64 = 8;

/// `cargo xtask freeze [--rounds N] [--jobs K] [--seed S] [--dev]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let (mut rounds, mut jobs, mut seed, mut release) = (ROUNDS, JOBS, 1, true);
    let mut words = words.iter();
    while let Some(flag) = words.next() {
        let mut number = || match words.next().map(|text| text.parse::<u64>()) {
            Some(Ok(number)) => Ok(number),
            _ => bail!("{flag} takes a number"),
        };
        match flag.as_str() {
            "--rounds" => rounds = number()?,
            "--jobs" => jobs = number()?,
            "--seed" => seed = number()?,
            "--dev" => release = false,
            _ => bail!("`cargo xtask freeze` takes `--rounds N`, `--jobs K`, `--seed S` and `--dev`, not `{flag}`"),
        }
    }
    ensure!(rounds > 0 && jobs > 0, "no rounds, nothing tried");
    let package: &[&str] = match release {
        true => &["--release", "--package", "farandole-cli"],
        false => &["--package", "farandole-cli"],
    };
    Shell::cargo(&["build"]).words(package).words(&["--example", "obedient_rank"]).run()?;
    Shell::cargo(&["test"])
        .words(package)
        .words(&["--test", "freeze", "--", "--exact", "jobs_that_are_frozen_at_any_moment_end_well", "--nocapture"])
        .env("FARANDOLE_TEST_FREEZE_ROUNDS", rounds.to_string())
        .env("FARANDOLE_TEST_FREEZE_JOBS", jobs.to_string())
        .env("FARANDOLE_TEST_FREEZE_SEED", seed.to_string())
        .run()
        .map(drop)
}
