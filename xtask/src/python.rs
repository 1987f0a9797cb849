//! The Python side: its environment, its module, its tests.
//!
//! `cargo xtask python` makes the virtual environments, builds the module into the package's folder, checks its types
//! and runs the tests: those of `tests/single` outside of a job, one for each core at a time, and those among them that
//! judge times one after the other; those of `tests/data` apart from these, because they import all frameworks into one
//! process; `tests/parallel` (PyTorch), `tests/tensorflow` and `tests/jax` as jobs of two and of four ranks, the latter
//! without some files (`--whole` runs them, too). `tests/mxnet_single` and `tests/mxnet` are the same for MXNet, in an
//! environment of its own. Every framework is installed; one that cannot be fails the chore.
//! `--build-only` ends after the build, `--release` builds what users get, `-k` chooses tests. A module for tests has
//! the fake device, with `--release` too.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::junit;
use crate::peers;
use crate::scope::Scope;
use crate::shell::{Shell, root};
use crate::tally::Tally;
use crate::tools::target_dir;
use crate::venv::{self, MAIN, MXNET, Venv};

/// The requirements besides PyTorch, with the versions we have tried, and flags for installing them.
const REQUIREMENTS: [(&str, &[&str]); 2] = [
    ("bindings/python/requirements.txt", &[]),
    // Without what they ask for themselves; the file says why.
    ("bindings/python/requirements-alone.txt", &["--no-deps"]),
];

/// Where the package lies.
const PACKAGE: &str = "bindings/python";

/// Headers of the C library.
const HEADERS: [&str; 2] = ["farandole.h", "horovod.h"];

/// The longest that all tests of one job may take, in seconds. Each test has a deadline of its own; this one is for
/// what goes wrong outside of them.
const JOB_DEADLINE: &str = "3600";

/// A folder of tests, and how it is run.
struct Suite {
    folder: &'static str,
    company: Company,
    /// Files that this run leaves to another one.
    without: &'static [&'static str],
    venv: &'static Venv,
}

/// What tests run beside.
#[derive(Clone, Copy, PartialEq)]
enum Company {
    /// One test for each core at a time: those that are not marked `alone`. Most start a job of two ranks, which spends
    /// half of its time on importing a framework, with one thread for each rank.
    Others,
    /// Nothing: those that are marked `alone`.
    Nobody,
    /// So many ranks of one job, which run the same tests.
    Ranks(&'static str),
}

impl Suite {
    const fn new(folder: &'static str, company: Company) -> Suite {
        Suite { folder, company, without: &[], venv: &MAIN }
    }

    const fn of_mxnet(folder: &'static str, company: Company) -> Suite {
        Suite { folder, company, without: &[], venv: &MXNET }
    }

    /// What its JUnit files are called.
    fn file_name(&self) -> String {
        let folder = self.folder;
        match self.company {
            Company::Others => folder.to_owned(),
            Company::Nobody => format!("{folder}-alone"),
            Company::Ranks(ranks) => format!("{folder}-{ranks}-ranks"),
        }
    }

