//! Runs the benchmarks whose results `docs/performance.md` shows.
//!
//! Without words: the documented set, one run after the other. With words: `farandole bench` with exactly these.

use anyhow::Result;

use crate::shell::Shell;

/// All peers; `cargo xtask peers` installs them.
const PEERS: [&str; 2] = ["--against", "openmpi,mpich,gloo"];

/// The documented set: words for `farandole bench`, and whether the peers take part.
const DOCUMENTED: [(&[&str], Company); 6] = [
    (&["allreduce", "-np", "2", "--limit"], Company::Peers),
    (&["allreduce", "-np", "2", "--limit", "--memory", "mapped"], Company::Peers),
    (&["allreduce", "-np", "4", "--limit"], Company::Peers),
    (&["allreduce", "-np", "2", "--through", "engine"], Company::Alone),
    (&["allreduce", "-np", "2", "--through", "engine", "--tensors", "1000", "--sizes", "1K"], Company::Alone),
    (&["allreduce", "-np", "4", "--hosts", "2", "--sizes", "64K..64M"], Company::Alone),
];

/// Whom a benchmark measures.
#[derive(Clone, Copy, PartialEq)]
enum Company {
    /// Farandole and its peers, in turns.
    Peers,
    /// Farandole only.
    Alone,
}

/// `cargo xtask bench [words for farandole bench]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    if !words.is_empty() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        return bench(&words);
    }
    for (words, company) in DOCUMENTED {
        let peers: &[&str] = if company == Company::Peers { &PEERS } else { &[] };
        bench(&[words, peers].concat())?;
    }
    Ok(())
}

fn bench(words: &[&str]) -> Result<()> {
    Shell::cargo(&["run", "--release", "--bin", "farandole", "--", "bench"]).words(words).run().map(drop)
}
