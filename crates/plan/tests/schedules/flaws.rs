//! Broken schedules, to see that the symbolic run notices and says what is wrong.

use farandole_plan::algorithm::{self, Algorithm, Tuning};

use farandole_plan::{Arrival, Buffer, Rank, Schedule, Span, Step, Topology};

use crate::verify::{self, Flaw};

const TIGHT: Tuning = Tuning { segment_elems: 5, tile_elems: 7, slots: 3, small_elems: 9 };

fn ranks(n: usize) -> impl Iterator<Item = Rank> {
    (0..n).map(Rank::from)
}

fn equal_chunks(n: u64, len: u64) -> Vec<Span> {
    (0..n).map(|index| Span { start: index * len, len }).collect()
}

fn allreduce_schedules(algorithm: Algorithm, elems: u64, topology: &Topology, tuning: &Tuning) -> Vec<Schedule> {
    ranks(topology.size()).map(|me| algorithm::allreduce(algorithm, elems, topology, me, tuning)).collect()
}

/// A ring of four ranks, ten elements to a chunk, after a change to the first rank's steps.
fn spoilt_ring(change: impl FnOnce(&mut Vec<Step>)) -> Result<(), Flaw> {
    let topology = Topology::one_host(4);
    let mut schedules = allreduce_schedules(Algorithm::Ring, 40, &topology, &Tuning { segment_elems: 100, ..TIGHT });
    change(&mut schedules[0].steps);
    verify::allreduce(&schedules, 40, &topology)
}

/// Three ranks with windows or mapped buffers, sixty elements, after a change to each rank's schedule.
fn spoilt_windows(algorithm: Algorithm, change: impl Fn(usize, &mut Schedule)) -> Result<(), Flaw> {
    let topology = Topology::one_host(3);
    let mut schedules = allreduce_schedules(algorithm, 60, &topology, &TIGHT);
    verify::allreduce(&schedules, 60, &topology)?;
    for (rank, schedule) in schedules.iter_mut().enumerate() {
        change(rank, schedule);
    }
    verify::allreduce(&schedules, 60, &topology)
}

#[test]
fn a_dropped_send_is_a_deadlock_that_names_who_waits_for_whom() {
    let flaw = spoilt_ring(|steps| steps.retain(|step| !matches!(step, Step::Send { .. }))).unwrap_err();
    let Flaw::Deadlock { stuck } = &flaw else { panic!("{flaw}") };
    assert!(stuck.iter().any(|stuck| stuck.spot.rank == Rank(1) && stuck.on == [Rank(0)]), "{flaw}");
    assert!(flaw.to_string().contains("rank 1 at step 1 waits for a message from rank 0"), "{flaw}");
}

#[test]
fn a_dropped_last_receive_is_a_message_left_over() {
    let flaw = spoilt_ring(|steps| steps.truncate(steps.len() - 1)).unwrap_err();
    assert!(matches!(flaw, Flaw::MessageLeftOver { from: Rank(3), to: Rank(0), .. }), "{flaw}");
}

#[test]
fn a_contribution_passed_on_before_it_has_come_is_missing() {
    let flaw = spoilt_ring(|steps| steps.swap(1, 2)).unwrap_err();
    assert!(matches!(flaw, Flaw::MissingContribution { contributor: Rank(3), .. }), "{flaw}");
}

#[test]
fn folding_where_placing_is_right_counts_twice() {
    let flaw = spoilt_ring(|steps| {
        let Some(Step::Recv { arrival, .. }) = steps.last_mut() else { panic!("a ring ends with a receive") };
        *arrival = Arrival::Fold;
    });
    assert!(matches!(flaw, Err(Flaw::DoubleContribution { .. })), "{flaw:?}");
}

#[test]
fn a_shifted_span_is_found() {
    let flaw = spoilt_ring(|steps| {
        let Step::Send { span, .. } = &mut steps[0] else { panic!("a ring begins with a send") };
        span.start -= 1;
    });
    assert!(matches!(flaw, Err(Flaw::Misplaced { .. })), "{flaw:?}");
}

#[test]
fn a_shortened_span_is_a_length_mismatch() {
    let flaw = spoilt_ring(|steps| {
        let Step::Send { span, .. } = &mut steps[0] else { panic!("a ring begins with a send") };
        span.len -= 1;
    });
    assert!(matches!(flaw, Err(Flaw::LengthMismatch { sent: 9, expected: 10, .. })), "{flaw:?}");
}

