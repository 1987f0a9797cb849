//! Prints how fast this machine folds: for each element type, operation and level, in GB of contributions per second
//! at a size inside the second-level cache and at one far beyond all caches, next to the rate of a plain copy.
//!
//! Usage: `rates [all|folds|stores|ranks|casts] [repeat_seconds]`. To see two processes compete for memory, start two.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::{Finish, Fold, Level, OwnedBytes, adasum, cast};

const SMALL_BYTES: usize = 64 << 10;
const LARGE_BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 256 << 10;
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

fn main() {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_else(|| "all".into());
    let seconds = words.next().and_then(|word| word.parse().ok()).unwrap_or(0.05);
    println!("level in use: {}", Level::current());
    let wants = |name: &str| what == name || what == "all";
    if wants("stores") {
        beyond_caches(seconds);
    }
    if wants("ranks") {
        ranks(seconds);
    }
    if wants("casts") {
        casts(seconds);
    }
    if wants("folds") {
        folds(seconds);
    }
}

/// The best rate of `work` in GB/s, counting `bytes` for each call. The best, because whatever else runs on the machine
/// only slows it.
fn rate(bytes: usize, seconds: f64, mut work: impl FnMut()) -> f64 {
    work();
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 5 || start.elapsed().as_secs_f64() < seconds {
        let calls = ((1 << 20) / bytes).max(1);
        let begin = Instant::now();
        for _ in 0..calls {
            work();
        }
        times.push(begin.elapsed().as_secs_f64() / calls as f64);
    }
    bytes as f64 / times.into_iter().fold(f64::INFINITY, f64::min) / 1e9
}

fn buffer(len_bytes: usize) -> OwnedBytes {
    let mut bytes = OwnedBytes::zeroed(len_bytes);
    // Bytes that are small ordinary numbers in every type.
    bytes.fill(0x3c);
    bytes
}

/// acc = acc ∘ other for everything.
fn folds(seconds: f64) {
    println!("\nacc = acc ∘ other, GB/s of acc (L2 {SMALL_BYTES} B | memory {LARGE_BYTES} B)");
    for dtype in Dtype::ALL {
        for level in Level::available() {
            print!("{:9} {:9}", dtype.name(), level.name());
            for op in OPS {
                let fold = Fold::at_level(dtype, op, level);
                let finish = Finish::new(dtype, op, 3, 1.0);
                let [small, large] = [SMALL_BYTES, LARGE_BYTES].map(|bytes| {
                    let (mut acc, other) = (buffer(bytes), buffer(bytes));
                    rate(bytes, seconds, || fold.fold_ranks(black_box(&mut acc), &[], &[&other], None, finish))
                });
                print!("  {op} {small:6.1} |{large:5.1}");
            }
            println!();
        }
    }
}

/// Copies and folds beyond the caches: in pieces as a pipeline moves them.
fn beyond_caches(seconds: f64) {
    println!("\nf32 Sum in pieces of {} KB of {} MB, GB/s of one contribution", PIECE_BYTES >> 10, LARGE_BYTES >> 20);
    let [mut a, mut b, mut c] = [0; 3].map(|_| buffer(LARGE_BYTES));
    let cached = walk(seconds, |piece| black_box(&mut a[piece.clone()]).copy_from_slice(black_box(&b[piece])));
    println!("copy             {cached:6.2}");
    let fold = Fold::new(Dtype::F32, ReduceOp::Sum);
    let apart = walk(seconds, |piece| {
        let sources = [&a[piece.clone()], &b[piece.clone()]];
        fold.fold_many(black_box(&mut c[piece]), &sources, Finish::Nothing);
    });
    let ranks = walk(seconds, |piece| {
        let (own, copy) = (black_box(&mut a[piece.clone()]), &mut c[piece.clone()]);
        fold.fold_ranks(own, &[], &[&b[piece]], Some(copy), Finish::Nothing);
    });
    println!("out = a + b      {apart:6.2}\nown and copy     {ranks:6.2}");
    let in_place = walk(seconds, |piece| fold.fold(black_box(&mut a[piece.clone()]), &b[piece]));
    let all = walk(seconds, |piece| {
        fold.fold_all(&mut [black_box(&mut a[piece.clone()]), &mut b[piece]], Finish::Nothing);
    });
    println!("a += b           {in_place:6.2}\nboth = a + b     {all:6.2}");
}

/// The rate of `work` in GB/s on pieces of a large buffer, one after the other: the best quarter of all pieces, because
/// a piece is shorter than a time slice and whatever else runs on the machine only slows it.
fn walk(seconds: f64, mut work: impl FnMut(std::ops::Range<usize>)) -> f64 {
    let mut times = Vec::new();
    let start = Instant::now();
    while times.is_empty() || start.elapsed().as_secs_f64() < seconds {
        for at in (0..LARGE_BYTES).step_by(PIECE_BYTES) {
            let begin = Instant::now();
            work(at..at + PIECE_BYTES);
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    PIECE_BYTES as f64 / times[times.len() / 4] / 1e9
}

/// Many contributions in one pass.
fn ranks(seconds: f64) {
    println!("\nfold_many, GB/s of all contributions together (L2-sized | beyond the caches)");
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for ranks in [2, 3, 4, 8, 16, 32] {
            let fold = Fold::new(dtype, ReduceOp::Sum);
            let [small, large] = [256 << 10, 256 << 20].map(|total| {
                let bytes = total / (ranks + 1) / 4096 * 4096;
                let sources: Vec<OwnedBytes> = (0..ranks).map(|_| buffer(bytes)).collect();
                let sources: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();
                let mut out = buffer(bytes);
                ranks as f64
                    * rate(bytes, seconds, || fold.fold_many(black_box(&mut out), &sources, Finish::Multiply(0.5)))
            });
            println!("{:9} {ranks:3} ranks {small:6.1} | {large:6.1}", dtype.name());
        }
    }
}

/// Conversions, and Adasum.
fn casts(seconds: f64) {
    println!("\ncasts, GB/s of source plus destination (L2 | memory)");
    use Dtype::{BF16, F16, F32, F64};
    for (from, to) in [(F32, F16), (F16, F32), (F32, BF16), (BF16, F32), (F64, F32), (F32, F64)] {
        for level in Level::available() {
            let [small, large] = [16 << 10, 16 << 20].map(|elems| {
                let (src, mut dst) = (buffer(elems * from.size_bytes()), buffer(elems * to.size_bytes()));
                let bytes = src.len() + dst.len();
                rate(bytes, seconds, || cast::cast_at_level(black_box(&mut dst), to, &src, from, 0.5, level))
            });
            println!("{:9} -> {:9} {:9} {small:6.1} | {large:6.1}", from.name(), to.name(), level.name());
        }
    }
    println!("\nadasum, GB/s of one vector (L2 | memory)");
    for dtype in [F16, BF16, F32, F64] {
        let [small, large] = [SMALL_BYTES, LARGE_BYTES].map(|bytes| {
            let (mut a, b) = (buffer(bytes), buffer(bytes));
            rate(bytes, seconds, || adasum::combine(dtype, black_box(&mut a), &b))
        });
        println!("{:9} {small:6.1} | {large:6.1}", dtype.name());
    }
}
