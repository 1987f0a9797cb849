//! From flags to a job spec: what was asked for, resolved and consistent, before anything is started.
//!
//! The environment is a parameter, so that a test is not at the mercy of its own. A flag counts before the environment,
//! and that before the default.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use farandole_cluster::launch::gpus::VisibleGpus;
use farandole_cluster::launch::{
    Alias, Colour, ElasticSpec, Gpus, HostSlots, JobPlacement, JobSpec, Mps, OutputOptions, Prefix, TaskFiles,
    Timestamps, Verbose, hostfile, hosts, variables,
};
use farandole_cluster::{environment, live};
use farandole_settings as settings;

use super::args::{ColourArg, LaunchArgs, RunArgs};
use super::{elastic, flags};

/// What the launcher sets for every rank itself; a user's value would make two ranks the same one.
const LAUNCHERS_OWN: &[&str] = &[
    "FARANDOLE_RANK",
    "FARANDOLE_SIZE",
    "FARANDOLE_LOCAL_RANK",
    "FARANDOLE_LOCAL_SIZE",
    "FARANDOLE_CROSS_RANK",
    "FARANDOLE_CROSS_SIZE",
    "FARANDOLE_RENDEZVOUS",
    settings::RANKS_PER_GPU.name,
    settings::KEY.name,
    "FARANDOLE_KEY_FD",
    settings::HOST.name,
    "FARANDOLE_TASK_FD",
    "FARANDOLE_RESULT_FD",
    settings::ELASTIC.name,
    environment::ELASTIC_MEMBER,
    environment::ELASTIC_MIN_NP,
    environment::ELASTIC_MAX_NP,
    environment::VOTES_FD,
    environment::RESTART,
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
];

/// Makes the job spec of `farandole run`. `lookup` is this process's environment, `here` its directory.
pub(super) fn job_spec(args: &RunArgs, lookup: impl Fn(&str) -> Option<OsString>, here: &Path) -> Result<JobSpec> {
    let places = places(args, &lookup, here)?;
    let mut spec = job_spec_for(&args.launch, places, args.command.clone(), lookup, here)?;
    spec.gpus = Gpus { ranks_each: args.ranks_per_gpu, mps: if args.mps { Mps::OfTheJob } else { Mps::AsItIs } };
    if args.horovod {
        spec.alias = Alias::Horovod;
    }
    spec.rendezvous_socket = args.rendezvous_socket.as_ref().map(|path| here.join(path));
    if let (Some(file), Some(results), Some(caller)) = (&args.task, &args.results, args.caller) {
        spec.task = Some(TaskFiles { file: here.join(file), results: here.join(results), caller });
    }
    Ok(spec)
}

/// Makes the job spec of any command.
pub(super) fn job_spec_for(
    args: &LaunchArgs,
    (placement, elastic): Places,
    command: Vec<OsString>,
    lookup: impl Fn(&str) -> Option<OsString>,
    here: &Path,
) -> Result<JobSpec> {
    let text = |variable: &'static str| lookup(variable).and_then(|value| value.into_string().ok());
    let working_dir = here.join(args.working_dir.as_deref().unwrap_or(here));
    let mut spec = JobSpec::new(placement, command, working_dir);
    spec.elastic = elastic;
    spec.restarts = args.elastic.restarts.unwrap_or(0);
    // Slurm counts how often it has put the batch job back into its queue.
    spec.requeues = lookup("SLURM_RESTART_COUNT").and_then(|count| count.to_str()?.trim().parse().ok()).unwrap_or(0);
    spec.start_timeout = args.settings.value(&settings::START_TIMEOUT, text)?;
    ensure!(!spec.start_timeout.is_zero(), "--start-timeout 0: no job starts in no time");
    spec.silence = args.settings.value(&settings::HEARTBEAT_TIMEOUT, text)?;
    spec.grace = args.settings.value(&settings::GRACE, text)?;
    spec.output = output(args, here);
    spec.ssh = args.remote.ssh(here);
    spec.verbose = if args.verbose { Verbose::Yes } else { Verbose::No };
    spec.network = args.remote.network(text)?;

    spec.metrics = metrics(args.settings.given(&settings::METRICS), settings::METRICS.written(text))?;
    let mut set = args.settings.variables(here);
    set.extend(args.tcp.then(|| ("NCCL_IB_DISABLE".to_owned(), "1".to_owned())));
    spec.set = set.into_iter().map(|(name, value)| (name, value.into())).collect();
    for word in &args.variables {
        add_variable(&mut spec, word, &lookup)?;
    }
    let set = &spec.set;
    flags::check(|name| {
        let last = set.iter().rev().find(|(set, _)| set == name);
        last.map_or_else(|| text(name), |(_, value)| value.to_str().map(str::to_owned))
    })?;
    Ok(spec)
}

/// Where metrics are to be shown.
fn metrics(flag: Option<&str>, variable: Option<(&str, String)>) -> Result<Option<SocketAddr>> {
    let (from, text) = match (flag, variable) {
        (Some(text), _) => ("--metrics", text.to_owned()),
        (None, Some((name, text))) => (name, text),
        (None, None) => return Ok(None),
    };
    live::parse_address(&text).map(Some).map_err(|why| anyhow!("{from}: {why}"))
}

