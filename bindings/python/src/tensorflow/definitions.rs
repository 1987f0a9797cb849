//! The ops: Horovod's names, inputs, outputs and attributes, so that graphs which were saved with Horovod run here and
//! the other way round.
//!
//! Three things are more than Horovod's. All element types of the engine are allowed everywhere. And there is an
//! attribute `eager_name`: a node of a graph has a name, by which ranks match their requests, but an op that Python
//! runs eagerly has none, so it brings one. Graphs leave it empty, and a default is not written when a model is saved.
//! For eager mode, too, are ops that take many tensors of any types, each a request of its own with its own name: one
//! crossing for a list of gradients or variables.
//!
//! All ops are *stateful* in TensorFlow's sense. Horovod's collectives are not, and so TensorFlow may merge two of them
//! that have the same input, and run the one on this rank and the other on that; or compute one while it optimises a
//! graph, and never again. `tf.function` runs stateful ops one after the other unless it is told that they are
//! independent, which the Python package does.

/// What an op does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Allreduce,
    GroupedAllreduce,
    Allgather,
    GroupedAllgather,
    Broadcast,
    AllreduceMany,
    BroadcastMany,
    Alltoall,
    Reducescatter,
    GroupedReducescatter,
    Join,
    Barrier,
    Size,
    ProcessSetIncluded,
    LocalSize,
    Rank,
    LocalRank,
}

/// What is known of the outputs' shapes before the op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shapes {
    /// Those of the inputs.
    Same,
    /// Those of the inputs, but for the first dimension.
    OtherRows,
    /// As `OtherRows`; then the shape of the splits.
    Alltoall,
    /// One number.
    Scalar,
    /// There are no outputs.
    None,
}

/// One op.
pub(crate) struct Definition {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) attrs: &'static [&'static str],
    pub(crate) inputs: &'static [&'static str],
    pub(crate) outputs: &'static [&'static str],
    pub(crate) shapes: Shapes,
}

/// All element types that TensorFlow and the engine have in common.
const T: &str = "T: {bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double}";

const REDUCE_OP: &str = "reduce_op: int";
const PRESCALE: &str = "prescale_factor: float";
const POSTSCALE: &str = "postscale_factor: float";
const IGNORE_NAME_SCOPE: &str = "ignore_name_scope: bool = false";
const PROCESS_SET: &str = "process_set_id: int = 0";
const NUM_TENSORS: &str = "num_tensors: int";
const EAGER_NAME: &str = "eager_name: string = ''";

/// Names of the requests of an op for many tensors.
const TENSOR_NAMES: &str = "tensor_names: list(string)";

/// Tensors of any types in one op.
const TYPES: &str =
    "T: list({bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double}) >= 1";

