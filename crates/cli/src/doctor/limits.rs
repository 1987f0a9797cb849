//! The limits that the kernel puts on this process and those it starts: open files, locked memory, size of a file.
//!
//! A rank opens descriptors for every peer, so a limit that suits a shell can be too low for a large job. How many it is was
//! counted on running ranks: 10, and 6 for each rank of the host (a segment, a bell and a control line, in two meshes).

use farandole_transport::contact::suggested_connections;
use farandole_transport::shm::Layout;
use rustix::process::{Resource, Rlimit, getrlimit};

use super::finding::{Finding, Group, Planned};
use super::memory::size;

/// Descriptors of a rank that has no peers.
const OWN_DESCRIPTORS: u64 = 10;
/// Descriptors for each rank of the host, itself among them.
const LOCAL_DESCRIPTORS: u64 = 6;
/// What the program itself may open: a Python interpreter with a framework and a few data loaders stays below it.
const PROGRAM_DESCRIPTORS: u64 = 256;
/// Descriptors of the process that looks after the ranks of a host, for each: two outputs, a process and a connection.
const AGENT_DESCRIPTORS: u64 = 4;

/// The limits of this process. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) open_files: Rlimit,
    pub(crate) locked_bytes: Option<u64>,
    pub(crate) file_bytes: Option<u64>,
    /// Whether there is a network device that works on locked memory.
    pub(crate) has_infiniband: bool,
}

impl Limits {
    /// Asks the kernel.
    pub(crate) fn of_this_process() -> Limits {
        let devices = std::fs::read_dir("/sys/class/infiniband");
        Limits {
            open_files: getrlimit(Resource::Nofile),
            locked_bytes: getrlimit(Resource::Memlock).current,
            file_bytes: getrlimit(Resource::Fsize).current,
            has_infiniband: devices.is_ok_and(|mut devices| devices.next().is_some()),
        }
    }

    pub(crate) fn findings(&self, planned: Planned) -> Vec<Finding> {
        let mut findings = vec![self.descriptors(planned), self.locked()];
        findings.extend(self.file_size(planned));
        findings
    }

    fn descriptors(&self, planned: Planned) -> Finding {
        let needed = needed_descriptors(planned, suggested_connections().into());
        let soft = self.open_files.current.unwrap_or(u64::MAX);
        let hard = self.open_files.maximum.unwrap_or(u64::MAX);
        let found = match self.open_files.current {
            Some(limit) => format!("a process may open {limit}; a rank needs about {needed}"),
            None => format!("no limit; a rank needs about {needed}"),
        };
        let why = format!("Each of the {} ranks has connections to all the others.", planned.ranks);
        if soft >= needed {
            return Finding::ok(Group::Machine, "descriptors", found, why);
        }
        let fix = if hard >= needed {
            format!("`ulimit -n {needed}` before the job starts.")
        } else {
            format!(
                "the most that may be asked for here is {hard}: as root, put `* hard nofile {needed}` into \
                 /etc/security/limits.conf and log in again (Docker: `--ulimit nofile={needed}`)."
            )
        };
        Finding::problem(Group::Machine, "descriptors", found, why, fix)
    }

    fn locked(&self) -> Finding {
        let found = self.locked_bytes.map_or_else(|| "no limit".to_owned(), size);
        if self.has_infiniband && self.locked_bytes.is_some() {
            let why = "Farandole locks none, but NCCL and MPI register locked memory with this machine's InfiniBand.";
            return Finding::note(Group::Machine, "locked-memory", found, why)
                .with_fix("`ulimit -l unlimited`, or `* - memlock unlimited` in /etc/security/limits.conf.");
        }
        Finding::ok(Group::Machine, "locked-memory", found, "Farandole locks none.")
    }

    fn file_size(&self, planned: Planned) -> Option<Finding> {
        let segment = Layout::standard(planned.local_ranks.max(1)).fixed_bytes() as u64;
        let limit = self.file_bytes?;
        let found = format!("files may not grow beyond {}", size(limit));
        let why = "Shared memory counts as a file, and a tensor that ranks share needs its size there.";
        Some(if limit < segment {
            Finding::problem(Group::Machine, "file-size", found, why, "`ulimit -f unlimited` before the job starts.")
        } else {
            Finding::note(Group::Machine, "file-size", found, why).with_fix("`ulimit -f unlimited`.")
        })
    }
}

/// Descriptors that one process of the job needs at most: a rank with its program, or the one that looks after the ranks.
fn needed_descriptors(planned: Planned, connections: u64) -> u64 {
    let (ranks, local) = (planned.ranks as u64, planned.local_ranks as u64);
    let between_hosts = 2 * (1 + connections) * ranks.saturating_sub(local);
    let rank = OWN_DESCRIPTORS + LOCAL_DESCRIPTORS * local + between_hosts + PROGRAM_DESCRIPTORS;
    rank.max(OWN_DESCRIPTORS + AGENT_DESCRIPTORS * local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn limits(soft: u64, hard: u64) -> Limits {
        let open_files = Rlimit { current: Some(soft), maximum: Some(hard) };
        Limits { open_files, locked_bytes: Some(8 << 20), file_bytes: None, has_infiniband: false }
    }

    const EIGHT: Planned = Planned { ranks: 8, local_ranks: 8 };

    #[test]
    fn descriptors_grow_with_peers_here_and_elsewhere() {
        assert_eq!(needed_descriptors(EIGHT, 1) - PROGRAM_DESCRIPTORS, 58);
        assert_eq!(needed_descriptors(Planned { ranks: 16, local_ranks: 8 }, 1) - PROGRAM_DESCRIPTORS, 58 + 8 * 4);
    }

    #[test]
    fn too_few_descriptors_are_a_problem_whose_fix_can_be_typed() {
        let needed = needed_descriptors(EIGHT, suggested_connections().into());
        assert_eq!(limits(needed, needed).descriptors(EIGHT).state, State::Ok);
        let soft = limits(needed - 1, needed).descriptors(EIGHT);
        assert_eq!(soft.state, State::Problem);
        assert!(soft.fix.unwrap().contains(&format!("`ulimit -n {needed}`")));
        let hard = limits(64, 128).descriptors(EIGHT);
        assert!(hard.fix.unwrap().contains("limits.conf"));
        let none = Limits { open_files: Rlimit { current: None, maximum: None }, ..limits(0, 0) };
        assert_eq!(none.descriptors(EIGHT).state, State::Ok);
    }

    #[test]
    fn locked_memory_matters_where_a_device_wants_it() {
        assert_eq!(limits(1, 1).locked().state, State::Ok);
        assert_eq!(Limits { has_infiniband: true, ..limits(1, 1) }.locked().state, State::Note);
    }

    #[test]
    fn a_limit_on_files_is_a_limit_on_shared_memory() {
        assert_eq!(limits(1, 1).file_size(EIGHT), None);
        let tight = Limits { file_bytes: Some(1 << 20), ..limits(1, 1) };
        assert_eq!(tight.file_size(EIGHT).unwrap().state, State::Problem);
        let wide = Limits { file_bytes: Some(1 << 40), ..limits(1, 1) };
        assert_eq!(wide.file_size(EIGHT).unwrap().state, State::Note);
    }
}
