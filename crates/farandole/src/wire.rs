//! How gradients of Rust's tensor libraries travel: [`Wire`], and what changes their precision.

use std::sync::Arc;

use farandole_engine::{Outcome, Submission};
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Request};
#[cfg(feature = "burn")]
use farandole_tensor::Fold;
use farandole_tensor::Region;
use farandole_tensor::cast::cast;
use farandole_tensor::element::{Plain, as_bytes_mut};
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::named::elements;

/// How gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// In single precision; double and half precision as they are. Nothing is rounded on the way.
    #[default]
    F32,
    /// In the upper half of a single: half the bytes, the same range, eight bits of precision.
    Bf16,
    /// In IEEE half precision: half the bytes, eleven bits of precision; above 65504 there is only infinity.
    F16,
}

impl Wire {
    /// The element type in which a gradient of this type travels. None travels in more bytes than it has.
    pub(crate) fn dtype(self, own: Dtype) -> Dtype {
        match self {
            Wire::Bf16 if own.size_bytes() > 2 => Dtype::BF16,
            Wire::F16 if own.size_bytes() > 2 => Dtype::F16,
            Wire::F32 | Wire::Bf16 | Wire::F16 => own,
        }
    }
}

/// Zeros, as a vector would hold them.
pub(crate) fn zeros(dtype: Dtype, elements: usize) -> Region {
    match dtype {
        Dtype::F64 => Region::from_vec(vec![0f64; elements]),
        Dtype::F16 => Region::from_vec(vec![f16::ZERO; elements]),
        Dtype::BF16 => Region::from_vec(vec![bf16::ZERO; elements]),
        _ => Region::from_vec(vec![0f32; elements]),
    }
}

/// The same numbers in another precision.
pub(crate) fn converted(region: Region, to: Dtype) -> Region {
    let from = region.dtype();
    if from == to {
        return region;
    }
    fn convert<T: Plain + Default>(region: &Region) -> Region {
        let mut elements = vec![T::default(); region.len_elems()];
        cast(as_bytes_mut(&mut elements), T::DTYPE, region.as_bytes(), region.dtype(), 1.0);
        Region::from_vec(elements)
    }
    match to {
        Dtype::F64 => convert::<f64>(&region),
        Dtype::F16 => convert::<f16>(&region),
        Dtype::BF16 => convert::<bf16>(&region),
        _ => convert::<f32>(&region),
    }
}

/// An average that has arrived under this name, in the precision of what it is the gradient of.
///
/// # Errors
/// [`Error::Overflow`] if it was made narrower for the way and is not finite. Averages are the same on all ranks, bit
/// by bit, so all ranks find that, or none.
pub(crate) fn arrived(name: &str, average: Region, own: Dtype) -> Result<Region> {
    /// The bits of the exponent: all of them are set in an infinity, in what is no number, and in nothing else.
    const EXPONENT: u16 = 0x7c00;
    let endless = |two: &[u8]| u16::from_ne_bytes([two[0], two[1]]) & EXPONENT == EXPONENT;
    if average.dtype() == Dtype::F16 && own != Dtype::F16 && average.as_bytes().chunks_exact(2).any(endless) {
        let path = name.split_once('/').map_or(name, |(_, path)| path);
        return Err(Error::Overflow(format!(
            "the average gradient of {path} is not finite: on some rank it went beyond {}, where f16 ends, or was not finite before. Nothing was \
             learned from it. Let gradients travel as bf16, which reaches as far as f32",
            f16::MAX
        )));
    }
    Ok(converted(average, own))
}

/// Adds the second to the first.
#[cfg(feature = "burn")]
pub(crate) fn add(sum: &mut Region, more: &Region) {
    Fold::new(sum.dtype(), ReduceOp::Sum).fold(sum.as_bytes_mut(), more.as_bytes());
}

/// A request for the average of what all ranks have under this name.
pub(crate) fn average(name: Arc<str>, shape: Vec<u64>, contents: Region) -> Submission {
    let request = Request::new(name, Collective::allreduce(ReduceOp::Average), contents.dtype(), shape);
    Submission::new(request, contents)
}

/// A request by which ranks tell each other which of their gradients exist, and whether one of them is in trouble. A
/// rank in trouble takes part in the step all the same, with zeros, so that nobody waits for it in vain.
pub(crate) fn presence(name: Arc<str>, mut present: Vec<u32>, in_trouble: Option<Rank>) -> Submission {
    present.push(in_trouble.map_or(0, |rank| rank.0 + 1));
    let request = Request::new(name, Collective::allreduce(ReduceOp::Max), Dtype::U32, [present.len() as u64]);
    Submission::new(request, Region::from_vec(present))
}

/// What [`presence`] has found: for each gradient whether some rank has one.
///
/// # Errors
/// If some rank is in trouble.
pub(crate) fn heard(outcome: Outcome) -> Result<Vec<bool>> {
    let mut present: Vec<u32> = elements(outcome);
    match present.pop().unwrap_or(0) {
        0 => Ok(present.into_iter().map(|present| present != 0).collect()),
        number => Err(Error::Parameters(format!(
            "rank {} could not contribute its gradients to this step; its own error says why",
            number - 1
        ))),
    }
}
