//! What a fold and an adaptive summation make of contributions, with the arithmetic of host memory: for devices that
//! are none.

use farandole_plan::Dtype;
use farandole_tensor::{Finish, Fold, adasum, copy_finished};

use crate::{AdasumPair, AdasumResult, AdasumVector, DeviceAdasum, DeviceFold};

/// The result of one segment of a fold, of the contributions in the order of the ranks.
pub(crate) fn result(folding: &DeviceFold<'_>, contributions: &[Vec<u8>]) -> Vec<u8> {
    let DeviceFold { dtype, stored, op, prescale, finish, .. } = *folding;
    let elems = contributions.first().map_or(0, Vec::len) / dtype.size_bytes();
    // Scaled halves are not rounded before they are folded.
    let carrier = if matches!(dtype, Dtype::F16 | Dtype::BF16) { Dtype::F32 } else { dtype };
    let carried: Vec<Vec<u8>> = contributions
        .iter()
        .map(|bytes| {
            let mut carried = vec![0; elems * carrier.size_bytes()];
            copy_finished(&mut carried, carrier, bytes, dtype, Finish::factor(prescale));
            carried
        })
        .collect();
    let sources: Vec<&[u8]> = carried.iter().map(Vec::as_slice).collect();
    let mut folded = vec![0; elems * carrier.size_bytes()];
    Fold::new(carrier, op).fold_many(&mut folded, &sources, Finish::Nothing);
    let mut result = vec![0; elems * stored.size_bytes()];
    copy_finished(&mut result, stored, &folded, carrier, finish);
    result
}

/// The combination of a pair, of vectors that `read` reads: so many bytes at an address.
pub(crate) fn combination(
    combining: &DeviceAdasum<'_>,
    pair: &AdasumPair,
    read: impl Fn(u64, usize) -> Vec<u8>,
) -> Vec<u8> {
    let (dtype, elems) = (combining.dtype, pair.elems as usize);
    let carrier = DeviceAdasum::carrier(dtype);
    let carried = |vector: AdasumVector| match vector {
        AdasumVector::Zeros => vec![0; elems * carrier.size_bytes()],
        AdasumVector::Carried(address) => read(address, elems * carrier.size_bytes()),
        AdasumVector::Contribution(address) => {
            let mut carried = vec![0; elems * carrier.size_bytes()];
            let contribution = read(address, elems * dtype.size_bytes());
            copy_finished(&mut carried, carrier, &contribution, dtype, Finish::factor(combining.prescale));
            carried
        }
    };
    let [mut combined, other] = pair.vectors.map(carried);
    adasum::combine(carrier, &mut combined, &other);
    match combining.result {
        AdasumResult::Carried => combined,
        AdasumResult::Finished(postscale) => {
            let mut result = vec![0; elems * dtype.size_bytes()];
            copy_finished(&mut result, dtype, &combined, carrier, Finish::factor(postscale));
            result
        }
    }
}
