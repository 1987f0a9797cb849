//! What pointers from C point to: texts, arrays, structs that grow, and memory that is lent to the engine.
//!
//! Null pointers, sizes that cannot be and texts that are not UTF-8 are refused. Everything else is the caller's
//! promise (the header's), so the functions that read are unsafe.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;

use farandole::{Dtype, Region};

use crate::status::{Fault, Status};

/// A place for an answer; `None` is a null pointer.
pub(crate) type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes an answer to its place.
pub(crate) fn put<T>(place: Place<'_, T>, what: &str, value: T) -> Result<(), Fault> {
    let place = place.ok_or_else(|| null(what))?;
    place.write(value);
    Ok(())
}

pub(crate) fn null(what: &str) -> Fault {
    Fault::argument(format!("{what} is a null pointer"))
}

/// A text that must be there.
///
/// # Safety
/// Null, or a text that ends with a zero and lives as long as the result.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Fault> {
    // SAFETY: promised by the caller.
    unsafe { optional_text(pointer, what) }?.ok_or_else(|| null(what))
}

/// A text that may be absent.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Fault> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: promised by the caller.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Fault::argument(format!("{what} is not UTF-8: {text:?}")))
}

/// An array; empty if there are no elements, wherever it lies.
///
/// # Safety
/// Null, or so many elements that live as long as the result and are not written meanwhile.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    check_range(pointer.cast(), count.checked_mul(size_of::<T>()), what)?;
    if !pointer.is_aligned() {
        return Err(Fault::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    // SAFETY: not null, aligned, in the address space; the rest is promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Copies a list to an array of the caller's that has `capacity` places, and says how long the list is. A caller that
/// only wants to know that passes no places.
///
/// # Safety
/// `places` is null or has `capacity` places that may be written.
pub(crate) unsafe fn put_list<T: Copy>(
    list: &[T],
    places: *mut T,
    capacity: usize,
    count: Place<'_, usize>,
) -> Result<(), Fault> {
    put(count, "count", list.len())?;
    if capacity == 0 {
        return Ok(());
    }
    if capacity < list.len() {
        let text = format!("there are {} entries, and room for {capacity}", list.len());
        return Err(Fault::new(Status::TooSmall, text));
    }
    check_range(places.cast(), capacity.checked_mul(size_of::<T>()), "the place for the list")?;
    // SAFETY: not null, and large enough by the caller's word; a list of ours does not overlap it.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), places, list.len()) };
    Ok(())
}

/// A struct that begins with its own size in bytes, as the caller's header knows it. Fields that the caller's header
/// does not have yet are as in `default`; ones that we do not know must be zero.
///
/// # Safety
/// Null, or such a struct; every bit pattern that the caller can have put there is a `T`.
pub(crate) unsafe fn sized<T: Copy>(
    pointer: *const T,
    first_version_bytes: usize,
    default: T,
    what: &str,
) -> Result<T, Fault> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: such a struct begins with its size.
    let bytes = unsafe { pointer.cast::<usize>().read_unaligned() };
    if bytes < first_version_bytes || bytes > first_version_bytes + MAX_GROWTH_BYTES {
        return Err(Fault::argument(format!(
            "the field size of {what} is {bytes}; begin with the initialiser of farandole.h"
        )));
    }
    // SAFETY: the struct has so many bytes, by its own word.
    let given = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), bytes) };
    if given.len() > size_of::<T>() && given[size_of::<T>()..].iter().any(|byte| *byte != 0) {
        return Err(Fault::argument(format!("{what} uses fields that this version of the library does not have")));
    }
    let mut value = default;
    let known = given.len().min(size_of::<T>());
    // SAFETY: both have that many bytes, and any of them make a `T` (promised by the caller).
    unsafe { std::ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// By how much structs may have grown in a later version. Keeps a size that was never set from being believed.
const MAX_GROWTH_BYTES: usize = 1024;

/// Bytes for reading.
///
/// # Safety
/// Null, or so many bytes that nobody writes while the result lives.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_void, len_bytes: usize, what: &str) -> Result<&'a [u8], Fault> {
    // SAFETY: promised by the caller.
    unsafe { array(pointer.cast::<u8>(), len_bytes, what) }
}

/// Bytes for writing.
///
/// # Safety
/// Null, or so many bytes that nobody else reads or writes while the result lives.
pub(crate) unsafe fn bytes_mut<'a>(pointer: *mut c_void, len_bytes: usize, what: &str) -> Result<&'a mut [u8], Fault> {
    if len_bytes == 0 {
        return Ok(&mut []);
    }
    check_range(pointer, Some(len_bytes), what)?;
    // SAFETY: not null and in the address space; the rest is promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u8>(), len_bytes) })
}

