//! What the control groups of this process allow it: cores and memory.
//!
//! Both versions of control groups are read, also mixed. A process is in one group for each controller, named by
//! `/proc/self/cgroup`; where that group's files are is said by `/proc/self/mountinfo`. A limit binds everything below
//! it, so every group from the process's own up to the root of the mount is asked, and the least answer counts. Inside
//! a container the own path may not exist below the mount; then the mount's root is the container's group.
//!
//! All reading goes through one function from paths to texts, so that tests bring machines of their own.

use std::path::{Path, PathBuf};

/// Limits above this are the kernel's way of saying that there is none (version 1 writes the largest multiple of a
/// page).
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// What the control groups allow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Allowance {
    /// Core-seconds for each second.
    pub(crate) cores: Option<f64>,
    /// Bytes of memory.
    pub(crate) memory_bytes: Option<u64>,
    /// Bytes that are in use already, in the group that has the limit.
    pub(crate) used_bytes: Option<u64>,
}

impl Allowance {
    /// Asks this machine.
    pub(crate) fn of_this_process() -> Allowance {
        Allowance::read(|path| std::fs::read_to_string(path).ok())
    }

    /// Asks the machine whose files `read` gives.
    pub(crate) fn read(read: impl Fn(&Path) -> Option<String>) -> Allowance {
        let membership = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
        let number = |folder: &Path, file: &str| read(&folder.join(file))?.trim().parse::<u64>().ok();
        let mut allowance = Allowance::default();
        for folder in folders(&membership, &mounts, "cpu") {
            let unified = read(&folder.join("cpu.max")).and_then(|text| quota(&text));
            let cores = unified.or_else(|| {
                let text = read(&folder.join("cpu.cfs_quota_us"))? + " " + &read(&folder.join("cpu.cfs_period_us"))?;
                quota(&text)
            });
            allowance.cores = least(allowance.cores, cores);
        }
        for folder in folders(&membership, &mounts, "memory") {
            let limit = number(&folder, "memory.max").or_else(|| number(&folder, "memory.limit_in_bytes"));
            let Some(limit) = limit.filter(|&bytes| bytes < NO_LIMIT_BYTES) else { continue };
            if allowance.memory_bytes.is_none_or(|least| limit < least) {
                allowance.memory_bytes = Some(limit);
                allowance.used_bytes =
                    number(&folder, "memory.current").or_else(|| number(&folder, "memory.usage_in_bytes"));
            }
        }
        allowance
    }
}

fn least(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Cores in a text of quota and period, such as `150000 100000`; none for `max` and for -1.
fn quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    let (quota_us, period_us) = (words.next()??, words.next()??);
    (period_us > 0).then(|| quota_us as f64 / period_us as f64)
}

/// The folders of the groups that bind this process for a controller, its own first.
fn folders(membership: &str, mounts: &str, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in membership.lines() {
        // `4:memory:/path`, or `0::/path` for version 2.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        let wanted = |mount: &Mount| match unified {
            true => mount.kind == "cgroup2",
            false => mount.kind == "cgroup" && mount.options.split(',').any(|name| name == controller),
        };
        if let Some(mount) = mounts.lines().filter_map(Mount::parse).find(|mount| wanted(mount)) {
            folders.extend(mount.upwards_from(Path::new(path)));
        }
    }
    folders
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    /// The part of the file system that is mounted.
    root: &'a Path,
    /// Where.
    point: &'a Path,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (place, device) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut device = device.split(' ');
        let (root, point) = (Path::new(place.next()?), Path::new(place.next()?));
        let (kind, _source, options) = (device.next()?, device.next()?, device.next().unwrap_or(""));
        Some(Mount { root, point, kind, options })
    }

    fn upwards_from(&self, group: &Path) -> Vec<PathBuf> {
        let below = group.strip_prefix(self.root).unwrap_or(Path::new(""));
        below.ancestors().map(|part| self.point.join(part)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const SPLIT: &str = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                         32 24 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";

    fn read(files: &[(&str, &str)]) -> Allowance {
        Allowance::read(|path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let allowance = read(&[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/proc/self/mountinfo", UNIFIED),
            ("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"),
            ("/sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/a/memory.current", "4096\n"),
        ]);
        let expected = Allowance { cores: Some(1.5), memory_bytes: Some(1 << 30), used_bytes: Some(4096) };
        assert_eq!(allowance, expected);
    }

    #[test]
    fn version_one_is_read_where_a_container_sees_it() {
        let allowance = read(&[
            ("/proc/self/cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"),
            ("/proc/self/mountinfo", SPLIT),
            ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
        ]);
        assert_eq!(allowance, Allowance { cores: Some(0.5), memory_bytes: Some(512 << 20), used_bytes: Some(1) });
    }

    #[test]
    fn no_limit_is_written_in_several_ways() {
        let allowance = read(&[
            ("/proc/self/cgroup", "4:memory:/\n1:cpu,cpuacct:/\n"),
            ("/proc/self/mountinfo", SPLIT),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(allowance, Allowance::default());
        let unified = read(&[
            ("/proc/self/cgroup", "0::/\n"),
            ("/proc/self/mountinfo", UNIFIED),
            ("/sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(unified, Allowance::default());
        assert_eq!(read(&[]), Allowance::default());
    }

    #[test]
    fn garbage_is_no_limit() {
        for text in ["", "x y", "100000", "100000 0", "-5 -5"] {
            assert_eq!(quota(text), None, "{text}");
        }
        assert!(Mount::parse("not a line").is_none() && Mount::parse(" - ").is_none());
    }
}