/// Every op.
pub(crate) const DEFINITIONS: [Definition; 17] = [
    Definition {
        kind: Kind::Allreduce,
        name: "HorovodAllreduce",
        attrs: &[T, REDUCE_OP, PRESCALE, POSTSCALE, IGNORE_NAME_SCOPE, PROCESS_SET, EAGER_NAME],
        inputs: &["tensor: T"],
        outputs: &["sum: T"],
        shapes: Shapes::Same,
    },
    Definition {
        kind: Kind::GroupedAllreduce,
        name: "HorovodGroupedAllreduce",
        attrs: &[T, REDUCE_OP, PRESCALE, POSTSCALE, IGNORE_NAME_SCOPE, NUM_TENSORS, PROCESS_SET, EAGER_NAME],
        inputs: &["tensors: num_tensors*T"],
        outputs: &["sum: num_tensors*T"],
        shapes: Shapes::Same,
    },
    Definition {
        kind: Kind::Allgather,
        name: "HorovodAllgather",
        attrs: &[T, IGNORE_NAME_SCOPE, PROCESS_SET, EAGER_NAME],
        inputs: &["tensor: T"],
        outputs: &["output: T"],
        shapes: Shapes::OtherRows,
    },
    Definition {
        kind: Kind::GroupedAllgather,
        name: "HorovodGroupedAllgather",
        attrs: &[T, IGNORE_NAME_SCOPE, NUM_TENSORS, PROCESS_SET, EAGER_NAME],
        inputs: &["tensors: num_tensors*T"],
        outputs: &["outputs: num_tensors*T"],
        shapes: Shapes::OtherRows,
    },
    Definition {
        kind: Kind::Broadcast,
        name: "HorovodBroadcast",
        attrs: &[T, "root_rank: int", IGNORE_NAME_SCOPE, PROCESS_SET, EAGER_NAME],
        inputs: &["tensor: T"],
        outputs: &["output: T"],
        shapes: Shapes::Same,
    },
    Definition {
        kind: Kind::AllreduceMany,
        name: "FarandoleAllreduceMany",
        attrs: &[TYPES, TENSOR_NAMES, REDUCE_OP, PRESCALE, POSTSCALE, PROCESS_SET, EAGER_NAME],
        inputs: &["tensors: T"],
        outputs: &["sum: T"],
        shapes: Shapes::Same,
    },
    Definition {
        kind: Kind::BroadcastMany,
        name: "FarandoleBroadcastMany",
        attrs: &[TYPES, TENSOR_NAMES, "root_rank: int", PROCESS_SET, EAGER_NAME],
        inputs: &["tensors: T"],
        outputs: &["output: T"],
        shapes: Shapes::Same,
    },
    Definition {
        kind: Kind::Alltoall,
        name: "HorovodAlltoall",
        attrs: &[T, IGNORE_NAME_SCOPE, PROCESS_SET, EAGER_NAME],
        inputs: &["tensor: T", "splits: int32"],
        outputs: &["output: T", "received_splits: int32"],
        shapes: Shapes::Alltoall,
    },
    Definition {
        kind: Kind::Reducescatter,
        name: "HorovodReducescatter",
        attrs: &[T, REDUCE_OP, IGNORE_NAME_SCOPE, PRESCALE, POSTSCALE, PROCESS_SET, EAGER_NAME],
        inputs: &["tensor: T"],
        outputs: &["output: T"],
        shapes: Shapes::OtherRows,
    },
    Definition {
        kind: Kind::GroupedReducescatter,
        name: "HorovodGroupedReducescatter",
        attrs: &[T, REDUCE_OP, IGNORE_NAME_SCOPE, NUM_TENSORS, PROCESS_SET, PRESCALE, POSTSCALE, EAGER_NAME],
        inputs: &["tensors: num_tensors*T"],
        outputs: &["outputs: num_tensors*T"],
        shapes: Shapes::OtherRows,
    },
    Definition {
        kind: Kind::Join,
        name: "HorovodJoin",
        attrs: &[EAGER_NAME],
        inputs: &[],
        outputs: &["output: int32"],
        shapes: Shapes::Scalar,
    },
    Definition {
        kind: Kind::Barrier,
        name: "HorovodBarrier",
        attrs: &[IGNORE_NAME_SCOPE, PROCESS_SET, EAGER_NAME],
        inputs: &[],
        outputs: &[],
        shapes: Shapes::None,
    },
    scalar(Kind::Size, "HorovodSize", &[PROCESS_SET], &["size: int32"]),
    scalar(Kind::ProcessSetIncluded, "HorovodProcessSetIncluded", &[PROCESS_SET], &["included: int32"]),
    scalar(Kind::LocalSize, "HorovodLocalSize", &[], &["local_size: int32"]),
    scalar(Kind::Rank, "HorovodRank", &[], &["rank: int32"]),
    scalar(Kind::LocalRank, "HorovodLocalRank", &[], &["local_rank: int32"]),
];

/// An op that asks this rank for a number.
const fn scalar(
    kind: Kind,
    name: &'static str,
    attrs: &'static [&'static str],
    outputs: &'static [&'static str],
) -> Definition {
    Definition { kind, name, attrs, inputs: &[], outputs, shapes: Shapes::Scalar }
}

impl Definition {
    /// Names of inputs and outputs, which all lie in host memory.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &'static str> {
        let name = |argument: &&'static str| argument.split(':').next().unwrap_or(argument).trim();
        let (inputs, outputs) = (self.inputs, self.outputs);
        inputs.iter().chain(outputs).map(name)
    }
}

impl Kind {
    /// The kind of this number.
    pub(crate) fn of(number: u8) -> Kind {
        DEFINITIONS
            .iter()
            .map(|definition| definition.kind)
            .find(|kind| *kind as u8 == number)
            .expect("invariant: numbers come from kinds")
    }

    /// Whether it takes a list of tensors that are submitted together.
    pub(crate) fn is_grouped(self) -> bool {
        matches!(self, Kind::GroupedAllreduce | Kind::GroupedAllgather | Kind::GroupedReducescatter)
    }

    /// Whether the result is as large as the input, so that TensorFlow's memory takes it.
    pub(crate) fn is_in_place(self) -> bool {
        matches!(self, Kind::Allreduce | Kind::GroupedAllreduce | Kind::Broadcast) || self.is_many()
    }

    /// Whether it takes a list of tensors, each with a name of its own.
    pub(crate) fn is_many(self) -> bool {
        matches!(self, Kind::AllreduceMany | Kind::BroadcastMany)
    }

    /// Whether this rank answers without the others.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Kind::Size | Kind::ProcessSetIncluded | Kind::LocalSize | Kind::Rank | Kind::LocalRank)
    }
}
