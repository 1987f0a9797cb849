//! Whether the requests of all ranks for one name fit together.
//!
//! [`agree_on`] takes what every rank asked for under one name and gives either the agreed [`Item`], which says all that any rank
//! needs to know to take part, or one explanation, which is the same on all ranks because the coordinator alone writes it.
//! The first words of each explanation are those that scripts written for Horovod look for; the rest names the tensor and
//! who asked for what.
//!
//! Sizes are 64-bit; a product that does not fit is refused here, so that nobody behind this module needs to check again.
//!
//! **Ranks that have joined** take part in everything without data of their own:
//! - allreduce and reducescatter: they contribute the neutral element of the operation (zero for Sum, Average and Adasum,
//!   one for Product, the greatest or least value for Min and Max). Average still divides by the size of the group.
//!   A joined rank's part of a reducescatter is dropped.
//! - allgather: an empty part.
//! - alltoall: they send nothing, and rows that others meant for them are not sent.
//! - broadcast: they relay and drop; a root that has joined is refused, as it has nothing to send.
//! - barrier: they count as present.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::request::{Batch, Collective, Device, Dtype, Rank, ReduceOp, Request, Shape};

/// What all ranks agreed to do under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The tensor's name.
    pub name: Arc<str>,
    /// Which collective; for alltoall without splits, which are in `rows`.
    pub collective: Collective,
    /// Element type.
    pub dtype: Dtype,
    /// The common shape. For allgather and alltoall the first dimension is that of no rank in particular and holds zero.
    pub shape: Shape,
    /// Whether the tensors lie in accelerator memory.
    pub device: Placement,
    /// Allgather: rows (first dimension) of each rank. Alltoall: rows that rank `i` set apart for rank `j`, at
    /// `i * size + j`. Otherwise empty.
    pub rows: Vec<u64>,
    /// Ranks that take part without a request of their own, in order.
    pub joined: Vec<Rank>,
    /// The batch it belongs to.
    pub batch: Option<Batch>,
    /// Higher runs earlier among items that are ready together.
    pub priority: i32,
}

/// Kind of memory, which must be the same on all ranks (the index of the accelerator need not).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// Host memory.
    #[default]
    Cpu,
    /// Accelerator memory.
    Gpu,
}

impl Item {
    /// Elements of one row: the product of all dimensions but the first.
    pub fn row_elems(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Elements of the tensor that `rank` brings along; zero for a joined rank of an allgather or alltoall.
    pub fn input_elems(&self, rank: Rank, size: usize) -> u64 {
        match self.collective {
            Collective::Allgather => self.rows[rank.index()] * self.row_elems(),
            Collective::Alltoall { .. } => {
                let of_rank = &self.rows[rank.index() * size..(rank.index() + 1) * size];
                of_rank.iter().sum::<u64>() * self.row_elems()
            }
            _ => self.shape.iter().product(),
        }
    }

    /// Alltoall: rows that travel from one rank to another. Rows meant for a joined rank stay where they are.
    pub fn rows_sent(&self, from: Rank, to: Rank, size: usize) -> u64 {
        if self.joined.contains(&to) { 0 } else { self.rows[from.index() * size + to.index()] }
    }

    /// Reducescatter: rows of the result that `rank` gets; lower ranks get the extra ones.
    pub fn rows_kept(&self, rank: Rank, size: usize) -> u64 {
        let rows = self.shape.first().copied().unwrap_or(0);
        rows / size as u64 + u64::from((rank.index() as u64) < rows % size as u64)
    }
}
