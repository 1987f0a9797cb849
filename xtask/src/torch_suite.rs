//! PyTorch's own tests of process groups, with the backend "farandole" and with gloo.
//!
//! `cargo xtask torch-suite` builds the module, installs what these tests import and runs
//! `bindings/python/conformance/torch_suite.py`, which says how; what it is given it hands on (`--world 2,3,4`).

use anyhow::{Context as _, Result};

use crate::python::{self, Profile};
use crate::scope::Scope;
use crate::shell::Shell;
use crate::venv::MAIN;

/// What is run, and how it is compared, stands in this script.
const SCRIPT: &str = "bindings/python/conformance/torch_suite.py";

/// What PyTorch's tests import. A torchvision without the PyTorch that it asks for: that one is there.
const WANTED: [&str; 3] = ["--no-deps", "expecttest", "torchvision"];

/// Everything together, in seconds: four rounds of one to three minutes for each number of ranks.
const DEADLINE: &str = "3600";

/// `cargo xtask torch-suite [WORDS…]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let built = python::build(Profile::Dev, Scope::Needed)?;
    python::make_environment()?;
    MAIN.install(&WANTED).context("installing what PyTorch's tests import")?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Shell::new("timeout")
        .words(&["--kill-after=10", DEADLINE, &python::python().to_string_lossy(), SCRIPT])
        .words(&words)
        .env("PYTHONPATH", built.package.to_string_lossy())
        .run()
        .map(drop)
}
