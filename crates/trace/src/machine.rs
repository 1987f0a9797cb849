//! What of its machine a rank may use, for the header of its trace: cores, and threads for arithmetic.
//!
//! Ranks that have more threads than cores push each other aside, which no record shows; the report compares these
//! numbers. Anything that cannot be found out is left out.

/// The settings `cores` (how many, by affinity and by the limit of the control group), `cpus` (which ones, as the
/// kernel writes them) and `threads` (with which OpenMP computes, where the environment says so; a front end may know
/// better and say so later).
pub fn settings() -> Vec<(String, String)> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let known = [
        ("cores", std::thread::available_parallelism().ok().map(|cores| cores.to_string())),
        (
            "cpus",
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(|list| list.trim().to_owned()),
        ),
        ("threads", std::env::var("OMP_NUM_THREADS").ok().and_then(|word| threads(&word))),
    ];
    known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The setting that says how long a rank's main thread could have run while it had no core, from the beginning of its
/// trace to the end, in nanoseconds.
pub const CORE_WAIT: &str = "core_wait_ns";

/// How long the main thread of this process has so far been ready to run while another thread had its core. `None`
/// where the kernel does not count it.
pub fn core_wait_ns() -> Option<u64> {
    waited_in(&std::fs::read_to_string("/proc/self/schedstat").ok()?)
}

/// The kernel writes three numbers: time on a core, time waiting for one, and how often it was given one.
fn waited_in(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// OpenMP takes a list, with a number for each level of nesting; the first is that of the outermost.
fn threads(word: &str) -> Option<String> {
    let count: usize = word.split(',').next()?.trim().parse().ok()?;
    (count > 0).then(|| count.to_string())
}

/// The numbers in a list of the kernel's: `0-3,8`. Nothing where it is none, or names more than a machine has.
pub fn cpus(list: &str) -> Option<std::collections::BTreeSet<usize>> {
    /// The kernel can be built for no more.
    const CPUS_MAX: usize = 8192;
    let mut cpus = std::collections::BTreeSet::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_and_cpus_of_this_machine_are_known() {
        let settings = settings();
        let value = |key: &str| settings.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
        let cores: usize = value("cores").unwrap().parse().unwrap();
        let cpus = cpus(&value("cpus").unwrap()).unwrap();
        assert!(cores >= 1 && cores <= cpus.len(), "{settings:?}");
    }

    #[test]
    fn waiting_for_a_core_is_counted_by_the_kernel() {
        assert_eq!(waited_in("8231201 2252106 14\n"), Some(2_252_106));
        assert_eq!((waited_in(""), waited_in("12")), (None, None));
        let before_ns = core_wait_ns().unwrap();
        assert!(core_wait_ns().unwrap() >= before_ns);
    }

    #[test]
    fn threads_are_those_of_the_outermost_level() {
        assert_eq!(threads("4").as_deref(), Some("4"));
        assert_eq!(threads("8,2").as_deref(), Some("8"));
        for none in ["", "0", "many", "-1"] {
            assert_eq!(threads(none), None, "{none}");
        }
    }

    #[test]
    fn lists_of_cpus_are_read_and_nonsense_is_not() {
        assert_eq!(cpus("0-2,8").unwrap().into_iter().collect::<Vec<_>>(), [0, 1, 2, 8]);
        for none in ["", "3-1", "0-99999999999", "a", "1,,2"] {
            assert_eq!(cpus(none), None, "{none}");
        }
    }
}
