//! The two commands behind `farandole run` that nobody types: `farandole agent` and `farandole rank -- COMMAND`.
//!
//! They are looked for before the command line is parsed: the words behind `rank` belong to somebody else's program and
//! must not be read as options of ours, and a job waits for every rank to get through here.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use farandole_cluster::launch::{agent, exec_shim};

/// What an agent exits with when it could not serve.
const AGENT_FAILED: u8 = 1;

/// Serves as an agent or as a rank's stub if these words ask for it.
pub(crate) fn serve(words: &[OsString]) -> Option<ExitCode> {
    match words.get(1).and_then(|word| word.to_str()) {
        Some("agent") if words.len() == 2 => Some(match agent::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(AGENT_FAILED, &error.to_string()),
        }),
        Some("rank") if words.get(2).map(OsString::as_os_str) == Some(OsStr::new("--")) => {
            let (code, why) = exec_shim::become_program(&words[3..]);
            Some(complain(code, &why))
        }
        _ => None,
    }
}

fn complain(code: u8, why: &str) -> ExitCode {
    eprintln!("farandole: {why}");
    ExitCode::from(code)
}
