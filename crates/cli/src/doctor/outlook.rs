//! What a job started here will use, and why, in sentences.
//!
//! Written from the same facts as the findings. It promises nothing that the engine would decide otherwise: which way data goes between
//! ranks, whether they wait awake, which instruction set and which Python.

use farandole_transport::contact::suggested_connections;

use super::cores::Cores;
use super::finding::Planned;
use super::job::Job;
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
    pub(crate) job: Job,
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
    match (&facts.vendors.cuda, Vendors::first(&facts.vendors.nccl)) {
        (Library::Found(_), Some(nccl)) => format!(
            "CUDA and NCCL {} are here, but this version works on memory of the processor only and uses neither.",
            nccl.version
        ),
        (Library::Found(_), None) => {
            "CUDA is here, but this version works on memory of the processor only and does not use it.".to_owned()
        }
        _ => "Everything runs on the processor; no GPU library is used.".to_owned(),
    }
}
