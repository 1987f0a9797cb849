//! The vocabulary: what a rank can ask for.
//!
//! A [`Request`] describes one collective on one tensor completely enough that two ranks can find out whether they
//! mean the same thing. It holds no memory. Whether requests of different ranks fit together is decided in
//! `validate`; when they run is decided in `agree`.

use std::fmt;
use std::sync::Arc;

/// A process of the job. Inside a group, ranks are numbered from zero in the order of their world ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into per-rank tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<usize> for Rank {
    fn from(index: usize) -> Self {
        Rank(u32::try_from(index).expect("a world has fewer than 2^32 ranks"))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A group of ranks (Horovod: process set). Zero is the whole world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The group that holds every rank.
    pub const WORLD: GroupId = GroupId(0);

    /// The bit of numbers that only the members of a group know; groups that the whole world adds do not have it.
    pub const JOINED: u32 = 1 << 31;
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Element type of a tensor. The discriminants travel on the wire; never renumber them.
///
/// Functions of this workspace that match every variant deny `clippy::wildcard_enum_match_arm`, so that a new variant
/// without an arm is still found before the program runs; their `_` arms are never taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Dtype {
    /// One byte, zero or one.
    Bool = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 8-bit integer.
    I8 = 2,
    /// Unsigned 16-bit integer.
    U16 = 3,
    /// Signed 16-bit integer.
    I16 = 4,
    /// Unsigned 32-bit integer.
    U32 = 5,
    /// Signed 32-bit integer.
    I32 = 6,
    /// Unsigned 64-bit integer.
    U64 = 7,
    /// Signed 64-bit integer.
    I64 = 8,
    /// IEEE half precision.
    F16 = 9,
    /// The upper half of an IEEE single.
    BF16 = 10,
    /// IEEE single precision.
    F32 = 11,
    /// IEEE double precision.
    F64 = 12,
}

impl Dtype {
    /// Every element type, in wire order.
    pub const ALL: [Dtype; 13] = [
        Dtype::Bool,
        Dtype::U8,
        Dtype::I8,
        Dtype::U16,
        Dtype::I16,
        Dtype::U32,
        Dtype::I32,
        Dtype::U64,
        Dtype::I64,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
        Dtype::F64,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 | Dtype::I8 => 1,
            Dtype::U16 | Dtype::I16 | Dtype::F16 | Dtype::BF16 => 2,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 4,
            Dtype::U64 | Dtype::I64 | Dtype::F64 => 8,
        }
    }

    /// Whether the elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
    }

    /// The element type with this wire number.
    pub fn from_wire(number: u8) -> Option<Dtype> {
        Dtype::ALL.get(usize::from(number)).copied()
    }

    /// The name users know: `float32`, `bfloat16`, `int64`, …
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::U8 => "uint8",
            Dtype::I8 => "int8",
            Dtype::U16 => "uint16",
            Dtype::I16 => "int16",
            Dtype::U32 => "uint32",
            Dtype::I32 => "int32",
            Dtype::U64 => "uint64",
            Dtype::I64 => "int64",
            Dtype::F16 => "float16",
            Dtype::BF16 => "bfloat16",
            Dtype::F32 => "float32",
            Dtype::F64 => "float64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How contributions are combined. The discriminants are Horovod's constants and travel on the wire.
///
/// As for [`Dtype`], functions that match every variant have a `_` arm and a lint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The mean over the ranks; for integers truncated towards zero, for bool true where all are true.
    Average = 0,
    /// The sum; integers wrap, bool is "any".
    Sum = 1,
    /// Adaptive summation: sum where gradients are orthogonal, mean where they are parallel.
    Adasum = 2,
    /// The smallest; for bool "all".
    Min = 3,
    /// The largest; for bool "any".
    Max = 4,
    /// The product; integers wrap, bool is "all".
    Product = 5,
}

