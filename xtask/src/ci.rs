//! What continuous integration runs, in order, and the chores that are one leg of it.
//!
//! The first leg that fails ends the run. Legs that mostly wait, or that only fill the time of others, run beside those
//! that follow them, each as a process of its own; what they wrote is shown in one piece when they are over. No test
//! that judges times runs beside a leg. However the run ends, the minutes of every leg that ran are printed, as the
//! rows of the table in CONTRIBUTING.md. Alone on the last line stands how many tests ran: `N passed, 0 failed`; where
//! a leg failed, the last lines name the tests that failed and the command that repeats them, for each leg that did.

use std::io::Write as _;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::scope::Scope;
use crate::shell::{Shell, Started};
use crate::tally::Tally;
use crate::times::Times;
use crate::{deny, junit, memcheck, model, no_words, python, shell, tidy, tools, venv, wheel};

/// One leg: what the heading says, the chore that repeats it, when it runs, and what it does.
struct Leg {
    heading: &'static str,
    chore: &'static str,
    turn: Turn,
    run: fn() -> Result<Tally>,
}

/// When a leg runs.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    /// When the one before it is over.
    Next,
    /// From there on beside others, until this leg is due.
    Until(&'static str),
    /// The same, with what processor time the others leave.
    FillUntil(&'static str),
}

impl Leg {
    const fn new(heading: &'static str, chore: &'static str, run: fn() -> Result<Tally>) -> Leg {
        Leg { heading, chore, turn: Turn::Next, run }
    }

    const fn turn(self, turn: Turn) -> Leg {
        Leg { turn, ..self }
    }

    fn failed(&self) -> String {
        format!("the leg \"{}\" failed; alone it runs as `cargo xtask {}`", self.heading, self.chore)
    }
}

const TIMED_IN_PYTHON: &str = "Python, one at a time";

/// All legs. Cheap and likely to fail comes first. The tools are mostly downloaded, and the tests are the first to need
/// them. What fills compiles for itself alone. Jobs of "wheels" have deadlines, so that leg does not fill.
const LEGS: [Leg; 15] = [
    Leg::new("tools", "ci --only tools", install_tools).turn(Turn::Until("tests")),
    Leg::new("format", "fmt", check_format),
    Leg::new("clippy", "clippy", lint),
    Leg::new("tidy", "tidy", tidy::check),
    Leg::new("tests", "test", run_tests),
    Leg::new("timings", "test", run_timings),
    Leg::new("doctests", "test", run_doctests),
    Leg::new("tests on the portable path", "ci --only 'tests on the portable path'", run_portable_tests)
        .turn(Turn::FillUntil(TIMED_IN_PYTHON)),
    Leg::new("model checks", "model", model::check).turn(Turn::FillUntil(TIMED_IN_PYTHON)),
    Leg::new("wheels", "wheel", wheel::check).turn(Turn::Until(TIMED_IN_PYTHON)),
    Leg::new("documents", "doc", build_documents).turn(Turn::FillUntil(TIMED_IN_PYTHON)),
    Leg::new("Python", "python", python::check),
    Leg::new(TIMED_IN_PYTHON, "python", python::check_times),
    Leg::new("licences and sources of dependencies", "deny", deny::check),
    Leg::new("memory checks", "memcheck", memcheck::check),
];

/// What `--fast` runs, for daily work: all Rust tests, and of the Python tests those of PyTorch on two ranks.
const FAST: [Leg; 6] = [
    Leg::new("format", "fmt", check_format),
    Leg::new("tidy", "tidy", tidy::check),
    Leg::new("clippy", "clippy", lint),
    Leg::new("tests", "test", run_tests),
    Leg::new("timings", "test", run_timings),
    Leg::new("Python, in short", "python", python::check_briefly),
];

/// `cargo xtask ci`; `--from LEG` goes on with a leg that failed, and with those behind it; `--only LEG` runs one;
/// `--fast` runs the few that daily work needs.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let wish = Wish::read(words)?;
    if !tools::is_worked_in() {
        shell::compile_once();
    }
    match wish {
        Wish::From(first) => run_all(&LEGS[first..]),
        Wish::Only(leg) => {
            println!("\n{}", run_one(&LEGS[leg])?);
            Ok(())
        }
        Wish::Fast => {
            install_tools()?;
            run_all(&FAST)
        }
    }
}

fn run_all(legs: &'static [Leg]) -> Result<()> {
    let mut round = Round::begin();
    // Asked for now: a leg may compile this program anew.
    let us = std::env::current_exe().context("finding out which program this is")?;
    let outcome = legs.iter().try_for_each(|leg| round.come_to(leg, &us));
    let outcome = round.end_all(outcome);
    println!("\n=== times ===\n{}", round.times);
    outcome?;
    let total = round.total;
    if total.passed == 0 || total.failed > 0 {
        bail!("every leg ended well, yet the tests counted are: {total}");
    }
    println!("{total}");
    Ok(())
}

