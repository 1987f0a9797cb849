//! `farandole calibrate`: finds out which algorithms are fastest here, and keeps it for later jobs.
//!
//! With `-np` this process launches a job of itself; inside a job, whoever has started it, it is a rank. The ranks
//! measure (`measure` on the memory of `arena`, `on_devices`) as one program: after each round all of them hold the
//! same times, so all take the same decisions without a driver. Rank 0 judges, puts the table on the shelf and prints
//! what was found. The decisions are those of [`farandole_study::calibration`].
//!
//! Algorithms are calibrated by a command and not while a job runs. Measuring at the first start would delay that job,
//! on a machine where others may be at work. Learning from a job's own operations is no alternative: every rank sees
//! other times, the choice must be the same on all ranks, and two runs of one program would add in different orders.
//!
//! How tables are used is the engine's business (`tables`). Peers and bandwidths are `bench`'s.

mod arena;
mod measure;
mod on_devices;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use farandole::{Communicator, Setup, World};
use farandole_cluster::Environment;
use farandole_cluster::launch::{self, JobPlacement, JobSpec, Prefix};
use farandole_engine::tables::{Found, Shelf, VARIABLE, this_machine};
use farandole_plan::table::Class;
use farandole_study::calibration::contest::{CalibratedRanks, Contest, whole_elements};
use farandole_study::calibration::rounds::{Effort, Times};
use farandole_study::calibration::summary;
use farandole_study::calibration::verdict::CalibrationResult;

use crate::bench::machine::Machine;
use crate::bench::placement::BenchPlacement;
use crate::bench::sizes::Sizes;
use crate::peer::start::this_program;

/// More ranks than this on one host can only be a slip of the finger.
const MAX_RANKS: usize = 1024;

/// Measure which algorithms are fastest on this machine, and keep the result for later jobs.
///
/// Runs every algorithm that can run, at every size, in turns, and writes a table that jobs with as many ranks on as
/// many hosts of this kind read when they start. Takes some seconds. Measures best when nobody else is at work.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  farandole calibrate -np 2
  FARANDOLE_TABLES=/shared/tables farandole calibrate -np 8
  farandole calibrate -np 8 --device cuda
  FARANDOLE_TABLES=off python train.py            (do without)")]
pub(crate) struct CalibrateArgs {
    /// Number of ranks (also written -np), all on this machine. Leave it out inside a job, where the launcher says it.
    #[arg(long = "np", short = 'n', value_name = "RANKS")]
    ranks: Option<usize>,

    /// Sizes to measure: a list (4,64K,1M) of single sizes and ranges (4..256M, factor 4; 4..256M:2, factor 2).
    #[arg(long, default_value = "4..64M", value_name = "SIZES")]
    sizes: Sizes,

    /// Measure allreduces in the memory of GPUs instead: by our own kernels and by NCCL, which all ranks must have.
    #[arg(long, value_name = "DEVICE")]
    device: Option<CalibratedDevice>,

    /// Time to spend, in seconds, about.
    #[arg(long, default_value_t = 12.0, value_name = "SECONDS")]
    seconds: f64,

    /// Spread the ranks over so many pretended hosts, with TCP over the loopback device between them. To try things
    /// out: such a table is not put into the user's cache, so FARANDOLE_TABLES must say where.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    hosts: usize,
}

/// Devices whose memory can be calibrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CalibratedDevice {
    /// NVIDIA's.
    Cuda,
}

/// Starts the ranks, or is one.
pub(crate) fn run(args: &CalibrateArgs) -> Result<ExitCode> {
    ensure!(args.seconds > 0.0 && args.seconds.is_finite(), "--seconds {}: give a time above zero", args.seconds);
    let environment = Environment::from_process()?;
    let in_job = environment.size > 1;
    match args.ranks {
        None if in_job => rank(args, &environment).map(|()| ExitCode::SUCCESS),
        None => bail!("say how many ranks to measure with: -np N"),
        Some(_) if in_job => bail!("leave out -np: the launcher of this job says how many ranks there are"),
        Some(ranks) => start(args, ranks),
    }
}

