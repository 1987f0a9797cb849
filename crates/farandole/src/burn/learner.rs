//! A module and its optimizer as the state of an elastic training: [`Learner`].
//!
//! What travels to a rank that joins are all parameters and buffers of the module, the numbers by which Burn knows them
//! in the sender's process, and what the optimizer remembers, in Burn's own format. The receiver takes over these
//! numbers, too, so that the optimizer's memory belongs to its parameters.
//!
//! Invariant: nothing of the module is changed before everything that has arrived is known to fit.

use std::collections::HashMap;
use std::fmt;

use ::burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use ::burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, Parameter};
use ::burn::optim::{GradientsParams, ModuleOptimizer};
use ::burn::tensor::{Bool, Bytes, DType, Int, Tensor, TensorData};

use super::outbox::Outbox;
use super::parameters::{Entry, list, settle, text};
use crate::elastic::{ElasticState, WorldChange, joined, misfit, parted};
use crate::error::{Error, Result};
use crate::wire::Wire;
use crate::world::World;

/// A module that learns on many ranks, and survives the loss of some: the state of a
/// [`Training`](crate::elastic::Training).
///
/// ```
/// use burn::nn::{LinearConfig, loss::{MseLoss, Reduction}};
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::{Device, Tensor};
/// use farandole::burn::{Learner, Wire};
/// use farandole::elastic::Training;
///
/// let device = Device::flex().autodiff();
/// let learner = Learner::new(LinearConfig::new(2, 1).init(&device), SgdConfig::new().init(), Wire::F32);
/// let mut training = Training::new(learner).begin()?;
/// while training.steps() < 3 {
///     training.step(
///         |world, learner, _batch| {
///             let inputs = Tensor::<2>::from_data([[1.0, world.rank() as f32]], &device);  // each rank its own
///             let targets = Tensor::<2>::from_data([[0.5]], &device);
///             let loss = MseLoss::new().forward(learner.module().forward(inputs), targets, Reduction::Mean);
///             learner.average(GradientsParams::from_grads(loss.backward(), learner.module()))
///         },
///         |learner, averages| learner.apply(0.1, averages),
///     )?;
/// }
/// let module = training.finish()?.into_module();
/// # drop(module);
/// # Ok::<(), farandole::Error>(())
/// ```
pub struct Learner<M> {
    /// Always there between two calls; the optimizer takes it and gives it back.
    module: Option<M>,
    optimizer: ModuleOptimizer,
    wire: Wire,
    passes_per_step: usize,
    /// Of the world that is now; none before the first.
    outbox: Option<Outbox>,
}

impl<M: Module> Learner<M> {
    /// A module, and what changes its parameters. Gradients travel by `wire`.
    pub fn new(module: M, optimizer: impl Into<ModuleOptimizer>, wire: Wire) -> Learner<M> {
        Learner { module: Some(module), optimizer: optimizer.into(), wire, passes_per_step: 1, outbox: None }
    }

    /// The module.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect(HERE)
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &ModuleOptimizer {
        &self.optimizer
    }

    /// Where layers may post gradients while backward is running.
    pub fn outbox(&self) -> Option<&Outbox> {
        self.outbox.as_ref()
    }

    /// The module alone.
    pub fn into_module(self) -> M {
        self.module.expect(HERE)
    }

    /// Gradients that layers post ([`Learner::outbox`]) are those of so many backward passes for each step, from the
    /// next generation on ([`ElasticState::on_change`]).
    pub fn set_passes_per_step(&mut self, passes: usize) {
        self.passes_per_step = passes.max(1);
    }

    /// The averages of all ranks' gradients. All ranks call this once for each step; the gradients of several backward
    /// passes are to be summed before.
    ///
    /// # Errors
    /// If the gradients do not fit the module, or ranks are lost.
    pub fn average(&self, gradients: GradientsParams) -> Result<GradientsParams> {
        let early = || Error::Parameters("a learner averages gradients when its training has begun".to_owned());
        self.outbox.as_ref().ok_or_else(early)?.collect(self.module(), gradients)
    }

