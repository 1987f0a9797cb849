//! Flags that are settings of the engine, under the names that horovodrun gave them.
//!
//! Each becomes a variable of the ranks, under the name that the engine looks at first, so that a flag overrules
//! whatever the environment says. What is not given sets nothing: then the environment counts, and then the engine's
//! default. The engine's own reader checks the outcome here, before anything starts, so that nonsense is reported once
//! and not by every rank.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use farandole_engine::config::{Config, Cores, SettingValue};
use farandole_transport::Protection;

use super::args::ENGINE;

/// Settings of the engine.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Tuning {
    /// Requests that are ready together travel together up to so many MiB; 0 switches fusion off [default: 64]
    #[arg(long, value_name = "MIB", help_heading = ENGINE)]
    fusion_threshold_mb: Option<u64>,

    /// 0: agree on every request anew. Any other number: repeat a learned order without talking [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = ENGINE)]
    cache_capacity: Option<u64>,

    /// Always use the hierarchical allreduce between hosts that have several ranks each, or
    /// (--no-hierarchical-allreduce) never
    /// [default: where it is the fastest]
    #[arg(long, overrides_with = "no_hierarchical_allreduce", help_heading = ENGINE)]
    hierarchical_allreduce: bool,

    #[arg(long, overrides_with = "hierarchical_allreduce", hide = true)]
    no_hierarchical_allreduce: bool,

    /// Bind the engine's worker thread of each rank of a host to a core, in the order of local ranks: 0,2
    #[arg(long, value_name = "CORES", value_parser = cores, help_heading = ENGINE)]
    thread_affinity: Option<Affinity>,

    /// An operation, named or direct, fails when nothing has moved for so many seconds; 0: never [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = ENGINE)]
    gloo_timeout_seconds: Option<Duration>,

    /// Do not watch for requests that some ranks never make
    #[arg(long, overrides_with = "stall_check", help_heading = ENGINE)]
    no_stall_check: bool,

    #[arg(long, overrides_with = "no_stall_check", hide = true)]
    stall_check: bool,

    /// Report who is missing after so many seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = ENGINE)]
    stall_check_warning_time_seconds: Option<Duration>,

    /// Give up after so many seconds; 0 means never [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = ENGINE)]
    stall_check_shutdown_time_seconds: Option<Duration>,

    /// How tensors are protected between hosts: checksum (CRC32C, finds damage) or encrypt (AES-256-GCM). Control
    /// messages are always encrypted [default: off]
    #[arg(long, value_name = "HOW", value_parser = protection, help_heading = ENGINE)]
    wire_protection: Option<Protection>,

    /// Between hosts farandole speaks TCP anyway; this keeps NCCL off InfiniBand, too (NCCL_IB_DISABLE=1)
    #[arg(long, help_heading = ENGINE)]
    tcp: bool,

    /// INFO: each rank says at its start who it is; DEBUG: rank 0 also says which measured table is used [default:
    /// WARNING]
    #[arg(long, value_enum, ignore_case = true, value_name = "LEVEL", help_heading = ENGINE)]
    log_level: Option<LogLevel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
enum LogLevel {
    Trace,
    Debug,
    Info,
    Warning,
    Error,
    Fatal,
}

impl Tuning {
    /// The variables that these flags set.
    pub(super) fn variables(&self) -> Result<Vec<(String, String)>> {
        let mut variables = Vec::new();
        let mut set = |name: &str, value: Option<String>| {
            variables.extend(value.map(|value| (name.to_owned(), value)));
        };
        let bytes = self.fusion_threshold_mb.map(|mib| {
            mib.checked_mul(1 << 20).with_context(|| format!("--fusion-threshold-mb {mib}: no memory is that large"))
        });
        set("FARANDOLE_FUSION_THRESHOLD", bytes.transpose()?.map(|bytes| bytes.to_string()));
        set("FARANDOLE_REPLAY", self.cache_capacity.map(|capacity| capacity.to_string()));
        set("FARANDOLE_TIMEOUT_SECONDS", self.gloo_timeout_seconds.map(|time| time.show()));
        let watch = self.no_stall_check || self.stall_check;
        set("FARANDOLE_STALL_CHECK_DISABLE", watch.then(|| self.no_stall_check.show()));
        set("FARANDOLE_STALL_CHECK_TIME_SECONDS", self.stall_check_warning_time_seconds.map(|time| time.show()));
        set("FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS", self.stall_check_shutdown_time_seconds.map(|time| time.show()));
        let hierarchical = self.hierarchical_allreduce || self.no_hierarchical_allreduce;
        set("FARANDOLE_HIERARCHICAL_ALLREDUCE", hierarchical.then(|| self.hierarchical_allreduce.show()));
        set("FARANDOLE_THREAD_AFFINITY", self.thread_affinity.as_ref().map(|Affinity(cores)| cores.show()));
        set("FARANDOLE_WIRE_PROTECTION", self.wire_protection.map(|protection| protection.show()));
        set("NCCL_IB_DISABLE", self.tcp.then(|| "1".to_owned()));
        let level = self.log_level.and_then(|level| level.to_possible_value());
        let level = level.map(|level| level.get_name().to_owned());
        // The second one is for scripts that look at it.
        set("FARANDOLE_LOG_LEVEL", level.clone());
        set("HOROVOD_LOG_LEVEL", level);
        Ok(variables)
    }
}

/// Lets the engine's own reader look at what ranks will find.
pub(super) fn check(lookup: impl Fn(&str) -> Option<String>) -> Result<()> {
    let config = Config::from_lookup(lookup)?;
    let (warning, shutdown) = (config.stall_warning, config.stall_shutdown);
    ensure!(
        config.stall_check_disable || shutdown.is_zero() || shutdown > warning,
        "--stall-check-shutdown-time-seconds {}: has to be longer than the warning time, {} s, or 0 for never",
        shutdown.as_secs_f64(),
        warning.as_secs_f64()
    );
    Ok(())
}

/// Cores, as one value: clap would take a list for several.
#[derive(Clone, Debug)]
struct Affinity(Cores);

fn cores(text: &str) -> Result<Affinity, String> {
    let cores = Cores::parse(text).filter(|cores| !cores.is_empty());
    cores.map(Affinity).ok_or_else(|| format!("expected {}", Cores::KIND))
}

fn protection(text: &str) -> Result<Protection, String> {
    Protection::parse(text).ok_or_else(|| format!("expected {}", Protection::KIND))
}

/// A time in seconds, with decimals if need be.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    Duration::parse(text).ok_or_else(|| format!("expected {}, such as 30 or 0.5", Duration::KIND))
}
