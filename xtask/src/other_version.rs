//! An earlier build of this project that speaks another version of the protocol between ranks.
//!
//! Ranks of different versions must refuse each other with an error that names both versions. Whether they do is tried
//! with a real earlier version: the parent of the last commit that changed the constant `PROTOCOL_VERSION`. Its sources
//! are extracted below the target folder and built there with the profile `dev`. A clone without history
//! (`git clone --depth 1`) does not have it; the chore then fails.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::python::put;
use crate::shell::Shell;
use crate::tools::target_dir;

/// What a job needs to run a rank with the other version.
pub(crate) struct OtherVersion {
    /// The folder of its Python package.
    pub(crate) package: PathBuf,
    /// A program in Rust: a rank that initialises and reduces.
    pub(crate) program: PathBuf,
}

/// Extracts and builds it.
pub(crate) fn build() -> Result<OtherVersion> {
    let changed = ["log", "-1", "--format=%H", "-G^pub const PROTOCOL_VERSION", "--", "crates/transport/src/frame.rs"];
    let commit = Shell::new("git").words(&changed).read()?;
    ensure!(!commit.trim().is_empty(), "git log: no commit that changed PROTOCOL_VERSION; clone with the history");
    let folder = target_dir().join("other-version");
    let source = folder.join("source");
    let extract = "rm -rf \"$1\" && mkdir -p \"$1\" && git archive \"$2~1\" | tar -x -C \"$1\"";
    Shell::new("sh").words(&["-c", extract, "sh", &source.to_string_lossy(), commit.trim()]).run()?;
    let manifest = source.join("Cargo.toml");
    let build = ["build", "--manifest-path", &*manifest.to_string_lossy()];
    let target = folder.join("target");
    let cargo = |words: &[&str]| {
        Shell::cargo(&build).words(words).env("CARGO_TARGET_DIR", target.to_string_lossy()).run().map(drop)
    };
    cargo(&["-p", "farandole-python"])?;
    cargo(&["-p", "farandole", "--example", "average"])?;
    let package = source.join("bindings/python");
    put(&target.join("debug/libfarandole_python.so"), &package.join("farandole/_native.abi3.so"))?;
    Ok(OtherVersion { package, program: target.join("debug/examples/average") })
}
