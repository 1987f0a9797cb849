//! The numbers of a network by name: read out of it, and put back.
//!
//! A network's numbers are its *weights*, which are learned, and its *buffers*, which follow from what it has seen (the
//! running statistics of BatchNorm). Both are named by their path in the network, which is the same in every process;
//! the ids that the tensor library gives them are not.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Tensor, TensorData};

use crate::error::{Error, Result};

/// One tensor of a network.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    /// Where it is, such as `blocks.3.conv1.weight`.
    pub path: String,
    /// What the tensor library calls it, in this process.
    pub id: ParamId,
    /// Whether it is learned.
    pub kind: TensorKind,
    /// Its numbers.
    pub data: TensorData,
}

/// Whether a tensor is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    /// It is.
    Weight,
    /// It follows from what the network has seen.
    Buffer,
}

/// All tensors of a network, in the order of its fields.
pub fn read<M: Module>(module: &M) -> Vec<NamedTensor> {
    let mut reader = Reader { path: Vec::new(), found: Vec::new() };
    module.visit(&mut reader);
    reader.found
}

struct Reader {
    path: Vec<String>,
    found: Vec<NamedTensor>,
}

impl ModuleVisitor for Reader {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let kind = if value.is_require_grad() { TensorKind::Weight } else { TensorKind::Buffer };
        self.found.push(NamedTensor { path: self.path.join("."), id: param.id, kind, data: value.to_data() });
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}

/// The network with the numbers that have the path of one of its tensors; the others stay. What is used is taken out of
/// `values`.
///
/// # Errors
/// If a tensor has another shape than the numbers for it.
pub fn write<M: Module>(module: M, values: &mut HashMap<String, TensorData>) -> Result<M> {
    let mut writer = Writer { path: Vec::new(), values, misfit: None };
    let module = module.map(&mut writer);
    match writer.misfit {
        None => Ok(module),
        Some(misfit) => Err(Error::Checkpoint(misfit)),
    }
}

struct Writer<'a> {
    path: Vec<String>,
    values: &'a mut HashMap<String, TensorData>,
    misfit: Option<String>,
}

impl ModuleMapper for Writer<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        let Some(data) = self.values.remove(&path) else { return param };
        let shape = param.val().dims();
        if data.shape().as_slice() != shape || data.dtype() != DType::F32 {
            let (found, kind) = (data.shape().to_vec(), data.dtype());
            self.misfit.get_or_insert(format!("{path} is {shape:?} here and {found:?} ({kind:?}) there"));
            return param;
        }
        param.map(|tensor| {
            let learned = tensor.is_require_grad();
            Tensor::from_data(data, &tensor.device()).set_require_grad(learned)
        })
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}
