//! How much memory is left, for the message that says there is not enough.
//!
//! Three things limit shared memory: the host's memory, the control group of the job, and the kernel's limit of
//! commitments where `vm.overcommit_memory` is 2. Each is read when a reservation has failed, and only then. What
//! cannot be read is left out; nothing here fails.

use std::path::Path;

/// What is left of everything that limits shared memory, in words.
pub(super) fn available() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let meminfo = read("/proc/meminfo");
    let mut left = Vec::new();
    if let Some(bytes) = meminfo_bytes(&meminfo, "MemAvailable") {
        left.push(format!("{} on this host", megabytes(bytes)));
    }
    if read("/proc/sys/vm/overcommit_memory").trim() == "2"
        && let (Some(limit), Some(used)) =
            (meminfo_bytes(&meminfo, "CommitLimit"), meminfo_bytes(&meminfo, "Committed_AS"))
    {
        left.push(format!("{} by its commit limit (vm.overcommit_memory=2)", megabytes(limit.saturating_sub(used))));
    }
    if let Some(bytes) = left_in_control_group(&read("/proc/self/cgroup")) {
        left.push(format!("{} in the control group of this process", megabytes(bytes)));
    }
    if left.is_empty() { "how much is left is not known".to_owned() } else { format!("left: {}", left.join(", ")) }
}

/// Bytes as they are told to users.
pub(super) fn megabytes(bytes: u64) -> String {
    if bytes < 10_000_000 { format!("{} kB", bytes / 1000) } else { format!("{} MB", bytes / 1_000_000) }
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least that is left in the control group (version 2) of this process or one around it.
fn left_in_control_group(own: &str) -> Option<u64> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).ok()?.trim().parse::<u64>().ok();
    let root = Path::new("/sys/fs/cgroup");
    let groups = Path::new(group).ancestors().map(|group| root.join(group));
    groups.filter_map(|path| Some(number(&path, "memory.max")?.saturating_sub(number(&path, "memory.current")?))).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_read_and_said_in_words() {
        let meminfo = "MemTotal:       16 kB\nMemAvailable:    5000000 kB\nCommitLimit: x kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemAvailable"), Some(5_120_000_000));
        assert_eq!(meminfo_bytes(meminfo, "MemAvail"), None);
        assert_eq!(meminfo_bytes(meminfo, "CommitLimit"), None);
        assert_eq!((megabytes(5_120_000_000), megabytes(135_168)), ("5120 MB".to_owned(), "135 kB".to_owned()));
        assert!(available().contains("on this host"), "{}", available());
    }
}
