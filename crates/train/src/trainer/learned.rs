//! What all ranks have in common: the network, its optimizer, and how far training is ([`Learned`], [`Progress`]).
//!
//! This is the state of the training (`farandole::elastic`): the same on all ranks between two blocks, and what a rank
//! that joins gets from a survivor's memory. What the training does next follows from it and from the job alone
//! ([`Stage`]), so a rank that joins in any moment goes on with the others.
//!
//! The *global batch* is that of the ranks with which training began, and stays: with fewer ranks each takes more
//! samples of it, in more passes. So steps, epochs and learning rates do not depend on who left and who joined.
//!
//! Not here: what a rank has for itself (`desk`, `seat`).

use std::time::{Duration, Instant};

use farandole::World;
use farandole::burn::Learner;
use farandole::elastic::{ElasticState, WorldChange};
use serde::{Deserialize, Serialize};

use super::tally::Sums;
use crate::evaluate::Judgement;
use crate::job::{Plan, TrainJob};
use crate::model::Network;
use crate::task::Score;
use farandole_data::sample::Task;

/// How far training is. There is one way to say it: where the last step of an epoch is done, the epoch is complete and
/// no step of the next one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Epochs that are complete.
    pub(super) epoch: u64,
    /// Steps of the next one that are done; fewer than it has.
    pub(super) step: u64,
}

impl Place {
    /// Where somebody is who has done so many steps of the epoch after so many, be they all it has.
    pub(super) fn of(epoch: u64, step: u64, steps: u64) -> Place {
        Place { epoch: epoch.saturating_add(step / steps.max(1)), step: step % steps.max(1) }
    }

    /// One step further, where epochs have so many.
    fn after_step(self, steps: u64) -> Place {
        if self.step + 1 < steps {
            Place { step: self.step + 1, ..self }
        } else {
            Place { epoch: self.epoch + 1, step: 0 }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.step == 0 {
            write!(f, "epoch {}", self.epoch)
        } else {
            write!(f, "step {} of epoch {}", self.step, self.epoch + 1)
        }
    }
}

/// What is to be done next, by all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Find out what there is to go on from.
    Prepare,
    /// Make a step.
    Learn,
    /// Average what ranks know of their own samples alone: an epoch is over, or the run.
    Average,
    /// Look at the test samples.
    Judge,
    /// Tell of the epoch, and keep a checkpoint.
    Keep,
    /// Tell of the whole run.
    SumUp,
    /// Nothing.
    Over,
}

/// The ranks have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changed {
    /// Where training was.
    pub(super) at: Place,
    pub(super) before: usize,
    pub(super) ranks: usize,
    pub(super) joined: usize,
}

impl Changed {
    pub(super) fn lost(&self) -> usize {
        (self.before + self.joined).saturating_sub(self.ranks)
    }
}

