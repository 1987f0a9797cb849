//! Runs the tests of the crates with unsafe code under valgrind.
//!
//! The binaries are those that `test` has built; valgrind takes the place of the kernel's loader through cargo's runner
//! variable, so that nextest keeps its deadlines. Which tests run is written in `.config/nextest.toml`, profile
//! `memcheck`. An invalid access, a jump on an uninitialised value or a definite leak fails the test that did it.

use anyhow::Result;

use crate::scope::Scope;
use crate::shell::Shell;
use crate::tally::Tally;
use crate::{no_words, tools};

/// What stands before each test. Only definite leaks count: what lives until the process ends (the test runner's own
/// threads, lazily built tables) is reported as possible or reachable and is nobody's fault.
const VALGRIND: &str = "valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite \
                        --errors-for-leak-kinds=definite --num-callers=30";

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

/// The tests that are looked at, as nextest names them. Those of `descriptors` change the process's limits, which
/// valgrind keeps for itself; they touch no unsafe code.
const TESTS: &str = "(package(farandole-tensor) + package(farandole-transport)) - binary(descriptors)";

/// All tests of profile `memcheck`.
fn examine(scope: Scope) -> Result<Tally> {
    let runner = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase());
    Shell::cargo(&["nextest", "run", "--profile", "memcheck"])
        .words(&scope.words(&["farandole-tensor", "farandole-transport"]))
        .words(&["--filterset", TESTS])
        .env(&runner, VALGRIND)
        // Tests that try many numbers by brute force try a few.
        .env("FARANDOLE_MEMCHECK", "1")
        // Tests that expect a panic would spend most of their time under valgrind on naming its frames.
        .env("RUST_BACKTRACE", "0")
        .run()
}
