//! Runs the benchmarks whose results `docs/performance.md` shows.
//!
//! Without words: the documented set, one run after the other. With words: `farandole bench` with exactly these.

use anyhow::Result;

use crate::shell::Shell;

/// The documented set.
const DOCUMENTED: [&[&str]; 2] = [&["allreduce", "-np", "2"], &["allreduce", "-np", "4"]];

/// `cargo xtask bench [words for farandole bench]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    if !words.is_empty() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        return bench(&words);
    }
    DOCUMENTED.into_iter().try_for_each(bench)
}

fn bench(words: &[&str]) -> Result<()> {
    Shell::cargo(&["run", "--release", "--bin", "farandole", "--", "bench"]).words(words).run().map(drop)
}
