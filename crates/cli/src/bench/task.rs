//! What is measured: one collective on one size, in words that every contestant understands.
//!
//! Sizes follow the custom of NCCL's tests. For allreduce and broadcast the size is that of the buffer of each rank;
//! for allgather it is the gathered result, for reducescatter and alltoall the input of each rank: always the larger
//! side, so that rates can be compared between collectives.

use std::fmt;

use clap::ValueEnum;
use farandole_plan::{Dtype, ReduceOp};
use serde::{Deserialize, Serialize};

/// The collectives that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Every rank gets the combination of all contributions.
    Allreduce,
    /// Every rank gets all contributions, one after the other.
    Allgather,
    /// Every rank gets rank 0's buffer.
    Broadcast,
    /// Rank i's j-th part goes to rank j as its i-th part.
    Alltoall,
    /// Every rank gets its own part of the combination.
    Reducescatter,
    /// Nobody leaves before everybody has come.
    Barrier,
}

impl Kind {
    /// The word on the command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Kind::Allreduce => "allreduce",
            Kind::Allgather => "allgather",
            Kind::Broadcast => "broadcast",
            Kind::Alltoall => "alltoall",
            Kind::Reducescatter => "reducescatter",
            Kind::Barrier => "barrier",
        }
    }

    /// Whether contributions are combined, so that `--op` means something.
    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Kind::Allreduce | Kind::Reducescatter)
    }

    /// Into how many equal parts a buffer is divided.
    fn parts(self, ranks: usize) -> usize {
        match self {
            Kind::Allreduce | Kind::Broadcast | Kind::Barrier => 1,
            Kind::Allgather | Kind::Alltoall | Kind::Reducescatter => ranks,
        }
    }

    /// The nearest size at or below `bytes` that this collective can have, at least one element for each part.
    pub(crate) fn round_size(self, bytes: u64, dtype: Dtype, ranks: usize) -> u64 {
        let unit = (self.parts(ranks) * dtype.size_bytes()) as u64;
        (bytes / unit).max(1) * unit
    }

    /// Bus bandwidth divided by algorithm bandwidth: how many bytes the busiest link must carry for each byte of the
    /// size, whatever the algorithm.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Kind::Allreduce => 2.0 * (n - 1.0) / n,
            Kind::Allgather | Kind::Alltoall | Kind::Reducescatter => (n - 1.0) / n,
            Kind::Broadcast => 1.0,
            Kind::Barrier => 0.0,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How iterations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pace {
    /// A barrier of the contestant before each iteration; the barrier is not timed.
    Aligned,
    /// A barrier before each round only; an iteration starts when the one before it has ended on this rank.
    BackToBack,
}

/// Whose memory the buffers are. Only farandole distinguishes; peers always work on the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Memory {
    /// The caller's own memory, as a framework would hand it over.
    Own,
    /// Buffers that the engine owns and that all ranks of the host have mapped.
    Mapped,
    /// Memory of GPUs.
    #[value(skip)]
    Cuda,
}

/// Where the buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    /// In host memory.
    Cpu,
    /// On NVIDIA's GPUs, which the ranks take in turn.
    Cuda,
}

/// Where tensors on GPUs are reduced, by the words of FARANDOLE_PLANE. What goes through pinned host memory is copied
/// by a front end, so that it is measured there (`farandole study planes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DevicePlane {
    /// As a job would choose.
    Auto,
    /// In device memory that the ranks map.
    Own,
    /// By NCCL.
    Nccl,
}

impl DevicePlane {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            DevicePlane::Auto => "auto",
            DevicePlane::Own => "own",
            DevicePlane::Nccl => "nccl",
        }
    }
}

/// Whether requests are direct calls or go through the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Through {
    /// On the caller's thread, in the caller's order, like MPI.
    Direct,
    /// By name: submit, agree, fuse, wait.
    Engine,
}

/// One measurement, as the driver orders it from a contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) kind: Kind,
    /// Size in bytes, already rounded by [`Kind::round_size`]. With several tensors, the size of each.
    pub(crate) bytes: u64,
    #[serde(with = "dtype_by_name")]
    pub(crate) dtype: Dtype,
    #[serde(with = "op_by_name")]
    pub(crate) op: ReduceOp,
    pub(crate) pace: Pace,
    pub(crate) memory: Memory,
    pub(crate) through: Through,
    /// Tensors in one iteration; more than one only through the engine.
    pub(crate) tensors: usize,
    /// Whether ranks of farandole record what they do, as they always do in a job.
    pub(crate) recording: Recording,
}

/// Whether ranks record what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Recording {
    /// As in a job.
    #[default]
    On,
    /// To see what it costs.
    Off,
}

/// The dtype with this name.
pub(crate) fn dtype_named(name: &str) -> Option<Dtype> {
    Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
}

/// The operation with this name, in any case of letters.
pub(crate) fn op_named(name: &str) -> Option<ReduceOp> {
    ReduceOp::ALL.into_iter().find(|op| op.name().eq_ignore_ascii_case(name))
}

mod dtype_by_name {
    use super::{Dtype, dtype_named};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(dtype: &Dtype, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Dtype, D::Error> {
        let name = String::deserialize(deserializer)?;
        dtype_named(&name).ok_or_else(|| D::Error::custom(format!("no dtype is called {name}")))
    }
}

mod op_by_name {
    use super::{ReduceOp, op_named};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(op: &ReduceOp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(op.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReduceOp, D::Error> {
        let name = String::deserialize(deserializer)?;
        op_named(&name).ok_or_else(|| D::Error::custom(format!("no operation is called {name}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_whole_elements_for_each_rank() {
        assert_eq!(Kind::Allreduce.round_size(4, Dtype::F32, 4), 4);
        assert_eq!(Kind::Allreduce.round_size(1, Dtype::F64, 4), 8);
        assert_eq!(Kind::Allgather.round_size(4, Dtype::F32, 4), 16);
        assert_eq!(Kind::Alltoall.round_size(1000, Dtype::F32, 3), 996);
        assert_eq!(Kind::Broadcast.round_size(1001, Dtype::U8, 3), 1001);
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(Kind::Allreduce.bus_factor(4), 1.5);
        assert_eq!(Kind::Allgather.bus_factor(4), 0.75);
        assert_eq!(Kind::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Kind::Allreduce.bus_factor(1), 0.0);
    }

    #[test]
    fn a_task_survives_the_wire() {
        let task = Task {
            kind: Kind::Allreduce,
            bytes: 4,
            dtype: Dtype::BF16,
            op: ReduceOp::Max,
            pace: Pace::BackToBack,
            memory: Memory::Own,
            through: Through::Direct,
            tensors: 1,
            recording: Recording::On,
        };
        let text = serde_json::to_string(&task).unwrap();
        assert!(text.contains("\"dtype\":\"bfloat16\"") && text.contains("\"pace\":\"back-to-back\""), "{text}");
        assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
    }
}
