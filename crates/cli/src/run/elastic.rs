//! Elastic jobs on the command line: their flags, with Horovod's spellings, and what follows from them together.
//!
//! A job is elastic if any of these flags is given; `--restarts` is for every job. Hosts come from a script, from a
//! file that is watched, from the allocation of Slurm that the launcher runs in, or from a fixed list; sources that
//! change are looked at here for the first time, and a failure then is an error. What contradicts itself is refused
//! before anything is started.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use farandole_cluster::launch::{ElasticSpec, HostSlots, HostSource, JobPlacement, hosts, placement};
use farandole_settings as settings;

use super::args::LaunchArgs;

/// The flags.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ElasticArgs {
    /// With fewer ranks the job waits for others to come, up to --elastic-timeout (also written --min-num-proc)
    /// [default: the number of ranks]
    #[arg(long, alias = "min-num-proc", value_name = "RANKS", help_heading = ELASTIC)]
    pub(super) min_np: Option<usize>,

    /// The job never has more ranks (also written --max-num-proc) [default: the number of ranks; without -np, as many
    /// as hosts have slots]
    #[arg(long, alias = "max-num-proc", value_name = "RANKS", help_heading = ELASTIC)]
    pub(super) max_np: Option<usize>,

    /// A command that prints the hosts there are, 'host' or 'host:2' on each line. It is run every second
    #[arg(long, value_name = "COMMAND", help_heading = ELASTIC)]
    pub(super) host_discovery_script: Option<String>,

    /// Slots of a host that the script names without a number, or of each node of a Slurm allocation (also written
    /// --slots) [default: 1; under Slurm, its tasks per node]
    #[arg(long, alias = "slots", value_name = "SLOTS", help_heading = ELASTIC)]
    pub(super) slots_per_host: Option<usize>,

    /// End the job when its membership has changed more often than this [default: never]
    #[arg(long, value_name = "TIMES", help_heading = ELASTIC)]
    pub(super) reset_limit: Option<u64>,

    /// For how many seconds a host whose ranks fail is left alone: LOW after the first time, then twice as long each
    /// time up to HIGH [default: not at all after the first time, then 1 to 60]
    #[arg(
        long,
        num_args = 2,
        value_names = ["LOW", "HIGH"],
        value_parser = seconds,
        help_heading = ELASTIC
    )]
    pub(super) blacklist_cooldown_range: Vec<Duration>,

    /// So many more processes are started, and wait to take the place of ranks that are lost
    #[arg(long, value_name = "N", help_heading = ELASTIC)]
    pub(super) spares: Option<usize>,

    /// Replace a rank that keeps the others waiting: over so many iterations it hardly waited, and the others for a
    /// fifth of their time more. Never below --min-np, and one at a time [default: never; without a number, 200
    /// iterations]
    #[arg(
        long,
        value_name = "ITERATIONS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "200",
        help_heading = ELASTIC
    )]
    pub(super) replace_slow: Option<u64>,

    /// Start the whole job again when it fails, so many times. For scripts that know nothing of elastic jobs and go on
    /// from a checkpoint; ranks find in FARANDOLE_RESTART how often it was
    #[arg(long, value_name = "TIMES", help_heading = ELASTIC)]
    pub(super) restarts: Option<u32>,
}

const ELASTIC: &str = "Elastic jobs";

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let parsed = text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed.ok_or_else(|| "expected a number of seconds".to_owned())
}

/// What an elastic job is made of, and how it is meant to begin; `None` if no flag asks for one. `otherwise` is the
/// number of ranks where nothing says it.
pub(super) fn elastic(
    args: &LaunchArgs,
    here: &Path,
    lookup: &impl Fn(&str) -> Option<OsString>,
    otherwise: impl FnOnce() -> Result<usize>,
) -> Result<Option<(JobPlacement, ElasticSpec)>> {
    let flags = &args.elastic;
    let timeout_is_given = args.settings.given(&settings::ELASTIC_TIMEOUT).is_some();
    if !flags.any_given() && !timeout_is_given {
        return Ok(None);
    }
    let text = |variable: &'static str| lookup(variable).and_then(|value| value.into_string().ok());
    let spares = flags.spares.unwrap_or(0);
    let source = source(args, here, &text)?;
    let hosts = hosts_of(args, &source, spares, otherwise)?;
    let slots: usize = hosts.iter().map(|host| host.slots).sum();
    let most = slots.saturating_sub(spares).min(flags.max_np.unwrap_or(usize::MAX));
    let np = args.ranks.unwrap_or(most);
    let spec = ElasticSpec {
        np,
        min_np: flags.min_np.unwrap_or(np),
        max_np: flags.max_np.or_else(|| (args.ranks.is_some() || source == HostSource::Fixed).then_some(np)),
        spares,
        reset_limit: flags.reset_limit,
        replace_slow: flags.replace_slow,
        timeout: args.settings.value(&settings::ELASTIC_TIMEOUT, text)?,
        cool_down: cool_down(&flags.blacklist_cooldown_range)?,
        hosts,
        source,
    };
    check(&spec, slots, args.ranks.is_some())?;
    let placement = JobPlacement::fill(spec.hosts.clone(), Some(np.min(slots)))?;
    Ok(Some((placement, spec)))
}

