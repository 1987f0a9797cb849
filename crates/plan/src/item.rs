//! What all ranks agreed to do under one name.
//!
//! An [`Item`] holds all that any rank needs to take part, even a rank that has joined and has no request of its own:
//! the dimensions that may differ between ranks are in it for every rank. It is written by `validate` on the
//! coordinator, travels in the agreed stream, and is shared, never changed, from then on. Every product of its sizes
//! fits into 64 bits; `validate` sees to that, and decoding checks it again.

use std::sync::Arc;

use crate::Span;
use crate::request::{Batch, Collective, Device, Dtype, Rank, Request, Shape};

/// What all ranks agreed to do under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The tensor's name.
    pub name: Arc<str>,
    /// Which collective; for alltoall and scatter without splits, which are in `rows`.
    pub collective: Collective,
    /// Element type.
    pub dtype: Dtype,
    /// The common shape. For allgather, alltoall, gather and scatter the first dimension is that of no rank in
    /// particular and holds zero.
    pub shape: Shape,
    /// Whether the tensors lie in accelerator memory.
    pub device: Placement,
    /// Allgather and gather: rows (first dimension) of each rank. Scatter: rows that the root set apart for each rank.
    /// Alltoall: rows that rank `i` set apart for rank `j`, at `i * size + j`. Otherwise empty.
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

/// Which rows of an alltoall, gather or scatter come from and go where, for one rank.
#[derive(Debug)]
pub struct Exchange {
    /// What goes to each rank, in the input.
    pub send: Vec<Span>,
    /// What comes from each rank, in the output.
    pub recv: Vec<Span>,
    /// The same in rows.
    pub received_rows: Vec<u64>,
}

impl Exchange {
    /// Elements of the output.
    pub fn received_elems(&self) -> u64 {
        self.recv.iter().map(|span| span.len).sum()
    }
}

