//! `farandole doctor`: one page about this machine, and others, for somebody whose job does not start or is slow.
//!
//! Each module looks at one thing in two steps: a value with what is there, and a function from that value to findings.
//! Only the first step touches the machine, so the second is tested with machines that nobody has. What is looked at:
//! `cores` and `memory` (bounded by `cgroup`), `limits`, `namespaces`, `network`, `python`, vendor libraries (`vendor`,
//! in child processes that open them in `library`), `gpus`, and the `job` that would run, with how its tensors are
//! protected (`protection`). `outlook` says what will be used and why, `page` shows it all, `hosts` does the same
//! elsewhere and `compare` sets hosts side by side. `check_build` is the table that users of Horovod know.
//!
//! The invariant: the doctor changes nothing, needs no rights, and ends in time whatever it meets. It imports no
//! framework, and every program and library that it asks is a child with a deadline.

mod ask;
mod cgroup;
mod check_build;
mod compare;
mod cores;
mod finding;
mod front_ends;
mod gpus;
mod hosts;
mod job;
mod library;
mod limits;
mod memory;
mod namespaces;
mod network;
mod outlook;
mod page;
mod protection;
mod python;
mod vendor;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::Args;

use cgroup::Allowance;
use cores::Cores;
use finding::{Planned, Report, SCHEMA, State, worst};
use gpus::Gpus;
use job::JobChecks;
use limits::ResourceLimits;
use memory::Memory;
use namespaces::Namespaces;
use network::Network;
use outlook::Facts;
use page::Ink;
use python::Python;
use vendor::Vendors;

pub(crate) use check_build::check_build;
pub(crate) use vendor::serve_probe;

/// The version of this command.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Say what this machine has, what a job would use and why, and what is wrong with it.
///
/// Ends with 0 if nothing is wrong and with 1 if there is a problem; notes are no problems.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DoctorArgs {
    /// Ranks that the job is to have [default: one for each GPU, or for each usable core where there is none]
    #[arg(long = "np", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// Ranks of the job on this host, if it has others elsewhere.
    #[arg(long, value_name = "N", hide = true)]
    local_ranks: Option<u32>,
    /// Looks at these hosts instead, through ssh: h1,h2 or h1:4,h2:4.
    #[arg(short = 'H', long = "hosts", value_name = "HOSTS", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// The same, from a file of hosts.
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Port of the ssh servers on these hosts.
    #[arg(short = 'p', long, value_name = "PORT")]
    ssh_port: Option<u16>,
    /// File with the key that ssh presents.
    #[arg(short = 'i', long, value_name = "FILE")]
    ssh_identity_file: Option<PathBuf>,
    /// Where the command farandole is on these hosts [default: where it is here]
    #[arg(long, value_name = "PATH")]
    remote_farandole: Option<PathBuf>,
    /// The Python that the job is to use [default: the active one]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// The directory in which the job is to run.
    #[arg(long, value_name = "DIR", hide = true)]
    directory: Option<PathBuf>,
    /// Prints JSON instead of a page.
    #[arg(long)]
    json: bool,
    /// Prints only what this build can do, as horovodrun --check-build did.
    #[arg(long, conflicts_with_all = ["json", "hosts", "hostfile"])]
    check_build: bool,
}

/// Runs the subcommand. The exit code says whether anything is wrong.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    if args.check_build {
        check_build()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.hosts.is_some() || args.hostfile.is_some() {
        return hosts::run(args);
    }
    let report = examine(args);
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).context("writing the report")? + "\n",
        false => page::page(&report, &report.host, Ink::for_stdout()),
    };
    say(&text)?;
    Ok(exit_code(report.state))
}

fn exit_code(state: State) -> ExitCode {
    ExitCode::from(u8::from(state == State::Problem))
}

/// Writes to standard output. A reader that has gone (`| head`) has seen enough.
fn say(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("writing to standard output"),
        _ => Ok(()),
    }
}

/// Cores that this process can keep busy at once.
#[cfg(feature = "train")]
pub(crate) fn usable_cores() -> usize {
    Cores::of_this_process(&Allowance::of_this_process()).usable()
}

/// Looks at this machine.
fn examine(args: &DoctorArgs) -> Report {
    // Before anything is looked for that depends on where one is.
    let missing_directory = args.directory.clone().filter(|directory| std::env::set_current_dir(directory).is_err());
    let allowance = Allowance::of_this_process();
    let cores = Cores::of_this_process(&allowance);
    let gpus = Gpus::of_this_machine();
    let default = if gpus.visible.count() > 0 { gpus.visible.count() } else { cores.usable() };
    let ranks = args.ranks.map_or(default, |ranks| ranks as usize);
    let planned = Planned { ranks, local_ranks: args.local_ranks.map_or(ranks, |ranks| ranks as usize).min(ranks) };
    let (network, (python, vendors)) = thread::scope(|scope| {
        let network = scope.spawn(Network::of_this_machine);
        let python = Python::of_this_machine(args.python.as_deref());
        let nccl = python.known.iter().chain(python.idle.iter().map(|(_, known)| known));
        let nccl: Vec<PathBuf> = nccl.flat_map(|known| known.nccl.iter().cloned()).collect();
        let vendors = Vendors::of_this_machine(&nccl);
        (network.join().expect("invariant: looking at the network does not panic"), (python, vendors))
    });
    let job = JobChecks::of_this_process(missing_directory);
    let facts = Facts { cores, memory: Memory::of_this_machine(allowance), network, python, vendors, gpus, job };
    report(&facts, &ResourceLimits::of_this_process(), planned)
}

/// Puts everything together.
fn report(facts: &Facts, limits: &ResourceLimits, planned: Planned) -> Report {
    let fusion_bytes = facts.job.settings.as_ref().map_or(0, |settings| settings.fusion_threshold_bytes);
    let mut findings = vec![facts.cores.finding(planned)];
    findings.extend(facts.memory.findings(planned, fusion_bytes));
    findings.extend(limits.findings(planned));
    findings.extend(Namespaces::of_this_process().findings());
    findings.extend(facts.network.findings());
    findings.extend(facts.python.findings(VERSION));
    findings.extend(facts.vendors.findings());
    findings.extend(facts.gpus.findings(&facts.vendors.cuda, planned));
    findings.extend(facts.job.findings());
    Report {
        schema: SCHEMA,
        farandole: VERSION.to_owned(),
        host: facts.network.host.clone(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        planned,
        state: worst(&findings),
        outlook: outlook::sentences(facts, planned),
        findings,
        versions: versions(facts),
        unix_time_ms: unix_time_ms(SystemTime::now()),
    }
}

fn unix_time_ms(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Versions that hosts should have in common.
fn versions(facts: &Facts) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::from([("farandole".to_owned(), VERSION.to_owned())]);
    if let Ok(known) = &facts.python.known {
        versions.insert("python".to_owned(), known.version.clone());
        let others = known.packages.iter().filter(|(name, _)| *name != "farandole");
        versions.extend(others.map(|(name, version)| (name.clone(), version.clone())));
    }
    let libraries = [
        ("cuda", Vendors::first(std::slice::from_ref(&facts.vendors.cuda))),
        ("nccl", Vendors::first(&facts.vendors.nccl)),
        ("mpi", Vendors::first(&facts.vendors.mpi)),
    ];
    versions.extend(libraries.into_iter().filter_map(|(name, found)| Some((name.to_owned(), found?.version.clone()))));
    versions
}
