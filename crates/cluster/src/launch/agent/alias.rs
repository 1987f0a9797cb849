//! Where this host has the package that calls Farandole `horovod`, for ranks whose script imports that.
//!
//! It lies inside the Python package, as `farandole/_alias`, and is found by asking the Python that ranks will use: the command's first
//! word if that is one, or else what the path calls `python3` or `python`. Asking takes as long as that Python needs to start and imports nothing
//! of ours. A user who knows better says so by a variable. Every agent looks on its own host, since hosts may differ.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::launch::message::Start;

/// The variable that names the folder.
const FOLDER: &str = "FARANDOLE_HOROVOD_PATH";

/// Prints where the package is, without importing it.
const QUESTION: &str = "\
import importlib.util, os.path
spec = importlib.util.find_spec('farandole')
if spec and spec.submodule_search_locations:
    print(os.path.join(spec.submodule_search_locations[0], '_alias'))
";

/// How long a Python may take to answer: network file systems with cold caches need seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The `PYTHONPATH` of ranks that are to find the alias, from what they would have without. `meanwhile` is called again and
/// again while a Python starts.
pub(super) fn python_path(start: &Start, working_dir: &Path, meanwhile: &mut dyn FnMut()) -> Result<OsString> {
    let variable = |name: &str| {
        let set = start.variables.iter().rev().find(|(set, _)| set == name.as_bytes());
        set.map(|(_, value)| OsString::from_vec(value.clone())).or_else(|| std::env::var_os(name))
    };
    let folder = match variable(FOLDER) {
        Some(folder) => PathBuf::from(folder),
        None => ask_for_it(start, working_dir, meanwhile)?,
    };
    if !folder.join("horovod").is_dir() {
        let why = format!("{} has no package horovod in it ({FOLDER} names the folder that has)", folder.display());
        return Err(Error::Refused { why });
    }
    let mut path = folder.into_os_string();
    if let Some(rest) = variable("PYTHONPATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    Ok(path)
}

fn ask_for_it(start: &Start, working_dir: &Path, meanwhile: &mut dyn FnMut()) -> Result<PathBuf> {
    let first = start.command.first().map(|word| OsStr::from_bytes(word)).unwrap_or_default();
    let is_python = Path::new(first).file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    let candidates: &[&OsStr] = if is_python { &[first] } else { &["python3".as_ref(), "python".as_ref()] };
    let mut asked = Vec::new();
    for python in candidates {
        let mut command = Command::new(python);
        command.args(["-c", QUESTION]).current_dir(working_dir);
        let variables = start.variables.iter();
        command.envs(variables.map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
        match answer(&mut command, meanwhile) {
            Ok(Some(folder)) => return Ok(folder),
            Ok(None) => asked.push(format!("{} has no farandole", python.display())),
            Err(error) => asked.push(format!("{}: {error}", python.display())),
        }
    }
    let why = format!(
        "--horovod needs the Python package farandole: {}. pip install farandole there, or name the folder that holds the \
         package horovod by {FOLDER}",
        asked.join("; ")
    );
    Err(Error::Refused { why })
}

/// What a Python prints, before too long.
fn answer(command: &mut Command, meanwhile: &mut dyn FnMut()) -> std::io::Result<Option<PathBuf>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    if !ends_in_time(&mut child, meanwhile)? {
        let _ = child.kill();
        let _ = child.wait();
        return Err(std::io::Error::other(format!("it does not answer within {PATIENCE:?}")));
    }
    // It has ended, and a path fits into a pipe.
    let said = child.wait_with_output()?.stdout;
    let said = said.strip_suffix(b"\n").unwrap_or(&said);
    Ok((!said.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(said))))
}

fn ends_in_time(child: &mut Child, meanwhile: &mut dyn FnMut()) -> std::io::Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        meanwhile();
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}
