//! Where this host has the package that calls Farandole `horovod`, for ranks whose script imports that.
//!
//! It lies inside the Python package, as `farandole/_alias`, and is found by asking the Python that ranks will use: the
//! first word of the command that is one (it may stand behind `numactl` or `env`), or else what the path calls
//! `python3` or `python`. Asking takes as long as that Python needs to start and imports nothing of ours. Where none
//! knows of it, it is looked for in the environment that this program was installed in. A user who knows better says so
//! by a variable. Every agent looks on its own host, since hosts may differ.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::launch::ask::ask;
use crate::launch::message::StartRanks;

/// The variable that names the folder.
const FOLDER: &str = farandole_settings::HOROVOD_PATH.name;

/// Prints where the package is, without importing it.
const QUESTION: &str = "\
import importlib.util, os.path
spec = importlib.util.find_spec('farandole')
if spec and spec.submodule_search_locations:
    print(os.path.join(spec.submodule_search_locations[0], '_alias'))
";

/// How long a Python may take to answer: network file systems with cold caches need seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The `PYTHONPATH` of ranks that are to find the alias, from what they would have without. `meanwhile` is called again
/// and again while a Python starts.
pub(super) fn python_path(start: &StartRanks, working_dir: &Path, meanwhile: &mut dyn FnMut()) -> Result<OsString> {
    let folder = match start.variable(FOLDER) {
        Some(folder) => PathBuf::from(folder),
        None => ask_for_it(start, working_dir, meanwhile)?,
    };
    if !folder.join("horovod").is_dir() {
        let why = format!("{} has no package horovod in it ({FOLDER} names the folder that has)", folder.display());
        return Err(Error::Refused { why });
    }
    let mut path = folder.into_os_string();
    if let Some(rest) = start.variable("PYTHONPATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    Ok(path)
}

fn ask_for_it(start: &StartRanks, working_dir: &Path, meanwhile: &mut dyn FnMut()) -> Result<PathBuf> {
    let is_python =
        |word: &&OsStr| Path::new(word).file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    let named = start.command.iter().map(|word| OsStr::from_bytes(word)).find(is_python);
    let candidates = named.map_or(vec![OsStr::new("python3"), OsStr::new("python")], |python| vec![python]);
    let mut asked = Vec::new();
    for python in candidates {
        let mut command = Command::new(python);
        command.args(["-c", QUESTION]).current_dir(working_dir);
        command.envs(start.environment());
        match answer(&mut command, meanwhile) {
            Ok(Some(folder)) => return Ok(folder),
            Ok(None) => asked.push(format!("{} has no farandole", python.display())),
            Err(error) => asked.push(format!("{}: {error}", python.display())),
        }
    }
    if let Some(folder) = std::env::current_exe().ok().and_then(|program| installed_beside(&program)) {
        return Ok(folder);
    }
    let why = format!(
        "--horovod needs the Python package farandole: {}. pip install farandole there, or name the folder that holds the \
         package horovod by {FOLDER}",
        asked.join("; ")
    );
    Err(Error::Refused { why })
}

/// The alias of the environment that has this program in its `bin`.
fn installed_beside(program: &Path) -> Option<PathBuf> {
    let libraries = program.parent()?.parent()?.join("lib").read_dir().ok()?;
    let pythons = libraries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(b"python"));
    let mut folders = pythons.map(|python| python.path().join("site-packages/farandole/_alias"));
    folders.find(|folder| folder.is_dir())
}

/// What a Python prints, before too long.
fn answer(command: &mut Command, meanwhile: &mut dyn FnMut()) -> std::io::Result<Option<PathBuf>> {
    let said = ask(command, "", PATIENCE, meanwhile)?.stdout;
    // Whatever a start-up file prints comes before it.
    let last = said.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok((!last.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(last))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found for a command, on a path that has only a Python that answers with `folder` after saying hello.
    fn found(command: &[&str], variables: &[(&str, &str)]) -> Result<OsString> {
        let place = farandole_testing::Folder::new();
        std::fs::create_dir_all(place.join("horovod")).unwrap();
        let python = place.join("python3");
        std::fs::write(&python, format!("#!/bin/sh\necho hello; echo {}\n", place.display())).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let bytes = |text: &str| text.replace('@', place.to_str().unwrap()).into_bytes();
        let start = StartRanks {
            command: command.iter().map(|word| bytes(word)).collect(),
            variables: variables.iter().map(|(name, value)| (name.as_bytes().to_vec(), bytes(value))).collect(),
            ..StartRanks::default()
        };
        let path = python_path(&start, Path::new("/"), &mut || {});
        path.map(|path| OsString::from(path.to_str().unwrap().replace(place.to_str().unwrap(), "@")))
    }

    #[test]
    fn the_python_of_the_command_is_asked_wherever_it_stands() {
        for command in [&["@/python3", "train.py"][..], &["env", "A=1", "@/python3", "train.py"]] {
            assert_eq!(found(command, &[("PYTHONPATH", "/mine")]).unwrap(), "@:/mine");
        }
    }

    #[test]
    fn a_named_folder_goes_before_any_python() {
        let variables = [(FOLDER, "@"), ("PYTHONPATH", "")];
        assert_eq!(found(&["/no/such/python"], &variables).unwrap(), "@");
    }

    #[test]
    fn what_was_asked_in_vain_is_named() {
        let error = found(&["/no/such/python"], &[]).unwrap_err().to_string();
        assert!(error.contains("/no/such/python: No such file") && error.contains(FOLDER), "{error}");
    }

    #[test]
    fn an_environment_is_searched_from_its_program() {
        let place = farandole_testing::Folder::new();
        let folder = place.join("lib/python3.12/site-packages/farandole/_alias");
        std::fs::create_dir_all(&folder).unwrap();
        let found = installed_beside(&place.join("bin/farandole"));
        assert_eq!(found, Some(folder));
        assert_eq!(installed_beside(Path::new("/no/such/place/bin/farandole")), None);
    }
}