/// How far training is, and what has come of it so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    pub(super) at: Place,
    /// Where this run began.
    pub(super) resumed: Place,
    /// Counts the jobs that have written the checkpoint: this one among them.
    pub(super) run: u64,
    /// Ranks with which it began.
    pub(super) founders: usize,
    /// Ranks of now.
    ranks: usize,
    /// By how many ranks the learning rate is multiplied.
    pub(super) rate_ranks: usize,
    /// BatchNorm takes its statistics over so many samples.
    pub(super) norm_batch: usize,
    /// Of the epoch under way.
    pub(super) epoch_sums: Sums,
    /// Of the last step.
    pub(super) last_loss: f64,
    /// Of all epochs that are over.
    pub(super) all: Sums,
    /// What the last look at the test samples has found: sums as bits, and samples that were left out.
    judged: Option<(Vec<u64>, u64)>,
    /// Whether that was after the epoch that is just over.
    pub(super) judged_now: bool,
    /// Whether somebody asked to stop.
    pub(super) stopped: bool,
    pub(super) changes: Vec<Changed>,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            stage: Stage::Prepare,
            at: Place::default(),
            resumed: Place::default(),
            run: 0,
            founders: 0,
            ranks: 0,
            rate_ranks: 0,
            norm_batch: 0,
            epoch_sums: Sums::default(),
            last_loss: 0.0,
            all: Sums::default(),
            judged: None,
            judged_now: false,
            stopped: false,
            changes: Vec::new(),
        }
    }

    /// Steps that are done, since the very beginning.
    pub(super) fn number(&self, plan: &Plan) -> u64 {
        self.at.epoch * plan.steps + self.at.step
    }

    fn is_complete(&self, plan: &Plan) -> bool {
        self.number(plan) >= plan.schedule.total_steps
    }

    /// Training begins at this place.
    pub(super) fn begin(&mut self, at: Place, plan: &Plan) {
        (self.at, self.resumed) = (at, at);
        self.stage = if self.is_complete(plan) { Stage::Judge } else { Stage::Learn };
    }

    /// A step is done.
    pub(super) fn stepped(&mut self, step: &Sums, plan: &Plan) {
        self.at = self.at.after_step(plan.steps);
        self.epoch_sums.add(step);
        self.last_loss = step.loss();
        self.stopped = step.stops > 0.0;
        if self.at.step == 0 || self.is_complete(plan) || self.stopped {
            self.stage = Stage::Average;
        }
    }

    /// What ranks knew for themselves is averaged.
    pub(super) fn averaged(&mut self, eval_every: u64, plan: &Plan) {
        self.all.add(&self.epoch_sums);
        let is_due = eval_every > 0 && (self.at.epoch.is_multiple_of(eval_every) || self.is_complete(plan));
        self.stage = if is_due && !self.stopped { Stage::Judge } else { Stage::Keep };
    }

    /// The test samples were looked at, or somebody asked to stop meanwhile.
    pub(super) fn judged(&mut self, judgement: Option<&Judgement>, was_asked_to_stop: bool) {
        self.stopped |= was_asked_to_stop;
        if let Some(Judgement { score, left_out }) = judgement {
            self.judged = Some((score.sums().into_iter().map(f64::to_bits).collect(), *left_out));
        }
        self.judged_now = judgement.is_some();
        self.stage = if self.all.samples > 0.0 { Stage::Keep } else { Stage::SumUp };
    }

    /// The epoch is told of, and kept.
    pub(super) fn kept(&mut self, plan: &Plan) {
        (self.epoch_sums, self.judged_now) = (Sums::default(), false);
        self.stage = if self.stopped || self.is_complete(plan) { Stage::SumUp } else { Stage::Learn };
    }

    /// What the last look at the test samples has found.
    pub(super) fn judgement(&self, task: Task) -> Option<Judgement> {
        let (bits, left_out) = self.judged.as_ref()?;
        let sums: Vec<f64> = bits.iter().map(|bits| f64::from_bits(*bits)).collect();
        Some(Judgement { score: Score::from_sums(task, &sums)?, left_out: *left_out })
    }

    /// The ranks are others than before.
    fn changed(&mut self, change: &WorldChange) {
        self.founders = change.founders;
        if self.ranks > 0 {
            let (before, ranks, joined) = (self.ranks, change.ranks, change.joined);
            self.changes.push(Changed { at: self.at, before, ranks, joined });
        }
        self.ranks = change.ranks;
    }
}

/// The state of a training.
pub(super) struct Learned {
    pub(super) learner: Learner<Network>,
    pub(super) progress: Progress,
    /// When training began; on a rank that has joined, when it would have begun here.
    pub(super) began: Instant,
    batch: usize,
    accumulate: usize,
    /// Of the data that this rank has.
    data: String,
}

impl Learned {
    pub(super) fn new(learner: Learner<Network>, job: &TrainJob, data: String) -> Learned {
        let (progress, began) = (Progress::new(), Instant::now());
        Learned { learner, progress, began, batch: job.batch, accumulate: job.accumulate, data }
    }

    /// Samples of a step, of all ranks together.
    pub(super) fn global_batch(&self) -> usize {
        global_batch(self.batch, self.accumulate, self.progress.founders)
    }

    /// Passes of a step with so many ranks.
    pub(super) fn passes(&self, ranks: usize) -> usize {
        passes(self.global_batch(), self.batch, ranks)
    }
}

fn global_batch(batch: usize, accumulate: usize, founders: usize) -> usize {
    batch * accumulate * founders.max(1)
}

/// As few as there can be if none has more than `batch` samples.
fn passes(global_batch: usize, batch: usize, ranks: usize) -> usize {
    global_batch.div_ceil(batch.saturating_mul(ranks)).max(1)
}

/// What is written down beside the learner.
#[derive(Serialize, Deserialize)]
struct Saved {
    data: String,
    progress: Progress,
    elapsed_s: f64,
}

