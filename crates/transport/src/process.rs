//! What the kernel says about a process or a thread: `/proc/PID/stat`.

use std::path::Path;

/// The fields of `/proc/PID/stat` that somebody here reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// The letter of its state: `R` runs, `S` sleeps, `D` waits for a disk, `T` and `t` are stopped, `Z` has ended.
    pub state: char,
    /// The process id of its parent.
    pub parent: u32,
    /// The id of its process group; -1 while it is being reaped.
    pub group: i32,
    /// When it started, in clock ticks after boot. With the process id it names a process for good.
    pub start_time: u64,
}

impl ProcessStat {
    /// The process of this id; `None` if there is none.
    pub fn of(pid: u32) -> Option<ProcessStat> {
        ProcessStat::read(format!("/proc/{pid}/stat"))
    }

    /// This process.
    pub fn own() -> Option<ProcessStat> {
        ProcessStat::read("/proc/self/stat")
    }

    /// The main thread of this process.
    pub fn of_main_thread() -> Option<ProcessStat> {
        ProcessStat::read(format!("/proc/self/task/{}/stat", std::process::id()))
    }

    /// Whether the process can still do something.
    pub(crate) fn process_state(&self) -> ProcessState {
        match self.state {
            'T' | 't' => ProcessState::Stopped,
            'Z' | 'X' => ProcessState::Gone,
            _ => ProcessState::Alive,
        }
    }

    fn read(path: impl AsRef<Path>) -> Option<ProcessStat> {
        // The name of a command need not be UTF-8.
        ProcessStat::parse(&String::from_utf8_lossy(&std::fs::read(path).ok()?))
    }

    /// The name of the command stands in parentheses and may hold anything, so the fields begin after the last one.
    fn parse(text: &str) -> Option<ProcessStat> {
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // Start time is field 22 of proc_pid_stat(5); state, parent and group are 3 to 5.
        Some(ProcessStat { state, parent, group, start_time: fields.nth(16)?.parse().ok()? })
    }
}

/// Whether a process can still do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or would if something came.
    Alive,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// There is no such process, or only what its parent has not yet waited for.
    Gone,
}

impl ProcessState {
    /// The state of a process of this host.
    pub fn of(pid: u32) -> ProcessState {
        ProcessStat::of(pid).map_or(ProcessState::Gone, |stat| stat.process_state())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_command_is_called() {
        let tail = "S 7 8 8 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1000 10 18446744073709551615";
        let expected = ProcessStat { state: 'S', parent: 7, group: 8, start_time: 4711 };
        for name in ["sh", "a b", "x) R 1 1 (", ")"] {
            assert_eq!(ProcessStat::parse(&format!("9 ({name}) {tail}")), Some(expected), "{name}");
        }
        for cut in ["", "9 (sh", "9 (sh) S 7", "9 (sh) S x 8"] {
            assert_eq!(ProcessStat::parse(cut), None, "{cut}");
        }
    }

    #[test]
    fn this_process_is_alive_and_has_its_parent_and_group() {
        let stat = ProcessStat::of(std::process::id()).unwrap();
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32;
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_eq!((stat.parent, stat.group), (parent, group));
        assert_eq!(ProcessStat::of_main_thread().unwrap().start_time, stat.start_time);
        assert_eq!(ProcessState::of(std::process::id()), ProcessState::Alive);
        assert_eq!(ProcessState::of(u32::MAX), ProcessState::Gone);
    }

    #[test]
    fn a_process_is_seen_stopped_and_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, handle) = (child.id(), rustix::process::Pid::from_child(&child));
        rustix::process::kill_process(handle, rustix::process::Signal::STOP).unwrap();
        let is_stopped = || ProcessState::of(pid) == ProcessState::Stopped;
        farandole_testing::wait_until("a process that is stopped", farandole_testing::NEVER, is_stopped);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ProcessState::of(pid), ProcessState::Gone);
    }
}
