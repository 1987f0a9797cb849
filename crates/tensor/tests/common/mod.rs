//! A plain reference for every fold: one element at a time, nothing shared with the kernels.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::Finish;
use half::{bf16, f16};

/// Whether Miri or valgrind looks on: every path is walked, around every boundary of vectors and tiles; the breadth of
/// numbers is for a processor.
pub fn is_brief() -> bool {
    cfg!(miri) || std::env::var_os("FARANDOLE_MEMCHECK").is_some()
}

/// Lengths around every boundary of vectors and tiles, for [`is_brief`]; Miri is slower still and gets a few.
pub fn brief_lengths() -> Vec<usize> {
    if cfg!(miri) {
        return vec![0, 1, 17];
    }
    (0..=17).chain([31, 32, 33, 63, 64, 65, 127, 128, 129, 1024, 1027]).collect()
}

/// Every operation that is a fold.
pub const FOLDS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Every float type.
pub const FLOATS: [Dtype; 4] = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64];

/// A small generator of reproducible numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Elements of any bits with a good share of special values.
    pub fn elements(&mut self, dtype: Dtype, len_elems: usize) -> Vec<u8> {
        (0..len_elems).flat_map(|_| self.element(dtype)).collect()
    }

    fn element(&mut self, dtype: Dtype) -> Vec<u8> {
        let random = self.next();
        let pick = self.next() % 24;
        let special = match pick {
            0 => Some(f64::NAN),
            1 => Some(f64::INFINITY),
            2 => Some(f64::NEG_INFINITY),
            3..=5 => Some(0.0),
            6..=8 => Some(-0.0),
            9..=14 => Some((random % 2001) as f64 / 64.0 - 15.0),
            _ => None,
        };
        match (dtype, special) {
            (Dtype::Bool, _) => vec![[0, 1, 1, 0, 2, 255][(random % 6) as usize]],
            (Dtype::F16, Some(value)) => f16::from_f64(value).to_ne_bytes().to_vec(),
            (Dtype::BF16, Some(value)) => bf16::from_f64(value).to_ne_bytes().to_vec(),
            (Dtype::F32, Some(value)) => (value as f32).to_ne_bytes().to_vec(),
            (Dtype::F64, Some(value)) => value.to_ne_bytes().to_vec(),
            (_, None | Some(_)) => random.to_ne_bytes()[..dtype.size_bytes()].to_vec(),
        }
    }
}

/// The fold of all sources, finished.
pub fn reference(dtype: Dtype, op: ReduceOp, sources: &[&[u8]], finish: &Finish) -> Vec<u8> {
    let size = dtype.size_bytes();
    let len_elems = sources[0].len() / size;
    (0..len_elems)
        .flat_map(|i| {
            let elements: Vec<&[u8]> = sources.iter().map(|source| &source[i * size..][..size]).collect();
            reference_element(dtype, op, &elements, finish)
        })
        .collect()
}