/// Lends memory to the engine.
///
/// # Safety
/// Null, or so many bytes that live, and that nobody else reads or writes, until the request's ticket is done.
pub(crate) unsafe fn lend(pointer: *mut c_void, len_bytes: usize, dtype: Dtype, what: &str) -> Result<Region, Fault> {
    if len_bytes > 0 {
        check_range(pointer, Some(len_bytes), what)?;
    }
    // SAFETY: promised by the caller; whole elements, because the length was computed from a number of them.
    Ok(unsafe { Region::from_raw_parts(pointer.cast(), len_bytes, dtype, ()) })
}

/// Refuses memory that cannot be.
fn check_range(pointer: *const c_void, len_bytes: Option<usize>, what: &str) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(null(what));
    }
    let end = len_bytes.and_then(|len_bytes| pointer.addr().checked_add(len_bytes));
    match end.map(isize::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Fault::argument(format!("{what} has more bytes than there is memory"))),
    }
}

/// Whether two buffers have bytes in common.
pub(crate) fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    !one.is_empty() && !other.is_empty() && one.start < other.end && other.start < one.end
}

/// The bytes of so many elements, if there can be so many.
pub(crate) fn len_bytes(elements: usize, dtype: Dtype) -> Result<usize, Fault> {
    elements
        .checked_mul(dtype.size_bytes())
        .ok_or_else(|| Fault::argument(format!("{elements} elements of {dtype} are more than there is memory")))
}

/// The sum of counts, if there can be so many elements.
pub(crate) fn total(counts: &[usize]) -> Result<usize, Fault> {
    let total = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
    total.ok_or_else(|| Fault::argument("the counts are more than there is memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(fault: &Fault) -> &str {
        fault.text.to_str().expect("UTF-8")
    }

    #[test]
    fn pointers_that_cannot_be_right_are_refused() {
        // SAFETY: nothing is read through any of these.
        unsafe {
            assert_eq!(words(&text(std::ptr::null(), "name").unwrap_err()), "name is a null pointer");
            assert!(optional_text(std::ptr::null(), "name").expect("absent").is_none());
            assert!(array::<u64>(std::ptr::null(), 0, "shape").expect("nothing").is_empty());
            assert!(words(&array::<u64>(std::ptr::null(), 1, "shape").unwrap_err()).contains("shape is a null"));
            let odd = std::ptr::without_provenance::<u64>(9);
            assert!(words(&array(odd, 1, "shape").unwrap_err()).contains("aligned to 8"));
            let far = std::ptr::without_provenance_mut::<c_void>(usize::MAX - 8);
            assert!(words(&bytes_mut(far, 64, "data").unwrap_err()).contains("more bytes than there is memory"));
            assert!(words(&array(odd, usize::MAX, "shape").unwrap_err()).contains("more bytes"));
        }
        let broken = [0xffu8, 0];
        // SAFETY: it ends with a zero.
        let fault = unsafe { text(broken.as_ptr().cast(), "name") }.unwrap_err();
        assert!(words(&fault).contains("not UTF-8"), "{fault:?}");
    }

    #[test]
    fn a_list_that_does_not_fit_says_how_long_it_is() {
        let mut count = MaybeUninit::new(0);
        let mut places = [0u64; 2];
        // SAFETY: there are as many places as is said.
        let fault = unsafe { put_list(&[1u64, 2, 3], places.as_mut_ptr(), 2, Some(&mut count)) }.unwrap_err();
        assert_eq!(fault.status, Status::TooSmall);
        // SAFETY: it was initialised above.
        assert_eq!(unsafe { count.assume_init() }, 3);
        // SAFETY: as above.
        unsafe { put_list(&[1u64, 2], places.as_mut_ptr(), 2, Some(&mut count)) }.expect("it fits");
        assert_eq!(places, [1, 2]);
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Options {
        size: usize,
        old: u64,
        new: u64,
    }

    #[test]
    fn structs_of_older_and_newer_headers_are_understood() {
        let default = Options { size: 24, old: 0, new: 7 };
        // SAFETY: each struct has the size that it says.
        let read = |options: &[u64]| unsafe { sized(options.as_ptr().cast(), 16, default, "options") };
        assert_eq!(read(&[16, 5]).expect("older"), Options { size: 16, old: 5, new: 7 });
        assert_eq!(read(&[24, 5, 6]).expect("the same"), Options { size: 24, old: 5, new: 6 });
        assert_eq!(read(&[32, 5, 6, 0]).expect("newer, unused"), Options { size: 32, old: 5, new: 6 });
        assert!(words(&read(&[32, 5, 6, 1]).unwrap_err()).contains("does not have"));
        assert!(words(&read(&[0, 5, 6]).unwrap_err()).contains("initialiser"));
    }

    #[test]
    fn buffers_that_touch_do_not_overlap() {
        assert!(!overlap(&(0..4), &(4..8)) && overlap(&(0..5), &(4..8)) && !overlap(&(4..4), &(0..8)));
        assert!(total(&[usize::MAX, 1]).is_err() && len_bytes(usize::MAX, Dtype::F32).is_err());
    }
}
