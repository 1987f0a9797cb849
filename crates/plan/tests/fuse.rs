//! Buckets hold what they may hold, in order, at agreed places.

use std::collections::BTreeMap;
use std::sync::Arc;

use farandole_plan::fuse::{ALIGN_BYTES, BatchFusion, FusionLimits, fuse};
use farandole_plan::item::{Item, Placement};
use farandole_plan::{Batch, Collective, Dtype, Rank, ReduceOp, Span};
use proptest::prelude::*;

const SUM: Collective = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };

fn item(name: &str, collective: Collective, dtype: Dtype, shape: &[u64], rows: &[u64]) -> Arc<Item> {
    Arc::new(Item {
        name: name.into(),
        collective,
        dtype,
        shape: shape.to_vec(),
        device: Placement::Cpu,
        rows: rows.to_vec(),
        joined: vec![],
        batch: None,
        priority: 0,
    })
}

fn limits(threshold_bytes: u64) -> FusionLimits {
    let (stage_below_bytes, alone_from_bytes) = (1024, u64::MAX);
    FusionLimits { size: 3, threshold_bytes, stage_below_bytes, alone_from_bytes, batches: BatchFusion::WithOthers }
}

fn positions(items: &[Arc<Item>], after: impl Fn(usize) -> usize, threshold_bytes: u64) -> Vec<Vec<usize>> {
    fuse(items, after, &limits(threshold_bytes)).into_iter().map(|bucket| bucket.positions).collect()
}

fn sums(sizes: &[(Dtype, u64)]) -> Vec<Arc<Item>> {
    sizes.iter().enumerate().map(|(n, (dtype, elems))| item(&n.to_string(), SUM, *dtype, &[*elems], &[])).collect()
}

#[test]
fn look_ahead_passes_other_element_types() {
    let mixed = sums(&[(Dtype::F32, 16), (Dtype::F16, 32), (Dtype::F32, 16), (Dtype::F16, 32)]);
    assert_eq!(positions(&mixed, |_| 0, 1 << 20), [vec![0, 2], vec![1, 3]]);
}

#[test]
fn look_ahead_passes_no_more_than_a_threshold() {
    let mixed = sums(&[(Dtype::F32, 16), (Dtype::F16, 32), (Dtype::F16, 32), (Dtype::F16, 32), (Dtype::F32, 16)]);
    assert_eq!(positions(&mixed, |_| 0, 128), [vec![0], vec![1, 2], vec![3], vec![4]]);
}

#[test]
fn zero_turns_fusion_off_and_large_items_travel_alone() {
    let items = sums(&[(Dtype::F32, 16), (Dtype::F32, 1000), (Dtype::F32, 16), (Dtype::F32, 16)]);
    assert_eq!(positions(&items, |_| 0, 0), [vec![0], vec![1], vec![2], vec![3]]);
    assert_eq!(positions(&items, |_| 0, 256), [vec![0], vec![1], vec![2, 3]], "nobody overtakes the large one");
}

#[test]
fn an_allreduce_from_a_size_on_travels_alone_and_others_fuse_past_it() {
    let places = |items: &[Arc<Item>]| -> Vec<Vec<usize>> {
        let limits = FusionLimits { alone_from_bytes: 1024, ..limits(1 << 20) };
        fuse(items, |_| 0, &limits).into_iter().map(|bucket| bucket.positions).collect()
    };
    let items = sums(&[(Dtype::F32, 240), (Dtype::F32, 256), (Dtype::F32, 16), (Dtype::F32, 300), (Dtype::F32, 16)]);
    assert_eq!(places(&items), [vec![0, 2, 4], vec![1], vec![3]]);
    let adasum = Collective::Allreduce { op: ReduceOp::Adasum, prescale: 1.0, postscale: 1.0 };
    let pair =
        |collective: Collective| ["a", "b"].map(|name| item(name, collective.clone(), Dtype::F32, &[512], &[1; 3]));
    assert_eq!(places(&pair(adasum)), [vec![0, 1]], "it is copied anyway");
    assert_eq!(places(&pair(SUM)), [vec![0], vec![1]]);
}

