//! Which process has started the ranks of this host, for launchers that give their jobs no name.
//!
//! A rank need not be a child of its launcher: there may be shells and wrappers in between, and these have inherited
//! the rank's variables. So the launcher is the nearest ancestor without them. A process is named by its number and the
//! time of its start, which together never come back while the machine runs.

use std::fs;

use farandole_transport::ProcessStat;

/// So many generations are looked at. Wrappers are few; the number only ends a search that a broken table of processes
/// would make endless.
const MOST_GENERATIONS: usize = 64;

/// A name for the nearest ancestor that does not have `variable` in its environment.
pub(super) fn without(variable: &str) -> String {
    let mut process = std::process::id();
    for _ in 0..MOST_GENERATIONS {
        let Some(stat) = ProcessStat::of(process) else { break };
        process = stat.parent;
        if process <= 1 || !has(process, variable) {
            break;
        }
    }
    let started = ProcessStat::of(process).map(|stat| stat.start_time.to_string()).unwrap_or_default();
    format!("process {process} of {started}")
}

/// Whether a process was started with this variable. One that we may not look into is not of this job.
fn has(process: u32, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    environment
        .split(|&byte| byte == 0)
        .any(|entry| entry.strip_prefix(variable.as_bytes()).is_some_and(|value| value.first() == Some(&b'=')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_wrappers_the_parent_is_the_launcher() {
        let parent = rustix::process::getppid().unwrap();
        let name = without("FARANDOLE_SET_BY_NOBODY");
        assert!(name.starts_with(&format!("process {} of ", parent.as_raw_nonzero())), "{name}");
        assert!(!name.ends_with(' '), "{name}");
    }

    #[test]
    fn an_ancestor_that_has_the_variable_is_a_wrapper() {
        // Every process of a test run has a path, up to the one that started it all.
        let parent = rustix::process::getppid().unwrap();
        let name = without("PATH");
        assert!(!name.starts_with(&format!("process {} of ", parent.as_raw_nonzero())), "{name}");
    }
}
