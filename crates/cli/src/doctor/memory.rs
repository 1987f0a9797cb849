//! Memory: how much there is, and whether ranks of this host can share some.
//!
//! Ranks share memory through memfds, which no mount of `/dev/shm` bounds; what they take counts as memory of the
//! control group. That they work is not concluded but tried: the engine's own segment is made and written to.

use farandole_transport::shm::{Layout, Segment};

use super::cgroup::Allowance;
use super::finding::{Finding, Group, Planned};

/// Docker's default for `/dev/shm` is 64 MiB, at which data loaders and NCCL are known to fail; with less than a few
/// times that it is worth a word.
const SMALL_SHM_BYTES: u64 = 256 << 20;

/// Each rank has two meshes: one for direct collectives, one for named requests.
const MESHES: u64 = 2;

/// The memory of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) total_bytes: u64,
    pub(crate) available_bytes: u64,
    pub(crate) allowance: Allowance,
    /// Size and free space of `/dev/shm`, if it is there.
    pub(crate) shm: Option<(u64, u64)>,
    /// Whether a segment of shared memory can be made and written to; otherwise what the kernel said.
    pub(crate) shared: Result<(), String>,
}

impl Memory {
    /// Asks the kernel, and tries.
    pub(crate) fn of_this_machine(allowance: Allowance) -> Memory {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let shm = rustix::fs::statvfs("/dev/shm").ok();
        Memory {
            total_bytes: line_bytes(&meminfo, "MemTotal").unwrap_or(0),
            available_bytes: line_bytes(&meminfo, "MemAvailable").unwrap_or(0),
            allowance,
            shm: shm.map(|stat| (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)),
            shared: try_sharing(),
        }
    }

    /// What this process and its like can still have.
    pub(crate) fn obtainable_bytes(&self) -> u64 {
        let Allowance { memory_bytes, used_bytes, .. } = self.allowance;
        let granted = memory_bytes.map_or(u64::MAX, |limit| limit.saturating_sub(used_bytes.unwrap_or(0)));
        self.available_bytes.min(granted)
    }

    pub(crate) fn findings(&self, planned: Planned, fusion_bytes: u64) -> Vec<Finding> {
        vec![self.amount(planned, fusion_bytes), self.sharing(planned), self.dev_shm()]
    }

    fn amount(&self, planned: Planned, fusion_bytes: u64) -> Finding {
        let wanted = needed_bytes(planned, fusion_bytes);
        let mut found = format!("{} free of {}", size(self.obtainable_bytes()), size(self.total_bytes));
        if let Some(limit) = self.allowance.memory_bytes {
            found += &format!(" (the control group allows {})", size(limit));
        }
        let why = format!(
            "Farandole's own buffers for {} ranks take up to {}; the model and its data come on top.",
            planned.local_ranks,
            size(wanted)
        );
        let fix = "start fewer ranks, lower `FARANDOLE_FUSION_THRESHOLD` (bytes), or raise the container's limit \
                   (Docker: `--memory`).";
        match self.obtainable_bytes() {
            enough if enough >= wanted => Finding::ok(Group::Machine, "memory", found, why),
            little if little >= least_bytes(planned) => {
                Finding::note(Group::Machine, "memory", found, why).with_fix(fix)
            }
            _ => Finding::problem(Group::Machine, "memory", found, why, fix),
        }
    }

    fn sharing(&self, planned: Planned) -> Finding {
        match &self.shared {
            Ok(()) => Finding::ok(
                Group::Machine,
                "shared-memory",
                "memfd works; nothing has to be cleaned up after a crash",
                "Ranks of one host exchange data through it.",
            ),
            Err(problem) => {
                let why = "Ranks of one host exchange data through shared memory from memfd_create.";
                let fix = "lift a limit on the size of files (`ulimit -f unlimited`), or allow memfd_create in the \
                           container's seccomp profile.";
                match planned.local_ranks {
                    0 | 1 => Finding::note(Group::Machine, "shared-memory", problem, why).with_fix(fix),
                    _ => Finding::problem(Group::Machine, "shared-memory", problem, why, fix),
                }
            }
        }
    }

    fn dev_shm(&self) -> Finding {
        let why = "Farandole does not use it, but PyTorch's data loaders and NCCL do.";
        match self.shm {
            Some((total, free)) if total >= SMALL_SHM_BYTES => {
                Finding::ok(Group::Machine, "dev-shm", format!("{} free of {}", size(free), size(total)), why)
            }
            Some((total, _)) => Finding::note(Group::Machine, "dev-shm", format!("only {}", size(total)), why)
                .with_fix("Docker: `--shm-size=1g`; elsewhere, as root: `mount -o remount,size=1g /dev/shm`."),
            None => Finding::note(Group::Machine, "dev-shm", "not there", why)
                .with_fix("as root: `mount -t tmpfs tmpfs /dev/shm`."),
        }
    }
}

