//! What a run has come to, for people and for programs.
//!
//! The text is said by rank 0 when training is over; the same as JSON is the last line of the log, with the keys that
//! docs/train.md describes and studies read. Throughput is counted over whole steps, from waiting for input to the
//! optimizer's last weight, without the first ones; neither evaluation nor checkpoints are in it.

use farandole::{ReduceOp, World};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::evaluate::Judgement;
use crate::job::{Plan, TrainJob};
use crate::stopwatch::{Phases, Spread, Stopwatch};
use farandole_data::Unit;
use farandole_data::sample::Task;

/// Ranks whose throughput is named one by one; of more only the slowest and the fastest are.
const NAMED_RANKS: usize = 4;

/// Names and values of what a network is judged by, the loss first.
pub type Metrics = Vec<(&'static str, f64)>;

/// What was judged, in the unit of people where the task has one.
pub fn metrics(judgement: &Judgement, task: Task, unit: &Unit) -> Metrics {
    let mut metrics = judgement.score.metrics();
    if task == Task::Regression {
        for (_, value) in metrics.iter_mut().filter(|(name, _)| ["mae", "rmse"].contains(name)) {
            *value *= f64::from(unit.deviation);
        }
    }
    metrics
}

/// One line: shares as percent, everything else as it is.
pub fn metrics_text(metrics: &Metrics) -> String {
    let each = metrics.iter().rev().map(|(name, value)| match *name {
        "accuracy" => format!("accuracy {:.2} %", 100.0 * value),
        "top5" => format!("top-5 {:.2} %", 100.0 * value),
        "f1_micro" | "f1_macro" => format!("{} {value:.4}", name.replace('_', " ")),
        "psnr" => format!("psnr {value:.2} dB"),
        _ => format!("{name} {value:.4}"),
    });
    // What the task is judged by comes before what is only learned by.
    let mut words: Vec<String> = each.collect();
    if let Some(loss) = words.pop() {
        words.reverse();
        words.push(loss);
    }
    words.join(", ")
}

/// The same for programs.
pub fn metrics_json(metrics: &Metrics) -> Value {
    Value::Object(metrics.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>())
}

/// What all ranks have measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gathered {
    /// Samples in a second, of each rank.
    pub by_rank: Vec<Spread>,
    /// Seconds in each phase, the mean over ranks.
    pub phases: Phases,
    /// Samples of all ranks in the steps that count.
    pub counted_samples: f64,
    /// How long these took, the mean over ranks.
    pub counted_s: f64,
}

/// Brings together what all ranks have measured. All ranks call this together.
///
/// # Errors
/// If ranks are lost.
pub fn gather(world: &mut World, watch: &Stopwatch) -> Result<Gathered> {
    let (rank, size) = (world.rank(), world.size());
    let own = watch.samples_per_s();
    let mut rates = vec![0.0_f64; 3 * size];
    rates[3 * rank..3 * rank + 3].copy_from_slice(&[own.lower, own.median, own.upper]);
    world.allreduce(&mut rates, ReduceOp::Sum)?;
    let mut phases = watch.phases.to_array();
    world.allreduce(&mut phases, ReduceOp::Average)?;
    let by_rank = rates.chunks(3).map(|rate| Spread { lower: rate[0], median: rate[1], upper: rate[2] }).collect();
    let (counted_samples, counted_s) = watch.throughput();
    let mut seconds = [counted_s];
    world.allreduce(&mut seconds, ReduceOp::Average)?;
    Ok(Gathered { by_rank, phases: Phases::from_array(phases), counted_samples, counted_s: seconds[0] })
}

/// Ranks have left or joined.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankChange {
    /// After what.
    pub at: String,
    /// Ranks before.
    pub before: usize,
    /// Ranks afterwards.
    pub ranks: usize,
    /// How many of these had just come.
    pub joined: usize,
}

/// Everything that is known when training is over.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// What was asked for.
    pub job: &'a TrainJob,
    /// What followed from it.
    pub plan: &'a Plan,
    /// The data set, in a line.
    pub data: String,
    /// The network.
    pub model: String,
    /// Number of hosts.
    pub hosts: usize,
    /// Threads of this rank.
    pub threads: usize,
    /// Epochs that are complete, those before a resume included.
    pub epochs_done: u64,
    /// Samples that were learned from, since the start of this run.
    pub samples: f64,
    /// Their mean loss.
    pub loss: f64,
    /// How long it took from the first step to the last, everything included.
    pub seconds: f64,
    /// Whether somebody asked to stop.
    pub stopped: bool,
    /// The last judgement.
    pub metrics: Option<Metrics>,
    /// What all ranks have measured.
    pub gathered: Gathered,
    /// How the ranks have changed.
    pub changes: Vec<RankChange>,
}

