//! The Python that a job would run, and the frameworks in it.
//!
//! The interpreter is asked once, in a process of its own: versions come from the metadata that installers leave
//! behind, and no framework is imported, because importing one takes seconds and may crash. The current folder is kept
//! out of its module path, so that a file called `json.py` there is not run by accident.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::ask::ask;
use super::finding::{Finding, Group};
use super::front_ends::{Standing, standings};

/// Starting an interpreter from a busy network file system takes seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// Prints what [`Known`] holds, as JSON. Works with every Python 3 that has `importlib.metadata` (3.8).
const QUESTION: &str = r#"
import sys
sys.path = [p for p in sys.path if p]
import json, os, platform
from importlib import metadata
names = {
    "torch": ["torch"], "keras": ["keras"], "tf_keras": ["tf-keras"], "jax": ["jax"], "numpy": ["numpy"], "farandole": ["farandole"],
    "tensorflow": ["tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "intel-tensorflow"],
    "mxnet": ["mxnet", "mxnet-cu112", "mxnet-cu110", "mxnet-cu102"], "horovod": ["horovod"],
}
packages = {}
for name, distributions in names.items():
    for distribution in distributions:
        try:
            packages[name] = metadata.version(distribution)
            break
        except Exception:
            pass
backend = os.environ.get("KERAS_BACKEND")
if not backend:
    try:
        home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
        with open(os.path.join(home, "keras.json")) as file:
            backend = json.load(file).get("backend")
    except Exception:
        pass
nccl = [os.path.join(p, "nvidia/nccl/lib/libnccl.so.2") for p in sys.path]
print(json.dumps({
    "version": platform.python_version(), "executable": sys.executable or "", "packages": packages,
    "nccl": [p for p in nccl if os.path.isfile(p)], "keras_backend": str(backend or "tensorflow"),
}))
"#;

/// What an interpreter knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Known {
    pub(crate) version: String,
    pub(crate) executable: String,
    /// Versions by name.
    pub(crate) packages: BTreeMap<String, String>,
    /// NCCL libraries that came with a framework.
    pub(crate) nccl: Vec<PathBuf>,
    /// What Keras 3 would compute with.
    #[serde(default)]
    pub(crate) keras_backend: String,
}

/// Which interpreter is meant, and why this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The user named it.
    Named(PathBuf),
    /// That of the active virtual environment.
    Active(PathBuf),
    /// `python3`, or `python`, in PATH.
    Path,
}

/// The Python of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    pub(crate) choice: Choice,
    /// What the interpreter said; otherwise why it said nothing.
    pub(crate) known: Result<Known, String>,
    /// A virtual environment nearby that is not active, and what its interpreter said.
    pub(crate) idle: Option<(PathBuf, Known)>,
}

impl Python {
    /// Asks the interpreter that a job started here would run.
    pub(crate) fn of_this_machine(named: Option<&Path>) -> Python {
        let choice = match (named, env::var_os("VIRTUAL_ENV").filter(|folder| !folder.is_empty())) {
            (Some(path), _) => Choice::Named(path.to_owned()),
            (None, Some(folder)) => Choice::Active(PathBuf::from(folder).join("bin/python")),
            (None, None) => Choice::Path,
        };
        let known = match &choice {
            Choice::Named(path) | Choice::Active(path) => question(path),
            Choice::Path => question(Path::new("python3")).or_else(|_| question(Path::new("python"))),
        };
        let idle = if choice == Choice::Path { idle_environment() } else { None };
        Python { choice, known, idle }
    }

    pub(crate) fn findings(&self, own_version: &str) -> Vec<Finding> {
        let mut findings = vec![self.interpreter()];
        if let Ok(known) = &self.known {
            findings.push(frameworks(known));
            findings.push(front_ends(known));
            findings.extend(package(known, own_version));
        }
        if let Some((folder, known)) = &self.idle {
            let found = format!("{} is there but not active ({})", folder.display(), list(known));
            let why = "Ranks use the Python of the shell that starts them.";
            findings.push(
                Finding::note(Group::Python, "virtual-env", found, why)
                    .with_fix(format!("`source {}/bin/activate`, if that is the one you mean.", folder.display())),
            );
        }
        findings
    }

