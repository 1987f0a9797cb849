//! Which agreed items travel together, and where each lies in the common buffer.
//!
//! [`fuse`] takes items in their agreed order and cuts them into buckets. It is a function of its arguments alone, so
//! ranks that agree on the items agree on the buckets, down to the position of every element.
//!
//! Items fuse if they have the same *key*: collective, operation, factors, element type and kind of memory. Allreduce,
//! reducescatter and allgather fuse; everything else travels alone. Adasum fuses too: its parts keep
//! their boundaries, because it works tensor by tensor. A bucket of more than one tensor never exceeds the threshold,
//! which therefore bounds the fusion buffer; an item above it travels alone; a threshold of zero turns fusion off.
//!
//! Fusing saves an item its own hand-overs and costs two copies, into the common buffer and out of it. So an allreduce
//! that is *large* (`FusionLimits::alone_from_bytes`) travels alone.
//!
//! **Look-ahead.** An item may join an earlier bucket past items of other keys, as mixed precision interleaves them,
//! and past large ones, as long as the items it passes sum to no more than the threshold. Other items with the same key
//! are never reordered.
//!
//! **Dependence.** Within a replayed cycle a program may wait for one result before it makes the next request. The
//! caller says for each item before which position everything that it may depend on lies (`after`); an item joins a
//! bucket only if that bucket begins at or behind this position. Otherwise the bucket would wait for an item that
//! waits for the bucket.
//!
//! **Layout.** In a bucket of several tensors, each starts at a multiple of [`ALIGN_BYTES`]; a single tensor is laid
//! out without padding, as the caller has it. Allreduce and broadcast have one [`Span`] for each tensor. Allgather and
//! reducescatter have one *block* for each rank, one after the other; a rank's block holds its *piece* of every tensor.

use std::sync::Arc;

use crate::item::{Item, Placement};
use crate::message::put_item;
use crate::request::{Batch, Collective, Dtype, Rank, ReduceOp};
use crate::schedule::Span;

/// Tensors in a bucket start at multiples of this: a cache line, and the widest vector register.
pub const ALIGN_BYTES: u64 = 64;

/// What fusing depends on besides the items. Equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusionLimits {
    /// Ranks of the group.
    pub size: usize,
    /// Largest bucket of more than one tensor; zero turns fusion off.
    pub threshold_bytes: u64,
    /// An allreduce of one tensor up to this size is staged as well.
    pub stage_below_bytes: u64,
    /// An allreduce of one tensor from this size on travels alone.
    pub alone_from_bytes: u64,
    /// Whether requests of a batch may share a bucket with requests outside of it.
    pub batches: BatchFusion,
}

/// With what the requests of a batch fuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchFusion {
    /// With everything that has the same key.
    #[default]
    WithOthers,
    /// With each other only.
    Apart,
}

/// One tensor of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What was agreed about it.
    pub item: Arc<Item>,
    /// Allreduce, broadcast and reduce: where its elements lie in the bucket's buffer. Otherwise empty; see
    /// [`BucketPlan::piece`].
    pub span: Span,
}

/// What a bucket consists of; equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketPlan {
    /// Which collective, with operation, factors or root. Alltoall and scatter have their splits in the item.
    pub collective: Collective,
    /// Element type of all parts.
    pub dtype: Dtype,
    /// Kind of memory of all parts.
    pub device: Placement,
    /// The tensors, in order.
    pub parts: Vec<Part>,
    /// Elements of the whole buffer, with the padding between tensors. Alltoall, gather, scatter and barrier: zero.
    pub elems: u64,
    /// Allgather and reducescatter: the block of each rank in the buffer, one after the other. Otherwise empty.
    pub blocks: Vec<Span>,
    /// Whether the bucket must be packed into a buffer of the engine rather than run in the caller's memory.
    pub staged: bool,
    /// A hash of all of the above that does not depend on machine or run, to be carried in frames.
    pub hash: u64,
    pieces: Vec<Span>,
}

