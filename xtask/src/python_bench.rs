//! Measurements whose contestants are programs in Python.
//!
//! Each chore builds module and command as users get them and runs a script of `bindings/python/benchmarks`, which says
//! what is measured and how; what a chore is given it hands on (`--seconds`, `--only`, `--check`, …). All contestants
//! take turns within one run.
//!
//! - `cargo xtask torch-bench`: reducing gradients in PyTorch, beside PyTorch's own way and Horovod's where it is
//!   installed. With `--check` and without `--busy` it runs twice: on cores that are free, and with every core kept
//!   busy beside the contestants.
//! - `cargo xtask tf-bench`: the same in TensorFlow, beside `tf.distribute`'s own way.
//! - `cargo xtask jax-bench`: reducing arrays in JAX, beside JAX's own way.
//! - `cargo xtask data-bench`: loading images, beside the loaders of PyTorch, TensorFlow, WebDataset and DALI.
//! - `cargo xtask elastic-bench`: elastic jobs that lose ranks, beside torchrun and torchft.
//! - `cargo xtask failures`: everyday failures in every front end, and whether rank and cause are named.
//! - `cargo xtask chaos`: elastic jobs that lose ranks at random, and whether anything goes wrong. As in the one
//!   before, cuts are made in network namespaces, which needs root.

use anyhow::Result;

use crate::other_version;
use crate::python::{self, Built, Profile};
use crate::scope::Scope;
use crate::shell::Shell;
use crate::tools;
use crate::venv::MAIN;

/// A script, and the longest that everything together may take, in seconds.
struct Script {
    name: &'static str,
    deadline: &'static str,
}

/// Seven workloads of some twelve seconds, and what it takes to begin each.
const TORCH: Script = Script { name: "torch_peers.py", deadline: "600" };

/// Five workloads of some twelve seconds, of which the slowest peer needs more, and building ResNet-50 in every
/// process.
const TENSORFLOW: Script = Script { name: "tensorflow_peers.py", deadline: "900" };

/// Three workloads of some twelve seconds, and what it takes to begin each.
const JAX: Script = Script { name: "jax_peers.py", deadline: "600" };

/// Six contestants that load a thousand images six times, the slowest with a hundred in a second, and making these.
const DATA: Script = Script { name: "data_peers.py", deadline: "900" };

/// Hundreds of losses, after each of which a process with PyTorch is started.
const RECOVERY: Script = Script { name: "elastic_recovery.py", deadline: "14400" };

/// An hour of chaos, and the comparison with a run without faults, which one process makes.
const CHAOS: Script = Script { name: "elastic_chaos.py", deadline: "7200" };

/// Two thousand jobs that fail, most of which import a framework first.
const FAILURES: Script = Script { name: "../failures/matrix.py", deadline: "21600" };

impl Script {
    /// Runs it with these words of ours, and those that the chore was given.
    fn run(&self, built: &Built, own: &[&str], words: &[String]) -> Result<()> {
        let (interpreter, path) = (python::python(), format!("bindings/python/benchmarks/{}", self.name));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Shell::new("timeout")
            .words(&["--kill-after=10", self.deadline, &interpreter.to_string_lossy(), &path])
            .words(own)
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
}

/// What users get, and an environment to measure it in.
fn prepare() -> Result<Built> {
    let built = python::build(Profile::Release, Scope::Needed)?;
    python::make_environment()?;
    Ok(built)
}

/// `cargo xtask torch-bench [WORDS…]`.
pub(crate) fn torch(words: &[String]) -> Result<()> {
    let built = prepare()?;
    TORCH.run(&built, &[], words)?;
    if words.iter().any(|word| word == "--check") && !words.iter().any(|word| word.starts_with("--busy")) {
        let cores = std::thread::available_parallelism()?.to_string();
        TORCH.run(&built, &["--busy", &cores], words)?;
    }
    Ok(())
}

/// `cargo xtask tf-bench [WORDS…]`.
pub(crate) fn tensorflow(words: &[String]) -> Result<()> {
    TENSORFLOW.run(&prepare()?, &[], words)
}

/// `cargo xtask jax-bench [WORDS…]`.
pub(crate) fn jax(words: &[String]) -> Result<()> {
    JAX.run(&prepare()?, &[], words)
}

/// `cargo xtask data-bench [WORDS…]`.
pub(crate) fn data(words: &[String]) -> Result<()> {
    let built = prepare()?;
    MAIN.need("bindings/python/requirements-data-bench.txt", &[])?;
    DATA.run(&built, &[], words)
}

/// `cargo xtask elastic-bench [WORDS…]`.
pub(crate) fn recovery(words: &[String]) -> Result<()> {
    let (built, worker) = (prepare()?, rust_worker()?);
    // Another way to survive losses, to compare with.
    MAIN.need("bindings/python/requirements-elastic-bench.txt", &[])?;
    RECOVERY.run(&built, &["--rust-worker", &worker], words)
}

/// `cargo xtask failures [WORDS…]`.
pub(crate) fn failures(words: &[String]) -> Result<()> {
    tools::need_packages(&tools::MPI)?;
    let built = prepare()?;
    Shell::cargo(&["build", "--release", "-p", "farandole", "--example", "failures"]).run()?;
    let program = tools::target_dir().join("release/examples/failures");
    let other = other_version::build()?;
    let paths = [program, other.package, other.program].map(|path| path.to_string_lossy().into_owned());
    let [program, package, earlier] = paths.each_ref();
    let own = ["--rust-program", program, "--other-package", package, "--other-program", earlier];
    FAILURES.run(&built, &own, words)
}

/// `cargo xtask chaos [--minutes M] [--seed S] [WORDS…]`. The worker is the one in Rust, which is started in no time;
/// `--worker torch` takes the other one.
pub(crate) fn chaos(words: &[String]) -> Result<()> {
    tools::need_packages(&[tools::IPROUTE, tools::NFTABLES])?;
    let (built, worker) = (prepare()?, rust_worker()?);
    Shell::cargo(&["build", "--release", "-p", "farandole-cluster", "--example", "replay_membership"]).run()?;
    let replay = tools::target_dir().join("release/examples/replay_membership");
    CHAOS.run(&built, &["--replay", &replay.to_string_lossy(), "--worker", &worker], words)
}

/// Builds the worker without Python, and says where it is.
fn rust_worker() -> Result<String> {
    Shell::cargo(&["build", "--release", "-p", "farandole", "--example", "chaos_worker"]).run()?;
    Ok(tools::target_dir().join("release/examples/chaos_worker").to_string_lossy().into_owned())
}