impl ReduceOp {
    /// Every operation, in wire order.
    pub const ALL: [ReduceOp; 6] =
        [ReduceOp::Average, ReduceOp::Sum, ReduceOp::Adasum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

    /// The operation with this wire number.
    pub fn from_wire(number: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.get(usize::from(number)).copied()
    }

    /// The name users know.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Average => "Average",
            ReduceOp::Sum => "Sum",
            ReduceOp::Adasum => "Adasum",
            ReduceOp::Min => "Min",
            ReduceOp::Max => "Max",
            ReduceOp::Product => "Product",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of the accelerator with this local index.
    Gpu(u32),
}

/// Dimensions of a tensor, outermost first. Empty means a scalar (one element).
pub type Shape = Vec<u64>;

/// Which collective, with what is particular to it.
///
/// Not `#[non_exhaustive]`, for the reason given at [`Dtype`].
#[derive(Clone, Debug, PartialEq)]
pub enum Collective {
    /// Every rank gets the combination of all contributions.
    Allreduce {
        /// How contributions are combined.
        op: ReduceOp,
        /// Factor applied to each contribution.
        prescale: f64,
        /// Factor applied to the result.
        postscale: f64,
    },
    /// Every rank gets all contributions one after the other along the first dimension, which may differ.
    Allgather,
    /// Every rank gets the root's tensor.
    Broadcast {
        /// The rank (inside the group) whose tensor is sent.
        root: Rank,
    },
    /// Rank i's j-th part goes to rank j as its i-th part.
    Alltoall {
        /// Rows for each rank of the group; `None` splits evenly.
        splits: Option<Vec<u64>>,
    },
    /// Every rank gets its own part of the combination, along the first dimension.
    ReduceScatter {
        /// How contributions are combined.
        op: ReduceOp,
        /// Factor applied to each contribution.
        prescale: f64,
        /// Factor applied to the result.
        postscale: f64,
    },
    /// The root gets the combination of all contributions; the others' tensors stay as they are.
    Reduce {
        /// The rank (inside the group) that gets the result.
        root: Rank,
        /// How contributions are combined.
        op: ReduceOp,
        /// Factor applied to each contribution.
        prescale: f64,
        /// Factor applied to the result.
        postscale: f64,
    },
    /// The root gets all contributions one after the other along the first dimension, which may differ.
    Gather {
        /// The rank (inside the group) that gets them.
        root: Rank,
    },
    /// Every rank gets its part of the root's tensor. The others' tensors have no rows.
    Scatter {
        /// The rank (inside the group) whose tensor is dealt out.
        root: Rank,
        /// On the root: rows for each rank of the group; `None` splits evenly.
        splits: Option<Vec<u64>>,
    },
    /// Nobody leaves before everybody has come.
    Barrier,
    /// This rank has no more data: it contributes neutral values until all ranks have joined.
    Join,
}

impl Collective {
    /// An allreduce without factors.
    pub const fn allreduce(op: ReduceOp) -> Collective {
        Collective::Allreduce { op, prescale: 1.0, postscale: 1.0 }
    }

    /// The rank (inside the group) that sends or gets everything, if one does.
    pub const fn root(&self) -> Option<Rank> {
        match self {
            Collective::Broadcast { root }
            | Collective::Reduce { root, .. }
            | Collective::Gather { root }
            | Collective::Scatter { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// How contributions are combined, and the factors before and after that, if they are.
    pub const fn reduction(&self) -> Option<(ReduceOp, f64, f64)> {
        match *self {
            Collective::Allreduce { op, prescale, postscale }
            | Collective::ReduceScatter { op, prescale, postscale }
            | Collective::Reduce { op, prescale, postscale, .. } => Some((op, prescale, postscale)),
            _ => None,
        }
    }

    /// Whether rows of different ranks are sent as they are, from many or to many, each straight to its place.
    pub const fn exchanges(&self) -> bool {
        matches!(self, Collective::Alltoall { .. } | Collective::Gather { .. } | Collective::Scatter { .. })
    }

    /// The lower-case word users know: `allreduce`, `allgather`, …
    pub const fn word(&self) -> &'static str {
        match self {
            Collective::Allreduce { .. } => "allreduce",
            Collective::Allgather => "allgather",
            Collective::Broadcast { .. } => "broadcast",
            Collective::Alltoall { .. } => "alltoall",
            Collective::ReduceScatter { .. } => "reducescatter",
            Collective::Reduce { .. } => "reduce",
            Collective::Gather { .. } => "gather",
            Collective::Scatter { .. } => "scatter",
            Collective::Barrier => "barrier",
            Collective::Join => "join",
        }
    }
}

/// Requests that must run together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Name of the whole batch, equal on all ranks.
    pub name: Arc<str>,
    /// How many requests belong to it.
    pub members: u32,
}

/// One collective on one tensor, as one rank asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The tensor's name; the same on all ranks for requests that belong together.
    pub name: Arc<str>,
    /// Which collective.
    pub collective: Collective,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions of this rank's tensor.
    pub shape: Shape,
    /// Where this rank's tensor lies.
    pub device: Device,
    /// The batch this request belongs to, for grouped collectives.
    pub batch: Option<Batch>,
    /// Higher runs earlier among requests that are ready together (first needed first).
    pub priority: i32,
}

impl Request {
    /// A request for a tensor in host memory, of no batch and of priority 0.
    pub fn new(name: impl Into<Arc<str>>, collective: Collective, dtype: Dtype, shape: impl Into<Shape>) -> Request {
        let (name, shape) = (name.into(), shape.into());
        Request { name, collective, dtype, shape, device: Device::Cpu, batch: None, priority: 0 }
    }

    /// The same as a member of this batch, if there is one.
    pub fn in_batch(self, batch: impl Into<Option<Batch>>) -> Request {
        Request { batch: batch.into(), ..self }
    }

    /// The same with this priority.
    pub fn with_priority(self, priority: i32) -> Request {
        Request { priority, ..self }
    }

    /// Number of elements of this rank's tensor.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of bytes of this rank's tensor.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.dtype.size_bytes() as u64
    }
}