impl BucketPlan {
    /// The bucket of the given items, which have the same key.
    fn new(items: Vec<Arc<Item>>, limits: &FusionLimits) -> BucketPlan {
        let first = Arc::clone(&items[0]);
        let parts = items.into_iter().map(|item| Part { item, span: Span { start: 0, len: 0 } }).collect();
        let mut plan = BucketPlan {
            collective: first.collective.clone(),
            dtype: first.dtype,
            device: first.device,
            parts,
            elems: 0,
            blocks: Vec::new(),
            staged: false,
            hash: 0,
            pieces: Vec::new(),
        };
        match plan.collective {
            Collective::Allreduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. } => {
                plan.lay_out_tensors();
            }
            Collective::Allgather | Collective::ReduceScatter { .. } => plan.lay_out_blocks(limits.size),
            Collective::Alltoall { .. }
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::Barrier
            | Collective::Join => {}
        }
        let small = plan.elems * plan.dtype.size_bytes() as u64 <= limits.stage_below_bytes;
        plan.staged = plan.parts.len() > 1 || small && matches!(plan.collective, Collective::Allreduce { .. });
        plan.hash = plan.compute_hash(limits.size);
        plan
    }

    /// Bytes of the whole buffer.
    pub fn bytes(&self) -> u64 {
        self.elems * self.dtype.size_bytes() as u64
    }

    /// Allgather and reducescatter: where the part of tensor `part` that belongs to `rank` lies in the buffer.
    pub fn piece(&self, part: usize, rank: Rank) -> Span {
        self.pieces[rank.index() * self.parts.len() + part]
    }

    /// Whether no rank can finish this bucket, and nothing in the callers' memory changes, before all ranks have
    /// entered it: every result needs every contribution, and partial results stay in the fusion buffer.
    pub fn holds_until_all_entered(&self) -> bool {
        match self.collective {
            // On devices ranks work when all have come, wherever the tensors lie.
            _ if self.device == Placement::Gpu => self.has_elems(),
            Collective::Allreduce { .. } => self.staged && self.elems > 0,
            Collective::Barrier => true,
            _ => false,
        }
    }

    /// Whether any rank has anything to send.
    fn has_elems(&self) -> bool {
        let sends = |item: &Item| item.row_elems() > 0 && item.rows.iter().any(|&rows| rows > 0);
        self.elems > 0 || self.collective.exchanges() && self.parts.iter().any(|part| sends(&part.item))
    }

    fn lay_out_tensors(&mut self) {
        let (dtype, single) = (self.dtype, self.parts.len() == 1);
        for part in &mut self.parts {
            let len = part.item.shape.iter().product();
            part.span = Span { start: self.elems, len };
            self.elems += if single { len } else { aligned_elems(len, dtype) };
        }
    }

    fn lay_out_blocks(&mut self, size: usize) {
        let single = self.parts.len() == 1;
        for rank in (0..size).map(Rank::from) {
            let start = self.elems;
            for part in &self.parts {
                let rows = match self.collective {
                    Collective::Allgather => part.item.rows[rank.index()],
                    _ => part.item.rows_kept(rank, size),
                };
                let len = rows * part.item.row_elems();
                self.pieces.push(Span { start: self.elems, len });
                self.elems += if single { len } else { aligned_elems(len, self.dtype) };
            }
            self.blocks.push(Span::between(start, self.elems));
        }
    }

    fn compute_hash(&self, size: usize) -> u64 {
        let mut bytes = Vec::new();
        for part in &self.parts {
            put_item(&mut bytes, &part.item);
        }
        let hash = hash_bytes(&bytes);
        hash_word(hash_word(hash_word(hash, size as u64), self.elems), u64::from(self.staged))
    }
}

/// One bucket and which of the given items are in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// The bucket.
    pub plan: Arc<BucketPlan>,
    /// Positions of its items in the list, in the order of the plan's parts.
    pub positions: Vec<usize>,
}