impl ElasticState for Learned {
    fn save(&self) -> farandole::Result<Vec<u8>> {
        let (data, progress) = (self.data.clone(), self.progress.clone());
        let saved = Saved { data, progress, elapsed_s: self.began.elapsed().as_secs_f64() };
        let text = serde_json::to_vec(&saved).expect("invariant: names and finite numbers have a form in JSON");
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&text);
        bytes.extend_from_slice(&self.learner.save()?);
        Ok(bytes)
    }

    fn restore(&mut self, bytes: &[u8]) -> farandole::Result<()> {
        let strange = |why: &str| {
            farandole::Error::Parameters(format!("what another rank has sent is no state of a training: {why}"))
        };
        let (length, rest) = bytes.split_first_chunk().ok_or_else(|| strange("it is too short"))?;
        let (text, learner) =
            rest.split_at_checked(u64::from_le_bytes(*length) as usize).ok_or_else(|| strange("it is cut off"))?;
        let saved: Saved = serde_json::from_slice(text).map_err(|error| strange(&error.to_string()))?;
        if saved.data != self.data {
            let (own, theirs) = (&self.data, &saved.data);
            return Err(farandole::Error::Parameters(format!(
                "this host has other data than the others: here {own}, there {theirs}"
            )));
        }
        self.learner.restore(learner)?;
        self.progress = saved.progress;
        let elapsed = Duration::try_from_secs_f64(saved.elapsed_s).unwrap_or_default();
        self.began = Instant::now().checked_sub(elapsed).unwrap_or_else(Instant::now);
        Ok(())
    }

    fn on_change(&mut self, world: &mut World, change: &WorldChange) -> farandole::Result<()> {
        let whole = global_batch(self.batch, self.accumulate, change.founders);
        self.learner.set_passes_per_step(passes(whole, self.batch, change.ranks));
        self.learner.on_change(world, change)?;
        self.progress.changed(change);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_of_an_epoch_completes_it() {
        let (steps, mut at) = (3, Place::default());
        let mut told = Vec::new();
        for _ in 0..4 {
            at = at.after_step(steps);
            told.push(at.to_string());
        }
        assert_eq!(told, ["step 1 of epoch 1", "step 2 of epoch 1", "epoch 1", "step 1 of epoch 2"]);
        assert_eq!(Place { epoch: 4, step: 0 }.after_step(1), Place { epoch: 5, step: 0 });
        assert_eq!(
            [Place::of(4, 2, 3), Place::of(4, 3, 3)],
            [Place { epoch: 4, step: 2 }, Place { epoch: 5, step: 0 }]
        );
    }

    /// Walks through a run with epochs of three steps, and names its stages.
    fn walk(total_steps: u64, eval_every: u64, stop_at: Option<u64>, from: Place) -> String {
        let job = TrainJob { steps: Some(total_steps), ..TrainJob::new() };
        let plan = Plan::new(&job, 2, 3, 2, 32);
        let (mut progress, mut told) = (Progress::new(), String::new());
        progress.begin(from, &plan);
        while progress.stage != Stage::Over {
            told.push(format!("{:?}", progress.stage).remove(0));
            match progress.stage {
                Stage::Learn => {
                    let stops = f64::from(u8::from(stop_at == Some(progress.number(&plan))));
                    progress.stepped(&Sums { samples: 8.0, stops, ..Sums::default() }, &plan);
                }
                Stage::Average => progress.averaged(eval_every, &plan),
                Stage::Judge => {
                    let score = Score::new(Task::Regression);
                    progress.judged(Some(&Judgement { score, left_out: 1 }), false);
                }
                Stage::Keep => progress.kept(&plan),
                _ => progress.stage = Stage::Over,
            }
        }
        told
    }

    #[test]
    fn stages_follow_each_other_as_the_job_says() {
        assert_eq!(walk(6, 1, None, Place::default()), "LLLAJKLLLAJKS");
        assert_eq!(walk(6, 0, None, Place::default()), "LLLAKLLLAKS");
        assert_eq!(walk(5, 2, None, Place::default()), "LLLAKLLAJKS", "the last epoch is cut short, and judged");
        assert_eq!(walk(6, 1, Some(1), Place::default()), "LLAKS", "asked to stop in the second step");
        assert_eq!(walk(6, 1, None, Place { epoch: 2, step: 0 }), "JS", "all was done before");
        assert_eq!(walk(6, 1, None, Place { epoch: 1, step: 2 }), "LAJKS");
    }

    #[test]
    fn fewer_ranks_make_more_passes_over_the_same_batch() {
        let whole = global_batch(32, 1, 4);
        assert_eq!([4, 3, 2, 1, 8].map(|ranks| passes(whole, 32, ranks)), [1, 2, 2, 4, 1]);
        assert_eq!(passes(global_batch(8, 3, 2), 8, 2), 3);
    }

    #[test]
    fn progress_survives_its_way_and_changes_are_counted() {
        let mut progress = Progress::new();
        let change = |ranks, joined| WorldChange { steps: 3, before: None, ranks, joined, founders: 4 };
        progress.changed(&change(4, 4));
        assert!(progress.changes.is_empty());
        progress.changed(&change(3, 1));
        assert_eq!((progress.changes[0].lost(), progress.changes[0].before, progress.founders), (2, 4, 4));
        let mut score = Score::new(Task::Regression);
        score.add(&Score::from_sums(Task::Regression, &[1.0, f64::NAN, 0.5, 0.25]).unwrap());
        progress.judged(Some(&Judgement { score, left_out: 3 }), false);
        let text = serde_json::to_string(&progress).unwrap();
        let back: Progress = serde_json::from_str(&text).unwrap();
        assert_eq!(back, progress);
        assert_eq!(back.judgement(Task::Regression).unwrap().left_out, 3);
    }
}
