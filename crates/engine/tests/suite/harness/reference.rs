//! What random programs compute, worked out plainly.
//!
//! Inputs are chosen so that every partial result of every operation but Adasum is exact in the precision in which it
//! is accumulated (half precision: in single), in any order. So there is one right result, bit for bit, whatever road
//! is taken. Half precision itself is *not* wide enough for them: the sum of a few f16 inputs overflows it and that of
//! bf16 inputs loses bits. A road that rounds or scales too early gives other bits.
//!
//! Prescales must be powers of two for that; postscales may be anything, because they are applied once.
#![allow(unreachable_pub)]

use std::sync::Arc;

use farandole_engine::Submission;
use farandole_plan::request::Batch;
use farandole_plan::{Collective, Dtype, GroupId, ReduceOp, Request};
use farandole_tensor::{OwnedBytes, Region};

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
    pub inputs: Inputs,
}

/// From which range inputs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Small whole numbers, exact in every type.
    Small,
    /// Far out in the range of the type.
    Extreme,
}

impl Call {
    /// The operation and its factors, if it is a reduction.
    pub fn reduction(&self) -> Option<(ReduceOp, f64, f64)> {
        self.collective.reduction()
    }

    /// Rows of a rank's tensor.
    pub fn rows_of(&self, rank: usize, size: usize) -> u64 {
        match self.collective {
            Collective::Allgather | Collective::Gather { .. } => (self.rows + rank as u64) % 40,
            Collective::Scatter { root, .. } if root.index() != rank => 0,
            Collective::Scatter { .. } => self.splits(rank, size).iter().sum(),
            Collective::Alltoall { .. } => self.splits(rank, size).iter().sum(),
            _ => self.rows,
        }
    }

    /// Rows that a rank sends to each rank of an alltoall, or the root to each rank of a scatter.
    pub fn splits(&self, rank: usize, size: usize) -> Vec<u64> {
        (0..size).map(|to| (self.rows + (rank * 3 + to) as u64) % 7).collect()
    }
}

/// A call with everybody's input and everybody's right result.
#[derive(Debug)]
pub struct Solved {
    pub call: Call,
    /// By rank.
    pub inputs: Vec<Vec<u8>>,
    /// By rank; nothing where the result is not exact (Adasum) or there is none.
    pub expected: Option<Vec<Arc<[u8]>>>,
}

impl Solved {
    pub fn new(call: &Call, salt: u64, joined: &[bool]) -> Solved {
        let size = joined.len();
        let inputs: Vec<Vec<Value>> = (0..size).map(|rank| values(call, salt, rank, size)).collect();
        let expected = expected(call, &inputs, joined);
        let inputs = inputs.iter().map(|values| encode_all(call.dtype, values)).collect();
        Solved { call: call.clone(), inputs, expected }
    }

    /// The request of one rank, with its input.
    pub fn submission(&self, me: usize, size: usize) -> Submission {
        let call = &self.call;
        let rows = call.rows_of(me, size);
        let collective = match call.collective {
            Collective::Alltoall { .. } => Collective::Alltoall { splits: Some(call.splits(me, size)) },
            Collective::Scatter { root, .. } if root.index() == me => {
                Collective::Scatter { root, splits: Some(call.splits(me, size)) }
            }
            ref other => other.clone(),
        };
        let request = Request::new(format!("call{}", call.number), collective, call.dtype, [rows, call.row_elems])
            .in_batch(call.batch.clone())
            .with_priority(call.priority);
        if call.collective == Collective::Barrier {
            return Submission::without_memory(request).in_group(call.group);
        }
        let bytes = OwnedBytes::from_slice(&self.inputs[me]);
        Submission::new(request, Region::from_owned_bytes(bytes, call.dtype)).in_group(call.group)
    }
}

