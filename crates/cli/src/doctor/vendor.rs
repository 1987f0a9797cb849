//! Which vendor libraries a job could open at run time, found by opening them, each in a process of its own.
//!
//! The invariant: nothing that a library does when it is opened (crash, hang, print) reaches the doctor. A child,
//! started as `farandole doctor-probe LIB`, opens it (`library`) and answers with one line of JSON; a child that dies
//! or is silent for too long is a finding like any other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::ask::{Answer, Ending, ask};
use super::finding::{Finding, Group};
use super::library::{self, Sighting};
use super::say;

/// A driver without persistence mode initialises each device anew, which takes seconds on a large machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names under which MPI libraries are known: Open MPI; MPICH and its relatives; MPICH on Debian; the common ABI of
/// MPI 5.
const MPI_NAMES: [&str; 5] = ["libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.0", "libmpi_abi.so.1"];

/// What a child answers. One line on its standard output, after whatever the library itself may print.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// It could be opened.
    Opened(Sighting),
    /// It could not, with the dynamic linker's words.
    Refused(String),
}

/// One library that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// It works.
    Found(Sighting),
    /// It is there but cannot be opened, with the reason.
    Broken(String),
    /// It is not there.
    Absent,
}

/// All vendor libraries, and whether there is a GPU that would need them.
#[derive(Clone, Debug)]
pub(crate) struct Vendors {
    pub(crate) cuda: Library,
    pub(crate) nccl: Vec<Library>,
    pub(crate) mpi: Vec<Library>,
    pub(crate) has_nvidia_device: bool,
}

/// The hidden subcommand: opens a library in this process and prints what it said. It does not outlive the doctor.
pub(crate) fn serve_probe(name: &str) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("asking the kernel to end this process with its parent")?;
    let reply = match library::probe(name) {
        Ok(sighting) => Reply::Opened(sighting),
        Err(error) => Reply::Refused(format!("{error:#}")),
    };
    say(&(serde_json::to_string(&reply).context("writing the reply")? + "\n"))
}

impl Vendors {
    /// Opens everything, all at once. `nccl_paths` are copies that came with Python packages.
    pub(crate) fn of_this_machine(nccl_paths: &[PathBuf]) -> Vendors {
        // A framework brings its own copy, and that is the one that is used.
        let nccl_names: Vec<PathBuf> = nccl_paths.iter().cloned().chain(["libnccl.so.2".into()]).collect();
        thread::scope(|scope| {
            let look = |name: PathBuf| scope.spawn(move || open_in_child(&name));
            let cuda = look("libcuda.so.1".into());
            let nccl: Vec<_> = nccl_names.into_iter().map(look).collect();
            let mpi: Vec<_> = MPI_NAMES.into_iter().map(|name| look(name.into())).collect();
            let join = |handle: thread::ScopedJoinHandle<'_, Library>| {
                handle.join().expect("invariant: looking for a library does not panic")
            };
            Vendors {
                cuda: join(cuda),
                nccl: distinct(nccl.into_iter().map(join)),
                mpi: distinct(mpi.into_iter().map(join)),
                has_nvidia_device: Path::new("/dev/nvidia0").exists() || Path::new("/dev/dxg").exists(),
            }
        })
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        vec![
            self.cuda(),
            several("nccl", &self.nccl, "tensors on GPUs with FARANDOLE_PLANE=nccl, and frameworks' own collectives"),
            several("mpi", &self.mpi, "comparing speed"),
        ]
    }

    /// The first of these libraries that works.
    pub(crate) fn first(libraries: &[Library]) -> Option<&Sighting> {
        libraries.iter().find_map(|library| match library {
            Library::Found(sighting) => Some(sighting),
            Library::Broken(_) | Library::Absent => None,
        })
    }

    fn cuda(&self) -> Finding {
        let fix = "install the driver that fits the kernel module; in a container, start it with `--gpus all`.";
        match &self.cuda {
            Library::Found(sighting) => {
                let more = sighting.more.as_deref().unwrap_or("devices unknown");
                let found = format!("driver for CUDA {}, {more}", sighting.version);
                if more.contains("failed") {
                    let why = "The driver is there but cannot be used.";
                    return Finding::note(Group::Libraries, "cuda", found, why).with_fix(fix);
                }
                Finding::ok(Group::Libraries, "cuda", found, "Needed for memory on NVIDIA GPUs.")
            }
            Library::Broken(problem) => {
                Finding::note(Group::Libraries, "cuda", problem, "Needed for memory on NVIDIA GPUs.").with_fix(fix)
            }
            Library::Absent if self.has_nvidia_device => {
                let found = "there is a GPU but no libcuda.so.1";
                Finding::note(Group::Libraries, "cuda", found, "Needed for memory on NVIDIA GPUs.").with_fix(fix)
            }
            Library::Absent => {
                Finding::ok(Group::Libraries, "cuda", "none, and no NVIDIA device", "Needed for NVIDIA GPUs only.")
            }
        }
    }
}

/// A finding about a library that may be there several times.
fn several(key: &'static str, libraries: &[Library], purpose: &str) -> Finding {
    let why = format!("Optional: for {purpose}.");
    let describe = |library: &Library| match library {
        Library::Found(Sighting { version, path: Some(path), .. }) => Some(format!("{version} ({})", place(path))),
        Library::Found(Sighting { version, path: None, .. }) => Some(version.clone()),
        Library::Broken(problem) => Some(problem.clone()),
        Library::Absent => None,
    };
    let found = libraries.iter().filter_map(describe).collect::<Vec<_>>().join(", ");
    if found.is_empty() {
        return Finding::ok(Group::Libraries, key, format!("none; only needed for {purpose}"), why);
    }
    if libraries.iter().any(|library| matches!(library, Library::Broken(_))) {
        return Finding::note(Group::Libraries, key, found, why)
            .with_fix("install it anew, or take it out of the linker's path (`LD_LIBRARY_PATH`, `ldconfig -p`).");
    }
    Finding::ok(Group::Libraries, key, found, why)
}

