//! What a bucket in device memory moves where, and which rank does it.
//!
//! All ranks of a host see each other's device memory, so any of them can work for the others: it reads contributions
//! where they lie and stores results where they belong. What there is to do follows from the bucket alone ([`moves`]):
//! *folds* combine the same elements of all contributions and store the result with some ranks, *copies* bring elements
//! from one rank to another.
//!
//! Who does it follows from the devices. Where several ranks use one device, the lowest of them works for it
//! ([`folders`]): kernels of several processes on one device take turns, and a turn takes longer than folding a small
//! bucket; and one kernel alone reaches the bandwidth of the memory. Every device folds an equal share of the elements
//! ([`share`]), and copies what goes to its own ranks. Adasum weighs whole tensors, so each of them belongs to one
//! device ([`whole_share`]).
//!
//! Bytes: with `r` ranks and `d` devices, each device reads and writes `r/d` times the bucket for an allreduce, reads
//! `r/d` times and writes `1/d` times for a reducescatter, and writes the results of its ranks for what only copies.

use crate::fuse::BucketPlan;
use crate::{Collective, Rank, Span};

/// Something to do with the elements of one tensor of a bucket. Starts and lengths count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Combines the same elements of all inputs and stores the result in outputs.
    Fold {
        /// The tensor.
        part: usize,
        /// The elements of the inputs.
        source: Span,
        /// Where the results begin in outputs.
        target_start: u64,
        /// Who gets them.
        to: Receivers,
    },
    /// Copies elements of one rank's input to another's output.
    Copy {
        /// The tensor.
        part: usize,
        /// Whose input.
        from: usize,
        /// The elements there.
        source: Span,
        /// Whose output.
        to: usize,
        /// Where they go there.
        target_start: u64,
    },
}

/// Who gets the result of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// All ranks.
    All,
    /// One rank.
    One(usize),
}

/// Elements of the input that a rank has of a tensor of a bucket.
pub fn input_elems(plan: &BucketPlan, part: usize, rank: usize, size: usize) -> u64 {
    let item = &*plan.parts[part].item;
    let me = Rank::from(rank);
    match plan.collective {
        Collective::Barrier | Collective::Join => 0,
        _ if item.joined.contains(&me) => 0,
        Collective::Allgather => item.rows[rank] * item.row_elems(),
        _ if plan.collective.exchanges() => {
            (0..size).map(|to| item.rows_set_apart(me, Rank::from(to), size)).sum::<u64>() * item.row_elems()
        }
        _ => item.shape.iter().product(),
    }
}

/// Elements of the result that a rank gets of a tensor of a bucket.
pub fn output_elems(plan: &BucketPlan, part: usize, rank: usize, size: usize) -> u64 {
    let item = &*plan.parts[part].item;
    let me = Rank::from(rank);
    match plan.collective {
        Collective::Barrier | Collective::Join => 0,
        Collective::Reduce { root, .. } if root != me => 0,
        _ if item.joined.contains(&me) => 0,
        _ => item.result_shape(me, size).iter().product(),
    }
}

/// Elements of the input that a rank has of a tensor, and of the result that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// See [`input_elems`].
    pub input: u64,
    /// See [`output_elems`].
    pub output: u64,
}

/// What follows from the plan of a bucket for ranks that work in device memory. Equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Movement {
    /// See [`moves`].
    pub moves: Vec<Move>,
    /// For each rank, and there for each tensor.
    pub ends: Vec<Vec<Ends>>,
}

impl Movement {
    /// That of a bucket of a group of this size.
    pub fn new(plan: &BucketPlan, size: usize) -> Movement {
        let ends = |rank| {
            let of_part = |part| Ends {
                input: input_elems(plan, part, rank, size),
                output: output_elems(plan, part, rank, size),
            };
            (0..plan.parts.len()).map(of_part).collect()
        };
        Movement { moves: moves(plan, size), ends: (0..size).map(ends).collect() }
    }
}

/// Everything that is to be done for a bucket of a group of this size. Nothing of it depends on anything else of it.
pub fn moves(plan: &BucketPlan, size: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    for part in 0..plan.parts.len() {
        add_moves(plan, part, size, &mut moves);
    }
    moves.retain(|one| matches!(one, Move::Fold { source, .. } | Move::Copy { source, .. } if source.len > 0));
    moves
}