impl ElasticArgs {
    /// Whether the number of ranks follows from these flags.
    #[cfg(feature = "train")]
    pub(super) fn says_how_many(&self) -> bool {
        self.min_np.is_some() || self.max_np.is_some() || self.host_discovery_script.is_some()
    }

    fn any_given(&self) -> bool {
        self.min_np.is_some()
            || self.max_np.is_some()
            || self.host_discovery_script.is_some()
            || self.slots_per_host.is_some()
            || self.reset_limit.is_some()
            || !self.blacklist_cooldown_range.is_empty()
            || self.spares.is_some()
            || self.replace_slow.is_some()
    }
}

fn source(args: &LaunchArgs, here: &Path, text: &impl Fn(&'static str) -> Option<String>) -> Result<HostSource> {
    let slots = args.elastic.slots_per_host;
    ensure!(slots != Some(0), "--slots-per-host 0: expected a number of ranks that a host may hold");
    if let Some(command) = &args.elastic.host_discovery_script {
        ensure!(
            args.hosts.is_none() && args.hostfile.is_none(),
            "--host-discovery-script: cannot be used with -H or --hostfile; hosts come from one of them"
        );
        return Ok(HostSource::Script { command: command.clone(), slots_per_host: slots.unwrap_or(1) });
    }
    let in_slurm = text("SLURM_JOB_NODELIST").filter(|_| args.hosts.is_none() && args.hostfile.is_none());
    if let Some(nodes) = in_slurm {
        let per_node = ["SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"].into_iter().find_map(text);
        // Such as 2(x3): two on each of three nodes.
        let per_node =
            per_node.and_then(|count| count.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok());
        return Ok(HostSource::Slurm { nodes, slots_per_host: slots.or(per_node).unwrap_or(1) });
    }
    ensure!(
        slots.is_none(),
        "--slots-per-host: is for hosts that --host-discovery-script names, or Slurm; with -H and --hostfile each host \
         has its own number, as in h1:2"
    );
    Ok(match &args.hostfile {
        Some(file) => HostSource::File(here.join(file)),
        None => HostSource::Fixed,
    })
}

fn hosts_of(
    args: &LaunchArgs,
    source: &HostSource,
    spares: usize,
    otherwise: impl FnOnce() -> Result<usize>,
) -> Result<Vec<HostSlots>> {
    if *source != HostSource::Fixed {
        let stay = match source {
            HostSource::Slurm { .. } => "; name hosts with -H to do without Slurm's",
            _ => "",
        };
        return source.look().map_err(|why| anyhow!("{why}{stay}"));
    }
    if let Some(list) = &args.hosts {
        return Ok(placement::together(hosts::parse_list(list)?));
    }
    let flags = &args.elastic;
    let most = flags.max_np.max(args.ranks).or(flags.min_np);
    let most = most.map_or_else(otherwise, Ok).context("how many ranks? Give -np 4, or --max-np 4")?;
    Ok(vec![HostSlots { name: "localhost".to_owned(), slots: most.saturating_add(spares) }])
}

fn cool_down(range: &[Duration]) -> Result<Option<(Duration, Duration)>> {
    let &[low, high] = range else { return Ok(None) };
    ensure!(
        low <= high,
        "--blacklist-cooldown-range {} {}: the first number is the shorter time",
        low.as_secs_f64(),
        high.as_secs_f64()
    );
    Ok(Some((low, high)))
}

fn check(spec: &ElasticSpec, slots: usize, np_is_given: bool) -> Result<()> {
    let &ElasticSpec { np, min_np, max_np, spares, .. } = spec;
    ensure!(min_np > 0, "--min-np 0: a job without ranks does nothing");
    if let Some(most) = max_np {
        ensure!(min_np <= most, "--min-np {min_np}: is more than --max-np {most}");
        ensure!(np <= most, "-np {np}: is more than --max-np {most}");
    }
    if spec.source == HostSource::Fixed {
        let needed = np.max(min_np).saturating_add(spares);
        let what = if np_is_given { format!("-np {np}") } else { format!("--min-np {min_np}") };
        ensure!(
            needed <= slots,
            "{what}{}: the hosts have {slots} slots, {} too few",
            if spares > 0 { format!(" --spares {spares}") } else { String::new() },
            needed - slots
        );
    }
    ensure!(spec.replace_slow != Some(0), "--replace-slow=0: expected a number of iterations");
    ensure!(
        spec.replace_slow.is_none() || min_np < np.saturating_add(spares),
        "--replace-slow: nobody could ever leave, because --min-np is {min_np}; give a smaller --min-np, or --spares 1"
    );
    ensure!(min_np <= np || !np_is_given, "--min-np {min_np}: is more than -np {np}");
    Ok(())
}
