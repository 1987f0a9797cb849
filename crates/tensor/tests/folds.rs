//! Every element type, operation and level against a plain reference, bit for bit, at every alignment.

mod common;

use common::{FOLDS, Random, Skewed, brief_lengths, is_brief, reference};
use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::finish::Divisor;
use farandole_tensor::{Finish, Fold, Level};

/// Lengths around every vector and tile boundary.
fn lengths() -> Vec<usize> {
    if is_brief() { brief_lengths() } else { (0..=130).chain([255, 256, 257, 1023, 1024, 1025, 2500]).collect() }
}

fn finishes(dtype: Dtype) -> Vec<Finish> {
    if dtype == Dtype::Bool {
        return vec![Finish::Nothing, Finish::Multiply(0.5)];
    }
    vec![Finish::Nothing, Finish::Multiply(-0.37), Finish::Divide(Divisor::new(3))]
}

/// Runs `check` for every element type, operation and available level.
fn for_all(check: impl Fn(Dtype, ReduceOp, Fold, &str)) {
    for dtype in Dtype::ALL {
        for op in FOLDS {
            for level in Level::available() {
                check(dtype, op, Fold::at_level(dtype, op, level), &format!("{dtype} {op} {level}"));
            }
        }
    }
}

#[test]
fn two_contributions_fold_in_place_and_apart_at_every_length() {
    for_all(|dtype, op, fold, what| {
        let mut random = Random(7);
        for len in lengths() {
            let (a, b) = (random.elements(dtype, len), random.elements(dtype, len));
            let expected = reference(dtype, op, &[&a, &b], &Finish::Nothing);
            let what = format!("{what} x {len}");
            let (skew_a, skew_b) = (len % 4, len / 4 % 4);
            let (mut acc, other) = (Skewed::new(&a, skew_a), Skewed::new(&b, skew_b));
            fold.fold(acc.get_mut(), other.get());
            acc.assert(&expected, &what);
            let mut out = Skewed::new(&vec![0; a.len()], skew_b);
            fold.fold_many(out.get_mut(), &[&a, &b], Finish::Nothing);
            out.assert(&expected, &what);
        }
    });
}

#[test]
fn ranks_fold_in_order_with_any_position_of_the_own_one() {
    let brief = is_brief();
    let lengths: &[usize] = if cfg!(miri) {
        &[5]
    } else if brief {
        &[0, 7, 130]
    } else {
        &[0, 1, 7, 33, 130, 1500]
    };
    let places: &[(usize, usize)] =
        if brief { &[(0, 1), (2, 1)] } else { &[(0, 0), (0, 1), (1, 0), (1, 1), (0, 3), (3, 2), (9, 10)] };
    for_all(|dtype, op, fold, what| {
        let mut random = Random(11);
        for &len in lengths {
            for &(before, after) in places {
                let sources: Vec<Vec<u8>> = (0..=before + after).map(|_| random.elements(dtype, len)).collect();
                let sources: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();
                for finish in finishes(dtype) {
                    let expected = reference(dtype, op, &sources, &finish);
                    let what = format!("{what} x {len}, {before} before, {after} after, {finish:?}");
                    let mut own = Skewed::new(sources[before], 1);
                    let mut copy = Skewed::new(&vec![0; own.get().len()], 2);
                    let (head, tail) = (&sources[..before], &sources[before + 1..]);
                    fold.fold_ranks(own.get_mut(), head, tail, None, finish);
                    own.assert(&expected, &what);
                    let mut own = Skewed::new(sources[before], 0);
                    fold.fold_ranks(own.get_mut(), head, tail, Some(copy.get_mut()), finish);
                    own.assert(&expected, &what);
                    copy.assert(&expected, &what);
                }
            }
        }
    });
}

#[test]
fn all_parts_get_the_result_and_sources_stay() {
    // Elements, and parts that have so many each.
    let shapes: &[(usize, usize)] = if cfg!(miri) {
        &[(3, 1), (3, 18)]
    } else if is_brief() {
        &[(1100, 1), (1100, 3), (70, 18)]
    } else {
        &[(1100, 1), (1100, 2), (1100, 3), (1100, 5), (1100, 18)]
    };
    for_all(|dtype, op, fold, what| {
        let mut random = Random(13);
        for &(len, parts) in shapes {
            let sources: Vec<Vec<u8>> = (0..parts).map(|_| random.elements(dtype, len)).collect();
            let borrowed: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();
            for finish in finishes(dtype) {
                let expected = reference(dtype, op, &borrowed, &finish);
                let mut out = Skewed::new(&vec![0; expected.len()], 3);
                fold.fold_many(out.get_mut(), &borrowed, finish);
                out.assert(&expected, what);
                let mut copies: Vec<Skewed> = sources.iter().map(|source| Skewed::new(source, 1)).collect();
                fold.fold_all(&mut copies.iter_mut().map(Skewed::get_mut).collect::<Vec<_>>(), finish);
                copies.iter().for_each(|copy| copy.assert(&expected, what));
            }
        }
    });
}

#[test]
fn a_copy_of_the_result_may_have_any_alignment() {
    let lengths: &[usize] = if cfg!(miri) {
        &[70]
    } else if is_brief() {
        &[0, 1, 63, 64, 200, 1025]
    } else {
        &[0, 1, 63, 64, 200, 1025, 5000]
    };
    for_all(|dtype, op, fold, what| {
        let mut random = Random(17);
        for &len in lengths {
            let (a, b) = (random.elements(dtype, len), random.elements(dtype, len));
            let expected = reference(dtype, op, &[&a, &b], &Finish::Nothing);
            for skew in [0, 1, 8] {
                let (mut own, mut copy) = (Skewed::new(&a, 0), Skewed::new(&a, skew));
                fold.fold_ranks(own.get_mut(), &[], &[&b], Some(copy.get_mut()), Finish::Nothing);
                own.assert(&expected, what);
                copy.assert(&expected, what);
                fold.fold_many(copy.get_mut(), &[&a, &b], Finish::Nothing);
                copy.assert(&expected, what);
            }
        }
    });
}

#[test]
fn the_neutral_element_changes_nothing() {
    for_all(|dtype, op, fold, what| {
        let data =
            reference(dtype, op, &[&Random(19).elements(dtype, if cfg!(miri) { 6 } else { 40 })], &Finish::Nothing);
        let mut acc = vec![0; data.len()];
        fold.neutral(&mut acc);
        fold.fold(&mut acc, &data);
        // Zero plus −0 is +0, the one thing that a sum does not keep.
        let equal = if dtype.is_float() && matches!(op, ReduceOp::Sum | ReduceOp::Average) {
            let mut positive = data.clone();
            fold.fold(&mut positive, &vec![0; data.len()]);
            acc == positive
        } else {
            acc == data
        };
        assert!(equal, "{what}");
        let mut out = vec![9; data.len()];
        fold.fold_many(&mut out, &[], Finish::Nothing);
        let mut neutral = vec![0; data.len()];
        fold.neutral(&mut neutral);
        assert_eq!(out, neutral, "{what}");
    });
}

#[test]
#[should_panic(expected = "cannot be folded")]
fn contributions_of_different_length_are_refused() {
    Fold::new(Dtype::U8, ReduceOp::Sum).fold(&mut [0; 3], &[0; 4]);
}

#[test]
#[should_panic(expected = "Adasum is not a fold")]
fn adasum_is_refused() {
    Fold::new(Dtype::F32, ReduceOp::Adasum);
}
