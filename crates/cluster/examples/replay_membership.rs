//! Makes the recorded decisions of an elastic job once more: `replay_membership FOLDER`.
//!
//! `FARANDOLE_MEMBERSHIP_LOG` makes the records. Fails if a member decided otherwise than its state machine does when
//! it is told the same again, or if members have made two histories.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "whoever starts it reads what it says")]

use std::path::PathBuf;
use std::process::ExitCode;

use farandole_cluster::membership::replay;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: replay_membership FOLDER");
        return ExitCode::from(2);
    };
    match replay(&folder) {
        Ok(replayed) => {
            let newest = replayed.history.generations().keys().next_back().copied().unwrap_or_default();
            println!(
                "{} inputs of {} members give the same decisions again: {} generations, up to number {newest}, in one \
                 history; {} members left, gave up or were evicted",
                replayed.inputs,
                replayed.members,
                replayed.history.generations().len(),
                replayed.over
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
