//! Every schedule of every collective, for every small world and some large ones, checked by running all ranks
//! symbolically.

use std::collections::BTreeMap;

use farandole_plan::algorithm::{self, Algorithm, Tuning};

use farandole_plan::{Rank, Schedule, Span, Step, Topology};
use proptest::prelude::*;

use crate::verify::{self, Flaw};

/// Sizes so small that every way of cutting happens with a handful of elements.
const TIGHT: Tuning = Tuning { segment_elems: 5, tile_elems: 7, slots: 3, small_elems: 9 };
/// Sizes for large worlds: few segments, since it is the number of ranks that is of interest.
const COARSE: Tuning = Tuning { segment_elems: 4096, tile_elems: 4096, slots: 3, small_elems: 64 };

fn ranks(n: usize) -> impl Iterator<Item = Rank> {
    (0..n).map(Rank::from)
}

fn check_allreduce(algorithm: Algorithm, elems: u64, topology: &Topology, tuning: &Tuning) -> Result<(), Flaw> {
    let schedule = |me| algorithm::allreduce(algorithm, elems, topology, me, tuning);
    let schedules: Vec<Schedule> = ranks(topology.size()).map(schedule).collect();
    verify::allreduce(&schedules, elems, topology)
}

/// Chunks one after the other, with these lengths.
fn chunks(lens: &[u64]) -> Vec<Span> {
    let mut start = 0;
    let mut spans = Vec::new();
    for &len in lens {
        spans.push(Span { start, len });
        start += len;
    }
    spans
}

fn tunings() -> impl Strategy<Value = Tuning> {
    (1_u64..40, 1_u64..40, 1_u32..6, 0_u64..60).prop_map(|(segment_elems, tile_elems, slots, small_elems)| Tuning {
        segment_elems,
        tile_elems,
        slots,
        small_elems,
    })
}

/// Ranks thrown onto hosts at random: uneven, not contiguous.
fn topologies(largest: usize) -> impl Strategy<Value = Topology> {
    (1..=largest, 1_u32..8).prop_flat_map(|(size, hosts)| {
        prop::collection::vec(0..hosts, size).prop_map(|names| Topology::from_host_names(&names))
    })
}

/// Few elements often, many sometimes.
fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..5, 0_u64..70, 0_u64..1000]
}

/// `per_host` ranks on each host, fewer on the last if they do not divide evenly.
fn filled(n: usize, per_host: usize) -> Topology {
    Topology::from_host_names(&(0..n).map(|rank| rank / per_host).collect::<Vec<_>>())
}

#[test]
fn every_allreduce_holds_in_every_small_world() {
    for n in 1..=33 {
        for topology in [Topology::one_host(n), Topology::all_apart(n), filled(n, 2), filled(n, 5)] {
            for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.fits(&topology)) {
                for elems in [0, 1, n as u64 - 1, 2 * n as u64 + 1] {
                    if let Err(flaw) = check_allreduce(algorithm, elems, &topology, &TIGHT) {
                        panic!("{algorithm}, {n} ranks on {} hosts, {elems} elements: {flaw}", topology.hosts());
                    }
                }
            }
        }
    }
}

/// The phase between hosts alone, in slices; with one rank on each host that is the whole allreduce.
#[test]
fn every_allreduce_across_hosts_holds_however_its_shard_is_sliced() {
    for n in 1..=13 {
        let topology = Topology::all_apart(n);
        for (elems, slice_elems) in [(0, 3), (1, 1), (9, 4), (10, 1), (41, 1), (41, 6), (97, 20), (97, 0)] {
            let sliced = |me| algorithm::allreduce_across(elems, slice_elems, &topology, me, &TIGHT);
            let schedules: Vec<Schedule> = ranks(n).map(|me| sliced(me).schedule).collect();
            if let Err(flaw) = verify::allreduce(&schedules, elems, &topology) {
                panic!("{n} hosts, {elems} elements, {slice_elems} in a slice: {flaw}");
            }
        }
    }
}

/// For each pair of ranks, whether the messages from the one to the other carry results, as the sender or the receiver
/// sees it.
fn result_messages(schedules: &[Schedule], elems: u64) -> [BTreeMap<(Rank, Rank), Vec<bool>>; 2] {
    let [mut sent, mut received] = [BTreeMap::new(), BTreeMap::new()];
    for (me, schedule) in schedules.iter().enumerate() {
        let results = schedule.results(elems);
        for (step, &carries) in schedule.steps.iter().zip(&results.carried) {
            match *step {
                Step::Send { to, .. } => sent.entry((Rank::from(me), to)).or_insert_with(Vec::new).push(carries),
                Step::Recv { from, .. } => {
                    received.entry((from, Rank::from(me))).or_insert_with(Vec::new).push(carries)
                }
                _ => {}
            }
        }
    }
    [sent, received]
}