/// Cuts `items` into buckets. `after(i)` is the position before which everything lies that item `i` may depend on; zero
/// if it depends on none of them.
pub fn fuse(items: &[Arc<Item>], after: impl Fn(usize) -> usize, limits: &FusionLimits) -> Vec<Fused> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<Open<'_>> = Vec::new();
    let mut passed_bytes = 0_u64;
    for (position, item) in items.iter().enumerate() {
        let bytes = bytes_in_bucket(item, limits.size);
        if is_large(item, bytes, limits) {
            buckets.push(vec![position]);
            passed_bytes = passed_bytes.saturating_add(bytes);
            continue;
        }
        let key = Key::of(item).filter(|_| bytes <= limits.threshold_bytes && limits.threshold_bytes > 0);
        let joinable = open.iter_mut().find(|bucket| bucket.key == key && key.is_some()).filter(|bucket| {
            bucket.bytes + bytes <= limits.threshold_bytes
                && (passed_bytes - bucket.opened_at).saturating_sub(bucket.bytes) <= limits.threshold_bytes
                && bucket.first >= after(position)
                && (limits.batches == BatchFusion::WithOthers || bucket.batch == item.batch.as_ref())
        });
        match joinable {
            Some(bucket) => {
                buckets[bucket.number].push(position);
                bucket.bytes += bytes;
            }
            None => {
                // The bucket with this key that is open now, if any, gets no more items, lest they overtake this one.
                open.retain(|bucket| bucket.key != Key::of(item));
                if key.is_some() {
                    let number = buckets.len();
                    let batch = item.batch.as_ref();
                    open.push(Open { key, batch, number, first: position, bytes, opened_at: passed_bytes });
                }
                buckets.push(vec![position]);
            }
        }
        passed_bytes = passed_bytes.saturating_add(bytes);
    }
    let plan =
        |positions: &[usize]| BucketPlan::new(positions.iter().map(|at| Arc::clone(&items[*at])).collect(), limits);
    buckets.into_iter().map(|positions| Fused { plan: Arc::new(plan(&positions)), positions }).collect()
}

/// Whether an item is better off without others, and without being copied. Adasum works in a buffer of the engine's
/// anyway, and on devices nothing is copied.
fn is_large(item: &Item, bytes: u64, limits: &FusionLimits) -> bool {
    let folds = matches!(item.collective, Collective::Allreduce { op, .. } if op != ReduceOp::Adasum);
    folds && item.device == Placement::Cpu && bytes >= limits.alone_from_bytes
}

/// A bucket that may still get items.
struct Open<'a> {
    key: Option<Key>,
    /// The batch of its first item.
    batch: Option<&'a Batch>,
    number: usize,
    first: usize,
    bytes: u64,
    /// Bytes of all items before its first one.
    opened_at: u64,
}

/// What items must have in common to travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    reduction: Option<(ReduceOp, u64, u64)>,
    scatters: bool,
    dtype: Dtype,
    device: Placement,
}

impl Key {
    fn of(item: &Item) -> Option<Key> {
        let (dtype, device) = (item.dtype, item.device);
        match item.collective {
            Collective::Allreduce { op, prescale, postscale } => {
                let reduction = Some((op, prescale.to_bits(), postscale.to_bits()));
                Some(Key { reduction, scatters: false, dtype, device })
            }
            Collective::ReduceScatter { op, prescale, postscale } => {
                let reduction = Some((op, prescale.to_bits(), postscale.to_bits()));
                Some(Key { reduction, scatters: true, dtype, device })
            }
            Collective::Allgather => Some(Key { reduction: None, scatters: false, dtype, device }),
            _ => None,
        }
    }
}

/// Bytes that an item takes in a bucket of several, padding included.
fn bytes_in_bucket(item: &Item, size: usize) -> u64 {
    let elems = match item.collective {
        Collective::Allgather => item.rows.iter().map(|rows| aligned_elems(rows * item.row_elems(), item.dtype)).sum(),
        Collective::ReduceScatter { .. } => {
            let of_rank = |rank| aligned_elems(item.rows_kept(Rank::from(rank), size) * item.row_elems(), item.dtype);
            (0..size).map(of_rank).sum()
        }
        _ if item.collective.exchanges() => item.rows.iter().sum::<u64>() * item.row_elems(),
        _ => aligned_elems(item.shape.iter().product(), item.dtype),
    };
    elems * item.dtype.size_bytes() as u64
}

fn aligned_elems(elems: u64, dtype: Dtype) -> u64 {
    elems.next_multiple_of(ALIGN_BYTES / dtype.size_bytes() as u64)
}

/// A hash that is the same on every machine and in every run. It finds mistakes, it does not resist attackers.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, hash_word)
}

/// Mixes one more number into a hash.
pub(crate) fn hash_word(hash: u64, word: u64) -> u64 {
    // The odd number is 2^64 divided by the golden ratio: its multiples spread over all bits. The shift brings the
    // well-mixed upper half down to where the next multiplication starts.
    let mixed = (hash ^ word).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}
