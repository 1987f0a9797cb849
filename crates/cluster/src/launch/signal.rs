//! Signals: hearing them in a loop, and naming them for people.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::error::{Error, Result};

/// Asked for by a parent when a child changes.
pub(crate) const SIGCHLD: i32 = 17;
/// What a terminal sends when it is closed, on Ctrl-C and on Ctrl-\, and what asks a process to end.
pub(crate) const ENDING: [i32; 4] = [1, 2, 3, 15];
/// What some programs write a checkpoint on; passed on, and nothing else.
pub(crate) const FOR_RANKS: [i32; 2] = [10, 12];

/// Signals that this process hears instead of dying of them. Each wakes a poll loop through a descriptor.
#[derive(Debug)]
pub(crate) struct Signals {
    heard: Vec<(i32, UnixStream)>,
}

impl Signals {
    /// From now on these signals are heard.
    pub(crate) fn hear(signals: &[i32]) -> Result<Signals> {
        let hear = |&signal: &i32| {
            let (ours, handlers) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal, handlers)?;
            Ok((signal, ours))
        };
        let heard = signals.iter().map(hear).collect::<std::io::Result<_>>();
        Ok(Signals { heard: heard.map_err(|error| Error::local("asking to hear signals", error))? })
    }

    /// What to poll for reading.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.heard.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// Signals that came since the last time; several of one kind count once.
    pub(crate) fn take(&mut self) -> Vec<i32> {
        let mut bytes = [0; 64];
        let mut came = Vec::new();
        for (signal, pipe) in &mut self.heard {
            if matches!(pipe.read(&mut bytes), Ok(1..)) {
                came.push(*signal);
                while matches!(pipe.read(&mut bytes), Ok(1..)) {}
            }
        }
        came
    }
}

/// `signal 9 (SIGKILL)`; only the number where there is no name.
pub(super) fn name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        18 => "SIGCONT",
        19 => "SIGSTOP",
        20 => "SIGTSTP",
        21 => "SIGTTIN",
        22 => "SIGTTOU",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}

/// What a person should know about a signal that ends processes, if there is something to know.
pub(super) fn hint(signal: i32) -> Option<&'static str> {
    match signal {
        9 => Some(
            "nobody in this job sent it: the kernel does when memory runs out (dmesg says so), as do batch systems",
        ),
        7 => Some("memory that could not be had behind a mapping, often a full /dev/shm"),
        4 => Some("the program was built for another processor"),
        24 => Some("it used up its limit of processor time (ulimit -t)"),
        25 => Some("it wrote beyond its limit of file size (ulimit -f)"),
        _ => None,
    }
}
