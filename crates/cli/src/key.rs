//! `farandole key`: a fresh key for a job whose ranks other launchers start on several hosts.
//!
//! It is printed and kept nowhere. Where the user puts it, and who may read it there, is checked by whoever reads it
//! (`farandole_cluster::environment`).

#![allow(clippy::print_stdout, reason = "the key is what the user asked for")]

use anyhow::Result;
use farandole_transport::Key;

/// Prints a fresh key.
pub(crate) fn run() -> Result<()> {
    println!("{}", Key::random()?.to_hex());
    Ok(())
}
