//! Single behaviours of the agreement, each in a small world.

use std::sync::Arc;
use std::time::Duration;

use farandole_plan::agree::{Action, Member, Replay, Settings};
use farandole_plan::message::Message;
use farandole_plan::request::Batch;
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, stall};

use crate::sim::{End, Sim, Step, allreduce, request};

fn submit_all(sim: &mut Sim, requests: &[farandole_plan::Request]) {
    for rank in 0..sim.size() {
        sim.push(rank, requests.iter().cloned().map(Step::Submit));
        sim.push(rank, [Step::WaitAllBut(0)]);
    }
}

fn iterations(sim: &mut Sim, count: usize, names: &[&str]) {
    let requests: Vec<_> = names.iter().map(|name| allreduce(name, 100)).collect();
    for _ in 0..count {
        submit_all(sim, &requests);
    }
}

fn reason(end: Option<End>) -> Arc<str> {
    match end {
        Some(End::Refused(reason)) => reason,
        other => panic!("refused, not {other:?}"),
    }
}

#[test]
fn after_two_equal_iterations_no_message_passes() {
    let mut sim = Sim::new(4, &Settings::default(), 1);
    iterations(&mut sim, 4, &["a", "b", "c"]);
    sim.run();
    let messages = sim.messages;
    iterations(&mut sim, 1000, &["a", "b", "c"]);
    sim.run();
    sim.check();
    assert_eq!(sim.messages, messages);
    assert!((0..4).all(|rank| sim.member(rank).is_replaying() && sim.replayed(rank) >= 1000));
}

#[test]
fn replay_can_be_forbidden() {
    let mut sim = Sim::new(2, &Settings { replay: Replay::Never, ..Settings::default() }, 1);
    iterations(&mut sim, 20, &["a", "b"]);
    sim.run();
    sim.check();
    assert_eq!(sim.replayed(0), 0);
}

#[test]
fn a_new_name_ends_the_replay_and_the_next_cycle_is_learned() {
    let mut sim = Sim::new(3, &Settings::default(), 5);
    iterations(&mut sim, 20, &["a", "b"]);
    iterations(&mut sim, 20, &["a", "b", "c"]);
    sim.run();
    sim.check();
    assert!(sim.member(0).is_replaying());
    assert!(sim.replayed(0) > 20);
    assert!(sim.ran(0).last().unwrap().0.round() >= 1);
}

#[test]
fn changed_metadata_ends_the_replay() {
    let mut sim = Sim::new(2, &Settings::default(), 9);
    iterations(&mut sim, 5, &["a", "b"]);
    submit_all(&mut sim, &[allreduce("a", 100), allreduce("b", 7)]);
    sim.run();
    sim.check();
    assert!(!sim.member(0).is_replaying() && !sim.member(1).is_replaying());
}

#[test]
fn a_name_that_is_left_out_costs_patience_only_if_no_thread_that_submits_waits() {
    for tells_waits in [true, false] {
        let mut sim = Sim::new(2, &Settings::default(), 9);
        sim.tells_waits = tells_waits;
        iterations(&mut sim, 5, &["a", "b", "c"]);
        iterations(&mut sim, 1, &["a", "c"]);
        sim.run();
        sim.check();
        let patience = Settings::default().patience;
        assert_eq!(sim.now < patience, tells_waits, "{:?}", sim.now);
        assert!(sim.now < 2 * patience, "{:?}", sim.now);
    }
}

#[test]
fn a_replay_is_not_halted_twice_by_ranks_that_stop_by_themselves() {
    let mut sim = Sim::new(4, &Settings::default(), 9);
    sim.tells_waits = true;
    iterations(&mut sim, 20, &["a", "b"]);
    sim.run();
    let before = sim.messages;
    iterations(&mut sim, 1, &["a"]);
    sim.run();
    sim.check();
    // Each of three ranks: halt, stopped, announcement, resume, agreed.
    assert!(sim.messages - before <= 15, "{} messages", sim.messages - before);
}

#[test]
fn a_request_that_waits_for_another_is_never_fused_with_it() {
    let mut sim = Sim::new(2, &Settings::default(), 3);
    for _ in 0..50 {
        submit_all(&mut sim, &[allreduce("a", 10)]);
        submit_all(&mut sim, &[allreduce("b", 10)]);
    }
    sim.run();
    sim.check();
    assert!(sim.replayed(0) >= 90, "{}", sim.replayed(0));
    assert!(sim.now < Duration::from_millis(10), "no patience was needed, yet it took {:?}", sim.now);
}

#[test]
fn iterations_that_overlap_are_replayed_too() {
    for seed in 0..50 {
        let mut sim = Sim::new(3, &Settings::default(), seed);
        for _ in 0..40 {
            for rank in 0..3 {
                // The last request of an iteration is waited for in the next one.
                sim.push(rank, ["a", "b"].map(|name| Step::Submit(allreduce(name, 10))));
                sim.push(rank, [Step::WaitAllBut(2), Step::Submit(allreduce("c", 10)), Step::WaitAllBut(1)]);
            }
        }
        sim.run();
        sim.check();
        assert!(sim.replayed(0) > 20, "seed {seed}: {} of {}", sim.replayed(0), sim.ran(0).len());
    }
}

