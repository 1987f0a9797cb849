//! Model-checks the protocols in which threads or processes hand memory over.
//!
//! A model checker runs a small test under every order that the memory model allows. The models are the integration
//! tests `crates/*/tests/loom_*.rs`; they compile only with `--cfg loom`, which changes every crate, so the chore has a
//! target folder of its own. Optimised a little, because a model tries up to some hundred thousand orders.

use anyhow::{Context as _, Result, bail};

use crate::shell::{Shell, root};
use crate::tally::Tally;
use crate::{no_words, tools};

/// `cargo xtask model`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    no_words("model", words)?;
    println!("\n{}", check()?);
    Ok(())
}

/// All models.
pub(crate) fn check() -> Result<Tally> {
    let models = models()?;
    if models.is_empty() {
        bail!("there is no model in crates/*/tests/loom_*.rs");
    }
    // One command for all of them: cargo compiles what they share with the same features, once.
    let words = |Model { package, test }: &Model| ["--package".into(), package.clone(), "--test".into(), test.clone()];
    let chosen: Vec<String> = models.iter().flat_map(words).collect();
    let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
    Shell::cargo(&["test", "--release"])
        .words(&chosen)
        .env("RUSTFLAGS", "--cfg loom")
        // Time of compiling and linking that no model gets back.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_TARGET_DIR", tools::target_dir().join("model").to_string_lossy())
        .libtest()
        .run()
}

/// An integration test that holds models.
struct Model {
    package: String,
    test: String,
}

fn models() -> Result<Vec<Model>> {
    let mut models = Vec::new();
    for krate in std::fs::read_dir(root().join("crates")).context("reading crates/")? {
        let krate = krate?;
        // Not every crate has such a folder.
        let Ok(tests) = std::fs::read_dir(krate.path().join("tests")) else { continue };
        for test in tests {
            let name = test?.file_name().to_string_lossy().into_owned();
            if let Some(test) = name.strip_suffix(".rs").filter(|stem| stem.starts_with("loom_")) {
                let package = format!("farandole-{}", krate.file_name().to_string_lossy());
                models.push(Model { package, test: test.to_owned() });
            }
        }
    }
    models.sort_by(|a, b| (&a.package, &a.test).cmp(&(&b.package, &b.test)));
    Ok(models)
}