    /// As a failure names it.
    fn title(&self) -> String {
        let folder = self.folder;
        match self.company {
            Company::Others => format!("tests/{folder}"),
            Company::Nobody => format!("tests/{folder} (alone)"),
            Company::Ranks(ranks) => format!("tests/{folder} on {ranks} ranks"),
        }
    }
}

/// All runs. What frameworks do with gradients does not depend on the number of ranks beyond the operations, which run
/// on four ranks; compiling graphs and models takes most of a job's time, so two ranks do that. `--whole` leaves
/// nothing out.
static SUITES: [Suite; 13] = [
    Suite::new("single", Company::Others),
    Suite::new("single", Company::Nobody),
    // It has TensorFlow in its process. Triton, which optimizers of PyTorch import, would abort that: two LLVMs.
    Suite::new("data", Company::Others),
    Suite::new("parallel", Company::Ranks("2")),
    Suite::new("parallel", Company::Ranks("4")),
    Suite::new("tensorflow", Company::Ranks("2")),
    Suite {
        folder: "tensorflow",
        company: Company::Ranks("4"),
        without: &[
            "test_api_data_service.py",
            "test_api_functions.py",
            "test_api_optimizer.py",
            "test_api_states.py",
            "test_keras_3.py",
            "test_kernels.py",
            "test_ops_graphs.py",
            "test_xla.py",
        ],
        venv: &MAIN,
    },
    Suite::new("jax", Company::Ranks("2")),
    Suite { folder: "jax", company: Company::Ranks("4"), without: &["test_training.py"], venv: &MAIN },
    Suite::of_mxnet("mxnet_single", Company::Others),
    Suite::of_mxnet("mxnet_single", Company::Nobody),
    Suite::of_mxnet("mxnet", Company::Ranks("2")),
    Suite::of_mxnet("mxnet", Company::Ranks("4")),
];

/// How pytest ends where nothing was chosen.
const NO_TESTS: i32 = 5;

/// Ranks share the cores of this machine; threads of each for all of them would only be in each other's way. TensorFlow
/// has two pools: one thread for arithmetic, and two that run operations, so that independent ones can overlap.
const THREADS: [(&str, &str); 3] =
    [("OMP_NUM_THREADS", "1"), ("TF_NUM_INTRAOP_THREADS", "1"), ("TF_NUM_INTEROP_THREADS", "2")];

/// What `cargo xtask python` is asked to do.
#[derive(Debug, Default, PartialEq)]
struct Wish {
    build_only: bool,
    profile: Profile,
    /// Whether no run leaves files to another one.
    whole: bool,
    /// pytest's expression that chooses tests.
    choice: Option<String>,
}

/// How the module is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As the tests of the workspace are, so that nothing is built twice.
    #[default]
    Dev,
    /// As users get it.
    Release,
}

/// `cargo xtask python`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let wish = Wish::read(words)?;
    let built = build_with(wish.fakes(), wish.profile, Scope::Needed)?;
    if wish.build_only {
        println!("the module is built; PYTHONPATH={} finds it", built.package.display());
        return Ok(());
    }
    make_environment()?;
    venv::make_for_mxnet()?;
    if wish.choice.is_none() {
        check_types()?;
    }
    println!("\n{}", test(&built, SUITES.iter(), &wish)?);
    Ok(())
}

/// The leg of continuous integration that may run beside others.
pub(crate) fn check() -> Result<Tally> {
    make_environment()?;
    venv::make_for_mxnet()?;
    let built = build(Profile::Dev, Scope::Everything)?;
    check_types()?;
    test(&built, SUITES.iter().filter(|suite| suite.company != Company::Nobody), &Wish::default())
}

/// The leg of `cargo xtask ci --fast`: types, and PyTorch on two ranks.
pub(crate) fn check_briefly() -> Result<Tally> {
    let built = build(Profile::Dev, Scope::Everything)?;
    check_types()?;
    let is_brief = |suite: &&Suite| suite.folder == "parallel" && suite.company == Company::Ranks("2");
    test(&built, SUITES.iter().filter(is_brief), &Wish::default())
}

/// The leg that has the machine to itself.
pub(crate) fn check_times() -> Result<Tally> {
    make_environment()?;
    venv::make_for_mxnet()?;
    let built = build(Profile::Dev, Scope::Everything)?;
    test(&built, SUITES.iter().filter(|suite| suite.company == Company::Nobody), &Wish::default())
}

/// What a build leaves.
pub(crate) struct Built {
    /// The folder that `PYTHONPATH` has to name.
    pub(crate) package: PathBuf,
    /// The command `farandole`.
    pub(crate) command: PathBuf,
}

/// The interpreter of the environment.
pub(crate) fn python() -> PathBuf {
    MAIN.python()
}

/// Makes `.venv` and installs what is missing in it.
pub(crate) fn make_environment() -> Result<()> {
    peers::install_torch().context("installing PyTorch")?;
    REQUIREMENTS.iter().try_for_each(|(file, flags)| MAIN.need(file, flags))
}

/// Whether the module has the fakes that its tests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fakes {
    Included,
    LeftOut,
}

/// Builds the command, and the module and the C library into the package's folder; with the fakes of tests unless it is
/// what users get.
pub(crate) fn build(profile: Profile, scope: Scope) -> Result<Built> {
    let fakes = if profile == Profile::Release { Fakes::LeftOut } else { Fakes::Included };
    build_with(fakes, profile, scope)
}