impl Facts<'_> {
    /// Samples in a second, of all ranks together, over the time of training.
    pub fn samples_per_s(&self) -> f64 {
        let Gathered { counted_samples, counted_s, .. } = self.gathered;
        if counted_s > 0.0 { counted_samples / counted_s } else { 0.0 }
    }

    /// For people.
    pub fn text(&self) -> Vec<String> {
        let ranks = self.gathered.by_rank.len();
        let mut lines = vec![String::new()];
        lines.push(format!(
            "{} {}: {:.0} samples in {:.1} s on {ranks} rank{}",
            if self.stopped { "stopped" } else { "trained" },
            self.model,
            self.samples,
            self.seconds,
            if ranks == 1 { "" } else { "s" }
        ));
        if self.samples > 0.0 {
            lines.push(format!("  throughput  {:.1} samples/s; {}", self.samples_per_s(), self.ranks_text()));
        }
        if let Some(metrics) = &self.metrics {
            lines.push(format!("  test        {}", metrics_text(metrics)));
        }
        lines.push(format!("  time        {}", self.phases_text()));
        if !self.changes.is_empty() {
            lines.push(format!("  ranks       {}", self.changes_text()));
        }
        lines
    }

    fn changes_text(&self) -> String {
        let lost: usize = self.changes.iter().map(|change| change.before + change.joined - change.ranks).sum();
        let joined: usize = self.changes.iter().map(|change| change.joined).sum();
        let each = self.changes.iter().map(|change| {
            let RankChange { at, before, ranks, .. } = change;
            format!("{before} to {ranks} after {at}")
        });
        let each: Vec<String> = each.collect();
        format!("{lost} lost, {joined} joined: {}; every sample was used once in each epoch", each.join(", "))
    }

    fn ranks_text(&self) -> String {
        let named = |(rank, spread): (usize, &Spread)| {
            format!("rank {rank} {:.1} ({:.1} to {:.1})", spread.median, spread.lower, spread.upper)
        };
        let mut ranks: Vec<(usize, &Spread)> = self.gathered.by_rank.iter().enumerate().collect();
        if ranks.len() <= NAMED_RANKS {
            return ranks.into_iter().map(named).collect::<Vec<_>>().join(", ");
        }
        ranks.sort_by(|(_, first), (_, second)| first.median.total_cmp(&second.median));
        format!("from {} to {}", named(ranks[0]), named(ranks[ranks.len() - 1]))
    }

    fn phases_text(&self) -> String {
        let names = ["input", "forward", "backward", "optimizer", "evaluation", "checkpoint"];
        let seconds = self.gathered.phases.to_array();
        let all = seconds.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let parts = names.iter().zip(seconds).map(|(name, seconds)| format!("{name} {:.1} %", 100.0 * seconds / all));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let by_rank = &self.gathered.by_rank;
        let medians: f64 = by_rank.iter().map(|spread| spread.median).sum();
        json!({
            "model": self.model, "data": self.data, "ranks": by_rank.len(), "hosts": self.hosts, "threads": self.threads,
            "batch": self.job.batch, "accumulate": self.job.accumulate, "global_batch": self.plan.global_batch,
            "precision": self.job.precision, "epochs": self.epochs_done, "samples": self.samples, "loss": self.loss,
            "seconds": self.seconds, "stopped": self.stopped,
            "samples_per_s": self.samples_per_s(), "median_samples_per_s": medians, "samples_per_s_by_rank": by_rank,
            "phases": self.gathered.phases,
            "test": self.metrics.as_ref().map(metrics_json), "changes": self.changes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>(job: &'a TrainJob, plan: &'a Plan, ranks: usize) -> Facts<'a> {
        let by_rank = (0..ranks).map(|rank| Spread { lower: 49.0, median: 50.0 + rank as f64, upper: 60.0 }).collect();
        let phases = Phases { forward_s: 1.0, backward_s: 3.0, evaluation_s: 4.0, ..Phases::default() };
        Facts {
            job,
            plan,
            data: "CIFAR-like".to_owned(),
            model: "resnet20".to_owned(),
            hosts: 1,
            threads: 1,
            epochs_done: 4,
            samples: 800.0,
            loss: 0.5,
            seconds: 9.0,
            stopped: false,
            metrics: Some(vec![("loss", 0.25), ("accuracy", 0.9531), ("top5", 1.0)]),
            gathered: Gathered { by_rank, phases, counted_samples: 800.0, counted_s: 4.0 },
            changes: Vec::new(),
        }
    }

    #[test]
    fn people_get_throughput_accuracy_and_phases() {
        let job = TrainJob::new();
        let plan = Plan::new(&job, 2, 10, 2, 32);
        let text = facts(&job, &plan, 2).text().join("\n");
        for part in
            ["200.0 samples/s", "rank 1 51.0 (49.0 to 60.0)", "accuracy 95.31 %", "loss 0.2500", "backward 37.5 %"]
        {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        let many = facts(&job, &plan, 64).text().join("\n");
        assert!(
            many.contains("from rank 0 50.0") && many.contains("to rank 63 113.0") && !many.contains("rank 7 "),
            "{many}"
        );
    }

    #[test]
    fn who_left_and_who_joined_is_told() {
        let (job, change) = (TrainJob::new(), |at: &str, before, ranks, joined| RankChange {
            at: at.to_owned(),
            before,
            ranks,
            joined,
        });
        let plan = Plan::new(&job, 2, 10, 2, 32);
        let mut facts = facts(&job, &plan, 2);
        assert!(!facts.text().join("\n").contains("lost"));
        facts.changes = vec![change("step 3 of epoch 1", 4, 2, 0), change("epoch 2", 2, 3, 1)];
        let text = facts.text().join("\n");
        assert!(text.contains("2 lost, 1 joined: 4 to 2 after step 3 of epoch 1, 2 to 3 after epoch 2"), "{text}");
        assert_eq!(facts.json()["changes"][0]["ranks"], 2);
    }

    #[test]
    fn programs_get_the_same_numbers() {
        let job = TrainJob::new();
        let plan = Plan::new(&job, 2, 10, 2, 32);
        let json = facts(&job, &plan, 2).json();
        assert_eq!(json["samples_per_s"], 200.0);
        assert_eq!(json["median_samples_per_s"], 101.0);
        assert_eq!(json["samples_per_s_by_rank"][1]["median"], 51.0);
        assert_eq!((&json["ranks"], &json["batch"], &json["global_batch"]), (&json!(2), &json!(32), &json!(64)));
        assert_eq!(json["phases"]["backward_s"], 3.0);
        assert_eq!(json["test"]["accuracy"], 0.9531);
    }
}