#[test]
fn a_span_beyond_the_end_an_empty_message_and_an_unknown_peer_are_found() {
    let send = |to: u32, start: u64, end: u64| Step::Send {
        to: Rank(to),
        from: Buffer::Work,
        span: Span::between(start, end),
    };
    let beyond = spoilt_ring(|steps| steps[0] = send(1, 35, 45));
    assert!(matches!(beyond, Err(Flaw::OutOfBounds { elems: 40, .. })), "{beyond:?}");
    let empty = spoilt_ring(|steps| steps.insert(0, send(1, 3, 3)));
    assert!(matches!(empty, Err(Flaw::EmptyMessage { .. })), "{empty:?}");
    for peer in [0, 4] {
        let stranger = spoilt_ring(|steps| steps[0] = send(peer, 0, 1));
        assert!(matches!(stranger, Err(Flaw::NoSuchPeer { .. })), "{stranger:?}");
    }
}

#[test]
fn two_ranks_that_receive_before_they_send_wait_for_each_other() {
    let topology = Topology::one_host(2);
    let mut schedules = allreduce_schedules(Algorithm::Doubling, 4, &topology, &TIGHT);
    for schedule in &mut schedules {
        schedule.steps.reverse();
    }
    let flaw = verify::allreduce(&schedules, 4, &topology).unwrap_err();
    assert_eq!(
        flaw.to_string(),
        "deadlock: rank 0 at step 0 waits for a message from rank 1; rank 1 at step 0 waits for a message from rank 0"
    );
}

#[test]
fn sending_what_has_not_arrived_is_a_read_before_write() {
    let topology = Topology::one_host(3);
    let mut schedules: Vec<_> = ranks(3).map(|me| algorithm::broadcast(100, Rank(0), &topology, me, &TIGHT)).collect();
    schedules[1].steps.reverse();
    let flaw = verify::broadcast(&schedules, 100, Rank(0), &topology).unwrap_err();
    assert!(matches!(flaw, Flaw::ReadBeforeWrite { owner: Rank(1), .. }), "{flaw}");
}

#[test]
fn leaving_a_barrier_one_round_early_is_found() {
    let mut schedules: Vec<_> = ranks(4).map(|me| algorithm::barrier(4, me)).collect();
    for schedule in &mut schedules {
        schedule.steps.truncate(2);
    }
    assert!(matches!(verify::barrier(&schedules), Err(Flaw::LeavesEarly { .. })));
}

#[test]
fn too_few_slots_are_a_deadlock_and_unequal_ones_are_refused() {
    let fewer = spoilt_windows(Algorithm::WindowWhole, |_, schedule| schedule.slots = 2).unwrap_err();
    assert!(matches!(fewer, Flaw::Deadlock { .. }), "{fewer}");
    let unequal = spoilt_windows(Algorithm::WindowTiles, |rank, schedule| schedule.slots += u32::from(rank == 2));
    assert!(matches!(unequal, Err(Flaw::SlotsDiffer { rank: Rank(2), slots: 4, expected: 3 })), "{unequal:?}");
    let none = spoilt_windows(Algorithm::WindowTiles, |_, schedule| schedule.slots = 0);
    assert!(matches!(none, Err(Flaw::SlotsDiffer { slots: 0, .. })), "{none:?}");
}

#[test]
fn a_tile_that_is_never_published_is_not_mistaken_for_an_older_one() {
    let flaw = spoilt_windows(Algorithm::WindowTiles, |rank, schedule| {
        if rank == 1 {
            schedule.steps.retain(|step| !matches!(step, Step::Publish { tile: 4, .. }));
        }
    });
    assert!(matches!(flaw, Err(Flaw::OverwrittenSlot { owner: Rank(1), tile: 4, .. })), "{flaw:?}");
}

#[test]
fn a_fetch_left_out_is_a_missing_contribution() {
    let flaw = spoilt_windows(Algorithm::WindowTiles, |rank, schedule| {
        if rank == 0 {
            schedule.steps.retain(|step| !matches!(step, Step::Fetch { tile: 8, .. }));
        }
    });
    assert!(matches!(flaw, Err(Flaw::MissingContribution { rank: Rank(0), .. })), "{flaw:?}");
}

#[test]
fn tiles_published_out_of_order_are_found() {
    let flaw = spoilt_windows(Algorithm::WindowTiles, |rank, schedule| {
        if rank == 0 {
            schedule.steps.swap(0, 1);
        }
    });
    assert!(matches!(flaw, Err(Flaw::TileOutOfOrder { tile: 0, .. })), "{flaw:?}");
}