fn build_with(fakes: Fakes, profile: Profile, scope: Scope) -> Result<Built> {
    // With the targets of tests, because what these depend on counts for the features that everything is compiled with.
    let targets: &[&str] = if scope == Scope::Everything { &["--all-targets"] } else { &[] };
    let flags: &[&str] = if profile == Profile::Release { &["--release"] } else { &[] };
    let packages = scope.words(&["farandole-python", "farandole-c", "farandole-cli"]);
    // Everything has them already.
    let fakes: &[&str] = match (scope, fakes) {
        (Scope::Needed, Fakes::Included) => &["--features", "farandole-python/testing"],
        _ => &[],
    };
    Shell::cargo(&["build"]).words(&packages).words(targets).words(flags).words(fakes).run()?;
    if scope == Scope::Needed {
        // Tests of object stores start it. Everything has it already.
        let example = ["build", "--package", "farandole-storage", "--features", "remote", "--example", "storage_cat"];
        Shell::cargo(&example).words(flags).run()?;
    }
    let folder = target_dir().join(if profile == Profile::Release { "release" } else { "debug" });
    let package = root().join(PACKAGE);
    put(&folder.join("libfarandole_python.so"), &package.join("farandole/_native.abi3.so"))?;
    put(&folder.join("libfarandole_c.so"), &package.join("farandole/lib/libfarandole.so"))?;
    put_headers(&package.join("farandole"))?;
    Ok(Built { package, command: folder.join("farandole") })
}

/// Puts the headers of the C library into the package's folder.
pub(crate) fn put_headers(package: &Path) -> Result<()> {
    HEADERS
        .iter()
        .try_for_each(|name| put(&root().join("bindings/c/include").join(name), &package.join("include").join(name)))
}

