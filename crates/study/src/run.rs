//! What a study runs, and what became of each run.
//!
//! A [`Workload`] has all that must be the same for runs to be comparable; a [`Run`] is one measurement of one point.
//! Both have a form as JSON, in which the command keeps them.

use serde::{Deserialize, Serialize};

use super::input::{InputFigures, InputWorkload};
use super::planes::Messages;
use super::point::StudyPoint;
use super::sweep::{Axes, StudyKind};

/// What must be the same for runs to be comparable. Points and repeats may be added later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// What is varied.
    pub kind: StudyKind,
    /// The user's command; none is the built-in trainer.
    pub command: Option<String>,
    /// More words for the trainer.
    pub words: Vec<String>,
    /// Steps that are measured, for the trainer.
    pub steps: usize,
    /// Steps, or lines of throughput, that are left out at the beginning.
    pub warm_up: usize,
    /// Where it runs, as given.
    pub hosts: Option<String>,
    /// What is read, in a study of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputWorkload>,
}

impl Workload {
    /// In what another workload differs from the one that is there.
    pub fn difference(&self, wanted: &Workload) -> String {
        let parts = |workload: &Workload| {
            [
                ("kind", workload.kind.word().to_owned()),
                ("command", workload.command.clone().unwrap_or_else(|| "the built-in trainer".to_owned())),
                ("words for the trainer", workload.words.join(" ")),
                ("steps", workload.steps.to_string()),
                ("warm-up", workload.warm_up.to_string()),
                ("hosts", workload.hosts.clone().unwrap_or_else(|| "this one".to_owned())),
                ("input", workload.input.as_ref().map_or_else(|| "none".to_owned(), InputWorkload::text)),
            ]
        };
        let pairs = parts(self).into_iter().zip(parts(wanted));
        let other: Vec<String> = pairs
            .filter(|((_, there), (_, wanted))| there != wanted)
            .map(|((name, there), (_, wanted))| format!("{name}: {there} there, {wanted} now"))
            .collect();
        other.join("; ")
    }

    /// What was measured and how, in one line.
    pub fn subject(&self, axes: &Axes, repeats: usize) -> String {
        let what = match (&self.command, &self.input) {
            (Some(command), _) => format!("`{command}`"),
            (None, Some(input)) if !input.in_training => input.text(),
            (None, Some(input)) => {
                let (model, steps) = (axes.models.join(", "), self.steps);
                format!("{}, {model}, {steps} steps after {} of warm-up", input.text(), self.warm_up)
            }
            (None, None) => {
                format!("{}, {} steps after {} of warm-up", axes.models.join(", "), self.steps, self.warm_up)
            }
        };
        let runs = if repeats == 1 { "run" } else { "runs" };
        format!("Study of {}: {what}; {repeats} {runs} of each point", axes.kind.word())
    }
}

/// One run of one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What was measured.
    pub point: StudyPoint,
    /// Which of the runs of this point it is, from zero.
    pub repeat: usize,
    /// How long it took, starting and ending included.
    pub seconds: f64,
    /// What came of it.
    pub outcome: RunOutcome,
}

/// How a run has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOutcome {
    /// It was measured.
    Measured(Measured),
    /// It was not, and this is why.
    Failed(String),
    /// This machine cannot do it, and this is why.
    Refused(String),
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Of all ranks together.
    pub per_s: f64,
    /// What is counted, such as `samples`.
    pub unit: String,
    /// Seconds that a rank spent in each phase of an iteration, on average; empty without marks in the trace.
    pub phases: Vec<(String, f64)>,
    /// Where the time of all ranks went, in percent: the report's split by cause. Empty without a trace.
    pub split: Vec<(String, f64)>,
    /// Operations by size. Empty without a trace.
    #[serde(default)]
    pub messages: Vec<Messages>,
    /// What else is known, in a study of the input pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputFigures>,
}
