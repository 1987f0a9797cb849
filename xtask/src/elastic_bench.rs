//! Elastic jobs that lose ranks: how long they stand still, beside PyTorch's way, and whether anything goes wrong.
//!
//! Both chores build module and command as users get them and run a script of `bindings/python/benchmarks`, which says
//! what is done and how: `cargo xtask elastic-bench` runs `elastic_recovery.py`, `cargo xtask chaos` runs
//! `elastic_chaos.py`. What they are given they hand on (`--ranks`, `--rounds`, `--minutes`, `--seed`, …). Cuts are
//! made in network namespaces, which needs root.

use anyhow::Result;

use crate::python::{self, Profile};
use crate::scope::Scope;
use crate::shell::Shell;
use crate::tools;

/// Measuring, in seconds: hundreds of losses, after each of which a process with PyTorch is started.
const BENCH_DEADLINE: &str = "14400";

/// Chaos, in seconds: an hour of it, and the comparison with a run without faults, which one process makes.
const CHAOS_DEADLINE: &str = "7200";

/// `cargo xtask elastic-bench [WORDS…]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let worker = rust_worker()?;
    script("elastic_recovery.py", BENCH_DEADLINE, &["--rust-worker", &worker], words)
}

/// `cargo xtask chaos [--minutes M] [--seed S] [WORDS…]`. The worker is the one in Rust, which is started in no time;
/// `--worker torch` takes the other one.
pub(crate) fn chaos(words: &[String]) -> Result<()> {
    let worker = rust_worker()?;
    Shell::cargo(&["build", "--release", "-p", "farandole-cluster", "--example", "replay_membership"]).run()?;
    let replay = tools::target_dir().join("release/examples/replay_membership");
    let first = ["--replay", &replay.to_string_lossy(), "--worker", &worker];
    script("elastic_chaos.py", CHAOS_DEADLINE, &first, words)
}

/// Builds the worker without Python, and says where it is.
fn rust_worker() -> Result<String> {
    Shell::cargo(&["build", "--release", "-p", "farandole", "--example", "chaos_worker"]).run()?;
    Ok(tools::target_dir().join("release/examples/chaos_worker").to_string_lossy().into_owned())
}

fn script(name: &str, deadline: &str, first: &[&str], words: &[String]) -> Result<()> {
    let built = python::build(Profile::Release, Scope::Needed)?;
    python::make_environment()?;
    let (command, interpreter) = (built.command.to_string_lossy(), python::python());
    let path = format!("bindings/python/benchmarks/{name}");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Shell::new("timeout")
        .words(&["--kill-after=10", deadline, &interpreter.to_string_lossy(), &path])
        .words(first)
        .words(&words)
        .env("PYTHONPATH", built.package.to_string_lossy())
        .env("FARANDOLE_COMMAND", &*command)
        .env("OMP_NUM_THREADS", "1")
        .run()
        .map(drop)
}
