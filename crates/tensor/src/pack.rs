//! Gathering regions into a bucket and scattering the bucket back, with scale and cast on the way.
//!
//! A bucket is a byte buffer in which the tensors of a fused group lie at given offsets. Packing is the only copy on
//! the way in and unpacking the only copy on the way out, so whatever has to be done to every element (prescale,
//! compression to the wire type, average, postscale) is done there. With equal types and nothing to scale both are
//! plain copies. Gaps between tensors are not touched.

use farandole_plan::Dtype;

use crate::cast;
use crate::finish::{Finish, copy_finished};

/// Copies each part to its offset in `bucket`, converted from `part_dtype` to `bucket_dtype` and multiplied by
/// `prescale`.
///
/// # Panics
/// If a part does not fit the bucket, or the types differ and are not both floats.
pub fn pack<'a>(
    bucket: &mut [u8],
    bucket_dtype: Dtype,
    parts: impl IntoIterator<Item = (usize, &'a [u8])>,
    part_dtype: Dtype,
    prescale: f64,
) {
    let finish = Finish::factor(prescale);
    for (offset_bytes, part) in parts {
        let len_bytes = converted_len_bytes(part.len(), part_dtype, bucket_dtype);
        let place = &mut bucket[offset_bytes..offset_bytes + len_bytes];
        transfer(place, bucket_dtype, part, part_dtype, &finish);
    }
}

/// Copies the place of each part in `bucket` back to it, finished and converted from `bucket_dtype` to `part_dtype`.
///
/// # Panics
/// As [`pack`].
pub fn unpack<'a>(
    bucket: &[u8],
    bucket_dtype: Dtype,
    parts: impl IntoIterator<Item = (usize, &'a mut [u8])>,
    part_dtype: Dtype,
    finish: Finish,
) {
    for (offset_bytes, part) in parts {
        let len_bytes = converted_len_bytes(part.len(), part_dtype, bucket_dtype);
        let place = &bucket[offset_bytes..offset_bytes + len_bytes];
        transfer(part, part_dtype, place, bucket_dtype, &finish);
    }
}

/// Bytes of the same elements in another type.
pub fn converted_len_bytes(len_bytes: usize, from: Dtype, to: Dtype) -> usize {
    len_bytes / from.size_bytes() * to.size_bytes()
}

fn transfer(dst: &mut [u8], to: Dtype, src: &[u8], from: Dtype, finish: &Finish) {
    if from == to {
        return copy_finished(dst, src, from, finish);
    }
    let factor = match *finish {
        Finish::Nothing => 1.0,
        Finish::Multiply(factor) => factor,
        // Only floats change their type, and for them a division is a multiplication by the inverse.
        Finish::Divide(divisor) => 1.0 / divisor.value() as f64,
    };
    cast::cast(dst, to, src, from, factor);
}

#[cfg(test)]
mod tests {
    use farandole_plan::ReduceOp;
    use half::bf16;

    use super::*;
    use crate::element::{as_bytes, as_bytes_mut};

    #[test]
    fn parts_go_to_their_offsets_and_come_back_and_gaps_stay() {
        let (a, b) = ([1u16, 2, 3], [4u16]);
        let mut bucket = [0xeeu8; 13];
        pack(&mut bucket, Dtype::U16, [(1, as_bytes(&a)), (9, as_bytes(&b)), (13, &[][..])], Dtype::U16, 1.0);
        assert_eq!(bucket[1..7], *as_bytes(&a));
        assert_eq!((bucket[0], &bucket[7..9], &bucket[11..]), (0xee, &[0xee; 2][..], &[0xee; 2][..]));
        let (mut c, mut d) = ([0u16; 3], [0u16; 1]);
        let finish = Finish::new(Dtype::U16, ReduceOp::Average, 2, 1.0);
        unpack(&bucket, Dtype::U16, [(1, as_bytes_mut(&mut c)), (9, as_bytes_mut(&mut d))], Dtype::U16, finish);
        assert_eq!((c, d), ([0, 1, 1], [2]));
    }

    #[test]
    fn compression_scales_before_it_rounds() {
        let src = [1.0f32, 3.0, -256.0, 1e-3];
        let mut bucket = [0u8; 10];
        pack(&mut bucket, Dtype::BF16, [(1, as_bytes(&src))], Dtype::F32, 0.1);
        let expected = src.map(|x| bf16::from_f32(x * 0.1));
        assert_eq!(bucket[1..9], *as_bytes(&expected));
        let mut back = [0.0f32; 4];
        unpack(&bucket, Dtype::BF16, [(1, as_bytes_mut(&mut back))], Dtype::F32, Finish::Multiply(2.0));
        assert_eq!(back, expected.map(|x| x.to_f32() * 2.0));
    }

    #[test]
    #[should_panic(expected = "int32 does not travel as float16")]
    fn integers_are_not_compressed() {
        pack(&mut [0; 8], Dtype::F16, [(0, &[0u8; 16][..])], Dtype::I32, 1.0);
    }
}
