//! Flags of horovodrun that farandole has another answer to than doing something.
//!
//! There are two answers. *Noted*: the flag has no effect, one line says why, and the job runs. *Refused*: somebody
//! relies on what it asks for, and one line says what to use instead. No flag is overlooked in silence. Where a flag
//! stands for a variable of Horovod's that has no effect either, the reason is that of the table of settings. Flags
//! that do something are in [`super::args`] and `run::flags`.

use anyhow::{Result, bail};
use clap::error::Error;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use farandole_settings::{self as settings, Effect};

/// What farandole says to a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has no effect, for this reason.
    Noted(&'static str),
    /// It has no effect, for the reason for which this variable of Horovod's has none.
    NotedLike(&'static str),
    Refused(&'static str),
}

/// A flag that horovodrun has.
pub(super) struct ForeignFlag {
    pub(super) long: &'static str,
    /// Another spelling.
    also: Option<&'static str>,
    /// How many values it takes.
    pub(super) values: usize,
    /// The flag that takes it back.
    unless: Option<&'static str>,
    pub(super) answer: Answer,
}

use Answer::{Noted, NotedLike, Refused};

const AUTOTUNE: &str = "nothing is tuned while a job runs; set --fusion-threshold-mb yourself, or leave the default, \
                        and measure algorithms once with farandole calibrate";
const MPI: &str =
    "farandole run starts ranks itself; to have MPI start them, run mpirun -np N COMMAND without farandole run";

const fn flag(long: &'static str, values: usize, answer: Answer) -> ForeignFlag {
    ForeignFlag { long, also: None, values, unless: None, answer }
}

const fn switch(long: &'static str, unless: &'static str, answer: Answer) -> ForeignFlag {
    ForeignFlag { long, also: None, values: 0, unless: Some(unless), answer }
}

const fn stamp(long: &'static str, also: &'static str, unless: &'static str) -> ForeignFlag {
    ForeignFlag { long, also: Some(also), values: 0, unless: Some(unless), answer: NotedLike("HOROVOD_LOG_HIDE_TIME") }
}

/// Why a variable of Horovod's has no effect.
fn reason(variable: &str) -> &'static str {
    match settings::find(variable).map(|setting| setting.effect) {
        Some(Effect::None(why)) => why,
        other => unreachable!("invariant: {variable} has no effect by the table, not {other:?}"),
    }
}

/// Every flag of horovodrun that is not one of ours.
pub(super) const FLAGS: &[ForeignFlag] = &[
    flag("disable-cache", 0, Noted("nothing about hosts is kept from one job to the next")),
    flag("gloo", 0, NotedLike("HOROVOD_CONTROLLER")),
    flag("cycle-time-ms", 1, NotedLike("HOROVOD_CYCLE_TIME")),
    switch("hierarchical-allgather", "no-hierarchical-allgather", NotedLike("HOROVOD_HIERARCHICAL_ALLGATHER")),
    switch("no-hierarchical-allgather", "hierarchical-allgather", NotedLike("HOROVOD_HIERARCHICAL_ALLGATHER")),
    switch("torus-allreduce", "no-torus-allreduce", NotedLike("HOROVOD_TORUS_ALLREDUCE")),
    switch("no-torus-allreduce", "torus-allreduce", NotedLike("HOROVOD_TORUS_ALLREDUCE")),
    switch("mpi-threads-disable", "no-mpi-threads-disable", NotedLike("HOROVOD_MPI_THREADS_DISABLE")),
    switch("no-mpi-threads-disable", "mpi-threads-disable", NotedLike("HOROVOD_MPI_THREADS_DISABLE")),
    flag("num-nccl-streams", 1, NotedLike("HOROVOD_NUM_NCCL_STREAMS")),
    stamp("log-with-timestamp", "no-log-hide-timestamp", "log-without-timestamp"),
    stamp("log-without-timestamp", "log-hide-timestamp", "log-with-timestamp"),
    switch("autotune", "no-autotune", Refused(AUTOTUNE)),
    switch("no-autotune", "autotune", NotedLike("HOROVOD_AUTOTUNE")),
    flag("autotune-log-file", 1, NotedLike("HOROVOD_AUTOTUNE_LOG")),
    flag("autotune-warmup-samples", 1, NotedLike("HOROVOD_AUTOTUNE_WARMUP_SAMPLES")),
    flag("autotune-steps-per-sample", 1, NotedLike("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE")),
    flag("autotune-bayes-opt-max-samples", 1, NotedLike("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES")),
    flag("autotune-gaussian-process-noise", 1, NotedLike("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE")),
    flag("mpi", 0, Refused(MPI)),
    flag("jsrun", 0, Refused("farandole run reaches hosts through ssh; give them with -H or --hostfile")),
    flag("mpi-args", 1, Refused(MPI)),
    flag("binding-args", 1, Refused("ranks are not bound; start the command under taskset or numactl")),
];

/// Which of them were given.
#[derive(Clone, Debug, Default)]
pub(super) struct Foreign {
    given: Vec<&'static str>,
}

impl Foreign {
    /// The lines to show; an error if a flag is refused.
    pub(super) fn answers(&self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for flag in FLAGS.iter().filter(|flag| self.given.contains(&flag.long)) {
            match flag.answer {
                Noted(why) => notes.push(format!("--{} has no effect: {why}", flag.long)),
                NotedLike(variable) => notes.push(format!("--{} has no effect: {}", flag.long, reason(variable))),
                Refused(text) => bail!("--{}: {text}", flag.long),
            }
        }
        Ok(notes)
    }
}

impl FromArgMatches for Foreign {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Foreign, Error> {
        let mut foreign = Foreign::default();
        foreign.update_from_arg_matches(matches)?;
        Ok(foreign)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let given = |flag: &&ForeignFlag| matches.value_source(flag.long) == Some(ValueSource::CommandLine);
        self.given.extend(FLAGS.iter().filter(given).map(|flag| flag.long));
        Ok(())
    }
}

impl Args for Foreign {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, flag| command.arg(as_arg(flag)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Foreign::augment_args(command)
    }
}

fn as_arg(flag: &ForeignFlag) -> Arg {
    let arg = Arg::new(flag.long).long(flag.long).hide(true);
    let arg = match flag.values {
        0 => arg.action(ArgAction::SetTrue),
        values => arg.action(ArgAction::Set).num_args(values).allow_hyphen_values(true),
    };
    let arg = flag.unless.into_iter().fold(arg, |arg, other| arg.overrides_with(other));
    flag.also.into_iter().fold(arg, |arg, name| arg.alias(name))
}