fn add_moves(plan: &BucketPlan, part: usize, size: usize, moves: &mut Vec<Move>) {
    let item = &*plan.parts[part].item;
    let whole = Span { start: 0, len: item.shape.iter().product() };
    match plan.collective {
        Collective::Barrier | Collective::Join => {}
        Collective::Allreduce { .. } => {
            moves.push(Move::Fold { part, source: whole, target_start: 0, to: Receivers::All });
        }
        Collective::Reduce { root, .. } => {
            moves.push(Move::Fold { part, source: whole, target_start: 0, to: Receivers::One(root.index()) });
        }
        Collective::ReduceScatter { .. } => {
            let mut start = 0;
            for rank in 0..size {
                let len = item.rows_kept(Rank::from(rank), size) * item.row_elems();
                let to = Receivers::One(rank);
                moves.push(Move::Fold { part, source: Span { start, len }, target_start: 0, to });
                start += len;
            }
        }
        Collective::Broadcast { root } => {
            let copy = |to| Move::Copy { part, from: root.index(), source: whole, to, target_start: 0 };
            moves.extend((0..size).map(copy));
        }
        Collective::Allgather => {
            let mut target_start = 0;
            for from in 0..size {
                let source = Span { start: 0, len: item.rows[from] * item.row_elems() };
                moves.extend((0..size).map(|to| Move::Copy { part, from, source, to, target_start }));
                target_start += source.len;
            }
        }
        Collective::Alltoall { .. } | Collective::Gather { .. } | Collective::Scatter { .. } => {
            let exchanges: Vec<_> = (0..size).map(|rank| item.exchange(Rank::from(rank), size)).collect();
            for (from, sender) in exchanges.iter().enumerate() {
                let copy = |(to, &source): (usize, &Span)| {
                    let target_start = exchanges[to].recv[from].start;
                    Move::Copy { part, from, source, to, target_start }
                };
                moves.extend(sender.send.iter().enumerate().map(copy));
            }
        }
    }
}

/// Shares begin at multiples of this many elements, so that they are aligned for any element type if the tensors are.
const ALIGN_ELEMS: u64 = 64;

/// The places in `devices` of those that fold, in order. `devices` has the device of every rank, or nothing for a rank
/// that has no memory in the bucket.
pub fn folders<D: PartialEq>(devices: &[Option<D>]) -> Vec<usize> {
    let is_first =
        |place: usize| devices[place].is_some() && devices[..place].iter().all(|before| *before != devices[place]);
    (0..devices.len()).filter(|&place| is_first(place)).collect()
}

/// What folder `folder` of `folders` folds of tensors of these lengths: tensors by their place, with the span in each.
///
/// # Panics
/// If there is no such folder.
pub fn share(lengths: &[u64], folders: usize, folder: usize) -> Vec<(usize, Span)> {
    let (from, to) = bounds(lengths, folders, folder);
    let mut start = 0;
    let mut mine = Vec::new();
    for (place, length) in lengths.iter().enumerate() {
        let end = start + length;
        let (first, last) = (from.max(start), to.min(end));
        if first < last {
            mine.push((place, Span { start: first - start, len: last - first }));
        }
        start = end;
    }
    mine
}

/// The tensors with elements that folder `folder` of `folders` works on as a whole, by their place: those whose middle
/// lies in its share.
///
/// # Panics
/// If there is no such folder.
pub fn whole_share(lengths: &[u64], folders: usize, folder: usize) -> Vec<usize> {
    let (from, to) = bounds(lengths, folders, folder);
    let mut start = 0;
    let mut mine = Vec::new();
    for (place, length) in lengths.iter().enumerate() {
        if *length > 0 && (from..to).contains(&(start + length / 2)) {
            mine.push(place);
        }
        start += length;
    }
    mine
}

