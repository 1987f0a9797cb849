//! Burn's optimizers on many ranks: the averages of all ranks' gradients in the place of one's own.

use std::mem;

use ::burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use ::burn::module::{Module, ModuleVisitor, Param};
use ::burn::optim::{GradientsParams, ModuleOptimizer};
use ::burn::tensor::Tensor;

use super::outbox::Outbox;
use crate::error::Result;
use crate::wire::Wire;
use crate::world::World;

/// Any optimizer of Burn, with the gradients of all ranks averaged before each step.
///
/// Burn's own trait for optimizers cannot be implemented here: it sees one tensor without a name at a time, when it is
/// too late to send them all. What this type wraps is Burn's optimizer of a whole module, which every implementation of
/// that trait can be turned into.
pub struct DistributedOptimizer {
    optimizer: ModuleOptimizer,
    outbox: Outbox,
    passes_per_step: usize,
    /// Backward passes since the last step.
    passes: usize,
    /// Their gradients, summed, but for those that were posted.
    kept: GradientsParams,
}

impl DistributedOptimizer {
    /// Wraps an optimizer for a module. All ranks call this together, after their parameters are loaded or broadcast.
    ///
    /// # Errors
    /// [`Error::Parameters`](crate::Error::Parameters) if the ranks have different modules.
    pub fn new<M: Module>(
        world: &World,
        module: &M,
        optimizer: impl Into<ModuleOptimizer>,
        wire: Wire,
    ) -> Result<DistributedOptimizer> {
        DistributedOptimizer::accumulating(world, module, optimizer, wire, 1)
    }

    /// The same for a step of several backward passes, whose gradients are summed before they travel, as by Burn's
    /// `GradientsAccumulator`. For the mean over the passes, divide the loss by their number.
    ///
    /// # Errors
    /// As [`DistributedOptimizer::new`].
    pub fn accumulating<M: Module>(
        world: &World,
        module: &M,
        optimizer: impl Into<ModuleOptimizer>,
        wire: Wire,
        passes_per_step: usize,
    ) -> Result<DistributedOptimizer> {
        let passes_per_step = passes_per_step.max(1);
        let outbox = Outbox::new(world, module, wire, passes_per_step)?;
        let (optimizer, kept) = (optimizer.into(), GradientsParams::new());
        Ok(DistributedOptimizer { optimizer, outbox, passes_per_step, passes: 0, kept })
    }

    /// Takes the gradients of one backward pass. With the last pass of a step the gradients of all ranks are averaged
    /// and the module learns from them; before, it comes back as it was.
    ///
    /// # Errors
    /// If the gradients do not fit the module, or ranks are lost. The module is lost then, too; keep a clone, which
    /// costs next to nothing, to go on with the others.
    pub fn step<M: Module>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        module: M,
        gradients: GradientsParams,
    ) -> Result<M> {
        self.passes += 1;
        let gradients = add_gradients(&module, mem::take(&mut self.kept), gradients);
        if self.passes < self.passes_per_step {
            self.kept = gradients;
            return Ok(module);
        }
        self.finish(learning_rate, module, gradients)
    }

    /// Learns from the passes that were made, be they fewer than a step has: at the end of an epoch, for instance. All
    /// ranks call this together. Without a pass since the last step nothing happens.
    ///
    /// # Errors
    /// As [`DistributedOptimizer::step`].
    pub fn flush<M: Module>(&mut self, learning_rate: impl Into<ModuleLearningRate>, module: M) -> Result<M> {
        if self.passes == 0 {
            return Ok(module);
        }
        let gradients = mem::take(&mut self.kept);
        self.finish(learning_rate, module, gradients)
    }

    fn finish<M: Module>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        module: M,
        gradients: GradientsParams,
    ) -> Result<M> {
        self.passes = 0;
        let averages = self.outbox.collect(&module, gradients)?;
        Ok(self.optimizer.step(learning_rate, module, averages))
    }

    /// Where layers may post gradients while backward is running.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The optimizer inside, whose state can be saved.
    pub fn optimizer(&self) -> &ModuleOptimizer {
        &self.optimizer
    }

    /// The same with another optimizer inside: one whose state was loaded, for instance.
    pub fn with_optimizer(mut self, optimizer: impl Into<ModuleOptimizer>) -> DistributedOptimizer {
        self.optimizer = optimizer.into();
        self
    }
}

/// Adds the gradients of a module's parameters, on the device where they are: those of several backward passes.
pub fn add_gradients<M: Module>(module: &M, first: GradientsParams, second: GradientsParams) -> GradientsParams {
    struct Sum {
        into: GradientsParams,
        from: GradientsParams,
    }
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(more) = self.from.remove::<D>(param.id) else { return };
            let sum = match self.into.remove::<D>(param.id) {
                Some(sum) => sum + more,
                None => more,
            };
            self.into.register(param.id, sum);
        }
    }
    if first.is_empty() {
        return second;
    }
    let mut sum = Sum { into: first, from: second };
    module.visit(&mut sum);
    sum.into
}
