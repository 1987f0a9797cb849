//! The wheels: built into `dist/`, checked, and tried in an environment that has nothing else.
//!
//! There are two. `farandole` has the package, its module, the header and library for C programs, and the command
//! `farandole`, which is the real binary and not a script, because it starts itself again on every host of a job; it
//! has the trainer in it. `horovod` is the alias, Python alone. The tag says how old a system may be: the oldest of the
//! manylinux policies that has every symbol of the system's C library which the command and the library ask for. That
//! look is taken here; maturin looks into the module, and refuses to give a tag that is too old for it.
//!
//! `cargo xtask wheel` builds all parts in Rust in release, as users get them, into `dist/`. Continuous integration
//! packs what its tests have built, into `target/wheels-of-tests`, so that nothing has to be compiled again; what is in
//! a wheel, its tag and how it is installed and runs are checked alike. Both are stripped.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::python::{self, Profile, python};
use crate::scope::Scope;
use crate::shell::{Shell, root};
use crate::tally::Tally;
use crate::{no_words, tools};

/// Minor versions of glibc 2 for which there is a manylinux policy, oldest first. Newer ones get a policy when a
/// distribution of theirs is widespread.
const POLICIES: [u32; 9] = [17, 24, 27, 28, 31, 34, 35, 36, 39];

/// No wheel may be larger. It is downloaded by every host of a cluster; the trainer in the command is about half of it.
/// What the tests have built is less optimized and so larger, and it holds the paths of the folders that it was built
/// in: 50.5 MB were seen, less with shorter paths. Its limit leaves room for these and for a few more crates; it finds
/// a library that should not be there, such as one of a framework.
const fn limit_bytes(profile: Profile) -> u64 {
    match profile {
        Profile::Release => 25_000_000,
        Profile::Dev => 60_000_000,
    }
}

/// How long each trial job may take, in seconds.
const TRIAL_DEADLINE: &str = "180";

/// The package of the command, as it is built for users: with everything that is off by default.
pub(crate) const COMMAND: [&str; 4] = ["--package", "farandole-cli", "--features", "train,remote"];

/// The script of the trial: it needs the command, the module and the front end of PyTorch.
const TRIAL: &str = "examples/python/pytorch_mnist.py";

/// The trial of the trainer: the smallest network, and few steps on few images, so that it takes seconds.
const TRAINER_TRIAL: [&str; 14] = [
    "train",
    "-np",
    "2",
    "--model",
    "lenet",
    "--samples",
    "64",
    "--test-samples",
    "16",
    "--batch",
    "4",
    "--steps",
    "4",
    "--eval-every=1",
];

/// What the trainer says when it is done.
const TRAINED: &str = "trained lenet";

/// The package of the library for C programs, as it is built for users: together with the module, so that maturin
/// finds that built.
pub(crate) const LIBRARY: [&str; 4] = ["--package", "farandole-c", "--package", "farandole-python"];

/// The trial of the library: a C program, compiled with the flags that the package gives, and what its ranks say.
const C_TRIAL: &str = "examples/c/average.c";
const C_TRIED: &str = "the average is 0.50";

/// What the alias must be good for.
const ALIAS_TRIAL: &str = "import horovod.torch as hvd; hvd.init(); assert (hvd.rank(), hvd.size()) == (0, 1)";

/// `cargo xtask wheel`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    no_words("wheel", words)?;
    let wheels = build(Profile::Release)?;
    try_out(&wheels)?;
    println!("\nthe wheels work in an environment of their own:");
    wheels.iter().for_each(|wheel| println!("  {}", wheel.display()));
    Ok(())
}

/// The leg of continuous integration.
pub(crate) fn check() -> Result<Tally> {
    try_out(&build(Profile::Dev)?)?;
    Ok(Tally::default())
}

/// Builds both wheels and looks at what is in them.
fn build(profile: Profile) -> Result<Vec<PathBuf>> {
    python::make_environment()?;
    let dist = match profile {
        Profile::Release => root().join("dist"),
        Profile::Dev => tools::target_dir().join("wheels-of-tests"),
    };
    if dist.exists() {
        std::fs::remove_dir_all(&dist).with_context(|| format!("emptying {}", dist.display()))?;
    }
    let command = build_command(profile)?;
    let library = build_library(profile)?;
    let newest = newest_glibc(&command)?.max(newest_glibc(&library)?);
    let policy = policy(newest)?;
    pack_command(&command)?;
    pack_library(&library)?;
    let maturin = python().with_file_name("maturin");
    let word = if profile == Profile::Release { "release" } else { "dev" };
    let words = ["build", "--profile", word, "--strip", "--locked", "--manifest-path", "bindings/python/Cargo.toml"];
    let tag = format!("manylinux_2_{policy}");
    let maturin = Shell::new(maturin).words(&words).words(&["--out", &text(&dist)?, "--compatibility", &tag]);
    match profile {
        Profile::Release => maturin.run()?,
        Profile::Dev => maturin.env("CARGO", text(&cargo_of_tests()?)?).run()?,
    };
    let alias = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"];
    Shell::new(python()).words(&alias).words(&["--wheel-dir", &text(&dist)?, "./bindings/horovod"]).run()?;
    let ours = the_wheel(&dist, "farandole-")?;
    look_into(&ours, &tag, limit_bytes(profile))?;
    println!("glibc 2.{newest} and later: {tag}");
    Ok(vec![ours, the_wheel(&dist, "horovod-")?])
}