fn start(args: &CalibrateArgs, ranks: usize) -> Result<ExitCode> {
    ensure!((2..=MAX_RANKS).contains(&ranks), "-np {ranks}: give 2 to {MAX_RANKS} ranks; a single one has no choice");
    ensure!((1..=ranks).contains(&args.hosts), "--hosts {}: {ranks} ranks fit on 1 to {ranks} hosts", args.hosts);
    let named = std::env::var_os(VARIABLE).is_some_and(|folder| !folder.is_empty());
    ensure!(
        args.hosts == 1 || named,
        "--hosts {}: pretended hosts say nothing about a real network, so name a folder for the table: {VARIABLE}=...",
        args.hosts
    );
    ensure!(
        Shelf::from_env() != Shelf::OFF,
        "{VARIABLE} is off, or there is no home folder: name one with {VARIABLE}=..."
    );
    let sizes: Vec<String> = args.sizes.0.iter().map(u64::to_string).collect();
    let mut command: Vec<OsString> = vec![this_program()?.into()];
    let (sizes, seconds, hosts) = (sizes.join(","), args.seconds.to_string(), args.hosts.to_string());
    command.extend(["calibrate", "--sizes", &sizes, "--seconds", &seconds, "--hosts", &hosts].map(OsString::from));
    if args.device.is_some() {
        command.extend(["--device", "cuda"].map(OsString::from));
    }
    let here = std::env::current_dir().context("finding the current directory")?;
    let mut spec = JobSpec::new(JobPlacement::here(ranks)?, command, here);
    spec.output.prefix = Prefix::None;
    Ok(ExitCode::from(launch::run(spec)?))
}

/// The whole life of a rank.
fn rank(args: &CalibrateArgs, environment: &Environment) -> Result<()> {
    if args.hosts > 1 {
        let (rank, placement) = (environment.rank.index(), BenchPlacement::here(environment.size, args.hosts));
        placement.enter(rank, placement.host_of(rank))?;
    }
    let load = Machine::this().load;
    let began = Instant::now();
    let effort = Effort { seconds_per_size: args.seconds / args.sizes.0.len().max(1) as f64 };
    let sizes = whole_elements(&args.sizes.0, environment.size);
    let (mut world, contests, times) = match args.device {
        Some(CalibratedDevice::Cuda) => {
            let (mut world, times) = on_devices::measure(&sizes, effort)?;
            let one_host = world.communicator().is_one_host();
            (world, vec![Contest::on_devices(one_host)], times)
        }
        None => {
            let mut world = Setup::new().tables(Shelf::OFF).init()?;
            let contests = contests(world.communicator());
            let times = measure::all(world.communicator(), &contests, &sizes, effort)?;
            (world, contests, times)
        }
    };
    if world.rank() > 0 {
        return Ok(());
    }
    conclude(&mut world, &contests, &times, load, began)
}

/// The contests of this job's ranks in host memory.
fn contests(communicator: &Communicator) -> Vec<Contest> {
    let one_host = communicator.is_one_host();
    // Where hosts share windows, the built-in choice for large tensors is the hierarchical one through them.
    let windows = one_host || communicator.algorithm_for(usize::MAX >> 1).needs_windows();
    Contest::all(CalibratedRanks { topology: communicator.topology(), one_host, windows })
}

/// Judges, keeps the table and prints what was found. The communicator has no table, so that it says what the built-in
/// choices are.
fn conclude(world: &mut World, contests: &[Contest], times: &Times, load: f64, began: Instant) -> Result<()> {
    let communicator = world.communicator();
    let built_in = |contest: &Contest, bytes| measure::chosen_now(contest, bytes, communicator);
    let mut verdict = CalibrationResult::of(Class::of(communicator.topology()), contests, times, built_in);
    let (machine, shelf) = (this_machine(), Shelf::from_env());
    // What was measured of host memory says nothing about devices, and the other way round: the one leaves the other.
    if let Found::Table(before) = shelf.find(&machine, verdict.table.class) {
        verdict.table.complete_with(&before);
    }
    let file = shelf.put(&machine, &verdict.table).context("the table could not be kept")?;
    let mut text = summary::heading(&machine, &verdict.table, load, began.elapsed());
    for row in &verdict.contests {
        text.push_str(&summary::contest(row));
    }
    text.push_str(&format!("\nkept in {}\n", file.display()));
    std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}
