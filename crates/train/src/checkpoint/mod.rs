//! A checkpoint: everything that training needs to go on as if it had never stopped.
//!
//! One file in the format of safetensors, which anything can read. It has the network's tensors as `model.PATH`, what
//! the optimizer remembers of each weight as `optimizer.PATH.FIELD`, and in its header, under the key `farandole`, a
//! [`Meta`] as JSON: what was being trained and how far it is. The same state gives the same bytes.
//!
//! Nothing in a checkpoint depends on the number of ranks. All ranks have the same weights and the same optimizer,
//! buffers are averaged before they are written, and what a step sees depends on the global batch alone. What a file
//! must fit to be used is asked in [`Meta::refuse`]; `farandole::publish` puts it onto the disk, with a checksum and a
//! token that says which job and generation has written it; the trainer sends it to all ranks.

pub mod state;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::tensor::{DType, TensorData};
use burn_pack::Scalar;
use farandole::publish;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The name of the checkpoint in its folder.
pub const NAME: &str = "checkpoint.safetensors";

/// The version of the file's contents; another one is refused.
const FORMAT: u32 = 1;

/// The key of the header that has the [`Meta`].
const KEY: &str = "farandole";

/// What was being trained, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The version of the file's contents.
    pub format: u32,
    /// The name of the network.
    pub model: String,
    /// Bands, rows and columns of an image.
    pub shape: [usize; 3],
    /// What is learned, with the number of outputs.
    pub task: String,
    /// The name of the optimizer.
    pub optimizer: String,
    /// Epochs that are complete.
    pub epoch: u64,
    /// Steps of the next epoch that are done.
    pub step: u64,
    /// Steps of an epoch.
    pub steps: u64,
    /// Where everything random comes from.
    pub seed: u64,
    /// Samples to learn from.
    pub samples: usize,
    /// Samples of a step.
    pub global_batch: usize,
    /// BatchNorm takes its statistics over so many samples.
    pub norm_batch: usize,
    /// By how many ranks the learning rate is multiplied.
    pub rate_ranks: usize,
    /// What the optimizer remembers in single numbers, by weight and field.
    pub scalars: BTreeMap<String, Scalar>,
    /// Where the optimizer says that its weights are.
    pub places: BTreeMap<String, String>,
}

impl Meta {
    /// The version that is written.
    pub const FORMAT: u32 = FORMAT;

    /// Says why training cannot go on from here as `wanted` describes it, if it cannot.
    ///
    /// # Errors
    /// With everything that differs.
    pub fn refuse(&self, wanted: &Meta) -> std::result::Result<(), String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, has: String, wants: String| {
            if has != wants {
                differences.push(format!("{what} {has}, not {wants}"));
            }
        };
        compare("the model", self.model.clone(), wanted.model.clone());
        compare("the task", self.task.clone(), wanted.task.clone());
        let shape = |[bands, height, width]: [usize; 3]| format!("{bands} x {height} x {width}");
        compare("images of", shape(self.shape), shape(wanted.shape));
        compare("the optimizer", self.optimizer.clone(), wanted.optimizer.clone());
        compare("a training set of", self.samples.to_string(), wanted.samples.to_string());
        compare(
            "a global batch (batch x accumulate x ranks) of",
            self.global_batch.to_string(),
            wanted.global_batch.to_string(),
        );
        compare("the seed", self.seed.to_string(), wanted.seed.to_string());
        if differences.is_empty() {
            return Ok(());
        }
        let hint =
            if self.global_batch == wanted.global_batch { String::new() } else { self.remedy(wanted.rate_ranks) };
        Err(format!("it has {}{hint}", differences.join(", and ")))
    }

    /// How so many ranks can have the global batch of this checkpoint.
    fn remedy(&self, ranks: usize) -> String {
        let batch = self.global_batch;
        if batch.is_multiple_of(ranks) {
            let (each, many) = (batch / ranks, if ranks == 1 { "rank" } else { "ranks" });
            return format!(
                "; with {ranks} {many} --batch {each} --accumulate 1 keeps it, or passes of fewer samples and more of them"
            );
        }
        format!("; {ranks} ranks cannot have equal parts of {batch} samples: take another number of ranks")
    }
}

/// Everything that training needs to go on.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// What was being trained, and how far it is.
    pub meta: Meta,
    /// The network's tensors, by path.
    pub model: HashMap<String, TensorData>,
    /// What the optimizer remembers in tensors, by weight and field.
    pub optimizer: HashMap<String, TensorData>,
}

