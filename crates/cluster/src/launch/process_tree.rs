//! Which processes descend from this one.
//!
//! The kernel may reuse the id of a process or a process group once nobody has it, so a stored id must not be
//! signalled. Processes to signal are found by their descent from this process, which is the subreaper of all it has
//! started, and are held by a pidfd from the check to the signal.

use std::collections::HashMap;
use std::time::Duration;

use farandole_transport::{Countdown, ProcessStat};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, wait, waitpid,
};

/// All processes, as they were at one moment.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    processes: HashMap<u32, ProcessStat>,
}

impl ProcessTree {
    /// Looks at all processes: there is no other way to know adopted ones.
    pub(crate) fn scan() -> ProcessTree {
        let Ok(entries) = std::fs::read_dir("/proc") else { return ProcessTree { processes: HashMap::new() } };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ProcessTree { processes: numbers.filter_map(|pid| Some((pid, ProcessStat::of(pid)?))).collect() }
    }

    /// This process's children. Their numbers are safe until they are waited for, which only this process can do.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let me = std::process::id();
        let children = self.processes.iter().filter(|(_, process)| process.parent == me);
        children.filter_map(|(pid, _)| Pid::from_raw(*pid as i32)).collect()
    }

    /// Signals those members of a process group that descend from this process. The group's number may have been given
    /// to others, who do not.
    pub(crate) fn signal_group(&self, group: Pid, signals: &[Signal]) {
        let group = group.as_raw_nonzero().get();
        let members = self.processes.iter().filter(|(pid, process)| process.group == group && self.is_ours(**pid));
        for &pid in members.map(|(pid, _)| pid) {
            let Some(held) = Pid::from_raw(pid as i32) else { continue };
            let Ok(held) = pidfd_open(held, PidfdFlags::empty()) else { continue };
            // The id may have been reused since the scan; the process that is held now must be ours as well.
            let still = ProcessStat::of(pid);
            let is_child = |now: &ProcessStat| now.parent == std::process::id() || self.is_ours(now.parent);
            if still.is_some_and(|now| now.group == group && is_child(&now)) {
                for signal in signals {
                    let _ = pidfd_send_signal(&held, *signal);
                }
            }
        }
    }

    /// Whether a process descends from this one.
    fn is_ours(&self, pid: u32) -> bool {
        let mut at = pid;
        // No line of descent is longer than there are processes; a look at changing ones could make a circle.
        for _ in 0..=self.processes.len() {
            match self.processes.get(&at) {
                Some(process) if process.parent == std::process::id() => return true,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descent_is_followed_and_circles_end() {
        // No process has such an id: the kernel's are below 2^22.
        let id = |number: u32| u32::MAX - number;
        let stat = |parent| ProcessStat { state: 'S', parent, group: 1, start_time: 0 };
        let list = [(2, std::process::id()), (3, id(2)), (4, id(3)), (5, 1), (6, id(7)), (7, id(6))];
        let tree = ProcessTree { processes: list.map(|(number, parent)| (id(number), stat(parent))).into() };
        assert!([2, 3, 4].iter().all(|&number| tree.is_ours(id(number))));
        assert!(![5, 6, 7, 8].iter().any(|&number| tree.is_ours(id(number))));
    }
}