/// The results of all ranks, if they are exact.
fn expected(call: &Call, inputs: &[Vec<Value>], joined: &[bool]) -> Option<Vec<Arc<[u8]>>> {
    let size = joined.len();
    let of = |rank: usize| if joined[rank] { &[][..] } else { &inputs[rank][..] };
    let row_elems = call.row_elems as usize;
    let bytes = |values: &[Value]| -> Arc<[u8]> { encode_all(call.dtype, values).into() };
    let for_all = |values: &[Value]| vec![bytes(values); size];
    Some(match call.collective {
        Collective::Allreduce { .. } => for_all(&combine(call, inputs, joined)?),
        Collective::ReduceScatter { .. } => {
            let all = combine(call, inputs, joined)?;
            let rows = |rank: usize| call.rows as usize / size + usize::from(rank < call.rows as usize % size);
            let start = |me: usize| (0..me).map(rows).sum::<usize>();
            (0..size).map(|me| bytes(&all[start(me) * row_elems..(start(me) + rows(me)) * row_elems])).collect()
        }
        Collective::Reduce { root, .. } => {
            let all = combine(call, inputs, joined)?;
            (0..size).map(|me| bytes(if me == root.index() { &all } else { of(me) })).collect()
        }
        Collective::Allgather => for_all(&(0..size).flat_map(of).copied().collect::<Vec<_>>()),
        Collective::Gather { root } => {
            let all: Vec<Value> = (0..size).flat_map(of).copied().collect();
            (0..size).map(|me| bytes(if me == root.index() { &all } else { &[] })).collect()
        }
        Collective::Scatter { root, .. } => {
            let splits = call.splits(root.index(), size);
            let start = |me: usize| splits[..me].iter().sum::<u64>() as usize * row_elems;
            (0..size).map(|me| bytes(&of(root.index())[start(me)..start(me + 1)])).collect()
        }
        Collective::Broadcast { root } => for_all(of(root.index())),
        Collective::Alltoall { .. } => (0..size)
            .map(|me| {
                let present = (0..size).filter(|&from| !joined[from]);
                let received = present.flat_map(|from| {
                    let splits = call.splits(from, size);
                    let start: u64 = splits[..me].iter().sum();
                    &of(from)[start as usize * row_elems..(start + splits[me]) as usize * row_elems]
                });
                bytes(&received.copied().collect::<Vec<_>>())
            })
            .collect(),
        Collective::Barrier | Collective::Join => return None,
    })
}

fn combine(call: &Call, inputs: &[Vec<Value>], joined: &[bool]) -> Option<Vec<Value>> {
    let (op, prescale, postscale) = call.reduction()?;
    let (size, dtype) = (joined.len(), call.dtype);
    if op == ReduceOp::Adasum {
        return None;
    }
    let present: Vec<&Vec<Value>> = (0..size).filter(|&rank| !joined[rank]).map(|rank| &inputs[rank]).collect();
    // What "all" means over absent ranks is a matter of taste for the average of bool.
    if present.len() < size && dtype == Dtype::Bool && op == ReduceOp::Average {
        return None;
    }
    let scaled = |value: Value| value.scaled(dtype, prescale);
    let fold = |index: usize| {
        let first = scaled(present[0][index]);
        let folded = present[1..].iter().fold(first, |acc, values| acc.fold(op, dtype, scaled(values[index])));
        folded.finished(op, dtype, size as u64, postscale)
    };
    Some((0..present[0].len()).map(fold).collect())
}

/// One number, exact. Integers are within the range of their type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Flag(bool),
    Integer(i128),
    Float(f64),
}

impl Value {
    /// Multiplied before it is folded: floats exactly; integers cut off towards zero and held in the range of the type.
    fn scaled(self, dtype: Dtype, factor: f64) -> Value {
        match self {
            Value::Float(value) => Value::Float(value * factor),
            Value::Integer(value) if factor != 1.0 => {
                let (low, high) = wait_limits(dtype);
                Value::Integer(((value as f64 * factor) as i128).clamp(low, high))
            }
            other => other,
        }
    }

    fn fold(self, op: ReduceOp, dtype: Dtype, other: Value) -> Value {
        match (self, other) {
            (Value::Flag(a), Value::Flag(b)) => {
                Value::Flag(if matches!(op, ReduceOp::Sum | ReduceOp::Max) { a | b } else { a & b })
            }
            (Value::Integer(a), Value::Integer(b)) => Value::Integer(wrap(
                dtype,
                match op {
                    ReduceOp::Sum | ReduceOp::Average => a + b,
                    // Two integers of 64 bits: the product has 128.
                    ReduceOp::Product => a.wrapping_mul(b),
                    ReduceOp::Min => a.min(b),
                    _ => a.max(b),
                },
            )),
            (Value::Float(a), Value::Float(b)) => Value::Float(match op {
                ReduceOp::Sum | ReduceOp::Average => a + b,
                ReduceOp::Product => a * b,
                ReduceOp::Min => a.min(b),
                _ => a.max(b),
            }),
            _ => unreachable!("all contributions have one type"),
        }
    }

