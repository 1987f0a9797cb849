//! Fuzzes every decoder for a while, with the toolchain of the workspace.
//!
//! Each file in `fuzz/fuzz_targets` is a target, a program with libFuzzer in it. It is compiled with the coverage that
//! rustc's LLVM has built in, and without sanitizers: decoders are safe Rust. Memory is limited in two ways. libFuzzer
//! ends a target whose resident set exceeds [`MEMORY_MIB`], and the kernel refuses to extend its address space beyond
//! twice of that, so that a large allocation fails at once although its pages are not touched.
//!
//! Seeds are in `fuzz/corpus/<target>` and are replayed by ordinary tests, so what `ci` covers needs no fuzzer. New
//! inputs go to `target/fuzz-corpus`; one that breaks a target is written to `fuzz/artifacts`, and belongs into the
//! seeds once the decoder is repaired.

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};
use crate::tools;

/// How long a target runs by default: enough for some hundred thousand inputs.
const DEFAULT_SECONDS: u64 = 60;

/// The same for decoders of files, whose formats are large.
const FILE_SECONDS: u64 = 600;

/// What the names of targets that decode files begin with.
const FILE_TARGETS: &str = "data_";

/// Memory of a target, at most.
const MEMORY_MIB: u64 = 1024;

/// The limit of one decoded item in a target: decoders take a small multiple of it.
const ITEM_BYTES: u64 = 64 << 20;

/// What the fuzzer's programs are compiled for. Named, so that the coverage is not compiled into build scripts.
const PLATFORM: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

/// Coverage of edges, counted inline, with the operands of comparisons.
const COVERAGE: [&str; 10] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
];

/// `cargo xtask fuzz [--seconds N] [target …]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let Wish { seconds, mut targets } = parse(words)?;
    let known = known_targets()?;
    if let Some(stranger) = targets.iter().find(|target| !known.contains(target)) {
        bail!("{stranger}: not a fuzz target; choose from {}", known.join(", "));
    }
    if targets.is_empty() {
        targets = known;
    }
    let programs = build(&targets)?;
    for target in &targets {
        let found = tools::target_dir().join("fuzz-corpus").join(target);
        let broken = root().join("fuzz/artifacts").join(target);
        for folder in [&found, &broken] {
            std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let seconds = seconds.unwrap_or_else(|| default_seconds(target));
        // libFuzzer writes new inputs into the first folder and only reads the others.
        Shell::new("prlimit")
            .env("FARANDOLE_DATA_ITEM_BYTES", ITEM_BYTES.to_string())
            .words(&[&format!("--as={}", (2 * MEMORY_MIB) << 20), "--", &programs.join(target).to_string_lossy()])
            .words(&[&found.to_string_lossy(), &format!("fuzz/corpus/{target}")])
            .words(&[&format!("-max_total_time={seconds}"), &format!("-rss_limit_mb={MEMORY_MIB}")])
            .words(&[&format!("-artifact_prefix={}/", broken.display()), "-print_final_stats=1"])
            .run()?;
    }
    println!("\n{} targets, none of them broke", targets.len());
    Ok(())
}

/// Compiles targets, and returns the folder of their programs.
fn build(targets: &[String]) -> Result<std::path::PathBuf> {
    let folder = tools::target_dir().join("fuzz");
    let mut cargo = Shell::cargo(&["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", PLATFORM])
        .words(&["--target-dir", &folder.to_string_lossy()])
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f"));
    for target in targets {
        cargo = cargo.words(&["--bin", target]);
    }
    cargo.run()?;
    Ok(folder.join(PLATFORM).join("release"))
}

fn default_seconds(target: &str) -> u64 {
    if target.starts_with(FILE_TARGETS) { FILE_SECONDS } else { DEFAULT_SECONDS }
}

/// What the words ask for.
#[derive(Debug, PartialEq)]
struct Wish {
    /// Of each target.
    seconds: Option<u64>,
    targets: Vec<String>,
}

fn parse(words: &[String]) -> Result<Wish> {
    let mut wish = Wish { seconds: None, targets: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => {
                let number = words.next().context("--seconds: no number follows; give the seconds of each target")?;
                let seconds = number.parse().with_context(|| format!("--seconds {number}: not a number of seconds"))?;
                wish.seconds = Some(seconds);
            }
            flag if flag.starts_with('-') => bail!("{flag}: not a flag of `cargo xtask fuzz`; --seconds is"),
            target => wish.targets.push(target.to_owned()),
        }
    }
    Ok(wish)
}

fn known_targets() -> Result<Vec<String>> {
    let mut targets = Vec::new();
    for entry in std::fs::read_dir(root().join("fuzz/fuzz_targets")).context("reading fuzz/fuzz_targets")? {
        let path = entry?.path();
        if let (Some(stem), Some("rs")) = (path.file_stem(), path.extension().and_then(|e| e.to_str())) {
            targets.push(stem.to_string_lossy().into_owned());
        }
    }
    targets.sort();
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn seconds_and_targets_are_understood() {
        let wish = parse(&words("frame --seconds 5 hello")).unwrap();
        assert_eq!(wish, Wish { seconds: Some(5), targets: words("frame hello") });
        assert_eq!(parse(&[]).unwrap().seconds, None);
        assert_eq!((default_seconds("frame"), default_seconds("data_tar")), (DEFAULT_SECONDS, FILE_SECONDS));
        assert!(known_targets().unwrap().iter().any(|target| target.starts_with(FILE_TARGETS)));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&words("--seconds")).is_err());
        assert!(parse(&words("--seconds soon")).is_err());
        assert!(parse(&words("--fast")).is_err());
    }
}
