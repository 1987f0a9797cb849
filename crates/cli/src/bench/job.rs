//! A benchmark inside of a job, on whatever hosts its ranks are.
//!
//! With `-H` this process launches a job of itself; inside a job, whoever has started it, it is a rank. Rank 0 drives
//! as well: it tells the others what to run by a broadcast, takes part, and gets the times of all by allreduces of the
//! same communicator. So ranks need no way to each other but the one that is measured. The others wait for orders in a
//! broadcast; nobody else is measured meanwhile, because peers cannot take part.
//!
//! What ranks on one machine are told over a `line` stays as it is: there, contestants take turns.

use std::cell::RefCell;
use std::ffi::OsString;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use farandole_cluster::launch::{self, HostSlots, JobPlacement, JobSpec, Prefix};
use farandole_cluster::{Environment, environment};
use farandole_engine::Communicator;
use farandole_plan::{Rank, ReduceOp};

use super::args::{BenchArgs, Transport};
use super::contestant::{self, Contestant, Refusal};
use super::entrant::{Entrant, FIRST, RoundOutcome, twins};
use super::line::RankCommand;
use super::ours::Ours;
use super::placement::BenchPlacement;
use super::task::{Recording, Task};
use crate::peer::start::this_program;

/// The flag that makes a process a rank whatever the other flags say.
const IN_JOB: &str = "--in-job";

/// Starts the job: the words of this command line are those of its ranks.
pub(super) fn start(args: &BenchArgs, hosts: Vec<HostSlots>) -> Result<ExitCode> {
    let placement = JobPlacement::fill(hosts, args.ranks)?;
    let mut command: Vec<OsString> = vec![this_program()?.into()];
    command.extend(std::env::args_os().skip(1));
    command.push(IN_JOB.into());
    let here = std::env::current_dir().context("finding the current directory")?;
    let mut spec = JobSpec::new(placement, command, here.clone());
    spec.output.prefix = Prefix::None;
    spec.ssh = args.remote.ssh(&here);
    spec.network = args.remote.network(|name| std::env::var(name).ok())?;
    Ok(ExitCode::from(launch::run(spec)?))
}

/// A rank of the job; on rank 0, `compete` is given the contestants, and the number of ranks and of hosts.
pub(super) fn serve(
    args: &BenchArgs,
    environment: &Environment,
    compete: impl FnOnce(Vec<Box<dyn Entrant>>, usize, usize) -> Result<()>,
) -> Result<()> {
    let rank = environment.rank.index();
    if args.transport == Transport::Tcp {
        // Each has a host of its own.
        BenchPlacement::here(environment.size, environment.size).enter(rank, rank)?;
    }
    args.pinning().bind_this_thread(rank)?;
    let mut ours = Ours::join(environment, args.transport, args.algorithm, None)?;
    if rank > 0 {
        while let Some(order) = receive(ours.communicator())? {
            round(&mut ours, &order)?;
        }
        return Ok(());
    }
    let (product, hosts) = (ours.product(), ours.communicator().topology().hosts());
    let team = Rc::new(RefCell::new(ours));
    let enter = |word, product: String, recording| -> Box<dyn Entrant> {
        Box::new(Team { word, product, recording, ours: Rc::clone(&team) })
    };
    compete(twins(args, &product, enter), environment.size, hosts)?;
    send(team.borrow_mut().communicator(), None)
}

/// Refuses what needs all ranks on the machine of the driver.
pub(super) fn check(args: &BenchArgs) -> Result<()> {
    for (flag, given) in [
        ("--against", !args.against.is_empty()),
        ("--limit", args.limit),
        ("--busy", args.busy > 0),
        ("--host-prefix", args.host_prefix.is_some()),
    ] {
        ensure!(
            !given,
            "{flag}: works only where the benchmark starts all ranks on this machine; leave it out with -H or inside a job"
        );
    }
    ensure!(
        args.pretended_hosts() == 1,
        "--hosts {}: the hosts of a job are not pretended; leave it out inside a job",
        args.pretended_hosts()
    );
    Ok(())
}

/// The environment of a rank, if this process is one.
pub(super) fn environment(args: &BenchArgs) -> Result<Option<Environment>> {
    let is_rank = args.in_job || args.ranks.is_none() && args.named_hosts()?.is_none();
    if !is_rank || Environment::launched().is_none() {
        ensure!(!args.in_job, "{IN_JOB}: {} is not set; the launcher sets it", environment::RANK);
        return Ok(None);
    }
    Ok(Some(Environment::from_process()?))
}

/// All ranks as a contestant that rank 0 drives.
struct Team {
    word: &'static str,
    product: String,
    recording: Recording,
    ours: Rc<RefCell<Ours>>,
}

impl Entrant for Team {
    fn word(&self) -> &str {
        self.word
    }

    fn product(&self) -> &str {
        &self.product
    }

    fn is_twin(&self) -> bool {
        self.word != FIRST
    }

    fn round(&mut self, task: &Task, warmup: usize, iterations: usize) -> Result<RoundOutcome> {
        let task = Task { recording: self.recording, ..task.clone() };
        let order = RankCommand::Measure { task, warmup, iterations };
        let mut ours = self.ours.borrow_mut();
        send(ours.communicator(), Some(&order))?;
        round(&mut ours, &order)
    }
}

/// Carries out an order together with all others: they all return the same.
fn round(ours: &mut Ours, order: &RankCommand) -> Result<RoundOutcome> {
    let RankCommand::Measure { task, warmup, iterations } = order;
    let (mut times_ns, wrong) = match contestant::round(ours, task, *warmup, *iterations) {
        Ok(measured) => measured,
        Err(Refusal::Unsupported(why)) => return Ok(RoundOutcome::Unsupported { why }),
        Err(Refusal::Failed(error)) => return Err(error),
    };
    let mut wrong = [wrong];
    let communicator = ours.communicator();
    communicator.allreduce(&mut times_ns, ReduceOp::Max)?;
    communicator.allreduce(&mut wrong, ReduceOp::Sum)?;
    Ok(RoundOutcome::Measured { times_ns, wrong: wrong[0] })
}

/// Tells the others what comes next; nothing: the benchmark is over.
fn send(communicator: &mut Communicator, order: Option<&RankCommand>) -> Result<()> {
    let mut text = match order {
        Some(order) => serde_json::to_vec(order).context("writing an order as JSON")?,
        None => Vec::new(),
    };
    communicator.broadcast(&mut [text.len() as u64], Rank(0))?;
    if !text.is_empty() {
        communicator.broadcast(&mut text, Rank(0))?;
    }
    Ok(())
}

/// What comes next.
fn receive(communicator: &mut Communicator) -> Result<Option<RankCommand>> {
    let mut length = [0u64];
    communicator.broadcast(&mut length, Rank(0))?;
    if length == [0] {
        return Ok(None);
    }
    let mut text = vec![0u8; length[0] as usize];
    communicator.broadcast(&mut text, Rank(0))?;
    serde_json::from_slice(&text).map(Some).context("an order that is not ours")
}
