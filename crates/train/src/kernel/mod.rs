//! Operations that Burn does not have, or has slower, computed on the processor in safe Rust.
//!
//! Each is an extension of Burn's processor backend with a backward of its own. The arithmetic is in files that know
//! slices and nothing of tensors; the files `*_op.rs` bring tensors to it and gradients back. Inner loops are compiled
//! several times, for the vector units that a processor may have, and the best is taken when the program runs.
//!
//! Results do not depend on the number of threads: work is cut at places that follow from shapes alone, and sums over
//! pieces are taken in the pieces' order.

mod conv;
pub mod conv_op;
mod depthwise;
mod mirror;
pub mod norm;
pub mod norm_op;
mod planes;
mod tile;

use rayon::prelude::*;

/// Below so many numbers a piece of work is not worth the handing over to another thread.
const LEAST_PARALLEL: usize = 16 * 1024;

/// Calls `work` with the number and the piece for each piece of `piece` numbers of `output`, on several threads where
/// that pays.
fn for_each_piece(output: &mut [f32], piece: usize, work: impl Fn(usize, &mut [f32]) + Sync + Send) {
    if piece == 0 {
        return;
    }
    if rayon::current_num_threads() == 1 || output.len() < LEAST_PARALLEL {
        output.chunks_mut(piece).enumerate().for_each(|(number, piece)| work(number, piece));
    } else {
        output.par_chunks_mut(piece).enumerate().for_each(|(number, piece)| work(number, piece));
    }
}

/// What `work` gives for each number below `count`, in order; on several threads where there is `size` work in all that
/// pays.
fn for_each_number<R: Send>(count: usize, size: usize, work: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
    if rayon::current_num_threads() == 1 || size < LEAST_PARALLEL {
        (0..count).map(work).collect()
    } else {
        (0..count).into_par_iter().map(work).collect()
    }
}

/// Numbers between -1 and 1, for tests: they have no pattern that a mistake could hide in.
#[cfg(test)]
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut chance = farandole_data::chance::Chance::new(seed, farandole_data::chance::StreamPurpose::World, 0, 0);
    std::iter::repeat_with(|| chance.between(-1.0, 1.0)).take(count).collect()
}