    fn interpreter(&self) -> Finding {
        let why = "Jobs in Python run in it; jobs in Rust do without.";
        match (&self.known, &self.choice) {
            (Ok(known), choice) => {
                let how = match choice {
                    Choice::Named(_) => "as you said",
                    Choice::Active(_) => "the active virtual environment",
                    Choice::Path => "found in PATH",
                };
                Finding::ok(Group::Python, "python", format!("{} at {}, {how}", known.version, known.executable), why)
            }
            (Err(problem), Choice::Path) => Finding::note(Group::Python, "python", problem, why)
                .with_fix("`apt install python3`, or activate the environment that you mean."),
            (Err(problem), Choice::Named(path)) => {
                let fix = "name an interpreter that is there: `--python PATH`.";
                Finding::problem(Group::Python, "python", format!("{}: {problem}", path.display()), why, fix)
            }
            (Err(problem), Choice::Active(path)) => {
                let found = format!("VIRTUAL_ENV leads to {}: {problem}", path.display());
                Finding::problem(Group::Python, "python", found, why, "`deactivate`, or make the environment anew.")
            }
        }
    }
}

/// Python packages that are worked with, less those that only help to explain something.
const FRAMEWORKS: [&str; 6] = ["torch", "tensorflow", "keras", "jax", "mxnet", "numpy"];

/// The front ends that a job in this Python can use, and what keeps the others of frameworks that are there.
fn front_ends(known: &Known) -> Finding {
    let why = "Scripts import one of them, or run under the name horovod with `farandole run --horovod`.";
    let (mut usable, mut others, mut fixes) = (Vec::new(), Vec::new(), Vec::new());
    // The package itself is spoken of once.
    let is_there = known.packages.contains_key("farandole");
    let mut with_package = known.clone();
    with_package.packages.entry("farandole".to_owned()).or_default();
    for (framework, standing) in standings(Some(&with_package)) {
        let package = framework.package;
        match standing {
            Standing::Usable(_, front_end) => usable.push(front_end),
            Standing::Fixable(reason, fix) => {
                others.push(format!("{package}: {reason}"));
                fixes.push(fix);
            }
            Standing::Unusable(reason) => others.push(format!("{package}: {reason}")),
        }
    }
    let can = match (usable.join(", "), is_there) {
        (usable, _) if usable.is_empty() => "none can be used".to_owned(),
        (usable, true) => format!("{usable} can be used"),
        (usable, false) => {
            fixes.insert(0, "`pip install farandole`.".to_owned());
            format!("{usable} could be used, but the package farandole is not installed")
        }
    };
    let found = if others.is_empty() { can } else { format!("{can}; {}", others.join("; ")) };
    match fixes.as_slice() {
        [] => Finding::ok(Group::Python, "front-ends", found, why),
        fixes => Finding::note(Group::Python, "front-ends", found, why).with_fix(fixes.join(" ")),
    }
}

fn list(known: &Known) -> String {
    let found = FRAMEWORKS.iter().filter_map(|name| Some(format!("{name} {}", known.packages.get(*name)?)));
    let found: Vec<String> = found.collect();
    if found.is_empty() { "no framework".to_owned() } else { found.join(", ") }
}

fn frameworks(known: &Known) -> Finding {
    Finding::ok(
        Group::Python,
        "frameworks",
        match list(known).as_str() {
            "no framework" => format!("none of {} is installed", FRAMEWORKS.join(", ")),
            list => list.to_owned(),
        },
        "Read from what their installers left behind; none was imported.",
    )
}

/// A Python package of ours that is of another version than this command.
fn package(known: &Known, own_version: &str) -> Option<Finding> {
    let version = known.packages.get("farandole")?;
    let found = format!("the Python package farandole is {version}");
    if version == own_version {
        return Some(Finding::ok(Group::Python, "package", found, "The command and the package are of one version."));
    }
    let why = format!("This command is {own_version}; ranks of different versions refuse each other.");
    let fix = format!("`pip install farandole=={own_version}`.");
    Some(Finding::problem(Group::Python, "package", found, why, fix))
}

/// Asks one interpreter.
fn question(interpreter: &Path) -> Result<Known, String> {
    let mut command = Command::new(interpreter);
    let answer = ask(command.args(["-B", "-c", QUESTION]), PATIENCE);
    if !answer.is_good() {
        let words = answer.last_complaint().map(|line| format!(" ({line})")).unwrap_or_default();
        return Err(format!("no answer from {}: {}{words}", interpreter.display(), answer.ending));
    }
    let line = answer.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|_| format!("{} answers strangely: {line}", interpreter.display()))
}