    /// The average and the postscale, by one multiplication in the precision in which the type is folded.
    fn finished(self, op: ReduceOp, dtype: Dtype, ranks: u64, postscale: f64) -> Value {
        let averages = op == ReduceOp::Average && ranks > 1;
        let factor = if averages { postscale / ranks as f64 } else { postscale };
        match self {
            Value::Integer(sum) if averages && postscale == 1.0 => Value::Integer(sum / i128::from(ranks)),
            Value::Float(value) if dtype == Dtype::F64 => Value::Float(value * factor),
            Value::Float(value) => {
                let single = value as f32;
                assert!(f64::from(single) == value, "the inputs of {op} of {dtype} do not fold exactly: {value}");
                Value::Float(f64::from(single * factor as f32))
            }
            other => other.scaled(dtype, factor),
        }
    }
}

fn values(call: &Call, salt: u64, rank: usize, size: usize) -> Vec<Value> {
    let elems = call.rows_of(rank, size) * call.row_elems;
    let is_product = matches!(call.reduction(), Some((ReduceOp::Product, ..)));
    let mut dice = Dice::new(salt ^ (rank as u64) << 48);
    (0..elems).map(|_| value(call.dtype, call.inputs, is_product, &mut dice)).collect()
}

fn value(dtype: Dtype, inputs: Inputs, is_product: bool, dice: &mut Dice) -> Value {
    if dtype == Dtype::Bool {
        return Value::Flag(dice.below(2) == 1);
    }
    if !dtype.is_float() {
        return Value::Integer(match inputs {
            Inputs::Small if is_product => 1 + i128::from(dice.below(2)),
            Inputs::Small => i128::from(dice.below(4)),
            Inputs::Extreme => wrap(dtype, i128::from(dice.below(u64::MAX))),
        });
    }
    Value::Float(match inputs {
        // Powers of two stay exact however many are multiplied.
        Inputs::Small if is_product => 1.0 + dice.below(2) as f64,
        Inputs::Small => dice.below(4) as f64,
        Inputs::Extreme if is_product => {
            let power = 2f64.powi(dice.below(13) as i32 - 6);
            if dice.below(2) == 0 { power } else { -power }
        }
        Inputs::Extreme => {
            // As many bits as the type holds, mostly positive, so that sums grow.
            let (bits, unit) = match dtype {
                Dtype::F16 => (11, 16.0),
                Dtype::BF16 => (8, 2f64.powi(80)),
                Dtype::F32 => (20, 1.0),
                _ => (40, 1.0),
            };
            let magnitude = (dice.below(1 << (bits - 1)) + (1 << (bits - 1))) as f64 * unit;
            if dice.below(8) == 0 { -magnitude } else { magnitude }
        }
    })
}

fn encode_all(dtype: Dtype, values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * dtype.size_bytes());
    for value in values {
        match (*value, dtype) {
            (Value::Flag(flag), _) => bytes.push(u8::from(flag)),
            (Value::Integer(value), _) => bytes.extend_from_slice(&value.to_le_bytes()[..dtype.size_bytes()]),
            (Value::Float(value), Dtype::F16) => {
                bytes.extend_from_slice(&half::f16::from_f32(value as f32).to_ne_bytes());
            }
            (Value::Float(value), Dtype::BF16) => {
                bytes.extend_from_slice(&half::bf16::from_f32(value as f32).to_ne_bytes());
            }
            (Value::Float(value), Dtype::F32) => bytes.extend_from_slice(&(value as f32).to_ne_bytes()),
            (Value::Float(value), _) => bytes.extend_from_slice(&value.to_ne_bytes()),
        }
    }
    bytes
}

fn is_signed(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64)
}

fn wait_limits(dtype: Dtype) -> (i128, i128) {
    let bits = dtype.size_bytes() * 8;
    if is_signed(dtype) { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The value that an integer has after wrapping to its type.
fn wrap(dtype: Dtype, value: i128) -> i128 {
    let unused = 128 - dtype.size_bytes() as u32 * 8;
    if is_signed(dtype) { value << unused >> unused } else { ((value as u128) << unused >> unused) as i128 }
}

/// Enough to tell two results apart.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_ne_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash
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