#[test]
fn an_item_joins_no_bucket_that_it_may_wait_for() {
    let items = sums(&[(Dtype::F32, 16), (Dtype::F16, 16), (Dtype::F32, 16), (Dtype::F32, 16)]);
    // The third may depend on the second: it must not be in the first bucket, which runs before.
    assert_eq!(positions(&items, |at| if at == 2 { 2 } else { 0 }, 1 << 20), [vec![0], vec![1], vec![2, 3]]);
}

#[test]
fn different_operations_and_factors_do_not_mix() {
    let scaled = Collective::Allreduce { op: ReduceOp::Sum, prescale: 0.5, postscale: 1.0 };
    let max = Collective::Allreduce { op: ReduceOp::Max, prescale: 1.0, postscale: 1.0 };
    let items: Vec<_> = [SUM, scaled, max, SUM].into_iter().map(|c| item("x", c, Dtype::F32, &[4], &[])).collect();
    assert_eq!(positions(&items, |_| 0, 1 << 20), [vec![0, 3], vec![1], vec![2]]);
}

#[test]
fn batches_fuse_with_others_unless_they_are_kept_apart() {
    let member = |batch: Option<&str>| {
        let batch = batch.map(|name| Batch { name: name.into(), members: 2 });
        Arc::new(Item { batch, ..(*item("x", SUM, Dtype::F32, &[4], &[])).clone() })
    };
    let items = [None, Some("a"), Some("a"), Some("b"), Some("b"), None].map(member);
    assert_eq!(positions(&items, |_| 0, 1 << 20), [vec![0, 1, 2, 3, 4, 5]]);
    let apart = fuse(&items, |_| 0, &FusionLimits { batches: BatchFusion::Apart, ..limits(1 << 20) });
    let apart: Vec<Vec<usize>> = apart.into_iter().map(|bucket| bucket.positions).collect();
    assert_eq!(apart, [vec![0], vec![1, 2], vec![3, 4], vec![5]]);
}

#[test]
fn tensors_start_at_aligned_places() {
    let buckets = fuse(&sums(&[(Dtype::F32, 3), (Dtype::F32, 17), (Dtype::F32, 1)]), |_| 0, &limits(1 << 20));
    let plan = &buckets[0].plan;
    let spans: Vec<Span> = plan.parts.iter().map(|part| part.span).collect();
    assert_eq!(spans, [Span { start: 0, len: 3 }, Span { start: 16, len: 17 }, Span { start: 48, len: 1 }]);
    assert_eq!((plan.elems, plan.staged), (64, true));
}

#[test]
fn one_tensor_is_laid_out_as_the_caller_has_it() {
    let alone = |collective, shape: &[u64], rows: &[u64]| {
        let items = [item("x", collective, Dtype::F32, shape, rows)];
        Arc::clone(&fuse(&items, |_| 0, &limits(1 << 20))[0].plan)
    };
    let gather = alone(Collective::Allgather, &[0, 5], &[2, 0, 1]);
    assert_eq!(gather.blocks, [Span { start: 0, len: 10 }, Span { start: 10, len: 0 }, Span { start: 10, len: 5 }]);
    assert_eq!((gather.elems, gather.staged), (15, false));
    let scatter = alone(Collective::ReduceScatter { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }, &[5, 2], &[]);
    assert_eq!(scatter.blocks, [Span { start: 0, len: 4 }, Span { start: 4, len: 4 }, Span { start: 8, len: 2 }]);
    assert!(alone(SUM, &[10], &[]).staged && !alone(SUM, &[1000], &[]).staged);
}

#[test]
fn only_staged_reductions_and_barriers_hold_until_all_have_entered() {
    let holds = |collective, shape: &[u64], rows: &[u64]| {
        fuse(&[item("x", collective, Dtype::F32, shape, rows)], |_| 0, &limits(1 << 20))[0]
            .plan
            .holds_until_all_entered()
    };
    assert!(holds(SUM, &[4], &[]) && holds(Collective::Barrier, &[], &[]));
    assert!(!holds(SUM, &[0], &[]), "an empty one finishes at once");
    assert!(!holds(SUM, &[1000], &[]), "this one works in the caller's memory");
    assert!(!holds(Collective::Broadcast { root: Rank(0) }, &[4], &[]));
    assert!(!holds(Collective::Allgather, &[0], &[1, 1, 1]));
}

