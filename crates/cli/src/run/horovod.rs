//! Flags of horovodrun that farandole has another answer to than doing something.
//!
//! There are three answers. *Granted*: what the flag asks for is so anyway, or it is a detail of something that is not
//! switched on. *Noted*: the flag tunes a mechanism that is not there, and one line says so; the job runs, since nobody loses anything.
//! *Refused*: somebody relies on what it asks for, and one line says what to use instead. No flag is overlooked in silence that
//! would have changed anything. The table below is all there is; flags that do something are in [`super::args`] and [`super::tuning`].

use anyhow::{Result, bail};
use clap::error::Error;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// What farandole says to a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted,
    Noted(&'static str),
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

use Answer::{Granted, Noted, Refused};

const ELASTIC: &str =
    "elastic jobs are not available yet; give a fixed number of ranks with -np, and hosts with -H or --hostfile";
const AUTOTUNE: &str = "autotuning is not available yet; set --fusion-threshold-mb yourself, or leave the default";
const ALGORITHM: &str =
    "has no effect: the algorithm of each operation is chosen by its size and by which ranks share a host";
const MPI: &str =
    "farandole run starts ranks itself; to have MPI start them, run mpirun -np N COMMAND without farandole run";

const fn flag(long: &'static str, values: usize, answer: Answer) -> ForeignFlag {
    ForeignFlag { long, also: None, values, unless: None, answer }
}

const fn switch(long: &'static str, unless: &'static str, answer: Answer) -> ForeignFlag {
    ForeignFlag { long, also: None, values: 0, unless: Some(unless), answer }
}

const fn also(long: &'static str, also: &'static str, answer: Answer) -> ForeignFlag {
    ForeignFlag { long, also: Some(also), values: 1, unless: None, answer }
}

/// Every flag of horovodrun that is not one of ours.
pub(super) const FLAGS: &[ForeignFlag] = &[
    flag("disable-cache", 0, Granted),
    flag("gloo", 0, Granted),
    flag("cycle-time-ms", 1, Noted("has no effect: there is no cycle, requests start when they are ready")),
    switch("hierarchical-allreduce", "no-hierarchical-allreduce", Noted(ALGORITHM)),
    switch("no-hierarchical-allreduce", "hierarchical-allreduce", Noted(ALGORITHM)),
    switch("hierarchical-allgather", "no-hierarchical-allgather", Noted(ALGORITHM)),
    switch("no-hierarchical-allgather", "hierarchical-allgather", Noted(ALGORITHM)),
    switch("torus-allreduce", "no-torus-allreduce", Noted(ALGORITHM)),
    switch("no-torus-allreduce", "torus-allreduce", Noted(ALGORITHM)),
    switch("mpi-threads-disable", "no-mpi-threads-disable", Granted),
    switch("no-mpi-threads-disable", "mpi-threads-disable", Granted),
    flag("num-nccl-streams", 1, Noted("has no effect: NCCL is not used yet")),
    flag("thread-affinity", 1, Refused("threads are not bound; start the command under taskset or numactl")),
    switch("autotune", "no-autotune", Refused(AUTOTUNE)),
    switch("no-autotune", "autotune", Granted),
    flag("autotune-log-file", 1, Granted),
    flag("autotune-warmup-samples", 1, Granted),
    flag("autotune-steps-per-sample", 1, Granted),
    flag("autotune-bayes-opt-max-samples", 1, Granted),
    flag("autotune-gaussian-process-noise", 1, Granted),
    also("min-np", "min-num-proc", Refused(ELASTIC)),
    also("max-np", "max-num-proc", Refused(ELASTIC)),
    also("slots-per-host", "slots", Refused(ELASTIC)),
    flag("elastic-timeout", 1, Refused(ELASTIC)),
    flag("reset-limit", 1, Refused(ELASTIC)),
    flag("blacklist-cooldown-range", 2, Refused(ELASTIC)),
    flag("host-discovery-script", 1, Refused(ELASTIC)),
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
                Granted => {}
                Noted(text) => notes.push(format!("--{} {text}", flag.long)),
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
