//! Checkpoints of a job: rank 0 writes and reads, and all ranks hear how it went.

use std::path::{Path, PathBuf};

use burn::module::Module;
use farandole::publish::{self, PublishError, Token};
use farandole::{Phase, World, elastic};
use serde_json::json;

use super::desk::Desk;
use super::learned::Learned;
use crate::checkpoint::state::State;
use crate::checkpoint::{Checkpoint, Meta, NAME, damaged, unusable};
use crate::error::{Error, Result};
use crate::job::{Resume, TrainJob};
use crate::model::ModelSpec;
use crate::{share, weights};
use farandole_data::sample::{Split, Task};

/// A checkpoint, and where it comes from.
pub(super) type Begun = Option<(PathBuf, Box<Checkpoint>)>;

/// Why rank 0 has written no checkpoint.
enum KeepError {
    /// This rank cannot; another rank 0 of the job can.
    OfThisRank(String),
    /// No rank can.
    OfAll(String),
}

impl From<PublishError> for KeepError {
    fn from(error: PublishError) -> KeepError {
        let text = error.to_string();
        if error.is_of_this_rank_alone() { KeepError::OfThisRank(text) } else { KeepError::OfAll(text) }
    }
}

/// What a network is to go on with.
pub(super) struct Found<M> {
    pub(super) network: M,
    pub(super) state: Option<State>,
    pub(super) meta: Option<Meta>,
}

/// Makes the folder of the checkpoint, and reads the one to resume from, if there is one. Returns the run of this job
/// as well ([`Token::run`]). All ranks get the same. They call this together.
pub(super) fn begin(world: &mut World, job: &TrainJob) -> Result<(u64, Begun)> {
    let chief = world.rank() == 0;
    let mut run = 0;
    if let Some(folder) = &job.checkpoint {
        let made = if chief { make(folder) } else { Ok(0) };
        let run_here = *made.as_ref().unwrap_or(&0);
        share::outcome(world, made.map(drop))?
            .map_err(|why| Error::Checkpoint(format!("--checkpoint {}: {why}", folder.display())))?;
        let shared = share::bytes(world, run_here.to_le_bytes().to_vec())?;
        run = shared.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    }
    let path = match (&job.resume, &job.checkpoint) {
        (Resume::From(path), _) => path.clone(),
        (Resume::IfThere, Some(folder)) => folder.join(NAME),
        _ => return Ok((run, None)),
    };
    let read = if chief { std::fs::read(&path) } else { Ok(Vec::new()) };
    let absent =
        matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::NotFound) && job.resume == Resume::IfThere;
    let (bytes, how) = match read {
        Ok(bytes) => (bytes, Ok(())),
        Err(_) if absent => (Vec::new(), Ok(())),
        Err(error) => (Vec::new(), Err(error.to_string())),
    };
    share::outcome(world, how)?.map_err(|why| unusable(&path, &why))?;
    let there = share::bytes(world, vec![u8::from(!absent)])?;
    if there == [0] {
        return Ok((run, None));
    }
    let bytes = share::bytes(world, bytes)?;
    let token = publish::check(&bytes).map_err(|why| damaged(&path, &why))?;
    let checkpoint = Checkpoint::decode(&bytes).map_err(|why| damaged(&path, &why))?;
    if chief && token.is_none() {
        let path = path.display();
        log::warn!("{path}: no checksum, because an earlier version has written it; its content is not verified");
    }
    Ok((run, Some((path, Box::new(checkpoint)))))
}

/// Makes the folder, and looks which run this job is.
fn make(folder: &Path) -> std::result::Result<u64, String> {
    let run = std::fs::create_dir_all(folder).and_then(|()| publish::next_run(&folder.join(NAME)));
    run.map_err(|error| error.to_string())
}

/// What the header of a checkpoint of this job says at the very beginning.
pub(super) fn wanted(job: &TrainJob, spec: &ModelSpec, samples: usize, ranks: usize) -> Meta {
    let shape = spec.shape;
    let thin = if job.thin > 1 { format!(" (1/{} of its channels)", job.thin) } else { String::new() };
    Meta {
        format: Meta::FORMAT,
        model: format!("{}{thin}", spec.architecture),
        shape: [shape.bands, shape.height, shape.width],
        task: match spec.task {
            Task::SingleLabel { classes } => format!("single-label with {classes} classes"),
            Task::MultiLabel { labels } => format!("multi-label with {labels} labels"),
            Task::Regression => "regression".to_owned(),
            Task::SuperResolution { scale } => format!("super-resolution by {scale}"),
        },
        optimizer: job.optimizer.name().to_owned(),
        epoch: 0,
        step: 0,
        steps: 0,
        seed: job.seed,
        samples,
        global_batch: job.batch * job.accumulate * ranks,
        norm_batch: job.norm_batch.unwrap_or(job.batch),
        rate_ranks: ranks,
        scalars: Default::default(),
        places: Default::default(),
    }
}

/// Puts the numbers of a checkpoint into a network, if there is one.
pub(super) fn take_over<M: Module>(begun: Begun, network: M, wanted: &Meta) -> Result<Found<M>> {
    let Some((path, checkpoint)) = begun else { return Ok(Found { network, state: None, meta: None }) };
    let Checkpoint { meta, mut model, optimizer } = *checkpoint;
    meta.refuse(wanted).map_err(|why| unusable(&path, &why))?;
    for named in weights::read(&network) {
        if !model.contains_key(&named.path) {
            return Err(unusable(&path, &format!("it lacks {}", named.path)));
        }
    }
    let network = weights::write(network, &mut model).map_err(|error| unusable(&path, &error.to_string()))?;
    if let Some(left_over) = model.keys().min() {
        return Err(unusable(&path, &format!("it has {left_over}, which the network has not")));
    }
    let state = State { tensors: optimizer, scalars: meta.scalars.clone(), places: meta.places.clone() };
    Ok(Found { network, state: Some(state), meta: Some(meta) })
}

