//! What the kernel lets processes of this host see of each other: PID namespace, pidfds, reading of memory.
//!
//! Each of these has an alternative that ranks take by themselves, so none is a problem.

use std::path::Path;

use farandole_transport::ProcessId;
use farandole_transport::credentials::has_peer_pidfd;

use super::finding::{Finding, Group};

/// Inode of the first PID namespace of a machine (`PROC_PID_INIT_INO` of the kernel).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// What this process may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// Inode of the PID namespace; zero without `/proc`.
    pub(crate) pid_namespace: u64,
    /// Whether sockets give pidfds of their peers.
    pub(crate) has_peer_pidfd: bool,
    /// Yama's `ptrace_scope`; `None` without Yama.
    pub(crate) ptrace_scope: Option<u8>,
}

impl Namespaces {
    /// Asks the kernel.
    pub(crate) fn of_this_process() -> Namespaces {
        let scope = std::fs::read_to_string(Path::new("/proc/sys/kernel/yama/ptrace_scope"));
        Namespaces {
            pid_namespace: ProcessId::own().namespace,
            has_peer_pidfd: has_peer_pidfd(),
            ptrace_scope: scope.ok().and_then(|scope| scope.trim().parse().ok()),
        }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        vec![self.pid_namespace(), self.pidfd(), self.memory_reads()]
    }

    fn pid_namespace(&self) -> Finding {
        let key = "pid-namespace";
        let why = "Ranks of one host that are in different PID namespaces do not read each other's memory directly: \
                   long direct calls copy through shared memory, and tensors on GPUs go by NCCL or through host \
                   memory, unless FARANDOLE_PLANE is `own`.";
        match self.pid_namespace {
            0 => Finding::note(Group::Machine, key, "unknown: /proc is not readable", why)
                .with_fix("as root: `mount -t proc proc /proc`."),
            FIRST_PID_NAMESPACE => Finding::ok(Group::Machine, key, "that of the machine", why),
            _ => Finding::note(Group::Machine, key, "private to this container", why)
                .with_fix("run all ranks of a host in one container, or share the namespace (Docker: `--pid=host`)."),
        }
    }

    fn pidfd(&self) -> Finding {
        let (key, why) = (
            "peer-pidfd",
            "With it, the exit of a member of an elastic job is certain at once, also across PID namespaces.",
        );
        match self.has_peer_pidfd {
            true => Finding::ok(Group::Machine, key, "supported (SO_PEERPIDFD)", why),
            false => Finding::note(Group::Machine, key, "not supported: it needs Linux 6.5 or later", why),
        }
    }

    fn memory_reads(&self) -> Finding {
        let (key, why) = (
            "memory-reads",
            "Where ranks may read each other's memory (process_vm_readv), long direct calls copy once and not twice.",
        );
        match self.ptrace_scope {
            None | Some(0) => Finding::ok(Group::Machine, key, "not restricted by ptrace_scope", why),
            Some(scope) => {
                Finding::note(Group::Machine, key, format!("restricted: kernel.yama.ptrace_scope is {scope}"), why)
                    .with_fix("as root: `sysctl kernel.yama.ptrace_scope=0`.")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn each_limit_is_one_note_and_none_is_a_problem() {
        let free = Namespaces { pid_namespace: FIRST_PID_NAMESPACE, has_peer_pidfd: true, ptrace_scope: Some(0) };
        assert!(free.findings().iter().all(|finding| finding.state == State::Ok));
        let limited = Namespaces { pid_namespace: 4_026_532_000, has_peer_pidfd: false, ptrace_scope: Some(1) };
        let findings = limited.findings();
        assert!(findings.iter().all(|finding| finding.state == State::Note));
        assert!(findings[0].found.contains("private") && findings[1].found.contains("6.5"));
        assert!(findings[2].found.contains("ptrace_scope is 1"));
        assert!(Namespaces { pid_namespace: 0, ..free }.pid_namespace().found.contains("unknown"));
    }
}
