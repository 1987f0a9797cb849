//! Measures reducing arrays in JAX, beside JAX's own way.
//!
//! `cargo xtask jax-bench` builds module and command as users get them and runs
//! `bindings/python/benchmarks/jax_peers.py`, which starts two ranks of every contestant; what it is given it hands on
//! (`--seconds`, `--only`, `--check`, …). All contestants take turns within one run.

use anyhow::Result;

use crate::python::{self, Profile};
use crate::scope::Scope;
use crate::shell::Shell;

/// What is measured, and how, stands in this script.
const SCRIPT: &str = "bindings/python/benchmarks/jax_peers.py";

/// Everything together, in seconds: three workloads of some twelve seconds, and what it takes to begin each.
const DEADLINE: &str = "600";

/// `cargo xtask jax-bench [WORDS…]`.
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
        // Each rank computes with one thread: ranks share the cores.
        .env("OMP_NUM_THREADS", "1")
        .run()
        .map(drop)
}
