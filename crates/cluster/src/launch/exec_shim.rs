//! The last step before a rank's own program: asks the kernel to kill this process when its agent ends, then executes
//! the program.
//!
//! A process can set its parent-death signal only for itself, so a few lines have to run in the child. They run in this
//! process, which is started with the words of the program as arguments; the setting survives `exec`.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use farandole_transport::descriptors;

/// The variable that tells a stub its agent's process.
pub const AGENT: &str = "FARANDOLE_AGENT_PID";

/// The variable that tells a stub how many files a rank may open: its agent may have raised the limit for itself.
pub const OPEN_FILES: &str = "FARANDOLE_OPEN_FILES";

/// What a shell exits with when there is no such program, and when it cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Becomes the program, or says why not and returns the code to exit with.
pub fn become_program(words: &[OsString]) -> (u8, String) {
    let Some((program, arguments)) = words.split_first() else {
        return (NOT_RUNNABLE, "there is no command to run".to_owned());
    };
    if let Err(error) = end_with_agent() {
        return (NOT_RUNNABLE, format!("asking the kernel to end this rank with its agent: {error}"));
    }
    if let Some(limit) = std::env::var(OPEN_FILES).ok().and_then(|limit| limit.parse().ok())
        && let Err(error) = descriptors::set_soft_limit(limit)
    {
        return (NOT_RUNNABLE, format!("setting back the limit of open files: {error}"));
    }
    let error = Command::new(program).args(arguments).env_remove(AGENT).env_remove(OPEN_FILES).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    let why = format!("cannot run {}: {error}", program.display());
    match suggestion(Path::new(program)) {
        Some(instead) => (code, format!("{why}; try: {instead}")),
        None => (code, why),
    }
}

/// The words that run an existing file which the kernel, or the search in `PATH`, has refused.
fn suggestion(program: &Path) -> Option<String> {
    let mode = program.metadata().ok().filter(Metadata::is_file)?.permissions().mode();
    let name = program.display();
    let interpreter = match program.extension().and_then(|extension| extension.to_str()) {
        Some("py") => Some("python"),
        Some("sh") => Some("sh"),
        _ => None,
    };
    match interpreter {
        Some(interpreter) => Some(format!("{interpreter} {name}")),
        None if mode & 0o111 == 0 => Some(format!("chmod +x {name}")),
        None if program.components().count() == 1 => Some(format!("./{name}")),
        None => None,
    }
}

fn end_with_agent() -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let Some(agent) = std::env::var(AGENT).ok().and_then(|pid| pid.parse::<i32>().ok()) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // An agent that died before we asked will not be missed by the kernel again.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != agent) {
        return Err(io::Error::other(format!("process {agent} has ended")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_executed_comes_with_the_words_that_run_it() {
        let folder = farandole_testing::Folder::new();
        for (name, mode, instead) in [
            ("train.py", 0o644, Some("python ")),
            ("prepare.sh", 0o644, Some("sh ")),
            ("model", 0o644, Some("chmod +x ")),
            ("whole", 0o755, None),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(suggestion(&path), instead.map(|words| format!("{words}{}", path.display())), "{name}");
        }
        assert_eq!(suggestion(&folder.join("absent.py")), None);
        assert_eq!(suggestion(&folder), None, "a folder is not a program");
    }
}
