//! What an optimizer remembers, by the paths of the weights instead of their ids.
//!
//! The tensor library writes an optimizer down as tensors and numbers named `ID.FIELD`, where the id of a weight is
//! another one in each process. Here ids become paths on the way into a checkpoint, and the ids of this process on the
//! way out of it. What the fields are is not known here, so that every optimizer of the library can be kept.

use std::collections::{BTreeMap, HashMap};

use burn::optim::OptimizerRecord;
use burn::tensor::{DType, TensorData};
use burn_pack::{Reader, Scalar, Writer};

use crate::error::{Error, Result};
use crate::weights::NamedTensor;

/// What an optimizer remembers.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Tensors, by path and field.
    pub tensors: HashMap<String, TensorData>,
    /// Numbers, by path and field.
    pub scalars: BTreeMap<String, Scalar>,
    /// Where the optimizer says that its weights are, by path.
    pub places: BTreeMap<String, String>,
}

impl State {
    /// Takes a record of an optimizer apart. `weights` are those of the network that it belongs to.
    ///
    /// # Errors
    /// If the library's own format has changed.
    pub fn from_record(record: OptimizerRecord, weights: &[NamedTensor]) -> Result<State> {
        let paths: HashMap<String, &str> =
            weights.iter().map(|weight| (weight.id.val().to_string(), weight.path.as_str())).collect();
        let bytes = record.into_bytes().map_err(|error| strange(&error))?;
        let reader = Reader::from_bytes(bytes).map_err(|error| strange(&error))?;
        let renamed = |name: &str| rename(name, |id| paths.get(id).map(|path| (*path).to_owned()));
        let mut state = State::default();
        for (name, scalar) in reader.scalars() {
            state.scalars.insert(renamed(name)?, *scalar);
        }
        for (id, place) in reader.metadata() {
            if let Some(path) = paths.get(id) {
                state.places.insert((*path).to_owned(), place.clone());
            }
        }
        for tensor in reader.into_tensors().map_err(|error| strange(&error))? {
            let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(|error| strange(&error))?;
            if dtype != DType::F32 {
                return Err(strange(&format!("{name} is of type {dtype:?}")));
            }
            let data = TensorData::from_bytes_vec(bytes.to_vec(), shape, dtype);
            state.tensors.insert(renamed(&name)?, data);
        }
        Ok(state)
    }

    /// Puts a record together for the weights of this process.
    ///
    /// # Errors
    /// If a weight is not there, or the library's own format has changed.
    pub fn into_record(self, weights: &[NamedTensor]) -> Result<OptimizerRecord> {
        let ids: HashMap<&str, u64> = weights.iter().map(|weight| (weight.path.as_str(), weight.id.val())).collect();
        let id_of = |path: &str| ids.get(path).copied();
        let mut tensors = Vec::new();
        for (name, data) in self.tensors {
            // The longest path that the name begins with: `a.1` is not meant by `a.10.velocity`.
            let (path, id) = split(&name, id_of).ok_or_else(|| unknown(&name))?;
            let renamed = format!("{id}{}", &name[path.len()..]);
            let (bytes, shape, dtype) = data.into_parts();
            tensors.push(burn_pack::Tensor::new(renamed, dtype, shape, Some(id), bytes));
        }
        tensors.sort_by(|first, second| first.name.cmp(&second.name));
        let mut writer = Writer::new(tensors);
        for (name, scalar) in self.scalars {
            let (path, id) = split(&name, id_of).ok_or_else(|| unknown(&name))?;
            writer = writer.with_scalar(&format!("{id}{}", &name[path.len()..]), scalar);
        }
        for (path, place) in self.places {
            let id = id_of(&path).ok_or_else(|| unknown(&path))?;
            writer = writer.with_metadata(&id.to_string(), &place);
        }
        let bytes = writer.into_bytes().map_err(|error| strange(&error))?;
        OptimizerRecord::from_bytes(bytes).map_err(|error| strange(&error))
    }
}

/// `ID.FIELD` with something else for the id.
fn rename(name: &str, other: impl Fn(&str) -> Option<String>) -> Result<String> {
    let (id, field) = name.split_once('.').ok_or_else(|| strange(&format!("a field is called {name}")))?;
    let path = other(id).ok_or_else(|| strange(&format!("{name} belongs to no weight of the network")))?;
    Ok(format!("{path}.{field}"))
}

/// The path that a name begins with, and the id that belongs to it.
fn split(name: &str, id_of: impl Fn(&str) -> Option<u64>) -> Option<(&str, u64)> {
    let ends = name.match_indices('.').map(|(at, _)| at);
    ends.rev().find_map(|end| id_of(&name[..end]).map(|id| (&name[..end], id)))
}

fn unknown(name: &str) -> Error {
    Error::Checkpoint(format!("its optimizer remembers {name}, which belongs to no weight of the network"))
}

fn strange(why: &impl ToString) -> Error {
    Error::Checkpoint(format!("what the optimizer remembers cannot be written down: {}", why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
    use burn::prelude::*;

    use crate::weights;

    #[derive(Module, Debug)]
    struct Two {
        first: Linear,
        second: Vec<Linear>,
    }

    fn network(device: &Device) -> Two {
        let linear = || LinearConfig::new(3, 3).init(device);
        Two { first: linear(), second: (0..11).map(|_| linear()).collect() }
    }

    fn step(network: Two, optimizer: &mut ModuleOptimizer, device: &Device) -> Two {
        let mut value = network.first.forward(Tensor::<2>::ones([2, 3], device));
        for layer in &network.second {
            value = layer.forward(value);
        }
        let gradients = GradientsParams::from_grads(value.sum().backward(), &network);
        optimizer.step(0.1, network, gradients)
    }

    #[test]
    fn an_optimizer_goes_on_in_another_process_as_if_nothing_had_been() {
        let device = Device::flex().autodiff();
        let mut optimizer = AdamConfig::new().init();
        let mut original = network(&device);
        for _ in 0..3 {
            original = step(original, &mut optimizer, &device);
        }
        let state = State::from_record(optimizer.to_record(), &weights::read(&original)).unwrap();
        assert!(state.tensors.keys().any(|name| name.starts_with("second.10.weight.")), "{:?}", state.tensors.keys());

        // Another network has other ids; it takes over weights and memory by path.
        let mut values: HashMap<String, TensorData> =
            weights::read(&original).into_iter().map(|named| (named.path, named.data)).collect();
        let mut copy = weights::write(network(&device), &mut values).unwrap();
        assert!(values.is_empty());
        let record = state.into_record(&weights::read(&copy)).unwrap();
        let mut resumed = AdamConfig::new().init().load_record(record);
        for _ in 0..3 {
            original = step(original, &mut optimizer, &device);
            copy = step(copy, &mut resumed, &device);
        }
        for (one, other) in weights::read(&original).iter().zip(weights::read(&copy)) {
            assert_ne!(one.id, other.id);
            assert_eq!((&one.path, &one.data), (&other.path, &other.data));
        }
    }

    #[test]
    fn what_belongs_to_no_weight_is_refused() {
        let state = State {
            tensors: HashMap::from([("gone.weight.velocity".to_owned(), TensorData::zeros::<f32, _>([1]))]),
            ..State::default()
        };
        assert!(state.into_record(&[]).unwrap_err().to_string().contains("gone.weight.velocity"));
    }
}
