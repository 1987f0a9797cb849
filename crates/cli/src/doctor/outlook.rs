//! What a job started here will use, and why, in sentences.
//!
//! Written from the same facts as the findings. It promises nothing that the engine would decide otherwise: which way
//! data goes between ranks, whether they wait awake, which instruction set and which Python, and what becomes of
//! tensors on GPUs.

use farandole_engine::config::SettingValue as _;
use farandole_transport::contact::suggested_connections;

use super::cores::Cores;
use super::finding::Planned;
use super::gpus::{Gpus, usable};
use super::job::JobChecks;
use super::memory::Memory;
use super::network::Network;
use super::python::Python;
use super::vendor::Vendors;

/// Everything that was looked at.
pub(crate) struct Facts {
    pub(crate) cores: Cores,
    pub(crate) memory: Memory,
    pub(crate) network: Network,
    pub(crate) python: Python,
    pub(crate) vendors: Vendors,
    pub(crate) gpus: Gpus,
    pub(crate) job: JobChecks,
}

/// The sentences.
pub(crate) fn sentences(facts: &Facts, planned: Planned) -> Vec<String> {
    let mut sentences = vec![within_host(facts, planned)];
    sentences.push(waiting(facts, planned));
    sentences.extend(between_hosts(facts, planned));
    if let Ok(level) = &facts.job.level {
        sentences
            .push(format!("Sums are made on the processor with {level}, the widest instructions that it may use."));
    }
    if let Ok(known) = &facts.python.known {
        sentences.push(format!("`python` jobs run in {}.", known.executable));
    }
    sentences.extend(gpu(facts, planned));
    sentences
}

fn within_host(facts: &Facts, planned: Planned) -> String {
    match (&facts.memory.shared, planned.local_ranks) {
        (_, 0 | 1) => "A single rank on this host works in its own memory.".to_owned(),
        (Ok(()), _) => {
            "Ranks on this host exchange data through shared memory (memfd), because it works here and is the \
                        fastest way; no network is involved."
                .to_owned()
        }
        (Err(_), _) => "Ranks on this host cannot exchange data, because shared memory does not work.".to_owned(),
    }
}

fn waiting(facts: &Facts, planned: Planned) -> String {
    let usable = facts.cores.usable();
    if planned.local_ranks < planned.ranks {
        "A rank that waits lets others run and soon sleeps, because what it waits for comes from other hosts."
            .to_owned()
    } else if planned.local_ranks <= usable {
        format!(
            "A rank that waits stays awake for a moment, because {} for {}.",
            counted(usable, "core") + if usable == 1 { " is enough" } else { " are enough" },
            counted(planned.ranks, "rank")
        )
    } else {
        let (ranks, cores) = (counted(planned.ranks, "rank"), counted(usable, "core"));
        format!("A rank that waits lets others run at once, because {ranks} share {cores}.")
    }
}

fn counted(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn between_hosts(facts: &Facts, planned: Planned) -> Option<String> {
    if planned.local_ranks == planned.ranks {
        return None;
    }
    let addresses = facts.network.interfaces.values().flatten().count();
    let connections = suggested_connections();
    Some(match addresses {
        0 => "Other hosts cannot reach this one, because it has no address but loopback.".to_owned(),
        _ => format!(
            "Data to other hosts goes over TCP, {connections} connection{} to each of their ranks, through whichever \
             of the {addresses} addresses here they can reach.",
            if connections == 1 { "" } else { "s" }
        ),
    })
}

fn gpu(facts: &Facts, planned: Planned) -> Option<String> {
    if usable(&facts.vendors.cuda) == 0 {
        return Some("Everything runs on the processor; no GPU can be used.".to_owned());
    }
    let plane = facts.job.settings.as_ref().ok()?.plane.show();
    let nccl = Vendors::first(&facts.vendors.nccl).map(|nccl| nccl.version.as_str());
    Some(gpu_with(&plane, nccl, planned))
}

/// What is done with tensors on GPUs. `plane` is the setting, in its own word.
fn gpu_with(plane: &str, nccl: Option<&str>, planned: Planned) -> String {
    let between = match planned.local_ranks == planned.ranks {
        true => "",
        false => " Between hosts they go through pinned host memory.",
    };
    match (plane, nccl) {
        ("staged", _) => "Tensors on GPUs are copied to pinned host memory, reduced on the processor and copied back, \
                          because FARANDOLE_PLANE=staged."
            .to_owned(),
        ("nccl", Some(version)) => {
            format!("Tensors on GPUs are reduced by NCCL {version}, because FARANDOLE_PLANE=nccl.")
        }
        ("nccl", None) => {
            "FARANDOLE_PLANE=nccl asks for NCCL, and none was found here: the job will say so and end.".to_owned()
        }
        (_, nccl) => {
            let other = nccl.map_or_else(
                || "NCCL is not needed".to_owned(),
                |version| format!("NCCL {version} is there, too (FARANDOLE_PLANE=nccl)"),
            );
            format!(
                "Tensors on GPUs (PyTorch) are reduced in device memory, where they lie: ranks of a host map each other's \
                 memory, and Farandole's own kernels combine it.{between} {other}."
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_tensors_on_gpus_is_said_for_each_plane() {
        let here = Planned { ranks: 2, local_ranks: 2 };
        let own = gpu_with("auto", Some("2.28.9"), here);
        assert!(own.contains("in device memory") && own.ends_with("NCCL 2.28.9 is there, too (FARANDOLE_PLANE=nccl)."));
        assert!(!own.contains("Between hosts"), "{own}");
        let elsewhere = gpu_with("own", None, Planned { ranks: 4, local_ranks: 2 });
        assert!(
            elsewhere.contains("Between hosts they go through pinned") && elsewhere.ends_with("NCCL is not needed.")
        );
        assert!(gpu_with("nccl", Some("2.28.9"), here).contains("by NCCL 2.28.9"));
        assert!(gpu_with("nccl", None, here).contains("none was found"));
        assert!(gpu_with("staged", Some("2.28.9"), here).contains("because FARANDOLE_PLANE=staged"));
    }
}
