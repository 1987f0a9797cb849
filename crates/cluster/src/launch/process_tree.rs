//! Which processes descend from this one.
//!
//! The kernel may reuse the id of a process or a process group once nobody has it, so a stored id must not be
//! signalled. Processes to signal are found by their descent from this process, which is the subreaper of all it has
//! started, and are held by a pidfd from the check to the signal.

use std::collections::HashMap;
use std::time::Duration;

use farandole_transport::Countdown;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, wait, waitpid,
};

/// All processes, as they were at one moment.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    processes: HashMap<i32, Process>,
}

/// What a process is among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: i32,
    group: i32,
}

impl ProcessTree {
    /// Looks at all processes: there is no other way to know adopted ones.
    pub(crate) fn scan() -> ProcessTree {
        let Ok(entries) = std::fs::read_dir("/proc") else { return ProcessTree { processes: HashMap::new() } };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        ProcessTree { processes: numbers.filter_map(|pid| Some((pid, process(pid)?))).collect() }
    }

    /// This process's children. Their numbers are safe until they are waited for, which only this process can do.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let me = me();
        let children = self.processes.iter().filter(|(_, process)| process.parent == me);
        children.filter_map(|(pid, _)| Pid::from_raw(*pid)).collect()
    }

    /// Signals those members of a process group that descend from this process. The group's number may have been given
    /// to others, who do not.
    pub(crate) fn signal_group(&self, group: Pid, signals: &[Signal]) {
        let group = group.as_raw_nonzero().get();
        let members = self.processes.iter().filter(|(pid, process)| process.group == group && self.is_ours(**pid));
        for pid in members.filter_map(|(pid, _)| Pid::from_raw(*pid)) {
            let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // Whoever had the number a moment ago may be gone; the one that is held now must be ours as well.
            let still = process(pid.as_raw_nonzero().get());
            if still.is_some_and(|now| now.group == group && (now.parent == me() || self.is_ours(now.parent))) {
                for signal in signals {
                    let _ = pidfd_send_signal(&held, *signal);
                }
            }
        }
    }

    /// Whether a process descends from this one.
    fn is_ours(&self, pid: i32) -> bool {
        let mut at = pid;
        // No line of descent is longer than there are processes; a look at changing ones could make a circle.
        for _ in 0..=self.processes.len() {
            match self.processes.get(&at) {
                Some(process) if process.parent == me() => return true,
                Some(process) => at = process.parent,
                None => return false,
            }
        }
        false
    }
}

/// Kills everything that this process has adopted. What an orphan has started becomes this process's child when the
/// orphan has ended, so this goes on until nothing is left.
pub(crate) fn end_orphans(deadline: &Countdown) {
    // The scan reads a file for each process of the machine; without a child it is not needed.
    while !matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
        let orphans = ProcessTree::scan().children();
        if orphans.is_empty() || deadline.is_over() {
            return;
        }
        for orphan in &orphans {
            let _ = kill_process(*orphan, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
        for orphan in orphans {
            let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
        }
    }
}

fn me() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn process(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in brackets and may contain anything; state, parent and group follow the last one.
    let mut after_name = stat[stat.rfind(')')? + 1..].split_whitespace().skip(1);
    Some(Process { parent: after_name.next()?.parse().ok()?, group: after_name.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_groups_are_found_in_the_list_of_processes() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_eq!(process(me()), Some(Process { parent, group }));
        assert_eq!(process(-1), None);
    }

    #[test]
    fn descent_is_followed_and_circles_end() {
        let tree = |list: &[(i32, i32)]| ProcessTree {
            processes: list.iter().map(|&(pid, parent)| (pid, Process { parent, group: 1 })).collect(),
        };
        let family = tree(&[(-2, me()), (-3, -2), (-4, -3), (-5, 1), (-6, -7), (-7, -6)]);
        assert!([-2, -3, -4].iter().all(|&pid| family.is_ours(pid)));
        assert!(![-5, -6, -7, -8].iter().any(|&pid| family.is_ours(pid)));
    }
}
