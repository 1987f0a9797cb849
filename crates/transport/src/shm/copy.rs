//! Copies between a core's own memory and memory that another core has just written or will read next.
//!
//! The C library copies anything above a few kilobytes with one string instruction. On several processors that instruction
//! falls off a cliff when the lines belong to another core's cache and the two addresses lie unluckily
//! within their pages: 1.5 GB/s was measured where plain vector moves reach 20 (AMD Zen 4, two ranks, 64 KB to 256 MB).
//! Shared-memory copies are all of this kind, so they are made of vector moves here.

#![allow(unsafe_code)]

/// Below this the C library does not use the string instruction, and calling it is cheapest.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const VECTOR_MIN_BYTES: usize = 512;

/// Copies `source` to `target`.
///
/// # Panics
/// If they differ in length.
pub fn copy(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "a copy is as long as its source");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if target.len() >= VECTOR_MIN_BYTES && is_x86_feature_detected!("avx") {
        let whole = target.len() / x86::BLOCK_BYTES * x86::BLOCK_BYTES;
        // SAFETY: the processor has AVX; both slices have at least `whole` bytes and cannot overlap.
        unsafe { x86::copy_blocks(target.as_mut_ptr(), source.as_ptr(), whole) };
        target[whole..].copy_from_slice(&source[whole..]);
        return;
    }
    target.copy_from_slice(source);
}

/// Copies `source` to `target` around this core's cache, for a reader on another core that would otherwise have to fetch
/// every line out of it.
///
/// # Panics
/// If they differ in length.
pub fn copy_out(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "a copy is as long as its source");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if target.len() >= VECTOR_MIN_BYTES && is_x86_feature_detected!("avx") {
        let head = target.as_ptr().align_offset(x86::BLOCK_BYTES);
        let whole = (target.len() - head) / x86::BLOCK_BYTES * x86::BLOCK_BYTES;
        target[..head].copy_from_slice(&source[..head]);
        // SAFETY: the processor has AVX; both slices have at least `head + whole` bytes and cannot overlap, and the target
        // is aligned to a block behind its head.
        unsafe { x86::stream_blocks(target.as_mut_ptr().add(head), source.as_ptr().add(head), whole) };
        target[head + whole..].copy_from_slice(&source[head + whole..]);
        return;
    }
    target.copy_from_slice(source);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256};

    /// Four vectors: two cache lines at a time keep the load and store ports busy.
    pub(super) const BLOCK_BYTES: usize = 128;
    const VECTORS: usize = BLOCK_BYTES / size_of::<__m256i>();

    /// # Safety
    /// The processor has AVX, both pointers are valid for `bytes` bytes, a multiple of [`BLOCK_BYTES`], and do not overlap.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy_blocks(target: *mut u8, source: *const u8, bytes: usize) {
        for at in (0..bytes).step_by(BLOCK_BYTES) {
            // SAFETY: `at + BLOCK_BYTES <= bytes`; the unaligned forms need no alignment.
            unsafe {
                let from = source.add(at).cast::<__m256i>();
                let to = target.add(at).cast::<__m256i>();
                let block: [__m256i; VECTORS] = std::array::from_fn(|i| _mm256_loadu_si256(from.add(i)));
                for (i, vector) in block.into_iter().enumerate() {
                    _mm256_storeu_si256(to.add(i), vector);
                }
            }
        }
    }

    /// # Safety
    /// As for [`copy_blocks`], and `target` is aligned to [`BLOCK_BYTES`].
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn stream_blocks(target: *mut u8, source: *const u8, bytes: usize) {
        for at in (0..bytes).step_by(BLOCK_BYTES) {
            // SAFETY: as above; the target is aligned.
            unsafe {
                let from = source.add(at).cast::<__m256i>();
                let to = target.add(at).cast::<__m256i>();
                let block: [__m256i; VECTORS] = std::array::from_fn(|i| _mm256_loadu_si256(from.add(i)));
                for (i, vector) in block.into_iter().enumerate() {
                    _mm256_stream_si256(to.add(i), vector);
                }
            }
        }
        // Streaming stores are not ordered before later ordinary ones, such as the mark that shows them.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_no_other_is_copied() {
        let source: Vec<u8> = (0..3000).map(|i| (i % 251) as u8 + 1).collect();
        for how in [copy, copy_out] {
            for start in [0, 1, 64, 77] {
                for len in [0, 1, 127, 511, 512, 513, 640, 2048, 2900] {
                    let mut target = vec![0; 3100];
                    how(&mut target[start..start + len], &source[5..5 + len]);
                    assert_eq!(target[start..start + len], source[5..5 + len], "start {start}, length {len}");
                    assert!(target[..start].iter().chain(&target[start + len..]).all(|&byte| byte == 0));
                }
            }
        }
    }
}
