//! Whether the requests of all ranks for one name fit together.
//!
//! [`agree_on`] takes what every rank asked for under one name and gives either the agreed [`Item`], which says all
//! that any rank needs to know to take part, or one explanation, which is the same on all ranks because the coordinator
//! alone writes it. The first words of each explanation are those that scripts written for Horovod look for; the rest
//! names the tensor and who asked for what.
//!
//! Sizes are 64-bit; a product that does not fit is refused here, so that nobody behind this module needs to check
//! again.
//!
//! **Ranks that have joined** take part in everything without data of their own:
//! - allreduce and reducescatter: they contribute the neutral element of the operation (zero for Sum, Average and
//!   Adasum, one for Product, the greatest or least value for Min and Max). Average still divides by the size of the
//!   group. A joined rank's part of a reducescatter is dropped.
//! - allgather: an empty part.
//! - alltoall: they send nothing, and rows that others meant for them are not sent.
//! - reduce, gather and scatter: as in allreduce, allgather and alltoall.
//! - broadcast: they relay and drop.
//! - A root that has joined is refused: it has nothing to send, and nobody to take what it gets.
//! - barrier: they count as present.
//!
//! Horovod has this for allreduce and barrier alone and refuses the others; [`refuse_for_horovod`] does so in its
//! words, for groups that are set to behave like it ([`Joining`](crate::agree::Joining)).

use std::fmt::Display;
use std::sync::Arc;

pub use crate::item::{Item, Placement};
use crate::request::{Batch, Collective, Rank, ReduceOp, Request};

/// Compares what the ranks ask for under one name: `requests[r]` is rank `r`'s request, `None` if that rank has joined.
/// `world_ranks` gives the numbers by which users know the ranks; empty if these are the group's own.
///
/// # Errors
/// The explanation of the first thing that does not fit.
///
/// # Panics
/// If no rank asks for anything.
pub fn agree_on(requests: &[Option<Request>], world_ranks: &[Rank]) -> Result<Item, String> {
    let asked = Asked { requests, world_ranks };
    let first = asked.first();
    let collective = &first.collective;
    if !matches!(collective, Collective::Barrier) {
        asked.same(
            |r| r.dtype,
            |a, b| format!("Mismatched data types: One rank had type {a}, but another rank had type {b}."),
            |dtype| dtype.to_string(),
        )?;
    }
    asked.same(
        |r| r.collective.word(),
        |a, b| {
            let (a, b) = (a.to_uppercase(), b.to_uppercase());
            format!("Mismatched operations: One rank did an {a}, but another rank did an {b}.")
        },
        |word| (*word).to_string(),
    )?;
    asked.check_shapes()?;
    asked.check_factors()?;
    asked.check_root()?;
    asked.same(
        |r| Placement::of(r.device),
        |a, b| {
            let kind = kind(first);
            format!(
                "Mismatched {kind} CPU/GPU device selection: One rank specified device {}, but another rank specified \
                 device {}.",
                a.name(),
                b.name()
            )
        },
        |placement| placement.name().to_string(),
    )?;
    asked.check_batch()?;
    let rows = asked.rows()?;
    asked.check_sizes(&rows)?;
    Ok(asked.item(rows))
}

/// Refuses what Horovod refuses when a rank has joined: everything but allreduce and barrier. `requests` are those of
/// [`agree_on`], which is to be asked afterwards.
///
/// # Errors
/// The explanation, if a rank has joined and this collective needs all of them.
///
/// # Panics
/// If no rank asks for anything.
pub fn refuse_for_horovod(requests: &[Option<Request>]) -> Result<(), String> {
    let asked = Asked { requests, world_ranks: &[] };
    if requests.iter().all(Option::is_some) {
        return Ok(());
    }
    let text = match asked.first().collective {
        Collective::Allreduce { .. } | Collective::Barrier | Collective::Join => return Ok(()),
        // Horovod's own advice, which names what its optimizer calls `sparse_as_dense`.
        Collective::Allgather => {
            "Allgather is not supported with Join at this time. Specify sparse_to_dense=True if using DistributedOptimizer"
        }
        Collective::Alltoall { .. } => "Alltoall is not supported with Join at this time.",
        Collective::Broadcast { .. } => "Broadcast is not supported with Join at this time.",
        Collective::ReduceScatter { .. } => "Reducescatter is not supported with Join at this time.",
        Collective::Reduce { .. } => "Reduce is not supported with Join at this time.",
        Collective::Gather { .. } => "Gather is not supported with Join at this time.",
        Collective::Scatter { .. } => "Scatter is not supported with Join at this time.",
    };
    Err(asked.wrong_everywhere(text))
}

