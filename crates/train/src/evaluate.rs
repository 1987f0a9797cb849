//! Judging a network by samples that it has not learned from.
//!
//! All ranks look at an equal share of the test samples. What they count is added up over all ranks in `f64`, so that
//! the outcome is that of one rank that has looked at everything, whatever the number of ranks: shares of uneven size,
//! and ranks without any sample, weigh as much as they have seen.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use farandole::{ReduceOp, World};

use crate::error::{Error, Result};
use crate::layer::ForwardPass;
use crate::model::{ModelSpec, Network};
use crate::stop::Stop;
use crate::task::Score;
use farandole_data::Loader;

/// What an evaluation has found.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// What was counted, over all ranks.
    pub score: Score,
    /// Test samples that could not be read, over all ranks.
    pub left_out: u64,
}

/// Judges the network by the samples of a loader. All ranks call this together, with the same network. There is no
/// judgement on any rank if one of them was asked to stop meanwhile: looking at all test samples may take longer than
/// whoever asked wants to wait.
///
/// # Errors
/// If samples cannot be had, or ranks are lost.
pub fn evaluate(
    world: &mut World,
    network: &Network,
    loader: &mut Loader,
    spec: &ModelSpec,
    stop: &Stop,
) -> Result<Option<Judgement>> {
    // Without the tape that a backward pass would need.
    let network = network.valid();
    let device =
        network.devices().first().cloned().ok_or_else(|| Error::Model("a network without weights".to_owned()))?;
    let (shape, task) = (spec.shape, spec.task);
    let mut score = Score::new(task);
    let mut left_out = 0;
    let mut stops = 0.0;
    for batch in loader.epoch(0, 0) {
        if stop.asked() {
            stops = 1.0;
            break;
        }
        let batch = batch.map_err(|error| Error::Data(error.to_string()))?.into_samples();
        left_out += batch.replaced;
        if batch.count == 0 {
            continue;
        }
        let images = TensorData::new(batch.images, [batch.count, shape.bands, shape.height, shape.width]);
        let output = network.forward(Tensor::from_data(images, &device), &ForwardPass::evaluation());
        score.add(&Score::of(output, &batch.labels, task).map_err(|error| Error::Data(error.to_string()))?);
    }
    let mut sums = score.sums();
    sums.extend([left_out as f64, stops]);
    world.allreduce(&mut sums, ReduceOp::Sum)?;
    if sums.pop() != Some(0.0) {
        return Ok(None);
    }
    let left_out = sums.pop().unwrap_or(0.0) as u64;
    let score = Score::from_sums(task, &sums).expect("invariant: adding up keeps the number of sums");
    Ok(Some(Judgement { score, left_out }))
}
