//! What the numbers were taken on.

use serde::Serialize;

/// The machine, as far as it matters for a reader of the numbers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) host: String,
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) kernel: String,
    /// Processes that wanted a core, on average over the minute before the run. Above zero, somebody else is at work.
    pub(crate) load: f64,
}

impl Machine {
    /// Asks the kernel.
    pub(crate) fn this() -> Machine {
        let uname = rustix::system::uname();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            host: uname.nodename().to_string_lossy().into_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor_name(&cpuinfo).unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            kernel: uname.release().to_string_lossy().into_owned(),
            load: load(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default()),
        }
    }
}

fn load(loadavg: &str) -> f64 {
    loadavg.split_whitespace().next().and_then(|minute| minute.parse().ok()).unwrap_or(0.0)
}

fn processor_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named_as_the_kernel_names_it() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some  CPU @ 2.80GHz\n";
        assert_eq!(processor_name(cpuinfo).as_deref(), Some("Some CPU @ 2.80GHz"));
        assert_eq!(processor_name("processor: 0"), None);
    }

    #[test]
    fn the_load_is_that_of_the_last_minute() {
        assert_eq!(load("1.25 0.50 0.10 2/99 1234\n"), 1.25);
        assert_eq!(load(""), 0.0);
    }
}
