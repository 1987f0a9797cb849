//! Model-checks the protocols in which threads or processes hand memory over.
//!
//! A model checker runs a small test under every order that the memory model allows. The tests compile only with
//! `--cfg loom`, which changes every crate: the chore has a target folder of its own.

use anyhow::Result;

use crate::shell::Shell;
use crate::tally::Tally;
use crate::{no_words, tools};

/// Packages and their integration tests that hold models.
const MODELS: [(&str, &str); 0] = [];

/// `cargo xtask model`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    no_words("model", words)?;
    println!("\n{}", check()?);
    Ok(())
}

/// All models.
pub(crate) fn check() -> Result<Tally> {
    let mut total = Tally::default();
    for (package, test) in MODELS {
        total += Shell::cargo(&["test", "--release", "--package", package, "--test", test])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", tools::target_dir().join("model").to_string_lossy())
            .run()?;
    }
    Ok(total)
}