impl Checkpoint {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let named = |prefix: &'static str, tensors: &'_ HashMap<String, TensorData>| -> Vec<(String, TensorData)> {
            tensors.iter().map(|(path, data)| (format!("{prefix}.{path}"), data.clone())).collect()
        };
        let mut tensors = named("model", &self.model);
        tensors.extend(named("optimizer", &self.optimizer));
        // The order in which a map of tensors is walked through is another one each time; that of the file is not.
        tensors.sort_by(|(first, _), (second, _)| first.cmp(second));
        let views = tensors.iter().map(|(name, data)| {
            let view = TensorView::new(Dtype::F32, data.shape().to_vec(), data.as_bytes());
            (name.as_str(), view.expect("invariant: a tensor of f32 has four bytes for each element"))
        });
        let meta = serde_json::to_string(&self.meta).expect("invariant: names and numbers have a form in JSON");
        let header = HashMap::from([(KEY.to_owned(), meta)]);
        safetensors::serialize(views, Some(header)).expect("invariant: what has a shape can be written down")
    }

    /// Reads the bytes of a file, whatever they are.
    ///
    /// # Errors
    /// If they are no checkpoint of this version, with the reason.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Checkpoint, String> {
        let (_, header) = SafeTensors::read_metadata(bytes)
            .map_err(|error| format!("it is not a checkpoint, or not all of it ({error})"))?;
        let text = header.metadata().as_ref().and_then(|entries| entries.get(KEY));
        let text = text.ok_or("it has weights, but farandole has not written it: nobody knows how far training was")?;
        let format: Format =
            serde_json::from_str(text).map_err(|error| format!("its header makes no sense ({error})"))?;
        if format.format != FORMAT {
            return Err(format!("it is of version {}; this farandole reads version {FORMAT}", format.format));
        }
        let meta: Meta = serde_json::from_str(text).map_err(|error| format!("its header makes no sense ({error})"))?;
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| format!("it is not a checkpoint, or not all of it ({error})"))?;
        let mut checkpoint = Checkpoint { meta, model: HashMap::new(), optimizer: HashMap::new() };
        for (name, view) in file.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(format!("its {name} is of type {:?}, not F32", view.dtype()));
            }
            let data = TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), DType::F32);
            if let Some(path) = name.strip_prefix("model.") {
                checkpoint.model.insert(path.to_owned(), data);
            } else if let Some(path) = name.strip_prefix("optimizer.") {
                checkpoint.optimizer.insert(path.to_owned(), data);
            } else {
                return Err(format!("it has a tensor {name}, which is nothing of a checkpoint's"));
            }
        }
        Ok(checkpoint)
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// An error about the checkpoint in this file.
pub(crate) fn unusable(path: &Path, why: &str) -> Error {
    Error::Checkpoint(format!("cannot resume from {}: {why}", path.display()))
}

/// An error about the content of this file. It names the previous checkpoint if that one is intact.
pub(crate) fn damaged(path: &Path, why: &str) -> Error {
    match publish::intact_previous(path) {
        Some((previous, token)) => {
            let (previous, step) = (previous.display(), token.step);
            unusable(path, &format!("{why}; {previous} of step {step} is intact: resume with --resume={previous}"))
        }
        None => unusable(path, why),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn meta() -> Meta {
        Meta {
            format: FORMAT,
            model: "lenet".to_owned(),
            shape: [3, 32, 32],
            task: "single-label, 10 classes".to_owned(),
            optimizer: "adam".to_owned(),
            epoch: 3,
            step: 7,
            steps: 20,
            seed: 1,
            samples: 640,
            global_batch: 32,
            norm_batch: 16,
            rate_ranks: 2,
            scalars: BTreeMap::from([("a.time".to_owned(), Scalar::UInt(67))]),
            places: BTreeMap::new(),
        }
    }

    pub(crate) fn checkpoint() -> Checkpoint {
        let tensor = |from: f32| TensorData::new((0..6).map(|at| from + at as f32).collect::<Vec<f32>>(), [2, 3]);
        let model = (0..20).map(|at| (format!("layer.{at}"), tensor(at as f32 * 0.1))).collect();
        Checkpoint { meta: meta(), model, optimizer: HashMap::from([("a.moment".to_owned(), tensor(-1.0))]) }
    }

    #[test]
    fn a_checkpoint_survives_its_bytes_and_has_the_same_ones_each_time() {
        let bytes = checkpoint().encode();
        assert_eq!(bytes, checkpoint().encode());
        let read = Checkpoint::decode(&bytes).unwrap();
        assert_eq!(read.meta, meta());
        assert_eq!(read.model, checkpoint().model);
        assert_eq!(read.optimizer, checkpoint().optimizer);
    }

    #[test]
    fn no_part_of_a_checkpoint_passes_for_all_of_it() {
        let bytes = checkpoint().encode();
        for length in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
            assert!(Checkpoint::decode(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        assert!(Checkpoint::decode(&[bytes.as_slice(), b"x"].concat()).is_err());
    }

    #[test]
    fn garbage_and_others_files_are_refused_with_a_reason() {
        assert!(Checkpoint::decode(&[0xff; 4096]).unwrap_err().contains("not a checkpoint"));
        assert!(Checkpoint::decode(b"").unwrap_err().contains("not a checkpoint"));
        let data = [0_u8; 4];
        let view = TensorView::new(Dtype::F32, vec![1], &data).unwrap();
        let others = safetensors::serialize([("weight", &view)], None).unwrap();
        assert!(Checkpoint::decode(&others).unwrap_err().contains("farandole has not written it"));
        let mut newer = checkpoint();
        newer.meta.format = 9;
        assert!(Checkpoint::decode(&newer.encode()).unwrap_err().contains("version 9"));
        let header = HashMap::from([(KEY.to_owned(), serde_json::to_string(&meta()).unwrap())]);
        let strange = safetensors::serialize([("weight", &view)], Some(header)).unwrap();
        assert!(Checkpoint::decode(&strange).unwrap_err().contains("nothing of a checkpoint's"));
    }

    #[test]
    fn what_does_not_fit_the_job_is_named() {
        meta().refuse(&Meta { epoch: 9, step: 1, rate_ranks: 1, norm_batch: 32, ..meta() }).unwrap();
        let other = Meta { model: "resnet20".to_owned(), shape: [12, 64, 64], global_batch: 48, ..meta() };
        let why = meta().refuse(&other).unwrap_err();
        let other = Meta { rate_ranks: 3, ..other };
        assert!(
            meta()
                .refuse(&other)
                .unwrap_err()
                .ends_with("; 3 ranks cannot have equal parts of 32 samples: take another number of ranks")
        );
        for part in [
            "with 2 ranks --batch 16 --accumulate 1 keeps it",
            "the model lenet, not resnet20",
            "images of 3 x 32 x 32, not 12 x 64 x 64",
            "of 32, not 48",
        ] {
            assert!(why.contains(part), "{why}");
        }
    }
}