#[test]
fn releasing_a_tile_before_reading_it_is_found_by_a_late_reader() {
    let topology = Topology::one_host(3);
    let spans = equal_chunks(3, 30);
    let mut schedules: Vec<_> = ranks(3).map(|me| algorithm::allgather_window(&spans, me, &TIGHT)).collect();
    verify::allgather(&schedules, &spans, &topology).unwrap();
    let early = schedules[2].steps.iter().position(|step| matches!(step, Step::Take { .. })).unwrap();
    schedules[2].steps.insert(early, Step::Release { tile: 1 });
    let flaw = verify::allgather(&schedules, &spans, &topology).unwrap_err();
    assert!(matches!(flaw, Flaw::OverwrittenSlot { .. }), "{flaw}");
}

#[test]
fn writing_into_a_posted_send_without_waiting_is_found() {
    let topology = Topology::one_host(2);
    let span = Span::between(0, 4);
    let publish = Step::Publish { tile: 0, span, except: Span::between(0, 0) };
    let fold = Step::FoldWhole { tile: 0, span };
    let send = Step::Send { to: Rank(1), from: Buffer::Work, span };
    let recv = Step::Recv { from: Rank(0), span, arrival: Arrival::Place };
    let schedules = [
        Schedule { steps: vec![publish.clone(), send, fold.clone()], slots: 1 },
        Schedule { steps: vec![publish, fold, recv], slots: 1 },
    ];
    let flaw = verify::allreduce(&schedules, 4, &topology).unwrap_err();
    assert!(matches!(flaw, Flaw::OverwrittenSend { sender: Rank(0), .. }), "{flaw}");
}

#[test]
fn mapped_buffers_must_be_exposed_and_folded_once() {
    let hidden = spoilt_windows(Algorithm::Mapped, |rank, schedule| {
        if rank == 2 {
            schedule.steps.remove(0);
        }
    });
    assert!(matches!(hidden, Err(Flaw::Deadlock { .. })), "{hidden:?}");
    let twice = spoilt_windows(Algorithm::Mapped, |rank, schedule| {
        if rank == 1 {
            schedule.steps[1] = Step::FoldAcross { span: Span::between(15, 40) };
        }
    });
    assert!(matches!(twice, Err(Flaw::DoubleContribution { .. })), "{twice:?}");
}

#[test]
fn windows_do_not_reach_another_host() {
    let schedules: Vec<_> = ranks(2).map(|me| algorithm::broadcast_window(4, Rank(0), 2, me, &TIGHT)).collect();
    let flaw = verify::broadcast(&schedules, 4, Rank(0), &Topology::all_apart(2)).unwrap_err();
    assert!(matches!(flaw, Flaw::NoSuchPeer { peer: Rank(0), .. }), "{flaw}");
}

#[test]
fn alltoall_parts_that_land_in_the_wrong_place_are_found() {
    let send = vec![equal_chunks(2, 2); 2];
    let mut schedules: Vec<_> =
        ranks(2).map(|me| algorithm::alltoall(&send[me.index()], &send[me.index()], me, &TIGHT)).collect();
    verify::alltoall(&schedules, &send, &send).unwrap();
    for step in &mut schedules[0].steps {
        if let Step::Copy { source, .. } = step {
            source.start = 2;
        }
    }
    let flaw = verify::alltoall(&schedules, &send, &send).unwrap_err();
    assert!(matches!(flaw, Flaw::Misplaced { .. }), "{flaw}");
}

/// Whether a step is only a sign to others that a later sign makes up for: it frees a slot for a later tile or
/// operation, or makes staged parts visible, as the next tile does too.
fn is_only_a_sign(step: &Step) -> bool {
    match step {
        Step::Release { .. } | Step::Drain { .. } | Step::Settle => true,
        Step::Publish { span, .. } => span.is_empty(),
        Step::Fetch { chunk, .. } | Step::FoldTile { chunk, .. } => chunk.is_empty(),
        _ => false,
    }
}

#[test]
fn no_step_can_be_left_out() {
    let apart = Topology::from_host_names(&["a", "a", "b", "a", "b"]);
    for algorithm in Algorithm::ALL {
        let topology = if algorithm.fits(&apart) { apart.clone() } else { Topology::one_host(5) };
        let schedules = allreduce_schedules(algorithm, 23, &topology, &TIGHT);
        for rank in 0..schedules.len() {
            for step in 0..schedules[rank].steps.len() {
                let mut spoilt = schedules.clone();
                let left_out = spoilt[rank].steps.remove(step);
                let outcome = verify::allreduce(&spoilt, 23, &topology);
                let noticed = outcome.is_err() || is_only_a_sign(&left_out);
                assert!(noticed, "{algorithm}: rank {rank} does not need step {step}, {left_out:?}");
            }
        }
    }
}
