//! The Rust types that are tensor elements, and the casts between their slices and bytes.
//!
//! [`Element`] is sealed: it names exactly the thirteen element types that travel, so a cast to bytes can never meet
//! padding, pointers or destructors. [`Plain`] is the part of them for which every bit pattern is a value, that is all
//! but `bool`; only these may be made from arbitrary bytes in place. A `bool` buffer is written through
//! [`with_bytes_mut`], which turns every non-zero byte into `true` before the borrow ends.
//!
//! Bytes are in the machine's own order. What travels between machines of different byte order is not decided here.

use farandole_plan::Dtype;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A type that can be the element of a tensor.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The element type that travels.
    const DTYPE: Dtype;
}

/// An element type for which every bit pattern is a valid value: all but `bool`.
pub trait Plain: Element {}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(impl Plain for $type {})*};
}

elements! {
    bool => Bool, u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64);

/// The bytes of a slice of elements.
pub fn as_bytes<T: Element>(data: &[T]) -> &[u8] {
    // SAFETY: `Element` is sealed; its types have no padding, so all bytes are initialised, and a byte has no
    // alignment.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// The bytes of a slice of elements, for writing. `bool` is left out because most bytes are not a `bool`; see
/// [`with_bytes_mut`].
pub fn as_bytes_mut<T: Plain>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; whatever is written is a valid element because `T` is `Plain`.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// Lends the bytes of any slice of elements to `write`. Afterwards (also when `write` panics) every byte of a
/// `bool` slice that is not zero has become one.
pub fn with_bytes_mut<T: Element, R>(data: &mut [T], write: impl FnOnce(&mut [u8]) -> R) -> R {
    /// Restores the invariant of `bool` whichever way the borrow ends.
    struct Borrow<'a> {
        bytes: &'a mut [u8],
        dtype: Dtype,
    }
    impl Drop for Borrow<'_> {
        fn drop(&mut self) {
            normalise(self.dtype, self.bytes);
        }
    }
    // SAFETY: as in `as_bytes`; `Borrow` makes the bytes valid elements again before the borrow of `data` ends, and
    // nobody outside this function can keep it from being dropped.
    let bytes = unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast::<u8>(), size_of_val(data)) };
    let borrow = Borrow { bytes, dtype: T::DTYPE };
    write(&mut *borrow.bytes)
}

/// The elements that lie in `bytes`, if `bytes` is aligned for them and holds a whole number of them.
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<&[T]> {
    fits::<T>(bytes).then(|| {
        // SAFETY: `fits` has checked alignment and length, and every bit pattern is a value of a `Plain` type.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
    })
}

/// The elements that lie in `bytes`, for writing, if `bytes` is aligned for them and holds a whole number of them.
pub fn from_bytes_mut<T: Plain>(bytes: &mut [u8]) -> Option<&mut [T]> {
    fits::<T>(bytes).then(|| {
        // SAFETY: as in `from_bytes`; a byte accepts whatever an element is made of.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
    })
}

/// Makes every byte of bool data zero or one; leaves other element types alone.
pub(crate) fn normalise(dtype: Dtype, bytes: &mut [u8]) {
    if dtype == Dtype::Bool {
        for byte in bytes {
            *byte = u8::from(*byte != 0);
        }
    }
}

fn fits<T: Plain>(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(size_of::<T>()) && bytes.as_ptr().cast::<T>().is_aligned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_elements_are_their_memory() {
        assert_eq!(as_bytes(&[1u16, 0x0203]), [1u16.to_ne_bytes(), 0x0203u16.to_ne_bytes()].concat());
        assert_eq!(as_bytes::<f64>(&[]), &[] as &[u8]);
        let mut data = [0i32; 2];
        as_bytes_mut(&mut data)[4..].copy_from_slice(&(-7i32).to_ne_bytes());
        assert_eq!(data, [0, -7]);
    }

    #[test]
    fn sizes_agree_with_the_dtype() {
        fn check<T: Element>() {
            assert_eq!(size_of::<T>(), T::DTYPE.size_bytes());
        }
        check::<bool>();
        check::<u8>();
        check::<i16>();
        check::<f16>();
        check::<bf16>();
        check::<u32>();
        check::<f32>();
        check::<i64>();
        check::<f64>();
    }

    #[test]
    fn bool_bytes_become_zero_or_one_even_after_a_panic() {
        let mut data = [false; 4];
        with_bytes_mut(&mut data, |bytes| bytes.copy_from_slice(&[0, 1, 2, 255]));
        assert_eq!(data, [false, true, true, true]);
        let mut data = [false; 2];
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            with_bytes_mut(&mut data, |bytes| {
                bytes[1] = 7;
                panic!("the caller gives up")
            })
        }));
        assert!(result.is_err());
        assert_eq!(as_bytes(&data), [0, 1]);
    }

    #[test]
    fn views_need_alignment_and_whole_elements() {
        let mut data = [0x0101_0101u32; 3];
        let bytes = as_bytes_mut(&mut data);
        assert_eq!(from_bytes::<u32>(bytes).map(<[u32]>::len), Some(3));
        assert!(from_bytes::<u32>(&bytes[1..9]).is_none());
        assert!(from_bytes::<u32>(&bytes[..7]).is_none());
        from_bytes_mut::<u32>(&mut bytes[4..]).expect("aligned")[0] = 9;
        assert_eq!(data, [0x0101_0101, 9, 0x0101_0101]);
    }
}