#[test]
fn a_name_in_flight_cannot_be_used_again() {
    let mut member = Member::new(Rank(0), 2, Settings::default());
    member.submit(allreduce("a", 1), Duration::ZERO).unwrap();
    let refusal = member.submit(allreduce("a", 1), Duration::ZERO).unwrap_err();
    let text = "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is \
                currently being processed";
    assert!(refusal.reason.starts_with(text) && refusal.reason.contains("\"a\""), "{refusal}");
}

#[test]
fn a_mismatch_is_refused_on_all_ranks_with_one_text() {
    let mut sim = Sim::new(3, &Settings::default(), 4);
    for rank in 0..3 {
        let mut request = allreduce("x", 10);
        request.dtype = if rank == 2 { Dtype::F64 } else { Dtype::F32 };
        sim.push(rank, [Step::Submit(request), Step::WaitAllBut(0)]);
    }
    sim.run();
    sim.check();
    let text = reason(sim.ends(1)[0].1.clone());
    let expected = "Mismatched data types: One rank had type float32, but another rank had type float64. \
                    (Tensor \"x\": float32 on ranks 0, 1; float64 on rank 2.)";
    assert_eq!(&*text, expected);
}

#[test]
fn a_batch_runs_only_once_it_is_complete() {
    let in_batch = |name: &str| {
        let mut request = allreduce(name, 10);
        request.batch = Some(Batch { name: "g".into(), members: 2 });
        request
    };
    let mut sim = Sim::new(2, &Settings::default(), 4);
    for rank in 0..2 {
        sim.push(rank, [Step::Submit(in_batch("a")), Step::Submit(allreduce("other", 1))]);
    }
    sim.run();
    assert!(sim.ends(0)[0].1.is_none() && sim.ends(0)[1].1.is_some());
    for rank in 0..2 {
        sim.push(rank, [Step::Submit(in_batch("b")), Step::WaitAllBut(0)]);
    }
    sim.run();
    sim.check();
    assert_eq!(sim.ran(0).len(), 2);
}

#[test]
fn batches_of_different_sizes_are_refused_altogether() {
    let in_batch = |name: &str, members| {
        let mut request = allreduce(name, 10);
        request.batch = Some(Batch { name: "g".into(), members });
        Step::Submit(request)
    };
    for seed in 0..50 {
        let mut sim = Sim::new(2, &Settings::default(), seed);
        sim.push(0, [in_batch("a", 3), in_batch("b", 3), in_batch("c", 3), Step::WaitAllBut(0)]);
        sim.push(1, [in_batch("a", 2), in_batch("b", 2), Step::WaitAllBut(0)]);
        sim.run();
        sim.check();
        for (_, end) in sim.ends(0) {
            let text = reason(end);
            assert!(text.starts_with("Mismatched batches: One rank sent the tensor in batch \"g\" of 3"), "{text}");
        }
    }
}

#[test]
fn a_rank_that_has_joined_takes_part_in_everything() {
    let mut sim = Sim::new(3, &Settings::default(), 6);
    let join = Step::Submit(request("join", Collective::Join, vec![]));
    let everything = [
        allreduce("reduce", 4),
        request("gather", Collective::Allgather, vec![2, 3]),
        request("bcast", Collective::Broadcast { root: Rank(0) }, vec![5]),
        request("all", Collective::Alltoall { splits: None }, vec![6, 2]),
        request("scatter", Collective::ReduceScatter { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }, vec![7]),
        request("barrier", Collective::Barrier, vec![]),
    ];
    sim.push(1, [join.clone(), Step::WaitAllBut(0)]);
    for rank in [0, 2] {
        sim.push(rank, everything.iter().cloned().map(Step::Submit));
        sim.push(rank, [Step::WaitAllBut(0)]);
    }
    sim.run_until_quiet();
    for rank in [0, 2] {
        assert!(sim.ends(rank).iter().all(|(_, end)| matches!(end, Some(End::Ran(_)))));
        sim.push(rank, [join.clone(), Step::WaitAllBut(0)]);
    }
    sim.run();
    sim.check();
    assert_eq!(sim.ran(1).len(), 6);
    assert!(matches!(sim.ends(1)[0].1, Some(End::Joined(last)) if last != Rank(1)));
    // The state is as before the first join.
    iterations(&mut sim, 5, &["a"]);
    sim.run();
    sim.check();
    assert!(sim.member(0).is_replaying());
}

#[test]
fn a_joined_root_has_nothing_to_broadcast() {
    let mut sim = Sim::new(2, &Settings::default(), 6);
    sim.push(1, [Step::Submit(request("join", Collective::Join, vec![]))]);
    sim.push(0, [Step::Submit(request("x", Collective::Broadcast { root: Rank(1) }, vec![1])), Step::WaitAllBut(0)]);
    sim.run_until_quiet();
    assert!(reason(sim.ends(0)[0].1.clone()).starts_with("BROADCAST root rank 1 has joined"));
}

