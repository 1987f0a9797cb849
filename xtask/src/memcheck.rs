//! Runs the tests of the crates with unsafe code under valgrind.
//!
//! The binaries are those that `test` has built. Valgrind takes most of a second to start, longer than most tests, so
//! all tests of a binary run in one process, one after the other, and as many binaries as there are cores at the same
//! time. An invalid access, a jump on an uninitialised value or a definite leak fails the binary that did it; valgrind
//! names the line.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::scope::Scope;
use crate::shell::Shell;
use crate::tally::Tally;
use crate::{no_words, tools};

/// What stands before each binary. Only definite leaks count: what lives until the process ends (the test runner's own
/// threads, lazily built tables) is reported as possible or reachable and is nobody's fault.
const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];

/// The folders of the crates that are looked at.
const CRATES: [&str; 3] = ["bindings/c", "crates/tensor", "crates/transport"];

/// Tests of this binary change the process's limits, which valgrind keeps for itself; they touch no unsafe code.
const LEFT_OUT: &str = "descriptors";

/// Tests with this in their name are left out: valgrind does not implement `pidfd_open`.
const LEFT_OUT_TESTS: &str = "pidfd";

/// The binaries that take longest begin first, so that nothing is left to one core at the end.
const LONGEST: [&str; 2] = ["folds", "links"];

/// The longest that a binary may take, in seconds; a minute is usual. Valgrind slows code down some forty times.
const DEADLINE: &str = "600";

/// `cargo xtask memcheck`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    no_words("memcheck", words)?;
    tools::need_packages(&[tools::VALGRIND])?;
    tools::need_subcommand(tools::NEXTEST)?;
    println!("\n{}", examine(Scope::Needed)?);
    Ok(())
}

/// The leg of continuous integration.
pub(crate) fn check() -> Result<Tally> {
    examine(Scope::Everything)
}

/// All tests of [`CRATES`].
fn examine(scope: Scope) -> Result<Tally> {
    let left = Mutex::new(binaries(scope)?);
    let work = || -> Result<Tally> {
        let mut total = Tally::default();
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(binary) = next else { return Ok(total) };
            let shell = binary.under_valgrind();
            let line = format!("$ {}\n", shell.line());
            let ended = shell.start_apart()?.end()?;
            std::io::stdout().write_all(&[line.as_bytes(), &ended.output].concat())?;
            total += ended.tally?;
        }
    };
    let cores = thread::available_parallelism().context("counting cores")?.get();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_fold(Tally::default(), |mut total, worker| {
            total += worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(total)
        })
    })
}

/// A test binary of one of [`CRATES`].
struct Binary {
    krate: &'static str,
    name: String,
    path: PathBuf,
}

impl Binary {
    fn under_valgrind(&self) -> Shell {
        let folder = format!("--chdir={}", self.krate);
        Shell::new("env")
            .words(&[&folder, "timeout", "--kill-after=10", DEADLINE])
            .words(&VALGRIND)
            .words(&["--num-callers=30", &self.path.to_string_lossy(), "--test-threads=1"])
            .words(&["--skip", LEFT_OUT_TESTS])
            // Tests that try many numbers by brute force try a few.
            .env("FARANDOLE_MEMCHECK", "1")
            // Tests that expect a panic would spend most of their time under valgrind on naming its frames.
            .env("RUST_BACKTRACE", "0")
            .libtest()
    }
}

/// Builds the binaries, and says where they are.
fn binaries(scope: Scope) -> Result<VecDeque<Binary>> {
    let chosen = scope.words(&["farandole-c", "farandole-tensor", "farandole-transport"]);
    Shell::cargo(&["nextest", "run", "--no-run"]).words(&chosen).run()?;
    let list = ["nextest", "list", "--list-type", "binaries-only", "--message-format", "json"];
    let list = Shell::cargo(&list).words(&chosen).read()?;
    let list: Value = serde_json::from_str(&list).context("reading nextest's list of binaries")?;
    let binaries = chosen_of(&list);
    if let Some(krate) = CRATES.iter().find(|krate| binaries.iter().all(|binary| binary.krate != **krate)) {
        bail!("nextest lists no test binary of {krate}");
    }
    Ok(binaries)
}

/// Those of nextest's list that are looked at.
fn chosen_of(list: &Value) -> VecDeque<Binary> {
    let listed = list["rust-binaries"].as_object().into_iter().flat_map(|binaries| binaries.values());
    let binary = |listed: &Value| {
        let package = listed["package-id"].as_str()?;
        let krate = CRATES.into_iter().find(|krate| package.contains(&format!("/{krate}#")))?;
        let (name, path) = (listed["binary-name"].as_str()?, listed["binary-path"].as_str()?);
        (name != LEFT_OUT).then(|| Binary { krate, name: name.to_owned(), path: path.into() })
    };
    let mut binaries: Vec<Binary> = listed.filter_map(binary).collect();
    binaries.sort_by_key(|binary| !LONGEST.contains(&binary.name.as_str()));
    binaries.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_of_other_crates_are_left_out_and_the_longest_come_first() {
        let listed = |krate: &str, name: &str| {
            let package = format!("path+file:///x/{krate}#farandole@0.1.0");
            serde_json::json!({"package-id": package, "binary-name": name, "binary-path": format!("/target/{name}-1")})
        };
        let binaries = serde_json::json!({
            "a": listed("crates/plan", "fuse"), "b": listed("crates/tensor", "conversions"),
            "c": listed("crates/tensor", "folds"), "d": listed("crates/transport", "descriptors"),
        });
        let chosen = chosen_of(&serde_json::json!({ "rust-binaries": binaries }));
        let paths: Vec<_> = chosen.iter().map(|binary| (binary.krate, binary.path.to_str().unwrap())).collect();
        assert_eq!(paths, [("crates/tensor", "/target/folds-1"), ("crates/tensor", "/target/conversions-1")]);
    }
}
