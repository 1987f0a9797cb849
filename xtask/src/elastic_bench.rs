//! Measures how long a job stands still when it loses a rank, beside PyTorch's way.
//!
//! `cargo xtask elastic-bench` builds module and command as users get them and runs
//! `bindings/python/benchmarks/elastic_recovery.py`; what it is given it hands on (`--ranks`, `--faults`, `--rounds`,
//! `--only`, …).

use anyhow::Result;

use crate::python::{self, Profile};
use crate::scope::Scope;
use crate::shell::Shell;

/// What is measured, and how, stands in this script.
const SCRIPT: &str = "bindings/python/benchmarks/elastic_recovery.py";

/// Everything together, in seconds: hundreds of losses, after each of which a process with PyTorch is started.
const DEADLINE: &str = "7200";

/// `cargo xtask elastic-bench [WORDS…]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let built = python::build(Profile::Release, Scope::Needed)?;
    python::make_environment()?;
    let (command, interpreter) = (built.command.to_string_lossy(), python::python());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Shell::new("timeout")
        .words(&["--kill-after=10", DEADLINE, &interpreter.to_string_lossy(), SCRIPT])
        .words(&words)
        .env("PYTHONPATH", built.package.to_string_lossy())
        .env("FARANDOLE_COMMAND", &*command)
        .env("OMP_NUM_THREADS", "1")
        .run()
        .map(drop)
}