impl Item {
    /// Elements of one row: the product of all dimensions but the first.
    pub fn row_elems(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Alltoall, gather and scatter: rows that travel from one rank to another. Rows meant for a joined rank stay where
    /// they are.
    pub fn rows_sent(&self, from: Rank, to: Rank, size: usize) -> u64 {
        if self.joined.contains(&to) { 0 } else { self.rows_set_apart(from, to, size) }
    }

    /// The same, whether they travel or not.
    pub fn rows_set_apart(&self, from: Rank, to: Rank, size: usize) -> u64 {
        match self.collective {
            Collective::Gather { root } => {
                if to == root {
                    self.rows[from.index()]
                } else {
                    0
                }
            }
            Collective::Scatter { root, .. } => {
                if from == root {
                    self.rows[to.index()]
                } else {
                    0
                }
            }
            _ => self.rows[from.index() * size + to.index()],
        }
    }

    /// Reducescatter: rows of the result that `rank` gets; lower ranks get the extra ones.
    pub fn rows_kept(&self, rank: Rank, size: usize) -> u64 {
        let rows = self.shape.first().copied().unwrap_or(0);
        rows / size as u64 + u64::from((rank.index() as u64) < rows % size as u64)
    }

    /// Dimensions of the result on one rank.
    pub fn result_shape(&self, me: Rank, size: usize) -> Shape {
        let with_rows = |rows: u64| std::iter::once(rows).chain(self.shape.iter().skip(1).copied()).collect();
        match self.collective {
            Collective::Allgather => with_rows(self.rows.iter().sum()),
            Collective::ReduceScatter { .. } => with_rows(self.rows_kept(me, size)),
            _ if self.collective.exchanges() => {
                with_rows((0..size).map(|from| self.rows_sent(from.into(), me, size)).sum())
            }
            _ => self.shape.clone(),
        }
    }

    /// Alltoall, gather and scatter: what one rank sends and receives.
    pub fn exchange(&self, me: Rank, size: usize) -> Exchange {
        let row_elems = self.row_elems();
        let ranks = || (0..size).map(Rank::from);
        let (mut sent, mut received) = (0, 0);
        let span_after = |before: &mut u64, rows: u64, gap_rows: u64| {
            let span = Span { start: *before, len: rows * row_elems };
            *before += gap_rows * row_elems;
            span
        };
        // Rows meant for a rank that has joined stay where they are in the input.
        let set_apart = |to: Rank| self.rows_set_apart(me, to, size);
        let send = ranks().map(|to| span_after(&mut sent, self.rows_sent(me, to, size), set_apart(to))).collect();
        let received_rows: Vec<u64> = ranks().map(|from| self.rows_sent(from, me, size)).collect();
        let recv = received_rows.iter().map(|&rows| span_after(&mut received, rows, rows)).collect();
        Exchange { send, recv, received_rows }
    }

    /// Whether `request`, made on rank `me`, asks for exactly what was agreed. This is the whole check that a request
    /// gets while a cycle is replayed, so it allocates nothing. Priorities may change freely, because a cycle has its
    /// order.
    pub fn fits(&self, me: Rank, request: &Request) -> bool {
        self.batch == request.batch && self.fits_tensor(me, request)
    }

    /// The same without a look at batches.
    pub(crate) fn fits_tensor(&self, me: Rank, request: &Request) -> bool {
        if let (Collective::Barrier, Collective::Barrier) = (&self.collective, &request.collective) {
            return true;
        }
        self.dtype == request.dtype
            && self.device == Placement::of(request.device)
            && match (&self.collective, &request.collective) {
                (Collective::Allgather, Collective::Allgather) => {
                    self.same_row(request) && request.shape[0] == self.rows[me.index()]
                }
                (Collective::Alltoall { .. }, Collective::Alltoall { splits }) => {
                    let size = self.rows.len().isqrt();
                    let agreed = &self.rows[me.index() * size..(me.index() + 1) * size];
                    self.same_row(request)
                        && request.shape[0] == agreed.iter().sum::<u64>()
                        && match splits {
                            Some(splits) => splits == agreed,
                            None => agreed.iter().all(|rows| *rows == agreed[0]),
                        }
                }
                (Collective::Gather { root }, Collective::Gather { root: asked }) => {
                    root == asked && self.same_row(request) && request.shape[0] == self.rows[me.index()]
                }
                (Collective::Scatter { root, .. }, Collective::Scatter { root: asked, splits }) => {
                    let rows = if me == *root { self.rows.iter().sum() } else { 0 };
                    let fit = |splits: &Vec<u64>| *splits == self.rows;
                    let even = || self.rows.iter().all(|rows| *rows == self.rows[0]);
                    root == asked
                        && self.same_row(request)
                        && request.shape[0] == rows
                        && (me != *root || splits.as_ref().map_or_else(even, fit))
                }
                (agreed, asked) => agreed == asked && self.shape == request.shape,
            }
    }

    /// Whether `other` asks for the same; only the priority may differ.
    pub(crate) fn same_terms(&self, other: &Item) -> bool {
        self.dtype == other.dtype
            && self.device == other.device
            && self.collective == other.collective
            && self.shape == other.shape
            && self.rows == other.rows
            && self.joined == other.joined
            && self.batch == other.batch
    }

    /// Whether it can be an item of a group of this size: the lists that have an entry for each rank are complete, and
    /// ranks exist. Items of our own making always are.
    pub(crate) fn is_sound(&self, size: usize) -> bool {
        let rows = match self.collective {
            Collective::Allgather | Collective::Gather { .. } | Collective::Scatter { .. } => size,
            Collective::Alltoall { .. } => size * size,
            _ => 0,
        };
        let has_rows = self.collective.exchanges()
            || matches!(self.collective, Collective::Allgather | Collective::ReduceScatter { .. });
        let root_exists = match self.collective.root() {
            Some(root) => root.index() < size && !self.joined.contains(&root),
            None => self.collective != Collective::Join,
        };
        self.rows.len() == rows
            && (!has_rows || !self.shape.is_empty())
            && root_exists
            && self.joined.iter().all(|rank| rank.index() < size)
    }

    fn same_row(&self, request: &Request) -> bool {
        self.shape.len() == request.shape.len() && self.shape[1..] == request.shape[1..]
    }
}

impl Placement {
    /// The kind of memory of a device.
    pub fn of(device: Device) -> Placement {
        match device {
            Device::Cpu => Placement::Cpu,
            Device::Gpu(_) => Placement::Gpu,
        }
    }

    /// The name users know.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Cpu => "CPU",
            Placement::Gpu => "GPU",
        }
    }
}
