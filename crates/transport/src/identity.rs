//! The identity of a process: [`ProcessId`].
//!
//! A pid alone identifies no process: containers of one machine give out the same pids, and the kernel reuses them. The
//! identity is the pid, the PID namespace in which that pid is valid, and the start time of the process. It identifies
//! a process among all processes of one machine since boot; a [`crate::Contact`] adds the host, which includes the boot
//! id. It travels as
//!
//! ```text
//! u32 pid · u64 inode of the PID namespace · u64 start time in clock ticks after boot
//! ```
//!
//! Invariant: two identities are equal, or a pid is used to look a process up, only if the namespace and the start time
//! are known. Without `/proc` both are zero; such a process is identical to none, itself included.
//!
//! Not here: which host a process is on (`contact`), and who is at the other end of a socket (`credentials`).

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::{ProcessStat, ProcessState};

/// Bytes of an encoded [`ProcessId`].
pub const PROCESS_ID_BYTES: usize = 20;

/// Identifies a process of this machine. Equal identities with an unknown namespace prove nothing: [`ProcessId::is`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId {
    /// Its pid in its own PID namespace.
    pub pid: u32,
    /// Inode of that PID namespace; zero if unknown.
    pub namespace: u64,
    /// Its start time in clock ticks after boot; zero if unknown.
    pub start_time: u64,
}

impl ProcessId {
    /// The identity of this process. Reads `/proc` at each call: after `fork`, the child has another identity.
    pub fn own() -> ProcessId {
        ProcessId::with(std::process::id(), ProcessStat::own())
    }

    /// The identity of the process that has this pid in the PID namespace of this process.
    pub fn of(pid: u32) -> ProcessId {
        ProcessId::with(pid, ProcessStat::of(pid))
    }

    fn with(pid: u32, stat: Option<ProcessStat>) -> ProcessId {
        let namespace = std::fs::metadata("/proc/self/ns/pid").map(|namespace| namespace.ino());
        match (namespace, stat) {
            (Ok(namespace), Some(stat)) => ProcessId { pid, namespace, start_time: stat.start_time },
            _ => ProcessId { pid, namespace: 0, start_time: 0 },
        }
    }

    /// Whether both are known to be the same process.
    pub fn is(&self, other: &ProcessId) -> bool {
        self.namespace != 0 && self == other
    }

    /// The pid by which process `viewer` of the same machine finds this process; `None` in another PID namespace.
    pub fn pid_seen_by(&self, viewer: &ProcessId) -> Option<u32> {
        (self.namespace != 0 && self.namespace == viewer.namespace).then_some(self.pid)
    }

    /// The state of this process, as far as this process can see it; `None` in another PID namespace.
    pub fn state(&self) -> Option<ProcessState> {
        let pid = self.pid_seen_by(&ProcessId::own())?;
        Some(match ProcessStat::of(pid) {
            Some(stat) if stat.start_time == self.start_time => stat.process_state(),
            // The pid is unused, or the kernel has given it to a later process.
            _ => ProcessState::Gone,
        })
    }

    /// A pidfd of this process; `None` if it has exited, or is in another PID namespace.
    pub fn pidfd(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid_seen_by(&ProcessId::own())?).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The kernel does not reuse the pid of a process that a pidfd refers to before it is reaped: the start time
        // read after opening is that of the process behind the pidfd, or of a later one, which differs.
        (ProcessStat::of(self.pid)?.start_time == self.start_time).then_some(pidfd)
    }

    /// A part of a file name or socket name that no other process of this machine has.
    pub fn unique_name(&self) -> String {
        let ProcessId { pid, namespace, start_time } = self;
        format!("{pid}-{namespace}-{start_time}")
    }

    /// The identity as it travels.
    pub fn encode(&self) -> [u8; PROCESS_ID_BYTES] {
        let mut bytes = [0; PROCESS_ID_BYTES];
        bytes[..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.namespace.to_le_bytes());
        bytes[12..].copy_from_slice(&self.start_time.to_le_bytes());
        bytes
    }

    /// The identity that these bytes encode; `None` if no process can have it.
    pub fn decode(bytes: &[u8; PROCESS_ID_BYTES]) -> Option<ProcessId> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let pid = u32::from_le_bytes(std::array::from_fn(|index| bytes[index]));
        let (namespace, start_time) = (word(4), word(12));
        let is_pid = i32::try_from(pid).is_ok_and(|pid| pid > 0);
        // The init process of a machine may have started at tick zero; the converse cannot occur.
        let is_consistent = namespace != 0 || start_time == 0;
        (is_pid && is_consistent).then_some(ProcessId { pid, namespace, start_time })
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.pid)?;
        if self.namespace != 0 && self.namespace != ProcessId::own().namespace {
            write!(f, " of PID namespace {}", self.namespace)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn child() -> (Child, ProcessId) {
        // It ends when its standard input is closed, at the latest with this process.
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let start_time = ProcessStat::of(child.id()).unwrap().start_time;
        let id = ProcessId { pid: child.id(), start_time, ..ProcessId::own() };
        (child, id)
    }

    #[test]
    fn equal_pids_of_different_namespaces_or_start_times_are_different_processes() {
        let own = ProcessId::own();
        assert!(own.is(&own) && own.namespace != 0 && own.start_time != 0);
        assert!(!own.is(&ProcessId { namespace: own.namespace + 1, ..own }));
        assert!(!own.is(&ProcessId { start_time: own.start_time + 1, ..own }));
        assert_ne!(own.unique_name(), ProcessId { namespace: own.namespace + 1, ..own }.unique_name());
        assert_eq!(own.pid_seen_by(&own), Some(std::process::id()));
        assert_eq!(own.pid_seen_by(&ProcessId { namespace: own.namespace + 1, ..own }), None);
    }

    #[test]
    fn a_process_without_a_known_namespace_is_identical_to_none() {
        let unknown = ProcessId { pid: std::process::id(), namespace: 0, start_time: 0 };
        assert!(!unknown.is(&unknown));
        assert_eq!((unknown.pid_seen_by(&unknown), unknown.state()), (None, None));
        assert!(unknown.pidfd().is_none());
    }

    #[test]
    fn a_reused_pid_is_not_the_earlier_process() {
        let (mut child, id) = child();
        assert_eq!(id.state(), Some(ProcessState::Alive));
        let earlier = ProcessId { start_time: id.start_time - 1, ..id };
        assert_eq!(earlier.state(), Some(ProcessState::Gone));
        let elsewhere = ProcessId { namespace: id.namespace + 1, ..id };
        assert!(elsewhere.state().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(id.state(), Some(ProcessState::Gone));
    }

    #[test]
    fn a_pidfd_is_not_that_of_a_later_process_with_the_pid() {
        let (mut child, id) = child();
        assert!(id.pidfd().is_some());
        assert!(ProcessId { start_time: id.start_time - 1, ..id }.pidfd().is_none());
        assert!(ProcessId { namespace: id.namespace + 1, ..id }.pidfd().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(id.pidfd().is_none());
    }

    #[test]
    fn decoding_refuses_identities_that_no_process_has() {
        let own = ProcessId::own();
        assert_eq!(ProcessId::decode(&own.encode()), Some(own));
        for wrong in [ProcessId { pid: 0, ..own }, ProcessId { pid: 1 << 31, ..own }, ProcessId { namespace: 0, ..own }]
        {
            assert_eq!(ProcessId::decode(&wrong.encode()), None, "{wrong:?}");
        }
    }
}