fn reference_element(dtype: Dtype, op: ReduceOp, elements: &[&[u8]], finish: &Finish) -> Vec<u8> {
    macro_rules! integer {
        ($type:ty) => {{
            let numbers = elements.iter().map(|bytes| <$type>::from_ne_bytes((*bytes).try_into().unwrap()));
            let folded = numbers
                .reduce(|a, b| match op {
                    ReduceOp::Sum | ReduceOp::Average => a.wrapping_add(b),
                    ReduceOp::Product => a.wrapping_mul(b),
                    ReduceOp::Min => a.min(b),
                    _ => a.max(b),
                })
                .unwrap();
            let finished = match finish {
                Finish::Nothing => folded,
                Finish::Multiply(factor) => (folded as f64 * factor) as $type,
                Finish::Divide(divisor) => (i128::from(folded) / i128::from(divisor.value())) as $type,
            };
            finished.to_ne_bytes().to_vec()
        }};
    }
    match dtype {
        Dtype::Bool => {
            let any = elements.iter().any(|bytes| bytes[0] != 0);
            let all = elements.iter().all(|bytes| bytes[0] != 0);
            vec![u8::from(if matches!(op, ReduceOp::Sum | ReduceOp::Max) { any } else { all })]
        }
        Dtype::U8 => integer!(u8),
        Dtype::I8 => integer!(i8),
        Dtype::U16 => integer!(u16),
        Dtype::I16 => integer!(i16),
        Dtype::U32 => integer!(u32),
        Dtype::I32 => integer!(i32),
        Dtype::U64 => integer!(u64),
        Dtype::I64 => integer!(i64),
        Dtype::F64 => {
            let folded = elements.iter().map(|bytes| to_f64(dtype, bytes)).reduce(|a, b| match op {
                ReduceOp::Sum | ReduceOp::Average => a + b,
                ReduceOp::Product => a * b,
                ReduceOp::Min => extreme(a, b, a.total_cmp(&b).is_le()),
                _ => extreme(a, b, a.total_cmp(&b).is_ge()),
            });
            from_f64(dtype, folded.unwrap() * factor(finish))
        }
        _ => {
            let folded = elements.iter().map(|bytes| to_f64(dtype, bytes) as f32).reduce(|a, b| match op {
                ReduceOp::Sum | ReduceOp::Average => a + b,
                ReduceOp::Product => a * b,
                ReduceOp::Min => extreme(a.into(), b.into(), a.total_cmp(&b).is_le()) as f32,
                _ => extreme(a.into(), b.into(), a.total_cmp(&b).is_ge()) as f32,
            });
            from_f64(dtype, (folded.unwrap() * factor(finish) as f32).into())
        }
    }
}

fn extreme(a: f64, b: f64, first: bool) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if first {
        a
    } else {
        b
    }
}

fn factor(finish: &Finish) -> f64 {
    match finish {
        Finish::Nothing => 1.0,
        Finish::Multiply(factor) => *factor,
        Finish::Divide(divisor) => 1.0 / divisor.value() as f64,
    }
}

/// The value of a float element.
pub fn to_f64(dtype: Dtype, bytes: &[u8]) -> f64 {
    match dtype {
        Dtype::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f64_const(),
        Dtype::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f64_const(),
        Dtype::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).into(),
        _ => f64::from_ne_bytes(bytes.try_into().unwrap()),
    }
}

/// A float element of this value, rounded by way of f32 where it is narrower; NaN is canonical.
pub fn from_f64(dtype: Dtype, value: f64) -> Vec<u8> {
    let nan = value.is_nan();
    match dtype {
        Dtype::F16 if nan => 0x7e00u16.to_ne_bytes().to_vec(),
        Dtype::BF16 if nan => 0x7fc0u16.to_ne_bytes().to_vec(),
        Dtype::F32 if nan => 0x7fc0_0000u32.to_ne_bytes().to_vec(),
        Dtype::F64 if nan => 0x7ff8_0000_0000_0000u64.to_ne_bytes().to_vec(),
        Dtype::F16 => f16::from_f32_const(value as f32).to_ne_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32_const(value as f32).to_ne_bytes().to_vec(),
        Dtype::F32 => (value as f32).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

/// A copy that starts `skew` bytes into its allocation, with a byte behind it that must not change.
pub struct Skewed {
    bytes: Vec<u8>,
    skew: usize,
}

const GUARD: u8 = 0xa5;

impl Skewed {
    pub fn new(contents: &[u8], skew: usize) -> Skewed {
        let mut bytes = vec![GUARD; skew];
        bytes.extend_from_slice(contents);
        bytes.extend_from_slice(&[GUARD; 3]);
        Skewed { bytes, skew }
    }

    pub fn get(&self) -> &[u8] {
        &self.bytes[self.skew..self.bytes.len() - 3]
    }

    pub fn get_mut(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - 3;
        &mut self.bytes[self.skew..end]
    }

    /// Checks contents and surroundings.
    pub fn assert(&self, expected: &[u8], what: &str) {
        assert_eq!(self.get(), expected, "{what}");
        let around = self.bytes[..self.skew].iter().chain(&self.bytes[self.bytes.len() - 3..]);
        assert!(around.copied().all(|byte| byte == GUARD), "{what}: wrote outside");
    }
}
