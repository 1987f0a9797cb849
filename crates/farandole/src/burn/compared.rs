//! The trained parameters of a module, as they are compared with those of other ranks.

use std::collections::HashMap;

use ::burn::module::{Module, ModuleVisitor, Param, ParamId};
use ::burn::tensor::{DType, Tensor};
use farandole_tensor::digest::digest;

use crate::parameter_check::{Depth, MatchedBy, ParameterList, sample_of};

/// Reads parameters with these names; a sample by a few small slices, all of them through host memory.
pub(super) fn listed<M: Module>(module: &M, names: HashMap<ParamId, &str>, depth: Depth) -> ParameterList {
    let mut reader = Reader { list: ParameterList::new(MatchedBy::Name), names, depth };
    module.visit(&mut reader);
    reader.list
}

struct Reader<'a> {
    list: ParameterList,
    /// Of what was not read yet: a parameter may be in several places.
    names: HashMap<ParamId, &'a str>,
    depth: Depth,
}

impl ModuleVisitor for Reader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(name) = self.names.remove(&param.id) else { return };
        let tensor = param.val().detach();
        let elements: usize = param.dims().iter().product();
        let element_bytes = DType::size(&param.dtype());
        let blocks: Vec<_> = sample_of(elements * element_bytes).collect();
        if self.depth == Depth::Whole || blocks.len() == 1 {
            self.list.add(name, tensor.into_data().as_bytes(), self.depth);
            return;
        }
        let flat: Tensor<1> = tensor.reshape([elements]);
        let sample: Vec<u8> = blocks
            .into_iter()
            .flat_map(|block| {
                let part = block.start / element_bytes..block.end / element_bytes;
                flat.clone().slice([part]).into_data().as_bytes().to_vec()
            })
            .collect();
        self.list.add_digest(name, elements * element_bytes, digest(&sample));
    }
}