    /// Learns from averages.
    pub fn apply(&mut self, learning_rate: impl Into<ModuleLearningRate>, averages: GradientsParams) {
        let module = self.module.take().expect(HERE);
        self.module = Some(self.optimizer.step(learning_rate, module, averages));
    }

    /// Puts another module in the place of this one, of the same structure and with the same identities: one whose
    /// buffers were averaged or that a checkpoint was loaded into, for instance.
    pub fn set_module(&mut self, module: M) {
        self.module = Some(module);
    }

    /// Puts another optimizer in the place of this one: one whose state was loaded, for instance.
    pub fn set_optimizer(&mut self, optimizer: impl Into<ModuleOptimizer>) {
        self.optimizer = optimizer.into();
    }
}

impl<M: Module> ElasticState for Learner<M> {
    fn save(&self) -> Result<Vec<u8>> {
        settle(self.module());
        let entries = list(self.module());
        let ids: Vec<u8> = entries.iter().flat_map(|entry| entry.id.val().to_le_bytes()).collect();
        let tensors = read(self.module(), &entries);
        let strange = |error: &dyn fmt::Debug| {
            Error::Parameters(format!("what the optimizer remembers cannot be written down: {error:?}"))
        };
        let remembered = self.optimizer.into_bytes().map_err(|error| strange(&error))?;
        let list = text(&entries);
        let mut pieces: Vec<&[u8]> = vec![list.as_bytes(), &ids, &remembered];
        pieces.extend(tensors.iter().map(|data| data.as_bytes()));
        Ok(joined(&pieces))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        settle(self.module());
        let entries = list(self.module());
        let pieces = parted(saved)?;
        let [theirs, ids, remembered, tensors @ ..] = &pieces[..] else { return Err(misfit("it is no module")) };
        let own = text(&entries);
        if own.as_bytes() != *theirs {
            return Err(misfit(&difference(&own, &String::from_utf8_lossy(theirs))));
        }
        let lengths = entries.iter().zip(tensors).all(|(entry, bytes)| bytes.len() == size_bytes(entry));
        if ids.len() != 8 * entries.len() || tensors.len() != entries.len() || !lengths {
            return Err(misfit("its parameters have another size"));
        }
        let strange = |error: &dyn fmt::Debug| misfit(&format!("what its optimizer remembers: {error:?}"));
        let remembered = Bytes::from_bytes_vec(remembered.to_vec());
        let optimizer = self.optimizer.clone().from_bytes(remembered).map_err(|error| strange(&error))?;
        let ids = ids.chunks_exact(8).map(|id| u64::from_le_bytes(id.try_into().expect("eight bytes are eight bytes")));
        let values = entries.iter().zip(ids.zip(tensors)).map(|(entry, (id, bytes))| {
            let data = TensorData::from_bytes_vec(bytes.to_vec(), entry.shape.clone(), entry.dtype);
            (entry.id, (ParamId::from(id), data))
        });
        let module = self.module.take().expect(HERE);
        self.module = Some(module.map(&mut Writer { values: values.collect() }));
        self.optimizer = optimizer;
        Ok(())
    }

    fn on_change(&mut self, world: &mut World, _: &WorldChange) -> Result<()> {
        self.outbox = Some(Outbox::new(world, self.module(), self.wire, self.passes_per_step)?);
        Ok(())
    }
}

/// The tensors of a module, in the order of its list.
fn read<M: Module>(module: &M, entries: &[Entry]) -> Vec<TensorData> {
    struct Reader(HashMap<ParamId, TensorData>);
    impl ModuleVisitor for Reader {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.insert(param.id, param.val().to_data());
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.0.insert(param.id, param.val().to_data());
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.0.insert(param.id, param.val().to_data());
        }
    }
    let mut reader = Reader(HashMap::new());
    module.visit(&mut reader);
    let found = entries.iter().map(|entry| reader.0.remove(&entry.id));
    found.map(|data| data.expect("invariant: what is listed is visited")).collect()
}

