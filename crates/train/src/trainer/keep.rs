//! Checkpoints of a job: rank 0 writes and reads, and all ranks hear how it went.

use std::path::{Path, PathBuf};

use burn::module::Module;
use farandole::{Phase, World};
use serde_json::json;

use super::desk::Desk;
use super::learned::Learned;
use crate::checkpoint::state::State;
use crate::checkpoint::{Checkpoint, Meta, file, unusable};
use crate::error::{Error, Result};
use crate::job::{Resume, TrainJob};
use crate::model::ModelSpec;
use crate::{share, weights};
use farandole_data::sample::{Split, Task};

/// A checkpoint, and where it comes from.
pub(super) type Begun = Option<(PathBuf, Box<Checkpoint>)>;

/// What a network is to go on with.
pub(super) struct Found<M> {
    pub(super) network: M,
    pub(super) state: Option<State>,
    pub(super) meta: Option<Meta>,
}

/// Makes the folder of the checkpoint, and reads the one to resume from, if there is one. All ranks get the same. They
/// call this together.
pub(super) fn begin(world: &mut World, job: &TrainJob) -> Result<Begun> {
    let chief = world.rank() == 0;
    if let Some(folder) = &job.checkpoint {
        let made = if chief { std::fs::create_dir_all(folder).map_err(|error| error.to_string()) } else { Ok(()) };
        share::outcome(world, made)?
            .map_err(|why| Error::Checkpoint(format!("--checkpoint {}: {why}", folder.display())))?;
    }
    let path = match (&job.resume, &job.checkpoint) {
        (Resume::From(path), _) => path.clone(),
        (Resume::IfThere, Some(folder)) => folder.join(file::NAME),
        _ => return Ok(None),
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
        return Ok(None);
    }
    let bytes = share::bytes(world, bytes)?;
    let checkpoint = Checkpoint::decode(&bytes).map_err(|why| unusable(&path, &why))?;
    Ok(Some((path, Box::new(checkpoint))))
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
        let path = folder.join(file::NAME);
        let recorder = std::sync::Arc::clone(world.recorder());
        let guard = recorder.phase(Phase::Checkpoint);
        let began = std::time::Instant::now();
        let written = if world.rank() == 0 { self.write(learned, &path) } else { Ok(0) };
        let bytes = *written.as_ref().unwrap_or(&0);
        let outcome = share::outcome(world, written.map(|_| ()))?;
        self.watch.phases.checkpoint_s += began.elapsed().as_secs_f64();
        drop(guard);
        outcome.map_err(|what| Error::Checkpoint(format!("the checkpoint {} {what}", path.display())))?;
        let at = learned.progress.at;
        let facts = json!({ "file": path.display().to_string(), "bytes": bytes, "epoch": at.epoch, "step": at.step });
        self.log.write("checkpoint", facts)
    }

    /// Writes the file and returns its length; or says what has become of it, for a sentence that begins with its name.
    fn write(&self, learned: &Learned, path: &Path) -> std::result::Result<usize, String> {
        let Learned { learner, progress, .. } = learned;
        let named = weights::read(learner.module());
        let state = State::from_record(learner.optimizer().to_record(), &named)
            .map_err(|error| format!("could not be written: {error}"))?;
        let meta = Meta {
            epoch: progress.at.epoch,
            step: progress.at.step,
            steps: self.plan(learned).steps,
            norm_batch: progress.norm_batch,
            rate_ranks: progress.rate_ranks,
            scalars: state.scalars,
            places: state.places,
            ..wanted(&self.job, &self.spec, self.data.len(Split::Train), progress.founders)
        };
        let model = named.into_iter().map(|named| (named.path, named.data)).collect();
        let bytes = Checkpoint { meta, model, optimizer: state.tensors }.encode();
        file::replace(path, &bytes).map_err(|error| error.to_string())?;
        Ok(bytes.len())
    }
}
