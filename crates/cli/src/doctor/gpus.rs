//! GPUs: what they are, whether they reach each other's memory, and how ranks may share them (MPS).
//!
//! What CUDA's driver says comes from the child process that opens it (`vendor`); how many devices there are and which
//! driver the kernel runs is known without it. A machine without GPUs has one line here, so that nobody wonders.

use std::path::PathBuf;

use farandole_cluster::launch::gpus::VisibleGpus;
use farandole_cluster::launch::mps_control::{MpsControl, PROGRAM};
use serde::{Deserialize, Serialize};

use super::finding::{Finding, Group, Planned};
use super::library::Sighting;
use super::vendor::Library;

/// `CU_COMPUTEMODE_PROHIBITED` and `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const PROHIBITED: i32 = 2;
const EXCLUSIVE_PROCESS: i32 = 3;

/// A device, as CUDA's driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) memory_bytes: u64,
    /// The driver's number of its compute mode; 0 is the default.
    pub(crate) compute_mode: i32,
}

/// What was found about GPUs and MPS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpus {
    /// Those that ranks may use, without opening the driver.
    pub(crate) visible: VisibleGpus,
    /// The release of the kernel's module, as in 580.159.03.
    pub(crate) driver: Option<String>,
    /// The control program of MPS.
    pub(crate) mps: Option<PathBuf>,
    /// Where a daemon of MPS answers.
    pub(crate) mps_daemon: Option<PathBuf>,
}

impl Gpus {
    pub(crate) fn of_this_machine() -> Gpus {
        let variable = |name: &str| std::env::var_os(name);
        let visible = VisibleGpus::of_this_host(variable, &mut || {});
        let driver = std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned());
        let mps = variable("PATH").and_then(|path| MpsControl::find(&path)).filter(|_| visible.count() > 0);
        let mps_daemon = mps.as_ref().and_then(|mps| mps.running(variable, &mut || {}));
        Gpus { visible, driver, mps: mps.map(|mps| mps.program().to_owned()), mps_daemon }
    }

    /// The findings; `cuda` is what the driver said.
    pub(crate) fn findings(&self, cuda: &Library, planned: Planned) -> Vec<Finding> {
        let seen = match cuda {
            Library::Found(seen) => Some(seen),
            Library::Broken(_) | Library::Absent => None,
        };
        let devices = seen.map_or(&[][..], |seen| seen.gpus.as_slice());
        let mut findings = vec![self.devices(devices, planned)];
        if devices.len() > 1 {
            findings.push(peer_access(seen.map_or(&[][..], |seen| seen.strangers.as_slice()), devices.len()));
        }
        if self.visible.count() > 0 || !devices.is_empty() {
            findings.push(self.mps(devices.len().max(self.visible.count()), planned));
        }
        findings
    }

    fn devices(&self, devices: &[Gpu], planned: Planned) -> Finding {
        let why = "`farandole run` starts one rank for each of them unless it is told otherwise.";
        let driver = self.driver.as_ref().map_or(String::new(), |driver| format!("; driver {driver}"));
        if devices.is_empty() {
            let found = self.visible.described() + &driver;
            return match self.visible.count() {
                0 => Finding::ok(Group::Gpus, "gpus", found, why),
                _ => Finding::note(
                    Group::Gpus,
                    "gpus",
                    format!("{found}; CUDA's driver shows none of them"),
                    "Tensors on GPUs cannot be used until CUDA's driver works (see `cuda`).",
                ),
            };
        }
        let found = devices.iter().map(described).collect::<Vec<_>>().join("; ") + &driver;
        let in_mode = |mode| devices.iter().find(|gpu| gpu.compute_mode == mode);
        if let Some(gpu) = in_mode(PROHIBITED) {
            let fix = format!("`nvidia-smi -i {} -c DEFAULT`, as root.", gpu.uuid);
            return Finding::problem(Group::Gpus, "gpus", found, "No process may use a GPU in prohibited mode.", fix);
        }
        if planned.local_ranks > devices.len() && in_mode(EXCLUSIVE_PROCESS).is_some() && self.mps_daemon.is_none() {
            let why = "A GPU in exclusive mode has one process at a time, and here more ranks than GPUs are planned.";
            return Finding::note(Group::Gpus, "gpus", found, why).with_fix("`farandole run --mps`.");
        }
        Finding::ok(Group::Gpus, "gpus", found, why)
    }

    fn mps(&self, gpus: usize, planned: Planned) -> Finding {
        let why = "Ranks that share a GPU take turns on it unless they use it through MPS.";
        match (&self.mps, &self.mps_daemon) {
            (_, Some(pipes)) => {
                let found = format!("a daemon answers at {}, which ranks use", pipes.display());
                Finding::ok(Group::Gpus, "mps", found, why)
            }
            (Some(program), None) => {
                let found = format!("{}; no daemon runs (`farandole run --mps` starts one)", program.display());
                Finding::ok(Group::Gpus, "mps", found, why)
            }
            (None, None) if planned.local_ranks > gpus => {
                let found = format!("no {PROGRAM} on the PATH");
                let fix = "install it with NVIDIA's driver (nvidia-compute-utils), then `farandole run --mps`.";
                Finding::note(Group::Gpus, "mps", found, why).with_fix(fix)
            }
            (None, None) => Finding::ok(Group::Gpus, "mps", format!("no {PROGRAM} on the PATH"), why),
        }
    }
}

