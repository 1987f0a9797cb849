//! Fuzzes every decoder for a while.
//!
//! Each file in `fuzz/fuzz_targets` is a target. Seeds lie in `fuzz/corpus/<target>` and are replayed by ordinary
//! tests, so what `ci` covers needs no fuzzer. Inputs found here go to `target/fuzz-corpus`; one that breaks something
//! is kept by cargo-fuzz in `fuzz/artifacts`, and belongs into the seeds once the decoder is mended.

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};
use crate::tools;

/// How long each target runs when nobody says: enough for some hundred thousand inputs.
const DEFAULT_SECONDS: u64 = 60;

/// `cargo xtask fuzz [--seconds N] [target …]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let Wish { seconds, mut targets } = parse(words)?;
    let known = known_targets()?;
    if let Some(stranger) = targets.iter().find(|target| !known.contains(target)) {
        bail!("there is no fuzz target `{stranger}`; there are: {}", known.join(", "));
    }
    if targets.is_empty() {
        targets = known;
    }
    tools::need_nightly(None)?;
    tools::need_subcommand(tools::FUZZ)?;
    for target in &targets {
        let found = tools::target_dir().join("fuzz-corpus").join(target);
        std::fs::create_dir_all(&found).with_context(|| format!("making {}", found.display()))?;
        // libFuzzer writes what it finds into the first folder and only reads the others.
        Shell::nightly_cargo(&["fuzz", "run", target, &found.to_string_lossy(), &format!("fuzz/corpus/{target}")])
            .words(&["--", &format!("-max_total_time={seconds}"), "-rss_limit_mb=2048", "-print_final_stats=1"])
            .run()?;
    }
    println!("\n{} targets, {seconds} s each, nothing broke", targets.len());
    Ok(())
}

/// What the words ask for.
#[derive(Debug, PartialEq)]
struct Wish {
    seconds: u64,
    targets: Vec<String>,
}

fn parse(words: &[String]) -> Result<Wish> {
    let mut wish = Wish { seconds: DEFAULT_SECONDS, targets: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => {
                let number = words.next().context("--seconds needs a number")?;
                wish.seconds = number.parse().with_context(|| format!("`{number}` is no number of seconds"))?;
            }
            flag if flag.starts_with('-') => bail!("`cargo xtask fuzz` does not know `{flag}`"),
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
        assert_eq!(wish, Wish { seconds: 5, targets: words("frame hello") });
        assert_eq!(parse(&[]).unwrap().seconds, DEFAULT_SECONDS);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&words("--seconds")).is_err());
        assert!(parse(&words("--seconds soon")).is_err());
        assert!(parse(&words("--fast")).is_err());
    }
}
