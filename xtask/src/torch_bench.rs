//! Measures reducing gradients in PyTorch, beside PyTorch's own way and Horovod's where it is installed.
//!
//! `cargo xtask torch-bench` builds module and command as users get them and runs
//! `bindings/python/benchmarks/torch_peers.py`, which starts two ranks of every contestant; what it is given it hands
//! on (`--seconds`, `--only`, `--busy`, …). All contestants take turns within one run. With `--check` and without
//! `--busy` it runs twice: on cores that are free, and with every core kept busy beside the contestants.

use anyhow::Result;

use crate::python::{self, Profile};
use crate::scope::Scope;
use crate::shell::Shell;

/// What is measured, and how, stands in this script.
const SCRIPT: &str = "bindings/python/benchmarks/torch_peers.py";

/// Everything together, in seconds: seven workloads of some twelve seconds, and what it takes to begin each.
const DEADLINE: &str = "600";

/// `cargo xtask torch-bench [WORDS…]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let built = python::build(Profile::Release, Scope::Needed)?;
    python::make_environment()?;
    let (command, interpreter) = (built.command.to_string_lossy(), python::python());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let measure = |more: &[&str]| {
        Shell::new("timeout")
            .words(&["--kill-after=10", DEADLINE, &interpreter.to_string_lossy(), SCRIPT])
            .words(&words)
            .words(more)
            .env("PYTHONPATH", built.package.to_string_lossy())
            .env("FARANDOLE_COMMAND", &*command)
            // Each rank computes with one thread: ranks share the cores.
            .env("OMP_NUM_THREADS", "1")
            .run()
            .map(drop)
    };
    measure(&[])?;
    if words.contains(&"--check") && !words.iter().any(|word| word.starts_with("--busy")) {
        let cores = std::thread::available_parallelism()?.to_string();
        measure(&["--busy", &cores])?;
    }
    Ok(())
}