/// What maturin is given for cargo when it packs what the tests have built. It asks cargo for the module alone, with
/// settings of its own for PyO3, and cargo would compile most crates again: with the features that the module wants,
/// not with those that all packages want together. This one asks for everything, finds it built, and answers with a
/// stripped copy of the module. It leaves out programs of tests: that of the module is called as the module is, and
/// maturin takes what cargo has named last.
fn cargo_of_tests() -> Result<PathBuf> {
    let target = tools::target_dir();
    let (script, module) = (target.join("cargo-of-tests"), target.join("debug/libfarandole_python.so"));
    let build = Shell::new("cargo").words(&["build", "--all-targets", "--message-format=json-render-diagnostics"]);
    let lines = format!(
        "#!/bin/sh\nset -e\n[ \"$1\" = rustc ] || exec cargo \"$@\"\n\
         unset PYO3_BUILD_EXTENSION_MODULE PYO3_CONFIG_FILE PYO3_ENVIRONMENT_SIGNATURE PYO3_PYTHON \
         PYTHON_SYS_EXECUTABLE\n\
         {build} >'{messages}'\nstrip -o '{stripped}' '{module}'\n\
         sed -e '/\"test\":true}},\"features\"/d' -e 's|\"{module}\"|\"{stripped}\"|' '{messages}'\n",
        build = build.words(&Scope::Everything.words(&[])).line(),
        messages = text(&target.join("messages-of-tests.json"))?,
        stripped = text(&target.join("libfarandole_python.stripped.so"))?,
        module = text(&module)?,
    );
    std::fs::write(&script, lines).with_context(|| format!("writing {}", script.display()))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// The command, with the trainer in it.
fn build_command(profile: Profile) -> Result<PathBuf> {
    match profile {
        Profile::Release => {
            Shell::cargo(&["build", "--release", "--bin=farandole"]).words(&COMMAND).run()?;
            Ok(tools::target_dir().join("release/farandole"))
        }
        Profile::Dev => Ok(python::build(Profile::Dev, Scope::Everything)?.command),
    }
}

/// The library for C programs.
fn build_library(profile: Profile) -> Result<PathBuf> {
    let target = tools::target_dir();
    match profile {
        Profile::Release => {
            Shell::cargo(&["build", "--release"]).words(&LIBRARY).run()?;
            Ok(target.join("release/libfarandole_c.so"))
        }
        // Built with the command.
        Profile::Dev => Ok(target.join("debug/libfarandole_c.so")),
    }
}

/// Puts the library and its headers where maturin takes them from.
fn pack_library(library: &Path) -> Result<()> {
    let package = root().join("bindings/python/farandole");
    python::put_headers(&package)?;
    let stripped = tools::target_dir().join("libfarandole.stripped.so");
    Shell::new("strip").words(&["-o", &text(&stripped)?, &text(library)?]).run()?;
    python::put(&stripped, &package.join("lib/libfarandole.so"))
}

/// Puts the command where maturin takes it from.
fn pack_command(command: &Path) -> Result<()> {
    let folder = root().join("bindings/python/farandole.data/scripts");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let stripped = text(&folder.join("farandole"))?;
    Shell::new("strip").words(&["-o", &stripped, &text(command)?]).run().map(drop)
}

/// What must be in the wheel of `farandole`, and what it may be called and weigh.
fn look_into(wheel: &Path, tag: &str, limit: u64) -> Result<()> {
    let name = text(wheel)?;
    if !name.contains("-cp310-abi3-") || !name.contains(tag) {
        bail!("{name} should be for every Python from 3.10 on and say {tag}");
    }
    let bytes = std::fs::metadata(wheel)?.len();
    if bytes >= limit {
        bail!("{name} has {bytes} bytes; the limit is {limit}");
    }
    println!("{name}: {:.1} MB", bytes as f64 / 1e6);
    let list = Shell::new(python()).words(&["-m", "zipfile", "--list", &name]).read()?;
    let files: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let wanted = ["/scripts/farandole", "farandole/_native.abi3.so", "farandole/py.typed", "farandole/_native.pyi"];
    let for_c = ["farandole/include/farandole.h", "farandole/include/horovod.h", "farandole/lib/libfarandole.so"];
    let front_ends = ["torch", "tensorflow", "keras", "jax", "mxnet", "_alias/horovod"];
    let packages = front_ends.map(|name| format!("farandole/{name}/__init__.py"));
    let packages = packages.iter().map(String::as_str);
    for wanted in wanted.into_iter().chain(for_c).chain(packages) {
        if files.iter().filter(|file| file.ends_with(wanted)).count() != 1 {
            bail!("{name} should have one {wanted}; it has:\n{list}");
        }
    }
    if let Some(stray) = files.iter().find(|file| file.contains("__pycache__") || file.contains("tests/")) {
        bail!("{name} should not have {stray}");
    }
    Ok(())
}

/// Installs the wheels into an empty environment and trains small models on two ranks with nothing else on the path:
/// no Rust, no compiler, no tools. One is a script for PyTorch, the other is the built-in trainer. A C program is
/// compiled against what was installed, and run the same way. PyTorch is not installed a second time, it has gigabytes;
/// a `.pth` file adds the folder of `.venv`, in which there is no farandole, behind the environment's own.
fn try_out(wheels: &[PathBuf]) -> Result<()> {
    let trial = tools::target_dir().join("wheel-trial");
    if trial.exists() {
        std::fs::remove_dir_all(&trial).with_context(|| format!("removing {}", trial.display()))?;
    }
    Shell::new(python()).words(&["-m", "venv", &text(&trial)?]).run()?;
    let (bin, interpreter) = (text(&trial.join("bin"))?, text(&trial.join("bin/python"))?);
    let wheels = wheels.iter().map(|wheel| text(wheel)).collect::<Result<Vec<_>>>()?;
    let wheels: Vec<&str> = wheels.iter().map(String::as_str).collect();
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-compile"];
    Shell::new(&interpreter).words(&install).words(&wheels).env("PATH", &bin).run()?;
    let where_packages_are = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
    let own = Shell::new(&interpreter).words(&where_packages_are).read()?;
    let others = Shell::new(python()).words(&where_packages_are).read()?;
    std::fs::write(Path::new(own.trim()).join("behind.pth"), others).context("adding the folder of PyTorch")?;
    Shell::new(&interpreter).words(&["-c", ALIAS_TRIAL]).env("PATH", &bin).run()?;
    let job = |words: &[&str]| {
        let shell = Shell::new("timeout").words(&["--kill-after=10", TRIAL_DEADLINE, "env", &format!("PATH={bin}")]);
        shell.words(&["farandole"]).words(words).env("OMP_NUM_THREADS", "1")
    };
    job(&["run", "-np", "2", "python", TRIAL, "--short"]).run()?;
    let flags = Shell::new(&interpreter).words(&["-m", "farandole.c_flags", "--cflags", "--libs"]).read()?;
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let program = text(&trial.join("average"))?;
    Shell::new("cc").words(&["-std=c99", "-Werror", C_TRIAL, "-o", &program]).words(&flags).run()?;
    hear(&job(&["run", "-np", "2", &program]), C_TRIED)?;
    hear(&job(&TRAINER_TRIAL), TRAINED)
}

/// Runs a trial that must say this.
fn hear(trial: &Shell, words: &str) -> Result<()> {
    println!("$ {}", trial.line());
    let said = trial.read()?;
    print!("{said}");
    if !said.contains(words) {
        bail!("what is in the wheel should have said `{words}`: {}", trial.line());
    }
    Ok(())
}

/// The minor version of glibc 2 that a file asks for: the newest among its symbols.
fn newest_glibc(file: &Path) -> Result<u32> {
    let symbols = Shell::new("objdump").words(&["--dynamic-syms", &text(file)?]).read()?;
    newest_in(&symbols).with_context(|| format!("{} asks for no symbol of the C library", file.display()))
}

fn newest_in(symbols: &str) -> Option<u32> {
    let versions = symbols.split("GLIBC_2.").skip(1);
    versions.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).max()
}

fn policy(newest: u32) -> Result<u32> {
    let fits = POLICIES.into_iter().find(|&policy| policy >= newest);
    fits.with_context(|| format!("there is no manylinux policy for glibc 2.{newest}; build on an older system"))
}

/// The one wheel in a folder whose name begins like this.
fn the_wheel(dist: &Path, begin: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(dist).with_context(|| format!("reading {}", dist.display()))?;
    let mut found = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(begin) && name.ends_with(".whl")
    });
    match (found.next(), found.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => bail!("there should be exactly one {begin}*.whl in {}", dist.display()),
    }
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_counts() {
        let symbols = "0  DF *UND* 0 (GLIBC_2.2.5) read\n0  DF *UND* 0 (GLIBC_2.34) pthread_create\n0 (GLIBC_2.9) x\n";
        assert_eq!(newest_in(symbols), Some(34));
        assert_eq!(newest_in("nothing"), None);
    }

    #[test]
    fn the_oldest_policy_that_fits_is_taken() {
        assert_eq!(policy(17).unwrap(), 17);
        assert_eq!(policy(29).unwrap(), 31);
        assert!(policy(99).unwrap_err().to_string().contains("older system"));
    }
}
