//! What continuous integration runs, in order, and the chores that are one leg of it.
//!
//! The first leg that fails ends the run with the line that repeats it. However it ends, the minutes of every leg that
//! ran are printed, as the rows of the table in CONTRIBUTING.md. Alone on the last line stands how many tests ran: `N
//! passed, 0 failed`.

use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::scope::Scope;
use crate::shell::Shell;
use crate::tally::Tally;
use crate::times::Times;
use crate::{deny, memcheck, model, no_words, python, tidy, tools, wheel};

/// One leg: what the heading says, the chore that repeats it, and what it does.
struct Leg {
    heading: &'static str,
    chore: &'static str,
    run: fn() -> Result<Tally>,
}

/// All legs. Cheap and likely to fail comes first.
const LEGS: [Leg; 13] = [
    Leg { heading: "tools", chore: "ci", run: install_tools },
    Leg { heading: "format", chore: "fmt", run: check_format },
    Leg { heading: "clippy", chore: "clippy", run: lint },
    Leg { heading: "tidy", chore: "tidy", run: tidy::check },
    Leg { heading: "tests", chore: "test", run: run_tests },
    Leg { heading: "doctests", chore: "test", run: run_doctests },
    Leg { heading: "Python", chore: "python", run: python::check },
    Leg { heading: "wheels", chore: "wheel", run: wheel::check },
    Leg { heading: "tests on the portable path", chore: "ci", run: run_portable_tests },
    Leg { heading: "documents", chore: "doc", run: build_documents },
    Leg { heading: "licences and sources of dependencies", chore: "deny", run: deny::check },
    Leg { heading: "model checks", chore: "model", run: model::check },
    Leg { heading: "memory checks", chore: "memcheck", run: memcheck::check },
];

/// `cargo xtask ci`, or `cargo xtask ci --from LEG` to go on with a leg that failed, and with those behind it.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let first = first_leg(words)?;
    let mut total = Tally::default();
    let mut times = Times::start();
    for leg in &LEGS[first..] {
        println!("\n=== {} ===", leg.heading);
        let outcome = (leg.run)().with_context(|| {
            format!("the leg \"{}\" failed; alone it runs as `cargo xtask {}`", leg.heading, leg.chore)
        });
        times.end_of(leg.heading);
        match outcome {
            Ok(tally) => total += tally,
            Err(error) => {
                println!("\n=== times ===\n{times}");
                return Err(error);
            }
        }
    }
    println!("\n=== times ===\n{times}");
    if total.passed == 0 || total.failed > 0 {
        bail!("every leg ended well, yet the tests counted are: {total}");
    }
    println!("{total}");
    Ok(())
}

/// Where to begin.
fn first_leg(words: &[String]) -> Result<usize> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => Ok(0),
        ["--from", heading] => LEGS.iter().position(|leg| leg.heading == heading).with_context(|| {
            let headings: Vec<String> = LEGS.iter().map(|leg| format!("{:?}", leg.heading)).collect();
            format!("there is no leg {heading:?}; there are {}", headings.join(", "))
        }),
        _ => bail!("`cargo xtask ci` takes nothing, or --from LEG, not `{}`", words.join(" ")),
    }
}

/// `cargo xtask fmt`.
pub(crate) fn format(words: &[String]) -> Result<()> {
    no_words("fmt", words)?;
    Shell::cargo(&["fmt", "--all"]).run()?;
    Shell::cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml"]).run().map(drop)
}

/// `cargo xtask clippy`.
pub(crate) fn clippy(words: &[String]) -> Result<()> {
    no_words("clippy", words)?;
    lint().map(drop)
}

/// `cargo xtask test`.
pub(crate) fn test(words: &[String]) -> Result<()> {
    no_words("test", words)?;
    install_tools()?;
    let mut total = run_tests()?;
    total += run_doctests()?;
    println!("\n{total}");
    Ok(())
}

/// `cargo xtask doc`.
pub(crate) fn doc(words: &[String]) -> Result<()> {
    no_words("doc", words)?;
    build_documents().map(drop)
}

/// Everything that the legs need. Packages and PyTorch are downloaded and unpacked, which mostly waits for the network
/// and the disk, so cargo's subcommands are compiled meanwhile.
fn install_tools() -> Result<Tally> {
    let (downloaded, compiled) = thread::scope(|scope| {
        let downloading = scope.spawn(download_tools);
        let compiled = tools::need_subcommand(tools::NEXTEST).and_then(|()| tools::need_subcommand(tools::DENY));
        (downloading.join(), compiled)
    });
    downloaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    compiled?;
    Ok(Tally::default())
}