/// Where ranks run, and what the job is like if that may change.
pub(super) type Places = (JobPlacement, Option<ElasticSpec>);

/// Places for the ranks of `farandole run`: as many as were asked for, or as this host has GPUs.
fn places(args: &RunArgs, lookup: &impl Fn(&str) -> Option<OsString>, here: &Path) -> Result<Places> {
    let (launch, each) = (&args.launch, args.ranks_per_gpu);
    if let (Some(each), Some(hosts)) = (each, named_hosts(launch)?)
        && let Some(host) = hosts.iter().find(|host| host.slots < each as usize)
    {
        // Hosts count their GPUs when their ranks are started; that is too late to number the ranks.
        bail!(
            "--ranks-per-gpu {each}: {} has {} slot{}; give each host as many slots as it is to have ranks, as in {}:{}",
            host.name,
            host.slots,
            if host.slots == 1 { "" } else { "s" },
            host.name,
            2 * each
        );
    }
    if let Some((placement, elastic)) = elastic::elastic(launch, here, lookup, || ranks_by_gpus(args, lookup))? {
        ensure!(args.task.is_none(), "a function cannot be run as an elastic job; start a command with farandole run");
        return Ok((placement, Some(elastic)));
    }
    if let Some(placement) = asked_placement(launch)? {
        return Ok((placement, None));
    }
    Ok((JobPlacement::here(ranks_by_gpus(args, lookup)?)?, None))
}

/// As many ranks as the GPUs of this host are for.
fn ranks_by_gpus(args: &RunArgs, lookup: &impl Fn(&str) -> Option<OsString>) -> Result<usize> {
    let set = |name: &str| {
        let set = args.launch.variables.iter().rev().filter_map(|word| word.to_str()?.split_once('='));
        set.clone().find(|(set, _)| *set == name).map(|(_, value)| value.into()).or_else(|| lookup(name))
    };
    let gpus = VisibleGpus::of_this_host(set, &mut || {});
    ensure!(
        gpus.count() > 0,
        "how many ranks? Give -np 4, or hosts with slots, as in -H h1:2,h2:2; this host has {}",
        gpus.described()
    );
    Ok(gpus.count() * args.ranks_per_gpu.unwrap_or(1) as usize)
}

/// Places for the ranks of any command, if the user has said how many there are to be.
#[cfg(feature = "train")]
pub(super) fn asked_places(
    args: &LaunchArgs,
    lookup: &impl Fn(&str) -> Option<OsString>,
    here: &Path,
) -> Result<Option<Places>> {
    let unknown = || Err(anyhow!("nothing says how many"));
    if let Some((placement, elastic)) = elastic::elastic(args, here, lookup, unknown)? {
        return Ok(Some((placement, Some(elastic))));
    }
    Ok(asked_placement(args)?.map(|placement| (placement, None)))
}

fn asked_placement(args: &LaunchArgs) -> Result<Option<JobPlacement>> {
    Ok(match (named_hosts(args)?, args.ranks) {
        (Some(hosts), ranks) => Some(JobPlacement::fill(hosts, ranks)?),
        (None, Some(ranks)) => Some(JobPlacement::here(ranks)?),
        (None, None) => None,
    })
}

fn named_hosts(args: &LaunchArgs) -> Result<Option<Vec<HostSlots>>> {
    Ok(match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Some(hosts::parse_list(list)?),
        (None, Some(file)) => Some(hostfile::read(file)?),
        (None, None) => None,
    })
}

fn output(args: &LaunchArgs, here: &Path) -> OutputOptions {
    OutputOptions {
        prefix: if args.no_prefix { Prefix::None } else { Prefix::Rank },
        timestamps: if args.prefix_output_with_timestamp { Timestamps::On } else { Timestamps::Off },
        colour: match args.colour {
            ColourArg::Auto => Colour::Auto,
            ColourArg::Always => Colour::Always,
            ColourArg::Never => Colour::Never,
        },
        directory: args.output_filename.as_ref().map(|directory| here.join(directory)),
        drawer: None,
    }
}

/// Takes in one `-x`.
fn add_variable(spec: &mut JobSpec, word: &OsStr, lookup: &impl Fn(&str) -> Option<OsString>) -> Result<()> {
    let shown = word.display();
    let bytes = word.as_bytes();
    let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => (bytes, None),
    };
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty());
    let name = name.with_context(|| format!("-x {shown}: expected NAME or NAME=VALUE"))?;
    ensure!(!LAUNCHERS_OWN.contains(&name), "-x {name}: the launcher sets this itself, for each rank");
    match value {
        Some(value) => spec.set.push((name.to_owned(), value)),
        None if name.ends_with('*') || lookup(name).is_some() => spec.pass.push(name.to_owned()),
        None => bail!("-x {name}: is not set here; give it a value with -x {name}=VALUE"),
    }
    Ok(())
}

/// Whether the value of a variable may be shown.
pub(super) fn shown_value(name: &str, value: &OsStr) -> String {
    if variables::looks_secret(name) { "(not shown)".to_owned() } else { value.display().to_string() }
}