fn run_one(leg: &Leg) -> Result<Tally> {
    println!("\n=== {} ===", leg.heading);
    (leg.run)().with_context(|| leg.failed())
}

/// Legs on their way.
struct Round {
    total: Tally,
    times: Times,
    beside: Vec<(&'static Leg, Started)>,
}

impl Round {
    fn begin() -> Round {
        Round { total: Tally::default(), times: Times::start(), beside: Vec::new() }
    }

    /// Runs a leg, or starts it if it runs beside others. Those that should be over by now are waited for.
    fn come_to(&mut self, leg: &'static Leg, us: &Path) -> Result<()> {
        let due = |other: &Leg| [Turn::Until(leg.heading), Turn::FillUntil(leg.heading)].contains(&other.turn);
        while let Some(place) = self.beside.iter().position(|(other, _)| due(other)) {
            let over = self.beside.remove(place);
            self.end(over)?;
        }
        let lowest_priority = Shell::new("nice").words(&["-n", "19"]).words(&[&us.to_string_lossy()]);
        let shell = match leg.turn {
            Turn::Next => {
                let outcome = run_one(leg);
                self.times.end_of(leg.heading);
                self.total += outcome?;
                return Ok(());
            }
            Turn::Until(_) => Shell::new(us),
            Turn::FillUntil(_) => lowest_priority,
        };
        println!("\n=== {} (begins; shown at its end) ===", leg.heading);
        let started = shell.words(&["ci", "--only", leg.heading]).chore().start_apart()?;
        self.beside.push((leg, started));
        Ok(())
    }

    /// Waits for all legs that still run: half of an installation would be left if the tools were ended. Those that
    /// fail beside a failure are told behind it.
    fn end_all(&mut self, mut outcome: Result<()>) -> Result<()> {
        while let Some(last) = self.beside.pop() {
            outcome = match (outcome, self.end(last)) {
                (Err(first), Err(other)) => Err(anyhow!("{first:#}\n\nand {other:#}")),
                (first, other) => first.and(other),
            };
        }
        outcome
    }

    /// Waits for a leg that runs beside others, and shows what it wrote.
    fn end(&mut self, (leg, started): (&'static Leg, Started)) -> Result<()> {
        let ended = started.end().with_context(|| leg.failed())?;
        self.times.end_beside(leg.heading, ended.wall);
        std::io::stdout().write_all(&ended.output)?;
        self.total += ended.tally.with_context(|| leg.failed())?;
        Ok(())
    }
}

/// What is asked for.
#[derive(Debug, PartialEq)]
enum Wish {
    /// All legs from this one on.
    From(usize),
    /// This one.
    Only(usize),
    /// Those of [`FAST`].
    Fast,
}

impl Wish {
    fn read(words: &[String]) -> Result<Wish> {
        let place = |heading: &str| {
            LEGS.iter().position(|leg| leg.heading == heading).with_context(|| {
                let headings: Vec<String> = LEGS.iter().map(|leg| format!("{:?}", leg.heading)).collect();
                format!("there is no leg {heading:?}; there are {}", headings.join(", "))
            })
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] => Ok(Wish::From(0)),
            ["--from", heading] => place(heading).map(Wish::From),
            ["--only", heading] => place(heading).map(Wish::Only),
            ["--fast"] => Ok(Wish::Fast),
            _ => bail!("`cargo xtask ci` takes nothing, --fast, --from LEG or --only LEG, not `{}`", words.join(" ")),
        }
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
    total += run_timings()?;
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
/// and the disk, so nextest is compiled meanwhile.
pub(crate) fn install_tools() -> Result<Tally> {
    let (downloaded, compiled) = thread::scope(|scope| {
        let downloading = scope.spawn(download_tools);
        let compiled = tools::need_subcommand(tools::NEXTEST);
        (downloading.join(), compiled)
    });
    downloaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    compiled?;
    Ok(Tally::default())
}

fn download_tools() -> Result<()> {
    tools::need_packages(&[tools::IPROUTE, tools::SSH, tools::SSHD, tools::VALGRIND])?;
    tools::need_packages(&tools::COMPILERS)?;
    tools::need_packages(&tools::MPI)?;
    tools::need_packages(&tools::SLURM)?;
    tools::need_packages(&tools::NFS)?;
    python::make_environment().context("installing PyTorch and what the tests in Python need")?;
    venv::make_for_mxnet().context("installing MXNet")
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

/// All Rust tests but those that judge times.
pub(crate) fn run_tests() -> Result<Tally> {
    let at_once = TESTS_PER_CORE * thread::available_parallelism().context("counting cores")?.get();
    nextest("ci").words(&["--test-threads", &at_once.to_string()]).words(&Scope::Everything.words(&[])).run()
}

/// The Rust tests that judge times, one after the other and beside nothing.
pub(crate) fn run_timings() -> Result<Tally> {
    nextest("timings").words(&["--test-threads", "1"]).words(&Scope::Everything.words(&[])).run()
}

fn run_doctests() -> Result<Tally> {
    Shell::cargo(&["test", "--doc"]).words(&Scope::Everything.words(&[])).libtest().run()
}

/// The tests of all arithmetic where the compiler flag takes run-time detection of the instruction set away. The flag
/// changes every crate, so the leg has a target folder of its own and builds nothing of the others twice.
fn run_portable_tests() -> Result<Tally> {
    nextest("portable")
        .words(&["--package", "farandole-tensor"])
        .env("RUSTFLAGS", "--cfg farandole_portable")
        .env("CARGO_TARGET_DIR", tools::target_dir().join("portable").to_string_lossy())
        .run()
}

/// nextest with a profile of `.config/nextest.toml`. Legs that may run at the same time have profiles of their own,
/// because the profile names the JUnit file.
fn nextest(profile: &str) -> Shell {
    Shell::cargo(&["nextest", "run", "--profile", profile]).junit(vec![junit::of_nextest(profile)])
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
        let read = |words: &[&str]| Wish::read(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&[]).unwrap(), Wish::From(0));
        let wheels = LEGS.iter().position(|leg| leg.heading == "wheels").unwrap();
        assert_eq!(read(&["--from", "wheels"]).unwrap(), Wish::From(wheels));
        assert_eq!(read(&["--only", "wheels"]).unwrap(), Wish::Only(wheels));
        assert!(read(&["--from", "wheel"]).unwrap_err().to_string().contains("\"wheels\", "));
        assert_eq!(read(&["--fast"]).unwrap(), Wish::Fast);
        assert!(read(&["--slow"]).is_err() && read(&["--from"]).is_err() && read(&["--only"]).is_err());
    }