#[test]
fn the_hash_tells_buckets_apart() {
    let hash = |items: &[Arc<Item>], size| {
        fuse(items, |_| 0, &FusionLimits { size, stage_below_bytes: 0, ..limits(1 << 20) })[0].plan.hash
    };
    let one = sums(&[(Dtype::F32, 3)]);
    let all = [
        hash(&one, 2),
        hash(&one, 3),
        hash(&sums(&[(Dtype::F32, 4)]), 2),
        hash(&sums(&[(Dtype::F16, 3)]), 2),
        hash(&sums(&[(Dtype::F32, 3), (Dtype::F32, 3)]), 2),
        hash(&[item("y", SUM, Dtype::F32, &[3], &[])], 2),
    ];
    for (at, hash) in all.iter().enumerate() {
        assert!(!all[at + 1..].contains(hash), "{all:?}");
    }
    assert_eq!(hash(&one, 2), hash(&sums(&[(Dtype::F32, 3)]), 2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_item_is_in_one_bucket_and_none_overtakes_its_kind(
        kinds in proptest::collection::vec((0..4_usize, 0..60_u64, any::<bool>()), 1..40),
        threshold in prop_oneof![Just(0), 64..4096_u64],
        dependent in proptest::collection::vec(0..40_usize, 40),
    ) {
        let items: Vec<Arc<Item>> = kinds.iter().enumerate().map(|(n, (kind, rows, wide))| {
            let dtype = if *wide { Dtype::F64 } else { Dtype::F16 };
            let scatter = Collective::ReduceScatter { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
            match kind {
                0 => item(&n.to_string(), SUM, dtype, &[*rows], &[]),
                1 => item(&n.to_string(), Collective::Allgather, dtype, &[0, 2], &[*rows, 0, 1]),
                2 => item(&n.to_string(), scatter, dtype, &[*rows, 3], &[]),
                _ => item(&n.to_string(), Collective::Broadcast { root: Rank(1) }, dtype, &[*rows], &[]),
            }
        }).collect();
        let after = |at: usize| dependent[at].min(at);
        let buckets = fuse(&items, after, &limits(threshold));
        let mut seen: Vec<usize> = buckets.iter().flat_map(|bucket| bucket.positions.clone()).collect();
        let mut last_of_kind = BTreeMap::new();
        for at in &seen {
            let (kind, _, wide) = kinds[*at];
            prop_assert!(last_of_kind.insert((kind, wide), *at).is_none_or(|last| last < *at));
        }
        let firsts: Vec<usize> = buckets.iter().map(|bucket| bucket.positions[0]).collect();
        prop_assert!(firsts.is_sorted());
        for bucket in &buckets {
            prop_assert!(bucket.positions.iter().all(|at| after(*at) <= bucket.positions[0] || *at == bucket.positions[0]));
            prop_assert!(bucket.positions.len() == 1 || bucket.plan.bytes() <= threshold);
            check_layout(bucket)?;
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..items.len()).collect::<Vec<_>>());
    }
}

/// Pieces do not overlap, lie inside, and start at aligned places where there are several.
fn check_layout(bucket: &farandole_plan::fuse::Fused) -> Result<(), TestCaseError> {
    let plan = &bucket.plan;
    let several = plan.parts.len() > 1;
    let spans: Vec<Span> = if plan.blocks.is_empty() {
        plan.parts.iter().map(|part| part.span).collect()
    } else {
        let of_rank = |rank| (0..plan.parts.len()).map(move |part| plan.piece(part, Rank(rank)));
        (0..3).flat_map(of_rank).collect()
    };
    let mut end = 0;
    for span in spans {
        prop_assert!(span.start >= end && span.end() <= plan.elems);
        prop_assert!(!several || (span.start * plan.dtype.size_bytes() as u64).is_multiple_of(ALIGN_BYTES));
        end = span.end();
    }
    Ok(())
}