/// Gives parameters other values and identities.
struct Writer {
    /// By the identity that they have.
    values: HashMap<ParamId, (ParamId, TensorData)>,
}

impl Writer {
    /// A parameter with the value and the identity that it gets; `make` makes a tensor of the value, like the one that
    /// there is.
    fn write<T: Parameter>(&self, param: Param<T>, make: impl FnOnce(T, TensorData) -> T) -> Param<T> {
        let Some((id, data)) = self.values.get(&param.id).cloned() else { return param };
        let mut param = param.map(|tensor| make(tensor, data));
        param.id = id;
        param
    }
}

impl ModuleMapper for Writer {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.write(param, |tensor, data| {
            let trained = tensor.is_require_grad();
            let tensor = Tensor::from_data(data, (&tensor.device(), tensor.dtype()));
            if trained { tensor.require_grad() } else { tensor }
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.write(param, |tensor, data| Tensor::from_data(data, (&tensor.device(), tensor.dtype())))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.write(param, |tensor, data| Tensor::from_data(data, (&tensor.device(), tensor.dtype())))
    }
}

fn size_bytes(entry: &Entry) -> usize {
    let elements: usize = entry.shape.iter().product();
    elements * DType::size(&entry.dtype)
}

/// The first line that is not the same.
fn difference(own: &str, theirs: &str) -> String {
    let (mut own, mut theirs) = (own.lines(), theirs.lines());
    loop {
        match (own.next(), theirs.next()) {
            (first, second) if first == second && first.is_some() => {}
            (first, second) => {
                return format!("{} here, {} there", first.unwrap_or("nothing"), second.unwrap_or("nothing"));
            }
        }
    }
}

impl<M> fmt::Debug for Learner<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner").field("wire", &self.wire).field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

const HERE: &str = "invariant: between two calls the module is here";

#[cfg(test)]
mod tests {
    use ::burn::nn::{Linear, LinearConfig};
    use ::burn::optim::AdamConfig;
    use ::burn::tensor::Device;

    use super::*;

    fn learner(inputs: usize, seed: u64) -> Learner<Linear> {
        let device = Device::flex().autodiff();
        device.seed(seed);
        Learner::new(LinearConfig::new(inputs, 2).init(&device), AdamConfig::new().init(), Wire::F32)
    }

    fn step(learner: &mut Learner<Linear>) {
        let device = Device::flex().autodiff();
        let loss = learner.module().forward(Tensor::<2>::ones([1, 3], &device)).powf_scalar(2.0).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), learner.module());
        learner.apply(0.1, gradients);
    }

    fn weights(learner: &Learner<Linear>) -> Vec<f32> {
        learner.module().weight.val().to_data().try_to_vec().unwrap()
    }

    #[test]
    fn who_receives_a_state_goes_on_as_its_source_does() {
        let (mut source, mut other) = (learner(3, 1), learner(3, 2));
        for _ in 0..3 {
            step(&mut source);
        }
        step(&mut other);
        other.restore(&source.save().unwrap()).unwrap();
        for _ in 0..3 {
            assert_eq!(weights(&source), weights(&other));
            step(&mut source);
            step(&mut other);
        }
    }

    #[test]
    fn another_module_is_refused_with_the_first_difference_and_nothing_changes() {
        let (source, mut other) = (learner(4, 1), learner(3, 2));
        let before = weights(&other);
        let error = other.restore(&source.save().unwrap()).unwrap_err().to_string();
        assert!(error.contains("weight F32 [3, 2] here, weight F32 [4, 2] there"), "{error}");
        assert_eq!(weights(&other), before);
        assert!(other.restore(b"what").is_err());
    }
}