    #[test]
    fn legs_beside_others_are_waited_for_by_a_leg_behind_them() {
        for (place, leg) in LEGS.iter().enumerate() {
            if let Turn::Until(heading) | Turn::FillUntil(heading) = leg.turn {
                let waits = LEGS.iter().position(|leg| leg.heading == heading).unwrap();
                assert!(place < waits && LEGS[waits].turn == Turn::Next, "{}", leg.heading);
            }
        }
    }

    static TRIAL: [Leg; 4] = [
        Leg::new("beside", "x", || unreachable!()).turn(Turn::Until("last")),
        Leg::new("filling", "x", || unreachable!()).turn(Turn::FillUntil("last")),
        Leg::new("first", "y", || Ok(Tally { passed: 1, failed: 0 })),
        Leg::new("last", "z", || Ok(Tally { passed: 2, failed: 0 })),
    ];

    #[test]
    fn a_leg_beside_others_is_over_before_the_leg_that_waits_for_it() {
        let mut round = Round::begin();
        TRIAL.iter().try_for_each(|leg| round.come_to(leg, Path::new("echo"))).unwrap();
        assert_eq!(round.total, Tally { passed: 3, failed: 0 });
        let table = round.times.to_string();
        let rows: Vec<&str> = table.lines().filter_map(|line| line.split(" | ").next()).collect();
        assert_eq!(rows[2..], ["| first", "| beside", "| filling", "| last", "| all"]);
    }

    #[test]
    fn a_leg_that_fails_beside_others_ends_the_run_where_it_is_waited_for() {
        let mut round = Round::begin();
        let error = TRIAL.iter().try_for_each(|leg| round.come_to(leg, Path::new("false"))).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with("the leg \"beside\" failed; alone it runs as `cargo xtask x`"), "{text}");
        assert!(text.ends_with("to repeat it: false ci --only beside"), "{text}");
        assert_eq!(round.total, Tally { passed: 1, failed: 0 });
    }

    #[test]
    fn legs_that_fail_beside_a_failure_are_told_behind_it() {
        let mut round = Round::begin();
        TRIAL[..2].iter().try_for_each(|leg| round.come_to(leg, Path::new("false"))).unwrap();
        let text = format!("{:#}", round.end_all(Err(anyhow!("the leg \"first\" failed"))).unwrap_err());
        assert!(text.starts_with("the leg \"first\" failed\n\nand the leg \"filling\" failed; "), "{text}");
        assert!(text.contains("\n\nand the leg \"beside\" failed; "), "{text}");
    }
}
