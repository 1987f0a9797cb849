//! What a kernel reads and writes, gathered with borrows so that the unsafe part stays in `simd`.
//!
//! [`Streams`] collects sources (read, in the order in which they are folded), outputs (written) and updates, which are
//! both at once. All have the same length. The borrow checker guarantees that nothing else overlaps, which is the
//! promise that a kernel needs.

use std::marker::PhantomData;

use farandole_plan::Dtype;

use super::kernel::Job;
use crate::finish::Finish;

/// Pointers kept without an allocation. Ranks beyond these are rare enough to allocate for.
const INLINE: usize = 16;

/// Sources and outputs of one run of a kernel.
pub(crate) struct Streams<'a> {
    sources: List<*const u8>,
    outputs: List<*mut u8>,
    len_bytes: Option<usize>,
    dtype: Dtype,
    borrows: PhantomData<&'a mut [u8]>,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(dtype: Dtype) -> Self {
        Streams {
            sources: List::new(std::ptr::null()),
            outputs: List::new(std::ptr::null_mut()),
            len_bytes: None,
            dtype,
            borrows: PhantomData,
        }
    }

    /// Adds a source.
    #[inline]
    pub(crate) fn read(&mut self, source: &'a [u8]) -> &mut Self {
        self.check(source.len());
        self.sources.push(source.as_ptr());
        self
    }

    /// Adds sources, in this order.
    #[inline]
    pub(crate) fn read_all(&mut self, sources: &[&'a [u8]]) -> &mut Self {
        for source in sources {
            self.read(source);
        }
        self
    }

    /// Adds an output.
    pub(crate) fn write(&mut self, output: &'a mut [u8]) -> &mut Self {
        self.check(output.len());
        self.outputs.push(output.as_mut_ptr());
        self
    }

    /// Adds a source that is an output as well.
    #[inline]
    pub(crate) fn update(&mut self, both: &'a mut [u8]) -> &mut Self {
        self.check(both.len());
        let start = both.as_mut_ptr();
        self.sources.push(start.cast_const());
        self.outputs.push(start);
        self
    }

    /// Adds sources that are outputs as well, in this order.
    pub(crate) fn update_all(&mut self, parts: &'a mut [&mut [u8]]) -> &mut Self {
        for part in parts {
            self.update(part);
        }
        self
    }

    /// The job for a kernel, or `None` if there is nothing to do.
    pub(super) fn job<'s>(&'s self, finish: &'s Finish) -> Option<Job<'s>> {
        let len_bytes = self.len_bytes.filter(|&len_bytes| len_bytes > 0)?;
        assert!(!self.sources.as_slice().is_empty(), "a fold has at least one contribution");
        Some(Job {
            sources: self.sources.as_slice(),
            outputs: self.outputs.as_slice(),
            len_elems: len_bytes / self.dtype.size_bytes(),
            finish: finish.of(self.dtype),
        })
    }

    #[inline]
    fn check(&mut self, len_bytes: usize) {
        let expected = *self.len_bytes.get_or_insert(len_bytes);
        assert!(len_bytes == expected, "contributions of {len_bytes} and {expected} bytes cannot be folded");
        debug_assert!(
            len_bytes.is_multiple_of(self.dtype.size_bytes()),
            "{len_bytes} bytes are no whole number of elements"
        );
    }
}

/// A list that allocates only beyond `INLINE` items.
struct List<T> {
    inline: [T; INLINE],
    len: usize,
    /// Everything, once there are more than `INLINE`.
    spilled: Vec<T>,
}

impl<T: Copy> List<T> {
    fn new(filler: T) -> Self {
        List { inline: [filler; INLINE], len: 0, spilled: Vec::new() }
    }

    #[inline]
    fn push(&mut self, item: T) {
        if let Some(place) = self.inline.get_mut(self.len) {
            *place = item;
        } else {
            self.spill(item);
        }
        self.len += 1;
    }

    #[cold]
    fn spill(&mut self, item: T) {
        if self.len == INLINE {
            self.spilled.extend_from_slice(&self.inline);
        }
        self.spilled.push(item);
    }

    fn as_slice(&self) -> &[T] {
        if self.len <= INLINE { &self.inline[..self.len] } else { &self.spilled }
    }
}