fn download_tools() -> Result<()> {
    tools::need_packages(&[tools::IPROUTE, tools::SSH, tools::SSHD, tools::VALGRIND])?;
    tools::need_packages(&tools::MPI)?;
    tools::need_packages(&tools::SLURM)?;
    python::make_environment().context("installing PyTorch and what the tests in Python need")
}

fn check_format() -> Result<Tally> {
    Shell::cargo(&["fmt", "--all", "--check"]).run()?;
    Shell::cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]).run()
}

fn lint() -> Result<Tally> {
    Shell::cargo(&["clippy", "--all-targets"])
        .words(&Scope::Everything.words(&[]))
        .words(&["--", "-D", "warnings"])
        .run()?;
    // The fuzz targets are a workspace of their own. Naming a fuzzer library, whichever, spares the machine the C++
    // compiler that building libFuzzer would need; nothing is linked here.
    Shell::cargo(&["clippy", "--manifest-path", "fuzz/Cargo.toml", "--", "-D", "warnings"])
        .env("CUSTOM_LIBFUZZER_PATH", "/none/libFuzzer.a")
        .env("CARGO_TARGET_DIR", tools::target_dir().join("fuzz").to_string_lossy())
        .run()
}

/// Tests that run at the same time, for each core: see the profile `ci` in `.config/nextest.toml`.
const TESTS_PER_CORE: usize = 2;

fn run_tests() -> Result<Tally> {
    let at_once = TESTS_PER_CORE * thread::available_parallelism().context("counting cores")?.get();
    Shell::cargo(&["nextest", "run", "--profile", "ci", "--test-threads", &at_once.to_string()])
        .words(&Scope::Everything.words(&[]))
        .run()
}

fn run_doctests() -> Result<Tally> {
    Shell::cargo(&["test", "--doc"]).words(&Scope::Everything.words(&[])).run()
}

/// The tests of all arithmetic where the compiler flag takes run-time detection of the instruction set away. The flag
/// changes every crate, so the leg has a target folder of its own and builds nothing of the others twice.
fn run_portable_tests() -> Result<Tally> {
    Shell::cargo(&["nextest", "run", "--package", "farandole-tensor"])
        .env("RUSTFLAGS", "--cfg farandole_portable")
        .env("CARGO_TARGET_DIR", tools::target_dir().join("portable").to_string_lossy())
        .run()
}

/// What cargo says where two documents go to one file. It is a warning of cargo and not of rustdoc, so `-D warnings`
/// lets it pass; which of the two survives is left to chance, and at times neither does.
const COLLISION: &str = "output filename collision";

/// All libraries, and then the command, whose manifest takes it out of the first: it has the name of a library. Its
/// documents go to a folder of their own; what both runs compile is in the same build folder, and is compiled once.
fn build_documents() -> Result<Tally> {
    let target = tools::target_dir();
    let document = || {
        let everything = Shell::cargo(&["doc", "--no-deps"]).words(&Scope::Everything.words(&[]));
        everything.env("RUSTDOCFLAGS", "-D warnings").refuse(COLLISION)
    };
    document().run()?;
    document()
        .words(&["--bin", "farandole"])
        .env("CARGO_TARGET_DIR", target.join("command").to_string_lossy())
        .env("CARGO_BUILD_BUILD_DIR", target.to_string_lossy())
        .run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CHORES;
    use crate::shell::root;

    /// The page says what every chore does, which of them `ci` leaves out, and how long each leg takes.
    #[test]
    fn contributing_names_every_chore_and_every_leg() {
        let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        let left_out = page.split("`ci` runs none of these:").nth(1).unwrap().split("\n\n").next().unwrap();
        for chore in CHORES.iter().filter(|chore| chore.name != "ci") {
            let name = chore.name;
            assert!(page.contains(&format!("\n| `cargo xtask {name}")), "no row for {name}");
            let is_leg = LEGS.iter().any(|leg| leg.chore == name);
            assert_eq!(left_out.contains(&format!("`{name}`")), !is_leg, "{name}");
        }
        for leg in &LEGS {
            assert!(page.contains(&format!("\n| {} | ", leg.heading)), "no minutes for {}", leg.heading);
        }
    }

    #[test]
    fn a_run_can_begin_with_any_leg() {
        let first = |words: &[&str]| first_leg(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(first(&[]).unwrap(), 0);
        assert_eq!(LEGS[first(&["--from", "wheels"]).unwrap()].heading, "wheels");
        assert!(first(&["--from", "wheel"]).unwrap_err().to_string().contains("\"wheels\", "));
        assert!(first(&["--fast"]).is_err() && first(&["--from"]).is_err());
    }
}