#[test]
fn a_join_ends_a_replay() {
    let mut sim = Sim::new(3, &Settings::default(), 8);
    let join = Step::Submit(request("join", Collective::Join, vec![]));
    iterations(&mut sim, 20, &["a", "b"]);
    sim.push(2, [join.clone(), Step::WaitAllBut(0)]);
    for rank in 0..2 {
        for _ in 0..5 {
            sim.push(rank, [Step::Submit(allreduce("a", 100)), Step::Submit(allreduce("b", 100)), Step::WaitAllBut(0)]);
        }
        sim.push(rank, [join.clone(), Step::WaitAllBut(0)]);
    }
    sim.run();
    sim.check();
    assert!(sim.replayed(0) >= 10);
}

#[test]
fn closing_refuses_what_was_not_agreed_and_runs_what_was() {
    for seed in 0..100 {
        let mut sim = Sim::new(3, &Settings::default(), seed);
        iterations(&mut sim, seed as usize % 7, &["a", "b"]);
        sim.push(0, [Step::Submit(allreduce("lonely", 1))]);
        sim.push(seed as usize % 3, [Step::Close]);
        sim.run();
        sim.check();
        assert!((0..3).all(|rank| sim.closed(rank).is_some()));
        assert!(sim.member(1).submit(allreduce("late", 1), Duration::ZERO).is_err());
    }
}

#[test]
fn a_stall_during_replay_becomes_visible() {
    let mut sim = Sim::new(2, &Settings::default(), 2);
    iterations(&mut sim, 5, &["a"]);
    let asked = sim.now;
    sim.push(1, [Step::Submit(allreduce("a", 100))]);
    sim.run();
    let now = sim.now + Duration::from_secs(61);
    let report = sim.member(0).stalled(&stall::StallLimits::default(), now).expect("a stall");
    assert!(report.text.contains("\n0: [a]"), "{}", report.text);
    let patience = Settings::default().patience;
    assert!(report.stalled[0].since < asked + patience, "it waits since it was made, not since the replay has ended");
    assert!(sim.member(1).stalled(&stall::StallLimits::default(), now).is_none());
}

/// The other ranks waited for ever for the gradient of a parameter that was frozen on one rank.
#[test]
fn a_gradient_that_a_rank_lacks_is_refused_when_all_have_declared_theirs() {
    for seed in 0..50 {
        let mut sim = Sim::new(3, &Settings::default(), seed);
        let names = |rank| if rank == 1 { &["a"][..] } else { &["a", "bias"] };
        for rank in 0..3 {
            sim.push(rank, names(rank).iter().map(|name| Step::Submit(allreduce(name, 10))));
        }
        if seed % 2 == 0 {
            sim.run();
        }
        for rank in 0..3 {
            sim.member(rank).reduces(names(rank).iter().map(|name| (*name).into()).collect());
        }
        sim.run();
        for rank in [0, 2] {
            let ends = sim.ends(rank);
            assert!(matches!(ends[0], (_, Some(End::Ran(_)))), "{ends:?}");
            let reason = reason(ends[1].1.clone());
            assert!(reason.starts_with("rank 1 has no gradient of this name, which rank"), "{reason}");
        }
    }
}

#[test]
fn higher_priority_runs_first_among_requests_that_are_ready_together() {
    let mut member = Member::new(Rank(0), 1, Settings { threshold_bytes: 0, ..Settings::default() });
    for (name, priority) in [("low", 1), ("high", 3), ("middle", 2)] {
        let request = farandole_plan::Request { priority, ..allreduce(name, 1) };
        member.submit(request, Duration::ZERO).unwrap();
    }
    let mut order = Vec::new();
    while let Some(Action::Run(bucket)) = member.poll_action(Duration::ZERO) {
        order.push(bucket.plan.parts[0].item.name.to_string());
        member.finished(bucket.operation, Duration::ZERO);
    }
    assert_eq!(order, ["high", "middle", "low"]);
}

#[test]
fn nonsense_from_a_peer_is_a_violation_and_not_a_panic() {
    let messages = [
        Message::Agreed { round: 3, items: vec![] },
        Message::Halt { round: 0 },
        Message::Resume { round: 1, until: 9 },
        Message::Replay { round: 0, items: 4, hash: 1 },
        Message::Joined { last: Rank(0) },
        Message::Close { departure: None },
    ];
    for message in messages {
        let mut member = Member::new(Rank(1), 3, Settings::default());
        assert!(member.receive(Rank(0), message.clone(), Duration::ZERO).is_err(), "{message:?}");
        assert!(member.receive(Rank(2), message.clone(), Duration::ZERO).is_err(), "{message:?}");
        assert!(member.receive(Rank(7), message, Duration::ZERO).is_err());
    }
    let mut coordinator = Member::new(Rank(0), 3, Settings::default());
    for round in 0..2 {
        let stopped = Message::Stopped { round, entered: 0, completed: 0 };
        assert!(coordinator.receive(Rank(1), stopped, Duration::ZERO).is_err());
    }
}
