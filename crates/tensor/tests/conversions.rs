//! Casts and scaling against a plain reference on every level, and data that verifies collectives.

mod common;

use common::{FLOATS, FOLDS, Random, Skewed, brief_lengths, from_f64, is_brief, reference, to_f64};
use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::{Finish, Fold, Level, cast, copy_scaled, scale, verifiable};

fn cast_reference(from: Dtype, to: Dtype, src: &[u8], factor: f64) -> Vec<u8> {
    src.chunks_exact(from.size_bytes())
        .flat_map(|bytes| {
            let value = to_f64(from, bytes);
            let wide = from == Dtype::F64 || to == Dtype::F64;
            from_f64(to, if wide { value * factor } else { f64::from(value as f32 * factor as f32) })
        })
        .collect()
}

#[test]
fn every_pair_of_floats_converts_on_every_level() {
    let all = || (0..70).chain([127, 128, 129, 1024, 1027, 3000]).collect();
    let lengths = if is_brief() { brief_lengths() } else { all() };
    for level in Level::available() {
        for from in FLOATS {
            for to in FLOATS {
                let mut random = Random(23);
                for &len in &lengths {
                    for factor in [1.0, 0.3, 65536.0] {
                        let src = Skewed::new(&random.elements(from, len), len % 3);
                        let expected = cast_reference(from, to, src.get(), factor);
                        let mut dst = Skewed::new(&vec![0; expected.len()], 1 + len % 2);
                        cast::cast_at_level(dst.get_mut(), to, src.get(), from, factor, level);
                        dst.assert(&expected, &format!("{from} to {to} x {len} on {level}"));
                    }
                }
            }
        }
    }
}

#[test]
fn every_half_converts_on_every_level() {
    let step = if is_brief() { 397 } else { 1 };
    let halves: Vec<u8> = (0..=u16::MAX).step_by(step).flat_map(u16::to_ne_bytes).collect();
    for level in Level::available() {
        for from in [Dtype::F16, Dtype::BF16] {
            let mut singles = vec![0; halves.len() * 2];
            cast::cast_at_level(&mut singles, Dtype::F32, &halves, from, 1.0, level);
            assert_eq!(singles, cast_reference(from, Dtype::F32, &halves, 1.0), "{from} on {level}");
            let mut back = vec![0; halves.len()];
            cast::cast_at_level(&mut back, from, &singles, Dtype::F32, 1.0, level);
            assert_eq!(back, cast_reference(Dtype::F32, from, &singles, 1.0), "{from} on {level}");
        }
    }
}

#[test]
fn scaling_is_the_finish_of_a_single_contribution() {
    for dtype in Dtype::ALL {
        let data = Random(29).elements(dtype, if cfg!(miri) { 20 } else { 1300 });
        for factor in [1.0, 0.0, -1.5, 1e30] {
            let mut expected = reference(dtype, ReduceOp::Sum, &[&data], &Finish::Multiply(factor));
            if factor == 1.0 || dtype == Dtype::Bool {
                // Nothing is calculated, so nothing is made canonical either.
                expected.clone_from(&data);
            }
            let mut copied = vec![0; data.len()];
            copy_scaled(&mut copied, &data, dtype, factor);
            assert_eq!(copied, expected, "{dtype} {factor}");
            let mut scaled = data.clone();
            scale(dtype, &mut scaled, factor);
            assert_eq!(scaled, expected, "{dtype} {factor}");
        }
    }
}

#[test]
fn verifiable_data_is_exact_in_any_order() {
    let (len, worlds): (usize, &[u64]) = if is_brief() { (5, &[1, 3]) } else { (97, &[1, 2, 3, 4, 7, 16, 33, 300]) };
    for dtype in Dtype::ALL {
        for op in FOLDS {
            for &ranks in worlds {
                let fold = Fold::new(dtype, op);
                let finish = Finish::new(dtype, op, ranks, 1.0);
                let mut expected = vec![0; len * dtype.size_bytes()];
                verifiable::expected(dtype, op, ranks, 5, finish, &mut expected);
                let contributions: Vec<Vec<u8>> = (0..ranks)
                    .map(|rank| {
                        let mut data = expected.clone();
                        verifiable::fill(dtype, op, rank, ranks, 5, &mut data);
                        data
                    })
                    .collect();
                for stride in [1, 2, 3, 5, 7] {
                    // Any order, rounded to the element type after every single fold, as a ring would.
                    let mut acc = vec![0; expected.len()];
                    fold.neutral(&mut acc);
                    for first in 0..stride.min(ranks as usize) {
                        contributions.iter().skip(first).step_by(stride).for_each(|data| fold.fold(&mut acc, data));
                    }
                    finish.apply(dtype, &mut acc);
                    assert_eq!(acc, expected, "{dtype} {op} over {ranks} ranks in strides of {stride}");
                }
            }
        }
    }
}

#[test]
fn verifiable_data_differs_between_ranks_and_seeds() {
    for dtype in Dtype::ALL {
        for op in FOLDS {
            let make = |rank, seed| {
                let mut data = vec![0; 64 * dtype.size_bytes()];
                verifiable::fill(dtype, op, rank, 4, seed, &mut data);
                data
            };
            assert_ne!(make(0, 1), make(1, 1), "{dtype} {op}");
            assert_ne!(make(0, 1), make(0, 2), "{dtype} {op}");
        }
    }
}