/// Bytes that the engines of all ranks of this host use at most: the meshes' segments, and a fusion buffer each.
fn needed_bytes(planned: Planned, fusion_bytes: u64) -> u64 {
    let segment = Layout::standard(planned.local_ranks.max(1)).fixed_bytes() as u64;
    planned.local_ranks as u64 * (MESHES * segment + fusion_bytes)
}

/// Bytes without which no rank of this host gets anywhere: the slots of one mesh each. Other pages cost memory only
/// when they are touched, and most jobs do not touch them all.
fn least_bytes(planned: Planned) -> u64 {
    planned.local_ranks as u64 * Layout::standard(1).fixed_bytes() as u64
}

fn try_sharing() -> Result<(), String> {
    let bytes = Layout::standard(1).fixed_bytes();
    // The kernel kills a process that makes a file larger than it may be, instead of telling it.
    if rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some_and(|limit| limit < bytes as u64) {
        return Err("not tried: the limit on the size of files is too low for it".to_owned());
    }
    let segment = Segment::create(bytes).map_err(|error| error.to_string())?;
    match rustix::io::pwrite(segment.fd(), b"farandole", 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("shared memory can be made but not written to: {error}")),
    }
}

/// The value of a line such as `MemTotal:  16 kB`.
fn line_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// A number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let step = (0..units.len()).rfind(|&step| bytes >> (10 * step) > 0).unwrap_or(0);
    let value = bytes as f64 / (1u64 << (10 * step)) as f64;
    let decimals = usize::from(step > 0 && value < 10.0);
    format!("{value:.decimals$} {}", units[step])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    const TWO: Planned = Planned { ranks: 2, local_ranks: 2 };

    fn memory(available_bytes: u64) -> Memory {
        let shm = Some((1 << 30, 1 << 30));
        Memory { total_bytes: 16 << 30, available_bytes, allowance: Allowance::default(), shm, shared: Ok(()) }
    }

    #[test]
    fn the_control_group_counts_where_it_is_tighter_than_the_machine() {
        let allowance = Allowance { memory_bytes: Some(1 << 30), used_bytes: Some(1 << 29), cores: None };
        let tight = Memory { allowance, ..memory(8 << 30) };
        assert_eq!(tight.obtainable_bytes(), 1 << 29);
        assert!(tight.amount(TWO, 64 << 20).found.contains("allows 1.0 GiB"));
    }

    #[test]
    fn little_memory_is_noted_and_too_little_is_a_problem_with_a_fix() {
        assert_eq!(memory(8 << 30).amount(TWO, 64 << 20).state, State::Ok);
        assert_eq!(memory(100 << 20).amount(TWO, 64 << 20).state, State::Note);
        let short = memory(least_bytes(TWO) - 1).amount(TWO, 64 << 20);
        assert_eq!(short.state, State::Problem);
        assert!(short.fix.unwrap().contains("FARANDOLE_FUSION_THRESHOLD"));
    }

    #[test]
    fn a_container_with_dockers_default_hears_of_it() {
        let docker = Memory { shm: Some((64 << 20, 64 << 20)), ..memory(8 << 30) }.dev_shm();
        assert_eq!((docker.state, docker.found.as_str()), (State::Note, "only 64 MiB"));
        assert!(docker.fix.unwrap().contains("--shm-size"));
        assert_eq!(Memory { shm: None, ..memory(8 << 30) }.dev_shm().state, State::Note);
    }

    #[test]
    fn without_memfd_several_ranks_cannot_share_and_one_need_not() {
        let broken = Memory { shared: Err("no memfd".into()), ..memory(8 << 30) };
        assert_eq!(broken.sharing(TWO).state, State::Problem);
        assert_eq!(broken.sharing(Planned { ranks: 4, local_ranks: 1 }).state, State::Note);
    }

    #[test]
    fn this_machine_can_share_memory() {
        assert_eq!(try_sharing(), Ok(()));
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(line_bytes("MemTotal:       16 kB\nMemFree: 1 kB\n", "MemTotal"), Some(16 << 10));
        assert_eq!(line_bytes("MemTotalled: 1 kB", "MemTotal"), None);
    }
}