/// The requests of all ranks for one name, and how to speak of them.
struct Asked<'a> {
    requests: &'a [Option<Request>],
    world_ranks: &'a [Rank],
}

/// Horovod writes operations in capitals in these texts.
fn kind(request: &Request) -> String {
    request.collective.word().to_uppercase()
}

fn list(shape: &[u64]) -> String {
    format!("{shape:?}")
}

impl Asked<'_> {
    fn first(&self) -> &Request {
        self.requests.iter().flatten().next().expect("a name is validated after somebody has asked for it")
    }

    fn each(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.requests.iter().enumerate().filter_map(|(rank, request)| request.as_ref().map(|request| (rank, request)))
    }

    fn world_rank(&self, rank: usize) -> Rank {
        self.world_ranks.get(rank).copied().unwrap_or_else(|| Rank::from(rank))
    }

    /// An explanation about one rank's request alone.
    fn wrong(&self, rank: usize, text: impl Display) -> String {
        format!("{text} (Tensor {:?}, rank {}.)", self.first().name, self.world_rank(rank))
    }

    /// Refuses if `what` differs between ranks. `explain` gets the first value and the first other one; `show` puts
    /// a value into the list of who asked for what.
    fn same<T: PartialEq>(
        &self,
        what: impl Fn(&Request) -> T,
        explain: impl Fn(&T, &T) -> String,
        show: impl Fn(&T) -> String,
    ) -> Result<(), String> {
        let first = what(self.first());
        let Some(other) = self.each().map(|(_, request)| what(request)).find(|value| *value != first) else {
            return Ok(());
        };
        let mut camps: Vec<(T, Vec<String>)> = Vec::new();
        for (rank, request) in self.each() {
            let value = what(request);
            let rank = self.world_rank(rank).to_string();
            match camps.iter_mut().find(|(of_camp, _)| *of_camp == value) {
                Some((_, ranks)) => ranks.push(rank),
                None => camps.push((value, vec![rank])),
            }
        }
        let camps: Vec<String> = camps
            .iter()
            .map(|(value, ranks)| {
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                format!("{} on {noun} {}", show(value), ranks.join(", "))
            })
            .collect();
        Err(format!("{} (Tensor {:?}: {}.)", explain(&first, &other), self.first().name, camps.join("; ")))
    }

    fn check_shapes(&self) -> Result<(), String> {
        let first = self.first();
        let kind = kind(first);
        match first.collective {
            Collective::Barrier | Collective::Join => return Ok(()),
            Collective::Allreduce { .. }
            | Collective::Broadcast { .. }
            | Collective::Reduce { .. }
            | Collective::ReduceScatter { .. } => {
                self.same(
                    |r| r.shape.clone(),
                    |a, b| {
                        let (a, b) = (list(a), list(b));
                        format!(
                            "Mismatched {kind} tensor shapes: One rank sent a tensor of shape {a}, but another rank \
                             sent a tensor of shape {b}."
                        )
                    },
                    |shape| list(shape),
                )?;
            }
            Collective::Allgather
            | Collective::Alltoall { .. }
            | Collective::Gather { .. }
            | Collective::Scatter { .. } => self.check_rows_alike(&kind)?,
        }
        let takes_scalars = matches!(
            first.collective,
            Collective::Allreduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. }
        );
        match self.each().find(|(_, request)| request.shape.is_empty()) {
            Some((rank, _)) if !takes_scalars => {
                let world_rank = self.world_rank(rank);
                Err(self.wrong(rank, format!("Rank {world_rank} tried to {kind} a rank-zero tensor.")))
            }
            _ => Ok(()),
        }
    }

    /// All dimensions but the first must agree.
    fn check_rows_alike(&self, kind: &str) -> Result<(), String> {
        self.same(
            |r| r.shape.len(),
            |a, b| {
                format!(
                    "Mismatched {kind} tensor shapes: One rank sent a tensor of rank {a}, but another rank sent a \
                     tensor of rank {b}."
                )
            },
            |dims| format!("{dims} dimensions"),
        )?;
        for dim in 1..self.first().shape.len() {
            self.same(
                |r| r.shape[dim],
                |a, b| {
                    format!(
                        "Mismatched {kind} tensor shapes: One rank sent a tensor with dimension {dim} equal to {a}, \
                         but another rank sent a tensor with dimension {dim} equal to {b}."
                    )
                },
                |length| length.to_string(),
            )?;
        }
        Ok(())
    }

    fn check_factors(&self) -> Result<(), String> {
        let first = self.first();
        let Some((op, ..)) = first.collective.reduction() else { return Ok(()) };
        self.same(
            |r| r.collective.reduction().map(|(op, ..)| op),
            |a, b| {
                let name = |op: &Option<ReduceOp>| op.map_or("none", ReduceOp::name);
                format!(
                    "Mismatched reduce operations: One rank asked for {}, but another rank asked for {}.",
                    name(a),
                    name(b)
                )
            },
            |op| op.map_or("none", ReduceOp::name).to_string(),
        )?;
        let show = |bits: &Option<(u64, u64)>| {
            let (prescale, postscale) = bits.unwrap_or_default();
            format!("({}, {})", f64::from_bits(prescale), f64::from_bits(postscale))
        };
        self.same(
            // Compared bit by bit, so that a factor that is not a number equals itself.
            |r| r.collective.reduction().map(|(_, prescale, postscale)| (prescale.to_bits(), postscale.to_bits())),
            |a, b| {
                format!(
                    "Mismatched prescale and/or postscale factors: One rank sent factors {}, but another rank sent \
                     factors {}.",
                    show(a),
                    show(b)
                )
            },
            |bits| show(bits),
        )?;
        if op == ReduceOp::Adasum && !matches!(first.collective, Collective::Allreduce { .. }) {
            return Err(self.wrong_everywhere(format!("{} does not support Adasum.", kind(first))));
        }
        if op == ReduceOp::Adasum && !first.dtype.is_float() {
            let text = format!("Adasum needs floating-point tensors, not {}.", first.dtype);
            return Err(self.wrong_everywhere(text));
        }
        Ok(())
    }

    fn wrong_everywhere(&self, text: impl Display) -> String {
        format!("{text} (Tensor {:?}.)", self.first().name)
    }

    fn check_root(&self) -> Result<(), String> {
        let Some(root) = self.first().collective.root() else { return Ok(()) };
        let kind = kind(self.first());
        self.same(
            |request| self.world_rank(request.collective.root().unwrap_or(root).index()),
            |a, b| {
                format!(
                    "Mismatched {kind} root ranks: One rank specified root rank {a}, but another rank specified \
                     root rank {b}."
                )
            },
            |root| format!("root {root}"),
        )?;
        match self.requests.get(root.index()) {
            Some(Some(_)) => Ok(()),
            Some(None) => Err(self.wrong_everywhere(format!(
                "{kind} root rank {} has joined and {}.",
                self.world_rank(root.index()),
                match self.first().collective {
                    Collective::Broadcast { .. } | Collective::Scatter { .. } => "has nothing to send",
                    _ => "takes no result",
                }
            ))),
            None => Err(self.wrong_everywhere(format!(
                "{kind} root rank {root} does not exist in a group of {} ranks.",
                self.requests.len()
            ))),
        }
    }

    fn check_batch(&self) -> Result<(), String> {
        let show = |batch: &Option<Batch>| match batch {
            Some(batch) => format!("batch {:?} of {} tensors", batch.name, batch.members),
            None => "no batch".to_string(),
        };
        self.same(
            |r| r.batch.clone(),
            |a, b| {
                let (a, b) = (show(a), show(b));
                format!("Mismatched batches: One rank sent the tensor in {a}, but another rank sent it in {b}.")
            },
            show,
        )
    }

    /// [`Item::rows`], with the splits of an alltoall or a scatter checked.
    fn rows(&self) -> Result<Vec<u64>, String> {
        match self.first().collective {
            Collective::Allgather | Collective::Gather { .. } => {
                Ok(self.requests.iter().map(|request| request.as_ref().map_or(0, |r| r.shape[0])).collect())
            }
            Collective::Alltoall { .. } => {
                let size = self.requests.len();
                let mut rows = vec![0; size * size];
                for (rank, request) in self.each() {
                    self.splits(rank, request, &mut rows[rank * size..(rank + 1) * size])?;
                }
                Ok(rows)
            }
            Collective::Scatter { root, .. } => {
                let mut rows = vec![0; self.requests.len()];
                for (rank, request) in self.each() {
                    if rank == root.index() {
                        self.splits(rank, request, &mut rows)?;
                    } else if request.shape[0] != 0 {
                        let text = format!("SCATTER takes rows of its root only, not {}.", request.shape[0]);
                        return Err(self.wrong(rank, text));
                    }
                }
                Ok(rows)
            }
            _ => Ok(Vec::new()),
        }
    }

    fn splits(&self, rank: usize, request: &Request, into: &mut [u64]) -> Result<(), String> {
        let (first_dim, size) = (request.shape[0], into.len());
        let (Collective::Alltoall { splits: Some(splits) } | Collective::Scatter { splits: Some(splits), .. }) =
            &request.collective
        else {
            if !first_dim.is_multiple_of(size as u64) {
                let text = format!(
                    "splits not provided, but first dimension of tensor is not an even multiple of the number of \
                     workers: {first_dim} rows for {size} ranks."
                );
                return Err(self.wrong(rank, text));
            }
            into.fill(first_dim / size as u64);
            return Ok(());
        };
        if splits.len() != size {
            let text =
                format!("Number of entries in splits does not equal number of ranks: {} for {size}.", splits.len());
            return Err(self.wrong(rank, text));
        }
        let sum = splits.iter().try_fold(0_u64, |sum, rows| sum.checked_add(*rows));
        let relation = match sum {
            Some(sum) if sum == first_dim => {
                into.copy_from_slice(splits);
                return Ok(());
            }
            Some(sum) if sum < first_dim => "less",
            _ => "greater",
        };
        let text = format!(
            "Sum of splits entries is {relation} than the first dimension of tensor: {splits:?} for {first_dim} rows."
        );
        Err(self.wrong(rank, text))
    }

    /// Everything that anybody will multiply later fits into 64 bits.
    fn check_sizes(&self, rows: &[u64]) -> Result<(), String> {
        let dtype_bytes = self.first().dtype.size_bytes() as u64;
        // A zero hides an overflow in the other dimensions, which strides would still run into; so it counts as one.
        let fits = |dims: &mut dyn Iterator<Item = &u64>| {
            let bytes = dims.map(|dim| (*dim).max(1)).try_fold(dtype_bytes, u64::checked_mul);
            bytes.is_some_and(|bytes| bytes <= MOST_BYTES)
        };
        let too_large = |rank, shape: &[u64]| {
            let text = format!("Tensor of shape {shape:?} is too large to be counted in 64 bits.");
            Err(self.wrong(rank, text))
        };
        for (rank, request) in self.each() {
            if !fits(&mut request.shape.iter()) {
                return too_large(rank, &request.shape);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let total = rows.iter().try_fold(0_u64, |sum, rows| sum.checked_add(*rows));
        if !total.is_some_and(|total| fits(&mut self.first().shape[1..].iter().chain([&total]))) {
            return Err(self.wrong_everywhere("The result is too large to be counted in 64 bits."));
        }
        Ok(())
    }

    fn item(&self, rows: Vec<u64>) -> Item {
        let first = self.first();
        let mut shape = first.shape.clone();
        if !rows.is_empty() {
            shape[0] = 0;
        }
        let collective = match &first.collective {
            Collective::Alltoall { .. } => Collective::Alltoall { splits: None },
            Collective::Scatter { root, .. } => Collective::Scatter { root: *root, splits: None },
            other => other.clone(),
        };
        let joined = self.requests.iter().enumerate().filter(|(_, request)| request.is_none());
        Item {
            name: Arc::clone(&first.name),
            collective,
            dtype: first.dtype,
            shape,
            device: Placement::of(first.device),
            rows,
            joined: joined.map(|(rank, _)| Rank::from(rank)).collect(),
            batch: first.batch.clone(),
            priority: first.priority,
        }
    }
}

/// A quarter of what 64 bits can count, so that sums of a few sizes and roundings to the next multiple fit as well.
const MOST_BYTES: u64 = 1 << 62;