fn described(gpu: &Gpu) -> String {
    let mode = match gpu.compute_mode {
        0 => "",
        PROHIBITED => ", prohibited mode",
        EXCLUSIVE_PROCESS => ", exclusive mode",
        _ => ", unknown mode",
    };
    let memory_gb = gpu.memory_bytes as f64 / 1e9;
    format!("{}, {memory_gb:.0} GB{mode} ({})", gpu.name, gpu.uuid)
}

/// Whether all devices reach each other's memory; `strangers` are the pairs that do not.
fn peer_access(strangers: &[(u32, u32)], devices: usize) -> Finding {
    let why = "Ranks on different GPUs map each other's memory where it can be reached.";
    if strangers.is_empty() {
        return Finding::ok(Group::Gpus, "peer-access", format!("each of {devices} reaches the memory of all"), why);
    }
    let pairs: Vec<String> = strangers.iter().map(|(one, other)| format!("{one} and {other}")).collect();
    let found = format!("not between devices {}", pairs.join(", "));
    let fix = "`nvidia-smi topo -p2p r` says why; with NCCL (`FARANDOLE_PLANE=nccl`) or through host memory \
               (`FARANDOLE_PLANE=staged`) it is not needed.";
    Finding::note(Group::Gpus, "peer-access", found, why).with_fix(fix)
}

/// The devices that the driver shows: how many can be used.
pub(crate) fn usable(cuda: &Library) -> usize {
    match cuda {
        Library::Found(Sighting { gpus, .. }) => gpus.iter().filter(|gpu| gpu.compute_mode != PROHIBITED).count(),
        Library::Broken(_) | Library::Absent => 0,
    }
}

#[cfg(test)]
pub(crate) fn h200(uuid: &str) -> Gpu {
    Gpu { name: "NVIDIA H200".into(), uuid: uuid.into(), memory_bytes: 150_754_820_096, compute_mode: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn machine(gpus: Vec<Gpu>, strangers: Vec<(u32, u32)>) -> Library {
        Library::Found(Sighting { version: "13.0".into(), path: None, more: None, gpus, strangers })
    }

    fn planned(ranks: usize) -> Planned {
        Planned { ranks, local_ranks: ranks }
    }

    fn pretended(gpus: &'static str) -> Gpus {
        let variable = |name: &str| (name == "FARANDOLE_TEST_GPUS").then(|| gpus.into());
        Gpus { visible: VisibleGpus::of_this_host(variable, &mut || {}), ..Gpus::default() }
    }

    #[test]
    fn devices_are_named_with_memory_uuid_and_driver() {
        let gpus = Gpus { driver: Some("580.159.03".into()), ..pretended("GPU-1,GPU-2") };
        let findings = gpus.findings(&machine(vec![h200("GPU-1"), h200("GPU-2")], vec![]), planned(2));
        let expected = "NVIDIA H200, 151 GB (GPU-1); NVIDIA H200, 151 GB (GPU-2); driver 580.159.03";
        assert_eq!((findings[0].found.as_str(), findings[0].state), (expected, State::Ok));
        assert_eq!(findings[1].found, "each of 2 reaches the memory of all");
        assert_eq!(
            findings.iter().map(|finding| finding.key.as_ref()).collect::<Vec<_>>(),
            ["gpus", "peer-access", "mps"]
        );
    }

    #[test]
    fn a_machine_without_gpus_has_one_line_and_hidden_ones_are_explained() {
        let none = pretended("").findings(&Library::Absent, planned(2));
        assert_eq!((none.len(), none[0].found.as_str(), none[0].state), (1, "no NVIDIA GPU", State::Ok));
        let unseen = pretended("GPU-1").findings(&Library::Absent, planned(1));
        assert_eq!(unseen[0].state, State::Note);
        assert!(unseen[0].found.contains("1 GPU; CUDA's driver shows none of them"), "{:?}", unseen[0]);
    }

    #[test]
    fn modes_that_keep_ranks_out_are_told_with_their_cure() {
        let in_mode = |compute_mode| machine(vec![Gpu { compute_mode, ..h200("GPU-1") }], vec![]);
        let of = |mode, ranks| pretended("GPU-1").findings(&in_mode(mode), planned(ranks)).swap_remove(0);
        assert_eq!(of(PROHIBITED, 1).state, State::Problem);
        assert!(of(PROHIBITED, 1).fix.unwrap().contains("`nvidia-smi -i GPU-1 -c DEFAULT`"));
        assert_eq!(of(EXCLUSIVE_PROCESS, 1).state, State::Ok);
        assert_eq!(of(EXCLUSIVE_PROCESS, 2).state, State::Note);
        assert!(of(EXCLUSIVE_PROCESS, 2).found.contains("exclusive mode"));
    }

    #[test]
    fn gpus_that_do_not_reach_each_other_are_named() {
        let finding = peer_access(&[(0, 2), (1, 2)], 3);
        assert_eq!((finding.found.as_str(), finding.state), ("not between devices 0 and 2, 1 and 2", State::Note));
    }

    #[test]
    fn mps_is_told_of_by_what_is_there() {
        let of = |mps: Option<&str>, daemon: Option<&str>, ranks| {
            let gpus = Gpus { mps: mps.map(Into::into), mps_daemon: daemon.map(Into::into), ..pretended("GPU-1") };
            gpus.findings(&machine(vec![h200("GPU-1")], vec![]), planned(ranks)).pop().unwrap()
        };
        assert!(of(Some("/m"), Some("/tmp/nvidia-mps"), 2).found.starts_with("a daemon answers at /tmp/nvidia-mps"));
        assert!(of(Some("/m"), None, 2).found.contains("`farandole run --mps` starts one"));
        assert_eq!(of(None, None, 1).state, State::Ok);
        assert_eq!(of(None, None, 2).state, State::Note);
    }
}