/// The nearest `.venv` from here upwards.
fn idle_environment() -> Option<(PathBuf, Known)> {
    let here = env::current_dir().ok()?;
    let folder =
        here.ancestors().map(|folder| folder.join(".venv")).find(|folder| folder.join("bin/python").exists())?;
    let known = question(&folder.join("bin/python")).ok()?;
    Some((folder, known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn known(packages: &[(&str, &str)]) -> Known {
        let packages = packages.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect();
        Known { version: "3.12.1".into(), executable: "/usr/bin/python3".into(), packages, ..Known::default() }
    }

    #[test]
    fn an_interpreter_that_is_missing_is_a_problem_only_if_somebody_asked_for_it() {
        let python = |choice| Python { choice, known: Err("it could not be started".into()), idle: None }.interpreter();
        assert_eq!(python(Choice::Path).state, State::Note);
        assert_eq!(python(Choice::Named("/x".into())).state, State::Problem);
        assert_eq!(python(Choice::Active("/x".into())).state, State::Problem);
    }

    #[test]
    fn frameworks_are_listed_with_versions_and_an_idle_environment_with_its_cure() {
        let idle = Some((PathBuf::from("/p/.venv"), known(&[("jax", "0.5.0")])));
        let python =
            Python { choice: Choice::Path, known: Ok(known(&[("torch", "2.6.0+cpu"), ("numpy", "2.1")])), idle };
        let findings = python.findings("1.0.0");
        assert_eq!(findings[1].found, "torch 2.6.0+cpu, numpy 2.1");
        let idle = findings.iter().find(|finding| finding.key == "virtual-env").unwrap();
        assert!(idle.found.contains("jax 0.5.0"));
        assert!(idle.fix.as_ref().unwrap().contains("`source /p/.venv/bin/activate`"));
    }

    #[test]
    fn front_ends_are_named_that_can_be_used_and_what_is_missing_for_others() {
        let mut with_keras =
            known(&[("torch", "2.6.0"), ("tensorflow", "2.21.0"), ("keras", "3.15.1"), ("farandole", "1.0.0")]);
        with_keras.keras_backend = "tensorflow".to_owned();
        let good = front_ends(&with_keras);
        let usable =
            "farandole.tensorflow, farandole.torch, farandole.keras on tensorflow (or torch) can be used; mxnet: ";
        assert!(good.found.starts_with(usable), "{}", good.found);
        assert_eq!(good.state, State::Ok);
        let without = front_ends(&known(&[("torch", "2.6.0"), ("tensorflow", "2.9.0")]));
        assert_eq!(without.state, State::Note);
        let could = "farandole.torch could be used, but the package farandole is not installed; tensorflow: too old: 2.9.0 < 2.12";
        assert!(without.found.starts_with(could), "{}", without.found);
        let fix = without.fix.unwrap();
        assert!(fix.contains("pip install farandole") && fix.contains("tensorflow>=2.12"), "{fix}");
        let nothing = front_ends(&known(&[("farandole", "1.0.0")]));
        assert!(nothing.state == State::Ok && nothing.found.starts_with("none can be used; "), "{}", nothing.found);
        assert!(nothing.found.contains("torch: not installed in /usr/bin/python3"), "{}", nothing.found);
    }

    #[test]
    fn a_package_of_another_version_is_a_problem() {
        assert_eq!(package(&known(&[]), "1.0.0"), None);
        assert_eq!(package(&known(&[("farandole", "1.0.0")]), "1.0.0").unwrap().state, State::Ok);
        let other = package(&known(&[("farandole", "0.9.0")]), "1.0.0").unwrap();
        assert_eq!(other.state, State::Problem);
        assert!(other.fix.unwrap().contains("farandole==1.0.0"));
    }

    #[test]
    fn what_an_interpreter_says_is_believed_only_if_it_is_understood() {
        let folder = farandole_testing::Folder::new();
        let fake = folder.join("python");
        let write = |script: &str| {
            std::fs::write(&fake, format!("#!/bin/sh\n{script}\n")).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&fake, mode).unwrap();
            question(&fake)
        };
        let good = write(r#"echo noise; echo '{"version":"3.1","executable":"/p","packages":{},"nccl":[]}'"#);
        let garbled = write("echo hello");
        let broken = write("echo 'No module named encodings' >&2; exit 1");
        assert_eq!(good.unwrap().version, "3.1");
        assert!(garbled.unwrap_err().contains("answers strangely: hello"));
        assert!(broken.unwrap_err().contains("status 1 (No module named encodings)"));
    }
}
