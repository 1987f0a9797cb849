//! What a job started here will use, and why, in sentences.
//!
//! Written from the same facts as the findings. It promises nothing that the engine would decide otherwise: which way
//! data goes between ranks, whether they wait awake, which instruction set and which Python.

use farandole_transport::contact::suggested_connections;

use super::cores::Cores;
use super::finding::Planned;
use super::job::JobChecks;
use super::memory::Memory;
use super::network::Network;
use super::python::Python;
use super::vendor::{Library, Vendors};

/// Everything that was looked at.
pub(crate) struct Facts {
    pub(crate) cores: Cores,
    pub(crate) memory: Memory,
    pub(crate) network: Network,
    pub(crate) python: Python,
    pub(crate) vendors: Vendors,
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
    sentences.push(gpu(facts));
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

fn gpu(facts: &Facts) -> String {
    gpu_with(&facts.vendors.cuda, Vendors::first(&facts.vendors.nccl).map(|nccl| nccl.version.as_str()))
}

fn gpu_with(cuda: &Library, nccl: Option<&str>) -> String {
    match (cuda, nccl) {
        (Library::Found(_), nccl) => {
            let unused =
                nccl.map_or_else(|| "NCCL is not needed".to_owned(), |version| format!("NCCL {version} is not used"));
            format!(
                "Tensors of a GPU (PyTorch) can be used: they are copied to pinned host memory, reduced on the processor and \
                 copied back; {unused}."
            )
        }
        _ => "Everything runs on the processor; no GPU library is used.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::library::Sighting;

    #[test]
    fn tensors_of_a_gpu_can_be_used_and_how_is_said() {
        let cuda = Library::Found(Sighting { version: "12.4".into(), path: None, more: None });
        for nccl in [None, Some("2.21.5")] {
            let said = gpu_with(&cuda, nccl);
            assert!(said.starts_with("Tensors of a GPU (PyTorch) can be used") && said.contains("NCCL"), "{said}");
        }
        assert!(!gpu_with(&Library::Absent, None).contains("can be used"));
    }
}
