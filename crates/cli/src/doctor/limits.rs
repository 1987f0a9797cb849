//! The limits that the kernel puts on this process and those it starts: open files, locked memory, size of a file.
//!
//! A rank opens descriptors for every peer, so a limit that suits a shell can be too low for a large job. How many it
//! is was counted on running ranks: 10, and those of a mesh (`farandole_transport::descriptors`) twice for the world
//! and once for each process set. Ranks raise their soft limit themselves; what they cannot pass is the hard limit.

use farandole_transport::contact::suggested_connections;
use farandole_transport::descriptors::of_mesh;
use farandole_transport::shm::Layout;
use rustix::process::{Resource, Rlimit, getrlimit};

use super::finding::{Finding, Group, Planned};
use super::memory::size;

/// Descriptors of a rank that has no peers.
const OWN_DESCRIPTORS: u64 = 10;
/// Meshes of the world: one for named requests, one for direct calls.
const WORLD_MESHES: u64 = 2;
/// So many process sets of all ranks should find room: data, tensor, pipeline and expert parallelism, and evaluation.
const LIKELY_SETS: u64 = 5;
/// What the program itself may open: a Python interpreter with a framework and a few data loaders stays below it.
const PROGRAM_DESCRIPTORS: u64 = 256;
/// Descriptors of the process that looks after the ranks of a host, for each: two outputs, a process and a connection.
const AGENT_DESCRIPTORS: u64 = 4;

/// The limits of this process. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    pub(crate) open_files: Rlimit,
    pub(crate) locked_bytes: Option<u64>,
    pub(crate) file_bytes: Option<u64>,
    /// Whether there is a network device that works on locked memory.
    pub(crate) has_infiniband: bool,
}

impl ResourceLimits {
    /// Asks the kernel.
    pub(crate) fn of_this_process() -> ResourceLimits {
        let devices = std::fs::read_dir("/sys/class/infiniband");
        ResourceLimits {
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
        let connections = suggested_connections();
        let (needed, per_set) = (needed_descriptors(planned, connections, 0), mesh_descriptors(planned, connections));
        let hard = self.open_files.maximum.unwrap_or(u64::MAX);
        let may = match (self.open_files.current, self.open_files.maximum) {
            (None, _) => "no limit".to_owned(),
            (Some(soft), Some(hard)) if soft < hard => format!("a process may open {soft}, and raise that to {hard}"),
            (Some(soft), Some(_)) => format!("a process may open {soft}"),
            (Some(soft), None) => format!("a process may open {soft}, and raise that without limit"),
        };
        let found = format!("{may}; a rank needs about {needed}, and {per_set} more for each process set of all ranks");
        let why = format!(
            "Each of the {} ranks has connections to all the others. Ranks raise the limit themselves as far as it may \
             be raised.",
            planned.ranks
        );
        let likely = needed_descriptors(planned, connections, LIKELY_SETS);
        let fix = format!(
            "as root, put `* hard nofile {likely}` into /etc/security/limits.conf and log in again (Docker: \
             `--ulimit nofile={likely}`)."
        );
        if hard < needed {
            return Finding::problem(Group::Machine, "descriptors", found, why, fix);
        }
        if hard < likely {
            let sets = (hard - needed) / per_set.max(1);
            let found = format!("{found}; there is room for {sets} of those");
            return Finding::note(Group::Machine, "descriptors", found, why).with_fix(fix);
        }
        Finding::ok(Group::Machine, "descriptors", found, why)
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

/// Descriptors that one process of the job needs at most: a rank with its program, or the one that looks after the
/// ranks.
fn needed_descriptors(planned: Planned, connections: u16, sets: u64) -> u64 {
    let meshes = (WORLD_MESHES + sets) * mesh_descriptors(planned, connections);
    let rank = OWN_DESCRIPTORS + meshes + PROGRAM_DESCRIPTORS;
    rank.max(OWN_DESCRIPTORS + AGENT_DESCRIPTORS * planned.local_ranks as u64)
}

/// Descriptors of a rank for one mesh of all ranks.
fn mesh_descriptors(planned: Planned, connections: u16) -> u64 {
    of_mesh(planned.local_ranks, planned.ranks.saturating_sub(planned.local_ranks), connections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn limits(soft: u64, hard: u64) -> ResourceLimits {
        let open_files = Rlimit { current: Some(soft), maximum: Some(hard) };
        ResourceLimits { open_files, locked_bytes: Some(8 << 20), file_bytes: None, has_infiniband: false }
    }

    const EIGHT: Planned = Planned { ranks: 8, local_ranks: 8 };

    #[test]
    fn descriptors_grow_with_peers_here_and_elsewhere() {
        assert_eq!(needed_descriptors(EIGHT, 1, 0) - PROGRAM_DESCRIPTORS, 58);
        assert_eq!(needed_descriptors(Planned { ranks: 16, local_ranks: 8 }, 1, 0) - PROGRAM_DESCRIPTORS, 58 + 8 * 4);
    }

    #[test]
    fn process_sets_count() {
        let many = Planned { ranks: 64, local_ranks: 64 };
        assert_eq!(needed_descriptors(many, 1, 5) - PROGRAM_DESCRIPTORS, 10 + 7 * 3 * 64);
        let (needed, likely) = (needed_descriptors(many, 1, 0), needed_descriptors(many, 1, LIKELY_SETS));
        assert_eq!(limits(1024, likely).descriptors(many).state, State::Ok);
        let tight = limits(1024, needed + 2 * 192 + 1).descriptors(many);
        assert_eq!(tight.state, State::Note);
        assert!(
            tight.found.contains("192 more for each process set") && tight.found.contains("room for 2"),
            "{}",
            tight.found
        );
        assert!(tight.fix.unwrap().contains(&format!("hard nofile {likely}")));
    }

    #[test]
    fn too_few_descriptors_are_a_problem_whose_fix_can_be_typed() {
        let enough = needed_descriptors(EIGHT, suggested_connections(), LIKELY_SETS);
        assert_eq!(limits(enough, enough).descriptors(EIGHT).state, State::Ok);
        assert_eq!(limits(64, enough).descriptors(EIGHT).state, State::Ok, "ranks raise a soft limit themselves");
        let hard = limits(64, 128).descriptors(EIGHT);
        assert_eq!(hard.state, State::Problem);
        assert!(hard.fix.unwrap().contains("limits.conf"));
        let none = ResourceLimits { open_files: Rlimit { current: None, maximum: None }, ..limits(0, 0) };
        assert_eq!(none.descriptors(EIGHT).state, State::Ok);
    }

    #[test]
    fn locked_memory_matters_where_a_device_wants_it() {
        assert_eq!(limits(1, 1).locked().state, State::Ok);
        assert_eq!(ResourceLimits { has_infiniband: true, ..limits(1, 1) }.locked().state, State::Note);
    }

    #[test]
    fn a_limit_on_files_is_a_limit_on_shared_memory() {
        assert_eq!(limits(1, 1).file_size(EIGHT), None);
        let tight = ResourceLimits { file_bytes: Some(1 << 20), ..limits(1, 1) };
        assert_eq!(tight.file_size(EIGHT).unwrap().state, State::Problem);
        let wide = ResourceLimits { file_bytes: Some(1 << 40), ..limits(1, 1) };
        assert_eq!(wide.file_size(EIGHT).unwrap().state, State::Note);
    }
}
