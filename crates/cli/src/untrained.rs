//! `farandole train` where the trainer was not built in: it says how to get it.
//!
//! The tensor library takes minutes to compile, and most of what this command does needs none of it.

use std::ffi::OsString;

use anyhow::{Result, bail};
use clap::Args;

/// Train a network on many ranks (not in this build).
#[derive(Args, Clone, Debug)]
pub(crate) struct TrainArgs {
    /// Whatever was said.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// Says how to get the trainer.
pub(crate) fn run(args: &TrainArgs) -> Result<std::process::ExitCode> {
    let words: Vec<String> = args.words.iter().map(|word| format!(" {}", word.display())).collect();
    bail!(
        "the trainer is not built into this program. With it, from the sources:\n  \
         cargo run --release -p farandole-cli --features train -- train{}",
        words.concat()
    )
}