impl Desk {
    /// Writes a checkpoint where the job wants one. All ranks call this together, with averaged buffers.
    pub(super) fn keep(&mut self, world: &mut World, learned: &Learned) -> Result<()> {
        let Some(folder) = self.job.checkpoint.clone() else { return Ok(()) };
        let path = folder.join(NAME);
        let recorder = std::sync::Arc::clone(world.recorder());
        let guard = recorder.phase(Phase::Checkpoint);
        let began = std::time::Instant::now();
        let written = if world.rank() == 0 { self.write(world, learned, &path) } else { Ok(0) };
        let written = match written {
            // The other ranks must not end with this: they continue with another rank 0, which writes theirs.
            Err(KeepError::OfThisRank(why)) => return Err(Error::Replaced(why)),
            Err(KeepError::OfAll(why)) => Err(why),
            Ok(bytes) => Ok(bytes),
        };
        let bytes = *written.as_ref().unwrap_or(&0);
        let outcome = share::outcome(world, written.map(drop))?;
        self.watch.phases.checkpoint_s += began.elapsed().as_secs_f64();
        drop(guard);
        outcome.map_err(Error::Checkpoint)?;
        let at = learned.progress.at;
        let facts = json!({ "file": path.display().to_string(), "bytes": bytes, "epoch": at.epoch, "step": at.step });
        self.log.write("checkpoint", facts)
    }

    /// Publishes the checkpoint and returns its length.
    fn write(&mut self, world: &World, learned: &Learned, path: &Path) -> std::result::Result<usize, KeepError> {
        let Learned { learner, progress, .. } = learned;
        let plan = self.plan(learned);
        let named = weights::read(learner.module());
        let state = State::from_record(learner.optimizer().to_record(), &named)
            .map_err(|error| KeepError::OfAll(format!("{}: cannot be written: {error}", path.display())))?;
        let meta = Meta {
            epoch: progress.at.epoch,
            step: progress.at.step,
            steps: plan.steps,
            norm_batch: progress.norm_batch,
            rate_ranks: progress.rate_ranks,
            scalars: state.scalars,
            places: state.places,
            ..wanted(&self.job, &self.spec, self.data.len(Split::Train), progress.founders)
        };
        let model = named.into_iter().map(|named| (named.path, named.data)).collect();
        let bytes = Checkpoint { meta, model, optimizer: state.tensors }.encode();
        let generation = elastic::generation().unwrap_or(0);
        let token = Token { run: progress.run, generation, step: progress.number(&plan) };
        let fence = || world.fence().map(drop).map_err(|error| error.to_string());
        Ok(self.publisher.publish(path, bytes, token, fence)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::checkpoint;
    use farandole_testing::Folder;

    fn resumed(folder: &Folder) -> Result<(u64, Begun)> {
        let job = TrainJob { checkpoint: Some(folder.to_path_buf()), resume: Resume::IfThere, ..TrainJob::new() };
        begin(&mut farandole::init().unwrap(), &job)
    }

    fn published(folder: &Folder, steps: std::ops::Range<u64>) {
        let mut publisher = farandole::init().unwrap().publisher();
        for step in steps {
            let token = Token { run: 4, generation: 2, step };
            publisher.publish(&folder.join(NAME), checkpoint().encode(), token, || Ok(())).unwrap();
        }
    }

    #[test]
    fn a_published_checkpoint_is_read_and_the_next_job_is_another_run() {
        let folder = Folder::new();
        let (run, begun) = resumed(&folder).unwrap();
        assert!(run == 1 && begun.is_none());
        published(&folder, 1..2);
        let (run, begun) = resumed(&folder).unwrap();
        assert_eq!((run, begun.unwrap().1.model), (5, checkpoint().model));
    }

    #[test]
    fn a_checkpoint_of_an_earlier_version_is_read() {
        let folder = Folder::new();
        std::fs::write(folder.join(NAME), checkpoint().encode()).unwrap();
        let (run, begun) = resumed(&folder).unwrap();
        assert_eq!((run, begun.unwrap().1.meta), (1, checkpoint().meta));
    }

    /// A mixture of two checkpoints of equal length was read as a checkpoint.
    #[test]
    fn a_damaged_checkpoint_is_refused_and_the_intact_previous_one_named() {
        let folder = Folder::new();
        published(&folder, 300..302);
        let path = folder.join(NAME);
        let whole = std::fs::read(&path).unwrap();
        let torn = [&whole[..whole.len() - 100], &[0; 100]].concat();
        for (damage, why) in [(torn, "checksum differs (expected "), (vec![0; 9], "not a checkpoint")] {
            std::fs::write(&path, damage).unwrap();
            let text = resumed(&folder).unwrap_err().to_string();
            let hint = "checkpoint.previous.safetensors of step 300 is intact: resume with --resume=";
            assert!(text.contains(why) && text.contains(hint), "{text}");
        }
        std::fs::remove_file(publish::previous(&path)).unwrap();
        assert!(!resumed(&folder).unwrap_err().to_string().contains("intact"));
    }
}
