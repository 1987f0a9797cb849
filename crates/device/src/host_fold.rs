//! What a fold makes of contributions, with the arithmetic of host memory: for devices that are none.

use farandole_plan::Dtype;
use farandole_tensor::{Finish, Fold, copy_finished};

use crate::DeviceFold;

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