/// The name of a file where the system keeps its libraries; the whole path of any other.
fn place(path: &str) -> &str {
    let of_system = ["/lib", "/usr/lib"].iter().any(|folder| path.starts_with(folder));
    if of_system { path.rsplit('/').next().unwrap_or(path) } else { path }
}

/// Without those that are not there, and each file once.
fn distinct(libraries: impl Iterator<Item = Library>) -> Vec<Library> {
    let mut list = Vec::new();
    for library in libraries.filter(|library| *library != Library::Absent) {
        if !list.contains(&library) {
            list.push(library);
        }
    }
    list
}

fn open_in_child(name: &Path) -> Library {
    let Ok(program) = std::env::current_exe() else { return Library::Absent };
    let answer = ask(Command::new(program).arg("doctor-probe").arg(name), PATIENCE);
    judge(name, &answer)
}

fn judge(name: &Path, answer: &Answer) -> Library {
    let shown = name.display();
    let reply = answer.stdout.lines().last().and_then(|line| serde_json::from_str(line).ok());
    match (&answer.ending, reply) {
        (Ending::Exited(0), Some(Reply::Opened(sighting))) => Library::Found(sighting),
        (Ending::Exited(0), Some(Reply::Refused(words))) => {
            let absent = format!("{shown}: cannot open shared object file: No such file or directory");
            match words.contains(&absent) {
                true => Library::Absent,
                false => Library::Broken(format!("{shown} cannot be used: {words}")),
            }
        }
        (Ending::Signalled(signal), _) => {
            Library::Broken(format!("{shown} crashes when it is opened (signal {signal})"))
        }
        (Ending::TooSlow(patience), _) => {
            Library::Broken(format!("{shown} hangs when it is opened (for more than {} s)", patience.as_secs()))
        }
        (ending, _) => Library::Broken(format!("{shown} ends the process that opens it: {ending}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;
    use std::time::SystemTime;

    fn answer(ending: Ending, stdout: &str) -> Answer {
        Answer { ending, stdout: stdout.into(), stderr: String::new(), heard: SystemTime::now() }
    }

    fn sighting(version: &str) -> Sighting {
        Sighting { version: version.into(), path: Some("/lib/x".into()), ..Sighting::default() }
    }

    #[test]
    fn a_library_that_crashes_hangs_or_exits_is_broken_and_named() {
        let name = Path::new("libmpi.so.40");
        for (ending, words) in [
            (Ending::Signalled(11), "libmpi.so.40 crashes when it is opened (signal 11)"),
            (Ending::TooSlow(PATIENCE), "libmpi.so.40 hangs when it is opened (for more than 20 s)"),
            (Ending::Exited(1), "libmpi.so.40 ends the process that opens it: it ended with status 1"),
        ] {
            assert_eq!(judge(name, &answer(ending, "")), Library::Broken(words.into()));
        }
    }

    #[test]
    fn noise_of_the_library_does_not_hide_the_reply() {
        let line = serde_json::to_string(&Reply::Opened(sighting("1"))).unwrap();
        let noisy = answer(Ending::Exited(0), &format!("hello from the vendor\n{line}\n"));
        assert_eq!(judge(Path::new("libnccl.so.2"), &noisy), Library::Found(sighting("1")));
    }

    #[test]
    fn a_missing_library_is_told_from_one_whose_dependency_is_missing() {
        let refused = |words: &str| {
            let line = serde_json::to_string(&Reply::Refused(words.into())).unwrap();
            judge(Path::new("libnccl.so.2"), &answer(Ending::Exited(0), &line))
        };
        let missing = "cannot open shared object file: No such file or directory";
        assert_eq!(refused(&format!("libnccl.so.2: {missing}")), Library::Absent);
        assert!(matches!(refused(&format!("libcudart.so.12: {missing}")), Library::Broken(_)));
    }

    #[test]
    fn broken_libraries_are_noted_and_missing_ones_are_nothing_special() {
        let of = |libraries: &[Library]| several("mpi", libraries, "comparing speed").state;
        assert_eq!(of(&[]), State::Ok);
        assert_eq!(of(&[Library::Found(sighting("1"))]), State::Ok);
        assert_eq!(of(&[Library::Found(sighting("1")), Library::Broken("x".into())]), State::Note);
    }

    #[test]
    fn a_copy_outside_the_system_is_shown_with_its_whole_path() {
        assert_eq!(place("/usr/lib/x86_64-linux-gnu/libmpi.so.40"), "libmpi.so.40");
        assert_eq!(place("/opt/mpi/lib/libmpi.so.40"), "/opt/mpi/lib/libmpi.so.40");
    }

    #[test]
    fn a_gpu_without_its_driver_is_noted() {
        let vendors = |cuda, has_nvidia_device| Vendors { cuda, nccl: vec![], mpi: vec![], has_nvidia_device };
        assert_eq!(vendors(Library::Absent, false).cuda().state, State::Ok);
        assert_eq!(vendors(Library::Absent, true).cuda().state, State::Note);
        let failed = Sighting { more: Some("cuInit failed with CUDA error 100".into()), ..sighting("12.4") };
        assert_eq!(vendors(Library::Found(failed), true).cuda().state, State::Note);
        let good = Sighting { more: Some("8 devices".into()), ..sighting("12.4") };
        assert_eq!(vendors(Library::Found(good), true).cuda().found, "driver for CUDA 12.4, 8 devices");
    }
}
