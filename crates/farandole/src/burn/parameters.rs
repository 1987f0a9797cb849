//! What a module consists of, by name; giving all ranks one rank's parameters; averaging what is not trained.
//!
//! Ranks take parameters one after the other in the order of the module. That only works if all have the same module,
//! so they compare lists of names, element types and shapes first, and an error names the first difference. Where
//! nothing differs that costs one small message.

use ::burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use ::burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use farandole_plan::ReduceOp;

use crate::agreement::agree;
use crate::error::{Error, Result};
use crate::world::World;

use super::staging::{self, float_dtype};

/// A parameter, or a buffer such as a running mean.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ParamId,
    /// Where it is in the module: `blocks.3.conv1.weight`.
    pub(crate) path: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    /// Whether it gets gradients.
    pub(crate) trained: bool,
}

/// Everything in a module that has elements, in the module's order. What appears in several places is listed at its
/// first.
pub(crate) fn list<M: Module>(module: &M) -> Vec<Entry> {
    #[derive(Default)]
    struct Lister {
        path: Vec<String>,
        entries: Vec<Entry>,
    }
    impl Lister {
        fn add(&mut self, id: ParamId, shape: &[usize], dtype: DType, trained: bool) {
            if self.entries.iter().any(|entry| entry.id == id) {
                return;
            }
            let mut path = self.path.join(".");
            if self.entries.iter().any(|entry| entry.path == path) {
                path = format!("{path}#{}", self.entries.len());
            }
            self.entries.push(Entry { id, path, shape: shape.to_vec(), dtype, trained });
        }
    }
    impl ModuleVisitor for Lister {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.add(param.id, &param.dims(), param.dtype(), param.is_require_grad());
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.add(param.id, &param.dims(), param.dtype(), false);
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.add(param.id, &param.dims(), param.dtype(), false);
        }
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
    }
    let mut lister = Lister::default();
    module.visit(&mut lister);
    lister.entries
}

/// The list as text, a line for each entry: what ranks compare.
pub(crate) fn text(entries: &[Entry]) -> String {
    entries.iter().map(|entry| format!("{} {:?} {:?}\n", entry.path, entry.dtype, entry.shape)).collect()
}

/// Gives all ranks the root's parameters and buffers (running means of batch normalization, for instance). All ranks
/// call this together, each with its own module of the same structure; gradients are required where they were before.
///
/// # Errors
/// [`Error::Parameters`] if the modules differ, on all ranks, with the first difference.
pub fn broadcast_parameters<M: Module>(world: &mut World, module: M, root: usize) -> Result<M> {
    settle(&module);
    let name = format!("farandole.broadcast_parameters.{}", world.next_series());
    agree(world.engine(), &name, text(&list(&module)))?;
    let mut mapper = Through {
        world,
        transform: |world: &mut World, data: TensorData| broadcast(world, data, root),
        which: Which::All,
        trouble: None,
    };
    let module = module.map(&mut mapper);
    mapper.trouble.map_or(Ok(module), Err)
}

/// Gives all ranks the average of their buffers, that is of everything with float elements that is not trained: running
/// means and variances of batch normalization, which each rank learns from its own samples. Worth a call before
/// evaluation and before a checkpoint. All ranks call this together.
///
/// # Errors
/// [`Error::Parameters`] if the modules differ, on all ranks, with the first difference.
pub fn average_buffers<M: Module>(world: &mut World, module: M) -> Result<M> {
    settle(&module);
    let name = format!("farandole.average_buffers.{}", world.next_series());
    agree(world.engine(), &name, text(&list(&module)))?;
    let mut mapper = Through { world, transform: average, which: Which::Untrained, trouble: None };
    let module = module.map(&mut mapper);
    mapper.trouble.map_or(Ok(module), Err)
}

/// Burn keeps the last update of a running statistic beside its value until the next one; a value that is set meanwhile
/// would be overwritten. Looking at the module as for validation brings them together, in the module itself.
pub(super) fn settle<M: Module>(module: &M) {
    drop(module.valid());
}

fn broadcast(world: &mut World, data: TensorData, root: usize) -> Result<TensorData> {
    let (mut bytes, shape, dtype) = data.into_parts();
    world.broadcast::<u8>(&mut bytes, root)?;
    Ok(TensorData::from_bytes(bytes, shape, dtype))
}

fn average(world: &mut World, data: TensorData) -> Result<TensorData> {
    let shape = data.shape().to_vec();
    let dtype = float_dtype(data.dtype())?;
    let mut region = staging::into_region(data)?;
    let reduced = world.communicator().allreduce_bytes(region.as_bytes_mut(), dtype, ReduceOp::Average, 1.0, 1.0);
    reduced.map_err(|error| world.report(error))?;
    staging::into_data(region, &shape)
}

/// Which tensors a mapper is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Float elements, no gradient.
    Untrained,
}

/// Passes tensors through host memory and something that changes them there. After the first trouble the rest stays as
/// it is.
struct Through<'a, F> {
    world: &'a mut World,
    transform: F,
    which: Which,
    trouble: Option<Error>,
}

impl<F: FnMut(&mut World, TensorData) -> Result<TensorData>> Through<'_, F> {
    fn pass(&mut self, data: TensorData) -> Option<TensorData> {
        if self.trouble.is_some() {
            return None;
        }
        (self.transform)(self.world, data).map_err(|error| self.trouble = Some(error)).ok()
    }
}

impl<F: FnMut(&mut World, TensorData) -> Result<TensorData>> ModuleMapper for Through<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.which == Which::Untrained && param.is_require_grad() {
            return param;
        }
        param.map(|tensor| {
            let (device, dtype, trained) = (tensor.device(), tensor.dtype(), tensor.is_require_grad());
            let Some(data) = self.pass(tensor.to_data()) else { return tensor };
            let tensor = Tensor::from_data(data, (&device, dtype));
            if trained { tensor.require_grad() } else { tensor }
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        if self.which == Which::Untrained {
            return param;
        }
        param.map(|tensor| {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            self.pass(tensor.to_data()).map_or(tensor, |data| Tensor::from_data(data, (&device, dtype)))
        })
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        if self.which == Which::Untrained {
            return param;
        }
        param.map(|tensor| {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            self.pass(tensor.to_data()).map_or(tensor, |data| Tensor::from_data(data, (&device, dtype)))
        })
    }
}
