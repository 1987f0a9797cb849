//! Measures reducing gradients in TensorFlow, beside `tf.distribute`'s own way and Horovod's where it is installed.
//!
//! `cargo xtask tf-bench` builds module and command as users get them and runs
//! `bindings/python/benchmarks/tensorflow_peers.py`, which starts every contestant in processes of its own and gives
//! them turns within one run; what it is given it hands on (`--seconds`, `--only`, `--check`, …).

use anyhow::Result;

use crate::python::{self, Profile};
use crate::scope::Scope;
use crate::shell::Shell;

/// What is measured, and how, stands in this script.
const SCRIPT: &str = "bindings/python/benchmarks/tensorflow_peers.py";

/// Everything together, in seconds: five workloads of some twelve seconds, of which the slowest peer needs more, and
/// building ResNet-50 in every process.
const DEADLINE: &str = "900";

/// `cargo xtask tf-bench [WORDS…]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let built = python::build(Profile::Release, Scope::Needed)?;
    python::make_environment()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Shell::new("timeout")
        .words(&["--kill-after=10", DEADLINE, &python::python().to_string_lossy(), SCRIPT])
        .words(&words)
        .env("PYTHONPATH", built.package.to_string_lossy())
        .env("FARANDOLE_COMMAND", built.command.to_string_lossy())
        // Each rank computes with one thread: ranks share the cores.
        .env("OMP_NUM_THREADS", "1")
        // TensorFlow says at every start what it was compiled for.
        .env("TF_CPP_MIN_LOG_LEVEL", "2")
        .run()
        .map(drop)
}