/// Copies a file beside its place and moves it there, so that no program that has the old one mapped sees it change.
/// Legs that run beside each other may do so at the same time.
pub(crate) fn put(from: &Path, to: &Path) -> Result<()> {
    let beside = to.with_extension(format!("new-{}", std::process::id()));
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let copied = std::fs::copy(from, &beside).and_then(|_| std::fs::rename(&beside, to));
    copied.with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

/// The package says that it is typed, and users' checkers believe it.
fn check_types() -> Result<()> {
    let (rules, package) = (format!("{PACKAGE}/pyproject.toml"), format!("{PACKAGE}/farandole"));
    let words = ["-m", "mypy", "--cache-dir=/dev/null", "--config-file", &rules, &package];
    Shell::new(python()).words(&words).run().map(drop)
}

/// All suites, one after the other, whatever happens in them: calls `visit` with the title of each and how it ended.
pub(crate) fn each_suite(mut visit: impl FnMut(String, Result<Tally>)) -> Result<()> {
    let built = build(Profile::Dev, Scope::Everything)?;
    for suite in &SUITES {
        visit(suite.title(), pytest(&built, suite, &Wish::default()));
    }
    Ok(())
}

fn test(built: &Built, suites: impl Iterator<Item = &'static Suite>, wish: &Wish) -> Result<Tally> {
    let mut total = Tally::default();
    let mut empty = Vec::new();
    for suite in suites {
        let tally = pytest(built, suite, wish)?;
        if tally.passed == 0 {
            empty.push(suite.title());
        }
        total += tally;
    }
    if wish.choice.is_none() && !empty.is_empty() || total.passed == 0 {
        bail!("no test ran in {}", empty.join(" and "));
    }
    Ok(total)
}

/// Runs the tests of one folder.
fn pytest(built: &Built, suite: &Suite, wish: &Wish) -> Result<Tally> {
    let Suite { folder, company, without, venv } = suite;
    let (python, command) =
        (venv.python().to_string_lossy().into_owned(), built.command.to_string_lossy().into_owned());
    let (name, folder) = (suite.file_name(), format!("{PACKAGE}/tests/{folder}"));
    let shell = Shell::new("timeout").words(&["--kill-after=10", JOB_DEADLINE]);
    let shell = match company {
        Company::Ranks(ranks) => shell.words(&[&command, "run", "-np", ranks]),
        Company::Others | Company::Nobody => shell,
    };
    let mut shell = shell.words(&[&python, "-m", "pytest", "--durations=20", &folder]);
    let files = match company {
        // pytest puts the number of the rank in.
        Company::Ranks(ranks) => {
            let ranks = 0..ranks.parse::<u32>().context("the number of ranks")?;
            shell = shell.words(&[&junit_word(&format!("{name}.rank-$FARANDOLE_RANK"))]);
            ranks.map(|rank| junit::of_pytest(&format!("{name}.rank-{rank}"))).collect()
        }
        Company::Others | Company::Nobody => {
            shell = shell.words(&[&junit_word(&name)]);
            vec![junit::of_pytest(&name)]
        }
    };
    shell = shell.junit(files);
    match company {
        Company::Others => {
            let cores = thread::available_parallelism().context("counting cores")?.to_string();
            // Files stay together where they can, for the sake of what their tests share.
            shell = shell.words(&["-m", "not alone", "--numprocesses", &cores, "--dist", "worksteal"]);
        }
        Company::Nobody => shell = shell.words(&["-m", "alone"]),
        // A rank that goes on after a failure would wait for others in tests that they do not run any more.
        Company::Ranks(_) => shell = shell.words(&["--exitfirst"]),
    }
    for file in without.iter().filter(|_| !wish.whole) {
        shell = shell.words(&[&format!("--ignore={folder}/{file}")]);
    }
    if let Some(choice) = &wish.choice {
        shell = shell.words(&["-k", choice]).accept(NO_TESTS);
    }
    for (name, value) in THREADS {
        shell = shell.env(name, value);
    }
    shell
        .env("PYTHONPATH", built.package.to_string_lossy())
        .env("FARANDOLE_COMMAND", command)
        // TensorFlow says on every start what it is built for, and that oneDNN's sums depend on their order; errors
        // still show.
        .env("TF_CPP_MIN_LOG_LEVEL", "2")
        .env("TF_ENABLE_ONEDNN_OPTS", "0")
        // oneDNN's kernels for bfloat16 use AMX where the processor names it; in some virtual machines that is SIGILL.
        .env("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
        .run()
}

fn junit_word(name: &str) -> String {
    format!("--junitxml={}", junit::of_pytest(name).display())
}

impl Wish {
    fn read(words: &[String]) -> Result<Wish> {
        let mut wish = Wish::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--build-only" => wish.build_only = true,
                "--release" => wish.profile = Profile::Release,
                "--whole" => wish.whole = true,
                "-k" => wish.choice = Some(words.next().context("`-k` needs an expression")?.clone()),
                other => bail!(
                    "`cargo xtask python` takes --build-only, --release, --whole and -k EXPRESSION, not `{other}`"
                ),
            }
        }
        Ok(wish)
    }

    /// What is built for users alone has no fakes.
    fn fakes(&self) -> Fakes {
        if self.build_only && self.profile == Profile::Release { Fakes::LeftOut } else { Fakes::Included }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Wish> {
        Wish::read(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_understood() {
        assert_eq!(read(&[]).unwrap(), Wish::default());
        let wish = read(&["--release", "-k", "a or b"]).unwrap();
        let choice = Some("a or b".to_owned());
        assert_eq!(wish, Wish { profile: Profile::Release, choice, ..Wish::default() });
        assert!(read(&["--build-only"]).unwrap().build_only && read(&["--whole"]).unwrap().whole);
        assert_eq!(read(&["--release"]).unwrap().fakes(), Fakes::Included);
        assert_eq!(read(&["--release", "--build-only"]).unwrap().fakes(), Fakes::LeftOut);
        assert!(read(&["-k"]).is_err() && read(&["--fast"]).is_err());
    }

    #[test]
    fn a_file_is_replaced_and_not_written_over() {
        let folder = farandole_testing::Folder::new();
        let (from, to) = (folder.join("from"), folder.join("to.so"));
        std::fs::write(&from, "new").unwrap();
        std::fs::write(&to, "old").unwrap();
        let mapped = std::fs::File::open(&to).unwrap();
        put(&from, &to).unwrap();
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "new");
        assert_eq!(std::io::read_to_string(mapped).unwrap(), "old");
    }
}
