//! What random programs compute, worked out plainly.
//!
//! Inputs are small whole numbers, so that every operation but Adasum and some averages is exact in every element type and any
//! order of combining gives the same bits.
#![allow(unreachable_pub)]

use farandole_plan::request::Batch;
use farandole_plan::{Collective, Dtype, GroupId, ReduceOp};

/// One call of a random program, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Call {
    pub number: u64,
    pub group: GroupId,
    pub collective: Collective,
    pub dtype: Dtype,
    pub rows: u64,
    pub row_elems: u64,
    pub batch: Option<Batch>,
    pub priority: i32,
}

impl Call {
    /// Rows of a rank's tensor.
    pub fn rows_of(&self, rank: usize, size: usize) -> u64 {
        match self.collective {
            Collective::Allgather => (self.rows + rank as u64) % 40,
            Collective::Alltoall { .. } => self.splits(rank, size).iter().sum(),
            _ => self.rows,
        }
    }

    /// Rows that a rank sends to each rank of an alltoall.
    pub fn splits(&self, rank: usize, size: usize) -> Vec<u64> {
        (0..size).map(|to| (self.rows + (rank * 3 + to) as u64) % 7).collect()
    }
}

/// A rank's tensor.
pub fn input(call: &Call, salt: u64, rank: usize, size: usize) -> Vec<u8> {
    values(call, salt, rank, size).iter().flat_map(|&value| encode(call.dtype, value)).collect()
}

/// The result on one rank, if it is exact.
pub fn expected(call: &Call, salt: u64, me: usize, joined: &[bool]) -> Option<Vec<u8>> {
    let size = joined.len();
    let of = |rank: usize| if joined[rank] { Vec::new() } else { values(call, salt, rank, size) };
    let row_elems = call.row_elems as usize;
    let result: Vec<i64> = match call.collective {
        Collective::Allreduce { op, .. } => combine(call, op, salt, joined)?,
        Collective::ReduceScatter { op, .. } => {
            let all = combine(call, op, salt, joined)?;
            let rows = |rank: usize| call.rows as usize / size + usize::from(rank < call.rows as usize % size);
            let start: usize = (0..me).map(rows).sum();
            all[start * row_elems..(start + rows(me)) * row_elems].to_vec()
        }
        Collective::Allgather => (0..size).flat_map(of).collect(),
        Collective::Broadcast { root } => of(root.index()),
        Collective::Alltoall { .. } => (0..size)
            .filter(|&from| !joined[from])
            .flat_map(|from| {
                let splits = call.splits(from, size);
                let start: u64 = splits[..me].iter().sum();
                let range = start as usize * row_elems..(start + splits[me]) as usize * row_elems;
                of(from)[range].to_vec()
            })
            .collect(),
        Collective::Barrier | Collective::Join => return None,
    };
    Some(result.iter().flat_map(|&value| encode(call.dtype, value)).collect())
}

fn combine(call: &Call, op: ReduceOp, salt: u64, joined: &[bool]) -> Option<Vec<i64>> {
    let size = joined.len();
    if op == ReduceOp::Adasum || (op == ReduceOp::Average && call.dtype.is_float()) {
        return None;
    }
    let present: Vec<Vec<i64>> =
        (0..size).filter(|&rank| !joined[rank]).map(|rank| values(call, salt, rank, size)).collect();
    let all_present = present.len() == size;
    let combined = (0..present[0].len()).map(|index| {
        let column = present.iter().map(|values| values[index]);
        if call.dtype == Dtype::Bool {
            return i64::from(match op {
                ReduceOp::Sum | ReduceOp::Max => column.into_iter().any(|value| value != 0),
                _ => column.into_iter().all(|value| value != 0),
            });
        }
        match op {
            ReduceOp::Sum => column.sum(),
            ReduceOp::Average => column.sum::<i64>() / size as i64,
            ReduceOp::Min => column.min().unwrap(),
            ReduceOp::Max => column.max().unwrap(),
            _ => column.product(),
        }
    });
    // What "all" means over absent ranks is a matter of taste for the average of bool.
    let is_clear = all_present || call.dtype != Dtype::Bool || op != ReduceOp::Average;
    is_clear.then(|| combined.collect())
}

fn values(call: &Call, salt: u64, rank: usize, size: usize) -> Vec<i64> {
    let elems = call.rows_of(rank, size) * call.row_elems;
    let is_product = matches!(
        call.collective,
        Collective::Allreduce { op: ReduceOp::Product, .. } | Collective::ReduceScatter { op: ReduceOp::Product, .. }
    );
    let mut dice = Dice::new(salt ^ (rank as u64) << 48);
    (0..elems)
        .map(|_| match call.dtype {
            Dtype::Bool => dice.below(2) as i64,
            // Powers of two stay exact however many are multiplied.
            _ if is_product => 1 + dice.below(2) as i64,
            _ => dice.below(4) as i64,
        })
        .collect()
}

fn encode(dtype: Dtype, value: i64) -> Vec<u8> {
    match dtype {
        Dtype::Bool | Dtype::U8 | Dtype::I8 => vec![value as u8],
        Dtype::U16 | Dtype::I16 => (value as u16).to_ne_bytes().to_vec(),
        Dtype::U32 | Dtype::I32 => (value as u32).to_ne_bytes().to_vec(),
        Dtype::U64 | Dtype::I64 => value.to_ne_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f64(value as f64).to_ne_bytes().to_vec(),
        Dtype::BF16 => half::bf16::from_f64(value as f64).to_ne_bytes().to_vec(),
        Dtype::F32 => (value as f32).to_ne_bytes().to_vec(),
        Dtype::F64 => (value as f64).to_ne_bytes().to_vec(),
    }
}

/// Enough to tell two results apart.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Random numbers that are the same everywhere (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