#[test]
fn sender_and_receiver_agree_which_messages_carry_results() {
    let messages = [Algorithm::Ring, Algorithm::Doubling, Algorithm::Halving, Algorithm::Tree, Algorithm::Hierarchical];
    for n in 1..=19 {
        for topology in [Topology::one_host(n), Topology::all_apart(n), filled(n, 2), filled(n, 5)] {
            for algorithm in messages {
                for elems in [0, 1, n as u64 - 1, 2 * n as u64 + 1, 90] {
                    let schedule = |me| algorithm::allreduce(algorithm, elems, &topology, me, &TIGHT);
                    let schedules: Vec<Schedule> = ranks(n).map(schedule).collect();
                    let [sent, received] = result_messages(&schedules, elems);
                    assert_eq!(
                        sent,
                        received,
                        "{algorithm}, {n} ranks on {} hosts, {elems} elements",
                        topology.hosts()
                    );
                }
            }
        }
    }
}

#[test]
fn every_element_becomes_a_result_once_where_chunks_have_owners() {
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        let topology = Topology::all_apart(7);
        let schedules = ranks(7).map(|me| algorithm::allreduce(algorithm, 100, &topology, me, &TIGHT));
        let made: u64 = schedules.flat_map(|schedule| schedule.results(100).made_here).map(|span| span.len).sum();
        assert_eq!(made, 100, "{algorithm}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn allreduce_holds_on_any_placement(topology in topologies(33), elems in sizes(), tuning in tunings()) {
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.fits(&topology)) {
            let outcome = check_allreduce(algorithm, elems, &topology, &tuning);
            prop_assert!(outcome.is_ok(), "{algorithm}: {}", outcome.unwrap_err());
        }
    }

    #[test]
    fn allreduce_holds_on_one_host(n in 1_usize..=33, elems in 0_u64..300, tuning in tunings()) {
        let topology = Topology::one_host(n);
        for algorithm in [Algorithm::WindowTiles, Algorithm::WindowWhole, Algorithm::Mapped] {
            let outcome = check_allreduce(algorithm, elems, &topology, &tuning);
            prop_assert!(outcome.is_ok(), "{algorithm}: {}", outcome.unwrap_err());
        }
    }

    #[test]
    fn reduce_scatter_holds_for_any_chunks(
        topology in topologies(33),
        lens in prop::collection::vec(sizes(), 33),
        tuning in tunings(),
    ) {
        let n = topology.size();
        let spans = chunks(&lens[..n]);
        let schedule = |me| algorithm::reduce_scatter(&spans, &topology, me, &tuning);
        let outcome = verify::reduce_scatter(&ranks(n).map(schedule).collect::<Vec<_>>(), &spans, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    #[test]
    fn allgather_holds_for_any_chunks(
        topology in topologies(33),
        lens in prop::collection::vec(sizes(), 33),
        small_elems in prop_oneof![Just(0), Just(u64::MAX)],
        tuning in tunings(),
    ) {
        let tuning = Tuning { small_elems, ..tuning };
        let n = topology.size();
        let spans = chunks(&lens[..n]);
        let schedule = |me| algorithm::allgather(&spans, &topology, me, &tuning);
        let outcome = verify::allgather(&ranks(n).map(schedule).collect::<Vec<_>>(), &spans, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    #[test]
    fn gather_and_scatter_hold_through_windows(
        lens in prop::collection::vec(0_u64..60, 1..=17),
        tuning in tunings(),
    ) {
        let n = lens.len();
        let topology = Topology::one_host(n);
        let spans = chunks(&lens);
        let gathers: Vec<_> = ranks(n).map(|me| algorithm::allgather_window(&spans, me, &tuning)).collect();
        let outcome = verify::allgather(&gathers, &spans, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
        let scatters: Vec<_> = ranks(n).map(|me| algorithm::reduce_scatter_window(&spans, me, &tuning)).collect();
        let outcome = verify::reduce_scatter(&scatters, &spans, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    #[test]
    fn broadcast_holds_from_every_root(
        topology in topologies(33),
        root in any::<prop::sample::Index>(),
        elems in sizes(),
        tuning in tunings(),
    ) {
        let n = topology.size();
        let root = Rank::from(root.index(n));
        let schedule = |me| algorithm::broadcast(elems, root, &topology, me, &tuning);
        let outcome = verify::broadcast(&ranks(n).map(schedule).collect::<Vec<_>>(), elems, root, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
        let elems = elems.min(100);
        let schedule = |me| algorithm::broadcast_window(elems, root, n, me, &tuning);
        let topology = Topology::one_host(n);
        let outcome = verify::broadcast(&ranks(n).map(schedule).collect::<Vec<_>>(), elems, root, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    #[test]
    fn reduce_holds_for_every_root(
        topology in topologies(33),
        root in any::<prop::sample::Index>(),
        elems in sizes(),
        tuning in tunings(),
    ) {
        let n = topology.size();
        let root = Rank::from(root.index(n));
        let schedule = |me| algorithm::reduce(elems, root, &topology, me, &tuning);
        let outcome = verify::reduce(&ranks(n).map(schedule).collect::<Vec<_>>(), elems, root, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
        let elems = elems.min(100);
        let schedule = |me| algorithm::reduce_window(elems, root, n, me, &tuning);
        let topology = Topology::one_host(n);
        let outcome = verify::reduce(&ranks(n).map(schedule).collect::<Vec<_>>(), elems, root, &topology);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    #[test]
    fn alltoall_holds_for_any_splits(
        n in 1_usize..=17,
        lens in prop::collection::vec(prop_oneof![Just(0), 0_u64..40], 17 * 17),
        tuning in tunings(),
    ) {
        let send: Vec<Vec<Span>> = (0..n).map(|i| chunks(&lens[i * n..(i + 1) * n])).collect();
        let column = |i: usize| (0..n).map(|j| lens[j * n + i]).collect::<Vec<_>>();
        let recv: Vec<Vec<Span>> = (0..n).map(|i| chunks(&column(i))).collect();
        let schedule = |me: Rank| algorithm::alltoall(&send[me.index()], &recv[me.index()], me, &tuning);
        let outcome = verify::alltoall(&ranks(n).map(schedule).collect::<Vec<_>>(), &send, &recv);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    #[test]
    fn alltoall_holds_through_windows_for_any_splits(
        n in 1_usize..=9,
        lens in prop::collection::vec(prop_oneof![Just(0), 0_u64..40], 9 * 9),
        tuning in tunings(),
    ) {
        let send: Vec<Vec<Span>> = (0..n).map(|i| chunks(&lens[i * n..(i + 1) * n])).collect();
        let column = |i: usize| (0..n).map(|j| lens[j * n + i]).collect::<Vec<_>>();
        let recv: Vec<Vec<Span>> = (0..n).map(|i| chunks(&column(i))).collect();
        let schedule = |me: Rank| algorithm::alltoall_window(&send[me.index()], &recv[me.index()], me, &tuning);
        let schedules: Vec<_> = ranks(n).map(schedule).collect();
        let outcome = verify::alltoall_on(&Topology::one_host(n), &schedules, &send, &recv);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

#[test]
fn nobody_leaves_a_barrier_early() {
    for n in (1..=33).chain([1000, 1024, 1537]) {
        let schedules: Vec<_> = ranks(n).map(|me| algorithm::barrier(n, me)).collect();
        verify::barrier(&schedules).unwrap();
    }
}

#[test]
fn allreduce_holds_in_large_worlds() {
    for n in [1000, 1024, 1537] {
        let topology = filled(n, 8);
        for algorithm in [Algorithm::Doubling, Algorithm::Halving, Algorithm::Tree, Algorithm::Hierarchical] {
            for elems in [1, 2_011] {
                if let Err(flaw) = check_allreduce(algorithm, elems, &topology, &COARSE) {
                    panic!("{algorithm}, {n} ranks, {elems} elements: {flaw}");
                }
            }
        }
        check_allreduce(Algorithm::HierarchicalWindow, 97, &topology, &COARSE).unwrap();
        check_allreduce(Algorithm::Ring, 33, &topology, &COARSE).unwrap();
    }
    check_allreduce(Algorithm::Ring, 200, &filled(1000, 8), &COARSE).unwrap();
}

#[test]
fn other_collectives_hold_in_large_worlds() {
    let n = 1025;
    let topology = filled(n, 8);
    for elems in [3, 9_000, 5_000_000] {
        let root = Rank(517);
        let schedule = |me| algorithm::broadcast(elems, root, &topology, me, &COARSE);
        verify::broadcast(&ranks(n).map(schedule).collect::<Vec<_>>(), elems, root, &topology).unwrap();
        let schedule = |me| algorithm::reduce(elems, root, &topology, me, &COARSE);
        verify::reduce(&ranks(n).map(schedule).collect::<Vec<_>>(), elems, root, &topology).unwrap();
    }
    let spans = chunks(&(0..n as u64).map(|rank| u64::from(rank % 5 == 0)).collect::<Vec<_>>());
    for small_elems in [64, 1000] {
        let tuning = Tuning { small_elems, ..COARSE };
        let schedule = |me| algorithm::allgather(&spans, &topology, me, &tuning);
        verify::allgather(&ranks(n).map(schedule).collect::<Vec<_>>(), &spans, &topology).unwrap();
    }
    let schedule = |me| algorithm::reduce_scatter(&spans, &topology, me, &COARSE);
    verify::reduce_scatter(&ranks(n).map(schedule).collect::<Vec<_>>(), &spans, &topology).unwrap();
}

/// A thousand ranks on one host are more than there are; what is of interest is that nothing depends on the number.
/// Every rank looks at every other one, so the work of the check grows with the square of the ranks: few elements, and
/// a test for each.
const CROWD: usize = 1001;

#[test]
fn an_allreduce_in_tiles_holds_for_a_thousand_ranks_of_one_host() {
    check_allreduce(Algorithm::WindowTiles, 3, &Topology::one_host(CROWD), &COARSE).unwrap();
}

#[test]
fn an_allreduce_of_whole_tensors_holds_for_a_thousand_ranks_of_one_host() {
    check_allreduce(Algorithm::WindowWhole, 3, &Topology::one_host(CROWD), &COARSE).unwrap();
}

#[test]
fn an_allreduce_in_mapped_buffers_holds_for_a_thousand_ranks_of_one_host() {
    check_allreduce(Algorithm::Mapped, 3, &Topology::one_host(CROWD), &COARSE).unwrap();
}

#[test]
fn a_broadcast_through_windows_holds_for_a_thousand_ranks_of_one_host() {
    let root = Rank(517);
    let schedule = |me| algorithm::broadcast_window(3, root, CROWD, me, &COARSE);
    let schedules: Vec<_> = ranks(CROWD).map(schedule).collect();
    verify::broadcast(&schedules, 3, root, &Topology::one_host(CROWD)).unwrap();
}

/// A few ranks bring something, most do not.
fn sparse_chunks() -> Vec<Span> {
    chunks(&(0..CROWD as u64).map(|rank| u64::from(rank % 401 == 3)).collect::<Vec<_>>())
}

#[test]
fn an_allgather_through_windows_holds_for_a_thousand_ranks_of_one_host() {
    let spans = sparse_chunks();
    let gathers: Vec<_> = ranks(CROWD).map(|me| algorithm::allgather_window(&spans, me, &COARSE)).collect();
    verify::allgather(&gathers, &spans, &Topology::one_host(CROWD)).unwrap();
}

#[test]
fn a_reduce_scatter_through_windows_holds_for_a_thousand_ranks_of_one_host() {
    let spans = sparse_chunks();
    let scatters: Vec<_> = ranks(CROWD).map(|me| algorithm::reduce_scatter_window(&spans, me, &COARSE)).collect();
    verify::reduce_scatter(&scatters, &spans, &Topology::one_host(CROWD)).unwrap();
}

#[test]
fn alltoall_holds_in_a_large_world() {
    let n = 1003;
    // Each rank sends to about one in seventy others, so that blocks are empty, full and uneven.
    let len = |from: usize, to: usize| {
        if (from * 31 + to * 17).is_multiple_of(71) { 1 + (from as u64 + to as u64) % 3 } else { 0 }
    };
    let send: Vec<Vec<Span>> = (0..n).map(|from| chunks(&(0..n).map(|to| len(from, to)).collect::<Vec<_>>())).collect();
    let recv: Vec<Vec<Span>> = (0..n).map(|to| chunks(&(0..n).map(|from| len(from, to)).collect::<Vec<_>>())).collect();
    let schedule = |me: Rank| algorithm::alltoall(&send[me.index()], &recv[me.index()], me, &COARSE);
    verify::alltoall(&ranks(n).map(schedule).collect::<Vec<_>>(), &send, &recv).unwrap();
}

#[test]
fn huge_tensors_cost_no_more_than_small_ones() {
    let tuning = Tuning { segment_elems: 1 << 34, tile_elems: 1 << 30, slots: 4, small_elems: 64 };
    for algorithm in Algorithm::ALL {
        check_allreduce(algorithm, (1 << 36) + 17, &Topology::one_host(5), &tuning).unwrap();
    }
}
