//! From flags to an order: what was asked for, resolved and consistent, before anything is started.
//!
//! The environment is a parameter, so that a test is not at the mercy of its own. A flag counts before the environment,
//! and that before the default.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farandole_cluster::launch::{
    Alias, Colour, Order, Output, Placement, Prefix, Ssh, Task, Timestamps, Verbose, hostfile, hosts, variables,
};
use farandole_cluster::{environment, live};
use farandole_engine::config::SettingValue;

use super::args::{ColourArg, LaunchArgs, RunArgs};
use super::tuning;

/// What the launcher sets for every rank itself; a user's value would make two ranks the same one.
const LAUNCHERS_OWN: &[&str] = &[
    "FARANDOLE_RANK",
    "FARANDOLE_SIZE",
    "FARANDOLE_LOCAL_RANK",
    "FARANDOLE_LOCAL_SIZE",
    "FARANDOLE_CROSS_RANK",
    "FARANDOLE_CROSS_SIZE",
    "FARANDOLE_RENDEZVOUS",
    "FARANDOLE_KEY",
    "FARANDOLE_KEY_FD",
    "FARANDOLE_HOST",
    "FARANDOLE_PARENT",
    "FARANDOLE_TASK_FD",
    "FARANDOLE_RESULT_FD",
];

/// Makes the order of `farandole run`. `lookup` is this process's environment, `here` its directory.
pub(super) fn order(args: &RunArgs, lookup: impl Fn(&str) -> Option<OsString>, here: &Path) -> Result<Order> {
    let mut order = order_for(&args.launch, args.command.clone(), lookup, here)?;
    if args.horovod {
        order.alias = Alias::Horovod;
    }
    if let (Some(file), Some(results), Some(caller)) = (&args.task, &args.results, args.caller) {
        order.task = Some(Task { file: here.join(file), results: here.join(results), caller });
    }
    Ok(order)
}

/// Makes an order for any command.
pub(super) fn order_for(
    args: &LaunchArgs,
    command: Vec<OsString>,
    lookup: impl Fn(&str) -> Option<OsString>,
    here: &Path,
) -> Result<Order> {
    let text = |variable: &str| lookup(variable).and_then(|value| value.into_string().ok());
    let working_dir = here.join(args.working_dir.as_deref().unwrap_or(here));
    let mut order = Order::new(placement(args)?, command, working_dir);
    order.start_timeout =
        time(args.start_timeout, &["FARANDOLE_START_TIMEOUT", "HOROVOD_START_TIMEOUT"], &text, Order::START_TIMEOUT)?;
    ensure!(!order.start_timeout.is_zero(), "--start-timeout 0: no job starts in no time");
    order.silence = time(args.heartbeat_timeout, &["FARANDOLE_HEARTBEAT_TIMEOUT"], &text, Order::SILENCE)?;
    order.grace = time(args.grace, &["FARANDOLE_GRACE"], &text, Order::GRACE)?;
    order.output = output(args, here);
    order.ssh = Ssh {
        port: args.ssh_port,
        identity: args.ssh_identity_file.as_ref().map(|file| here.join(file)),
        words: args.ssh_option.clone(),
    };
    order.verbose = if args.verbose { Verbose::Yes } else { Verbose::No };
    let named =
        environment::INTERFACE.iter().find_map(|variable| text(variable)).filter(|names| !names.trim().is_empty());
    order.network = match (args.network_interface.as_slice(), named) {
        ([], Some(names)) => names.split(',').map(|name| name.trim().to_owned()).collect(),
        (flags, _) => flags.iter().map(|name| name.trim().to_owned()).collect(),
    };
    ensure!(
        order.network.iter().all(|name| !name.is_empty()),
        "--network-interface: an empty name; expected for instance eth0"
    );

    order.metrics = metrics(args.insight.metrics, text(live::METRICS))?;
    let mut settings = args.tuning.variables()?;
    settings.extend(args.insight.variables(here));
    order.set = settings.into_iter().map(|(name, value)| (name, value.into())).collect();
    // The ranks' own patience for each other is the launcher's.
    let patience =
        [("FARANDOLE_START_TIMEOUT", args.start_timeout), ("FARANDOLE_HEARTBEAT_TIMEOUT", args.heartbeat_timeout)];
    for (name, time) in patience {
        order.set.extend(time.map(|time| (name.to_owned(), time.show().into())));
    }
    for word in &args.variables {
        add_variable(&mut order, word, &lookup)?;
    }
    let set = &order.set;
    tuning::check(|name| {
        let last = set.iter().rev().find(|(set, _)| set == name);
        last.map_or_else(|| text(name), |(_, value)| value.to_str().map(str::to_owned))
    })?;
    Ok(order)
}

/// Where metrics are to be shown.
fn metrics(flag: Option<SocketAddr>, variable: Option<String>) -> Result<Option<SocketAddr>> {
    match (flag, variable.filter(|text| !text.trim().is_empty())) {
        (Some(address), _) => Ok(Some(address)),
        (None, Some(text)) => match live::parse_address(&text) {
            Ok(address) => Ok(Some(address)),
            Err(why) => bail!("{}: {why}", live::METRICS),
        },
        (None, None) => Ok(None),
    }
}

fn placement(args: &LaunchArgs) -> Result<Placement> {
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => hosts::parse_list(list)?,
        (None, Some(file)) => hostfile::read(file)?,
        (None, None) => {
            let ranks = args.ranks.context("how many ranks? Give -np 4, or hosts with slots, as in -H h1:2,h2:2")?;
            return Ok(Placement::here(ranks)?);
        }
    };
    Ok(Placement::fill(hosts, args.ranks)?)
}

fn output(args: &LaunchArgs, here: &Path) -> Output {
    Output {
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

fn time(
    flag: Option<Duration>,
    names: &[&str],
    text: &impl Fn(&str) -> Option<String>,
    default: Duration,
) -> Result<Duration> {
    let from_environment =
        names.iter().find_map(|name| Some((name, text(name).filter(|value| !value.trim().is_empty())?)));
    match (flag, from_environment) {
        (Some(time), _) => Ok(time),
        (None, Some((name, value))) => {
            Duration::parse(value.trim()).with_context(|| format!("{name}={value} is not {}", Duration::KIND))
        }
        (None, None) => Ok(default),
    }
}

/// Takes in one `-x`.
fn add_variable(order: &mut Order, word: &OsStr, lookup: &impl Fn(&str) -> Option<OsString>) -> Result<()> {
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
        Some(value) => order.set.push((name.to_owned(), value)),
        None if name.ends_with('*') || lookup(name).is_some() => order.pass.push(name.to_owned()),
        None => bail!("-x {name}: is not set here; give it a value with -x {name}=VALUE"),
    }
    Ok(())
}

/// Whether the value of a variable may be shown.
pub(super) fn shown_value(name: &str, value: &OsStr) -> String {
    if variables::looks_secret(name) { "(not shown)".to_owned() } else { value.display().to_string() }
}
