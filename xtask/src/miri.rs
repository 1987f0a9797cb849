//! Runs pure and unsafe code under Miri, which finds undefined behaviour that no test run can see.
//!
//! Miri needs a nightly toolchain and runs some hundred times slower, so `ci` does not run it; whoever changes unsafe
//! code does (CONTRIBUTING.md says so). It knows no SIMD intrinsics beyond the common ones and no memfd, so the
//! portable path is forced and shared memory is left to valgrind and the model checker.

use anyhow::Result;

use crate::shell::Shell;
use crate::{no_words, tools};

/// `cargo xtask miri`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    no_words("miri", words)?;
    tools::need_nightly("miri")?;
    let tally = Shell::nightly_cargo(&["miri", "test", "--package", "farandole-tensor", "--lib"])
        .env("RUSTFLAGS", "--cfg farandole_portable")
        .env("CARGO_TARGET_DIR", tools::target_dir().join("miri").to_string_lossy())
        .libtest()
        .run()?;
    println!("\n{tally}");
    Ok(())
}
