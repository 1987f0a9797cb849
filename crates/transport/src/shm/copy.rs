//! Copies into memory that another core will read next.
//!
//! An ordinary store leaves its line in this core's cache, changed. The reader's core must then ask for every line and
//! have it handed over from cache to cache. Where the two cores share a last-level cache that runs at some 6 GB/s,
//! where they do not at 2 GB/s or less, far below what memory itself does. A streaming store goes around the caches, so
//! the reader fetches the line like any other: 10 to 12 GB/s in both cases (AMD Zen 4, two ranks, 64 KB to 256 KB; at
//! 16 KB still 7 against 2). Which cores share a cache is not ours to know (a virtual machine's cores may move), so
//! contributions and results always go out this way once they are larger than a few pages. A build with `--cfg
//! farandole_portable` knows only ordinary stores.

#![allow(unsafe_code)]

/// Below this, waiting for streaming stores to reach memory takes longer than handing the lines over: at 4 KB by 0.5 µs
/// where cores share a cache. Where they do not, the break-even point has not been measured as closely.
#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
const STREAM_MIN_BYTES: usize = 8 << 10;

/// Copies `source` to `target` around this core's cache, for a reader on another core that would otherwise have to
/// fetch every line out of it.
///
/// # Panics
/// If they differ in length.
pub fn copy_out(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "a copy is as long as its source");
    #[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
    if target.len() >= STREAM_MIN_BYTES && is_x86_feature_detected!("avx") {
        let head = target.as_ptr().align_offset(x86::BLOCK_BYTES);
        let whole = (target.len() - head) / x86::BLOCK_BYTES * x86::BLOCK_BYTES;
        target[..head].copy_from_slice(&source[..head]);
        // SAFETY: the processor has AVX; both slices have at least `head + whole` bytes and cannot overlap, and the
        // target is aligned to a block behind its head.
        unsafe { x86::stream_blocks(target.as_mut_ptr().add(head), source.as_ptr().add(head), whole) };
        target[head + whole..].copy_from_slice(&source[head + whole..]);
        return;
    }
    target.copy_from_slice(source);
}

#[cfg(all(target_arch = "x86_64", not(farandole_portable), not(miri)))]
mod x86 {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    /// Four vectors: two cache lines at a time keep the load and store ports busy.
    pub(super) const BLOCK_BYTES: usize = 128;
    const VECTORS: usize = BLOCK_BYTES / size_of::<__m256i>();

    /// # Safety
    /// The processor has AVX, both pointers are valid for `bytes` bytes, a multiple of [`BLOCK_BYTES`], they do not
    /// overlap, and `target` is aligned to [`BLOCK_BYTES`].
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn stream_blocks(target: *mut u8, source: *const u8, bytes: usize) {
        for at in (0..bytes).step_by(BLOCK_BYTES) {
            // SAFETY: `at + BLOCK_BYTES <= bytes`, and the target is aligned; the loads need no alignment.
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
        let source: Vec<u8> = (0..30_000).map(|i| (i % 251) as u8 + 1).collect();
        for start in [0, 1, 64, 77] {
            for len in [0, 1, 127, 8191, 8192, 8193, 8320, 20_000, 29_900] {
                let mut target = vec![0; 30_100];
                copy_out(&mut target[start..start + len], &source[5..5 + len]);
                assert_eq!(target[start..start + len], source[5..5 + len], "start {start}, length {len}");
                assert!(target[..start].iter().chain(&target[start + len..]).all(|&byte| byte == 0));
            }
        }
    }
}