/// Where the share of a folder begins and ends in the elements of all tensors.
fn bounds(lengths: &[u64], folders: usize, folder: usize) -> (u64, u64) {
    assert!(folder < folders, "folder {folder} is one of {folders}");
    let total: u64 = lengths.iter().sum();
    // Begin of a share. The product may exceed 64 bits.
    let begin = |folder: usize| match folder == folders {
        true => total,
        false => (u128::from(total) * folder as u128 / folders as u128) as u64 / ALIGN_ELEMS * ALIGN_ELEMS,
    };
    (begin(folder), begin(folder + 1))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::*;
    use crate::fuse::{BatchFusion, FusionLimits, fuse};
    use crate::item::{Item, Placement};
    use crate::{Dtype, ReduceOp};

    #[test]
    fn the_lowest_rank_of_each_device_folds() {
        assert_eq!(folders(&[Some('a'), Some('a'), Some('b'), Some('a')]), [0, 2]);
        assert_eq!(folders(&[None, Some('a'), None, Some('b'), Some('b')]), [1, 3]);
        assert_eq!(folders::<u8>(&[None, None]), [0; 0]);
    }

    /// Items of two tensors for three ranks, of which `joined` have joined.
    fn plan(collective: Collective, rows: Vec<u64>, joined: &[u32]) -> Arc<BucketPlan> {
        let joined: Vec<Rank> = joined.iter().map(|&rank| Rank(rank)).collect();
        let item = |name: &str, row_elems| {
            Arc::new(Item {
                name: name.into(),
                collective: collective.clone(),
                dtype: Dtype::F32,
                shape: vec![if rows.is_empty() { 7 } else { 0 }, row_elems],
                device: Placement::Gpu,
                rows: rows.clone(),
                joined: joined.clone(),
                batch: None,
                priority: 0,
            })
        };
        let limits = FusionLimits {
            size: 3,
            threshold_bytes: 1 << 20,
            stage_below_bytes: 0,
            alone_from_bytes: u64::MAX,
            batches: BatchFusion::WithOthers,
        };
        Arc::clone(&fuse(&[item("a", 5), item("b", 2)], |_| 0, &limits)[0].plan)
    }

    #[test]
    fn every_element_of_every_result_is_stored_once() {
        let (op, prescale, postscale, root) = (ReduceOp::Sum, 1.0, 1.0, Rank(1));
        for (collective, rows) in [
            (Collective::Allreduce { op, prescale, postscale }, vec![]),
            (Collective::Reduce { op, prescale, postscale, root }, vec![]),
            (Collective::ReduceScatter { op, prescale, postscale }, vec![]),
            (Collective::Broadcast { root }, vec![]),
            (Collective::Allgather, vec![3, 0, 2]),
            (Collective::Gather { root }, vec![3, 0, 2]),
            (Collective::Scatter { root, splits: None }, vec![3, 1, 2]),
            (Collective::Alltoall { splits: None }, vec![1, 2, 3, 0, 4, 1, 2, 2, 0]),
        ] {
            for joined in [&[][..], &[2]] {
                check_stores(&plan(collective.clone(), without(&collective, &rows, joined), joined));
            }
        }
    }

    /// Rows as they are agreed on: those of ranks that have joined are none.
    fn without(collective: &Collective, rows: &[u64], joined: &[u32]) -> Vec<u64> {
        let per_rank = if rows.len() == 9 { 3 } else { 1 };
        let has_joined = |index: usize| joined.contains(&((index / per_rank) as u32));
        let keeps = matches!(collective, Collective::Scatter { .. });
        let rows = rows.iter().enumerate();
        rows.map(|(index, &rows)| if has_joined(index) && !keeps { 0 } else { rows }).collect()
    }

    fn check_stores(plan: &BucketPlan) {
        let mut stored: HashMap<(usize, usize, u64), u32> = HashMap::new();
        for one in moves(plan, 3) {
            let (part, source, start, from, to) = match one {
                Move::Fold { part, source, target_start, to: Receivers::All } => {
                    (part, source, target_start, None, vec![0, 1, 2])
                }
                Move::Fold { part, source, target_start, to: Receivers::One(to) } => {
                    (part, source, target_start, None, vec![to])
                }
                Move::Copy { part, from, source, to, target_start } => {
                    (part, source, target_start, Some(from), vec![to])
                }
            };
            assert!(from.is_none_or(|from| source.end() <= input_elems(plan, part, from, 3)), "{one:?}");
            for (to, offset) in to.into_iter().flat_map(|to| (0..source.len).map(move |offset| (to, offset))) {
                *stored.entry((part, to, start + offset)).or_default() += 1;
            }
        }
        for (part, rank) in (0..plan.parts.len()).flat_map(|part| (0..3).map(move |rank| (part, rank))) {
            let elems = output_elems(plan, part, rank, 3);
            let all_once = (0..elems).all(|elem| stored.get(&(part, rank, elem)) == Some(&1));
            assert!(all_once, "{:?}: part {part} on rank {rank}", plan.collective);
            let beyond = stored.keys().any(|&(at, to, elem)| (at, to) == (part, rank) && elem >= elems);
            let has_joined = plan.parts[part].item.joined.contains(&Rank::from(rank));
            let is_root = plan.collective.root().is_none_or(|root| root.index() == rank);
            assert!(!beyond || has_joined || !is_root, "{:?}: part {part} on rank {rank}", plan.collective);
        }
    }

    #[test]
    fn shares_cover_every_element_once() {
        for lengths in [vec![], vec![0], vec![1], vec![1000, 0, 3, 64, 64_000, 1], vec![u64::MAX / 2]] {
            for count in 1..6 {
                let mut next = vec![0; lengths.len()];
                for (place, span) in (0..count).flat_map(|folder| share(&lengths, count, folder)) {
                    assert_eq!(span.start, next[place], "{lengths:?} by {count}");
                    next[place] = span.end();
                }
                assert_eq!(next, lengths);
                let mut whole: Vec<usize> =
                    (0..count).flat_map(|folder| whole_share(&lengths, count, folder)).collect();
                whole.sort_unstable();
                let with_elems: Vec<usize> = (0..lengths.len()).filter(|place| lengths[*place] > 0).collect();
                assert_eq!(whole, with_elems);
            }
        }
    }
}
