//! Optimizers as a job names them.

use burn::module::Module;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, ModuleOptimizer, SgdConfig};

use crate::checkpoint::state::State;
use crate::error::Result;
use crate::job::{OptimizerChoice, TrainJob};
use crate::weights;

/// The optimizer of a job; with what it remembers, where it has learned before.
///
/// # Errors
/// If what it remembers does not belong to the network.
pub fn make<M: Module>(job: &TrainJob, state: Option<State>, network: &M) -> Result<ModuleOptimizer> {
    let decay = (job.weight_decay > 0.0).then(|| WeightDecayConfig::new(job.weight_decay as f32));
    let optimizer = match job.optimizer {
        OptimizerChoice::Sgd => {
            // Without dampening: a gradient counts in full, as everywhere else.
            let momentum = MomentumConfig::new().with_momentum(job.momentum).with_dampening(0.0);
            SgdConfig::new().with_weight_decay(decay).with_momentum((job.momentum > 0.0).then_some(momentum)).init()
        }
        OptimizerChoice::Adam => AdamConfig::new().with_weight_decay(decay).init(),
    };
    Ok(match state {
        Some(state) => optimizer.load_record(state.into_record(&weights::read(network))?),
        None => optimizer,
    })
}
