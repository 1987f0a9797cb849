//! Collectives in device memory by NCCL, with one that is pretended: every collective, type and operation gives the
//! bits of host memory; every fault ends with its cause, on all ranks; and every communicator is ended.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use farandole_device::Error as DeviceError;
use farandole_device::pretend::{Call as Fault, DeviceFaults, NcclEnds, PretendNccl};
use farandole_engine::config::DevicePlaneChoice;
use farandole_engine::{Config, Engine, Error, Hooks, Outcome, Submission, wait_all};
use farandole_plan::{Collective, Dtype, ErrorClass, GroupId, Rank, ReduceOp};
use farandole_testing::{NEVER, lapse, wait_until};

use crate::devices::{calls, check_all, leave_together, there_or_failed};
use crate::harness::pretend_device::{contents, hooks_with, hooks_with_nccl, moved, when_there};
use crate::harness::reference::{Inputs, Solved};
use crate::harness::{Transport, config, meetings, ranks, ranks_with, reduce, run_hooked, sum};

/// Only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

fn with(plane: DevicePlaneChoice) -> Config {
    Config { plane, ..config() }
}

/// Ranks are lost for another reason than a deadline.
fn with_no_deadline() -> Config {
    Config { deadline: NEVER, ..with(DevicePlaneChoice::Auto) }
}

/// All calls whose results NCCL gives exactly: it adds halves in half precision, so those are small numbers.
fn exact_calls(size: usize) -> Vec<Solved> {
    let rounds = |solved: &Solved| {
        matches!(solved.call.dtype, Dtype::F16 | Dtype::BF16) && solved.call.collective.reduction().is_some()
    };
    let far_out = calls(size, Inputs::Extreme).into_iter().filter(|solved| !rounds(solved));
    let mut all: Vec<Solved> = far_out.chain(calls(size, Inputs::Small).into_iter().filter(rounds)).collect();
    // Names are numbers.
    all.iter_mut().enumerate().for_each(|(number, solved)| solved.call.number = number as u64);
    all
}

fn check_exact(engine: &Engine) {
    let all = exact_calls(engine.size());
    for _ in 0..2 {
        check_all(engine, &all, |submission| moved(engine, submission));
    }
}

#[test]
fn ranks_of_several_hosts_get_the_bits_of_host_memory() {
    for size in [2, 3] {
        ranks(size, Transport::Nccl, |engine| check_exact(&engine));
    }
}

#[test]
fn ranks_of_one_host_get_the_bits_of_host_memory_where_nccl_is_wanted() {
    let hooks = |rank| hooks_with_nccl(rank, PretendNccl::default());
    run_hooked(meetings(4, Transport::Device), with(DevicePlaneChoice::Nccl), hooks, |engine| check_exact(&engine));
}

/// Programs that run ahead get the same bits, whether all ranks do or only some: at the first time, when hosts wait,
/// and later, when buckets are familiar.
#[test]
fn programs_that_run_ahead_get_the_same_bits() {
    for size in [2, 3] {
        ranks(size, Transport::Nccl, |engine| {
            let all = exact_calls(engine.size());
            for _ in 0..2 {
                check_all(&engine, &all, |submission| moved(&engine, submission).running_ahead());
            }
            check_all(&engine, &all, |submission| {
                let runs_ahead = engine.rank() == Rank(1);
                Submission { runs_ahead, ..moved(&engine, submission) }
            });
        });
    }
}

/// The outcome of a familiar bucket comes when it is queued, before any rank's data are there; the next is queued
/// behind it.
#[test]
fn the_host_runs_ahead_of_nccl() {
    let library = PretendNccl::default();
    let lent = library.clone();
    let hooks = move |rank| hooks_with_nccl(rank, lent.clone());
    run_hooked(meetings(2, Transport::Nccl), with(DevicePlaneChoice::Auto), hooks, |engine| {
        let mut outcomes = Vec::new();
        for round in 0..20 {
            let tensor = scaled(&format!("t{}", round % 2), vec![round as f32; 1000]);
            let tensor = moved(&engine, tensor).running_ahead();
            let ready = tensor.ready.clone().unwrap();
            let outcome = engine.run(tensor).unwrap();
            assert_eq!(outcome.after.is_some(), round >= 2, "the host waits for the first of each: round {round}");
            outcomes.push((round, ready, outcome));
        }
        let is_late = |outcome: &Outcome| outcome.after.as_ref().is_some_and(|after| !after.has_happened().unwrap());
        let late = outcomes.iter().filter(|(.., outcome)| is_late(outcome)).count();
        assert!(late > 0, "all were done before the host had queued the last");
        for (round, ready, outcome) in outcomes {
            let result = contents(&when_there(outcome).into_result().unwrap());
            assert!(ready.has_happened().unwrap(), "devices wait for data");
            assert_eq!(result[..4], (2.0 * round as f32).to_ne_bytes());
        }
        // More is packed than before, and nothing is familiar any more.
        for (elems, waits) in [(5000, true), (5000, false), (1000, true), (1000, false)] {
            let outcome = engine.run(moved(&engine, scaled("t0", vec![1f32; elems])).running_ahead()).unwrap();
            assert_eq!(outcome.after.is_none(), waits, "{elems} elements");
            assert_eq!(contents(&when_there(outcome).into_result().unwrap())[..4], 2f32.to_ne_bytes());
        }
        engine.run(sum("both are here", vec![1f32])).unwrap();
    });
    assert_eq!(library.ends(), NcclEnds { joined: 2, ended: 2, aborted: 0 }, "in order, although it was queued");
}

/// A sum that is packed, and so unpacked behind NCCL's calls.
fn scaled(name: &str, data: Vec<f32>) -> Submission {
    let mut tensor = sum(name, data);
    tensor.request.collective = Collective::Allreduce { op: ReduceOp::Sum, prescale: 2.0, postscale: 0.5 };
    tensor
}

/// Runs a bucket until it is familiar, then once more; says how it was queued.
fn queue_familiar(engine: &Engine) -> Outcome {
    for _ in 0..2 {
        let outcome = engine.run(moved(engine, scaled("gradient", vec![1f32; 1000])).running_ahead()).unwrap();
        drop(when_there(outcome));
    }
    let outcome = engine.run(moved(engine, scaled("gradient", vec![1f32; 1000])).running_ahead()).unwrap();
    assert!(outcome.after.is_some(), "it is queued, not done");
    outcome
}

mod timings {
    use std::time::Instant;

    use super::*;

    /// Streams are let go by an abort, in milliseconds. Without one they would be when the group has given up waiting
    /// for them, after 2 s.
    const LET_GO_WITHIN: Duration = Duration::from_millis(1800);

    /// Streams that wait for a rank whose calls never come are let go when that rank is lost: by an abort, after the
    /// engine has said why.
    #[test]
    fn streams_that_wait_for_a_lost_rank_are_let_go() {
        let libraries = [PretendNccl::default(), PretendNccl::default().stuck_after(2)];
        let lent = libraries.clone();
        let hooks = move |rank: usize| hooks_with_nccl(rank, lent[rank].clone());
        run_hooked(meetings(2, Transport::Nccl), with(DevicePlaneChoice::Auto), hooks, |engine| {
            let outcome = queue_familiar(&engine);
            let after = outcome.after.clone().unwrap();
            if engine.rank() == Rank(1) {
                lapse("the stream, which must stand still", Duration::from_millis(50));
                assert!(!after.has_happened().unwrap());
                engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was killed".to_owned());
            }
            let began = Instant::now();
            wait_until("the stream to be let go", PATIENCE, || after.has_happened().unwrap());
            assert!(began.elapsed() < LET_GO_WITHIN, "{:?}", began.elapsed());
            let failure = engine.failure().expect("the engine has failed before streams are let go").to_string();
            assert!(failure.contains("rank 1 was killed"), "{failure}");
        });
        check_ends(&libraries, "a death of a rank that others' streams wait for");
        assert_eq!(libraries[0].ends().aborted, 1);
    }
}

/// A bucket that is queued and stands still for longer than the user allows ends the group.
#[test]
fn a_queued_bucket_that_stands_still_ends_the_group() {
    let libraries = [PretendNccl::default(), PretendNccl::default().stuck_after(2)];
    let lent = libraries.clone();
    let hooks = move |rank: usize| hooks_with_nccl(rank, lent[rank].clone());
    let config = Config { deadline: Duration::from_millis(500), ..with(DevicePlaneChoice::Auto) };
    let errors = run_hooked(meetings(2, Transport::Nccl), config, hooks, |engine| {
        let outcome = queue_familiar(&engine);
        wait_until("the engine to notice", PATIENCE, || engine.failure().is_some());
        drop(when_there(outcome));
        engine.failure().unwrap().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("FARANDOLE_TIMEOUT_SECONDS")), "{errors:?}");
    check_ends(&libraries, "a deadline of a queued bucket");
}

/// NCCL notices something while buckets trail: a rank's end is named by the engine if it hears of it soon, and by
/// NCCL's words otherwise.
#[test]
fn what_nccl_notices_of_a_queued_bucket_ends_the_group() {
    for is_killed in [true, false] {
        // Looks of joining and two buckets that hosts wait for are before it, whatever their number.
        let libraries = [PretendNccl::default().failing_after(2), PretendNccl::default().stuck_after(2)];
        let lent = libraries.clone();
        let hooks = move |rank: usize| hooks_with_nccl(rank, lent[rank].clone());
        let ended = run_hooked(meetings(2, Transport::Nccl), with_no_deadline(), hooks, move |engine| {
            let outcome = queue_familiar(&engine);
            if is_killed && engine.rank() == Rank(1) {
                // NCCL has noticed by then, and nobody was told yet.
                lapse("rank 1, whose end NCCL notices first", Duration::from_millis(100));
                engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was killed".to_owned());
            }
            wait_until("the engine to notice", PATIENCE, || engine.failure().is_some());
            drop(when_there(outcome));
            engine.failure().unwrap().to_string()
        });
        let words = if is_killed { "rank 1 was killed" } else { "remote process exited" };
        assert!(ended.iter().all(|error| error.contains(words)), "{ended:?}");
        check_ends(&libraries, words);
    }
}

/// Which collectives work in device memory, in groups on one host and across hosts.
#[test]
fn singles_that_travel_as_halves_are_narrowed_when_they_are_packed() {
    ranks_with(4, Transport::Nccl, with(DevicePlaneChoice::PreferNccl), |engine| {
        for members in [1, 3] {
            let submit = |number: usize| {
                let mut submission = sum(&format!("{members}.{number}"), vec![1.0 + 2f32.powi(-10), number as f32]);
                submission.request.dtype = Dtype::BF16;
                engine.submit(moved(&engine, submission)).unwrap()
            };
            let tickets: Vec<_> = (0..members).map(submit).collect();
            for (number, outcome) in wait_all(tickets).into_iter().enumerate() {
                let result = contents(&when_there(outcome.unwrap()).into_result().unwrap());
                let values: Vec<f32> = result.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                assert_eq!(values, [4.0, 4.0 * number as f32]);
            }
        }
    });
}

#[test]
fn nccl_is_for_what_it_can_and_for_who_wants_it() {
    let across = |plane| run_works(Transport::Nccl, plane);
    let within = |plane| run_works(Transport::Device, plane);
    let (all, none) = ([true; 3], [false; 3]);
    assert_eq!(across(DevicePlaneChoice::Auto), all, "what NCCL cannot reduce crosses hosts in shards");
    assert_eq!(across(DevicePlaneChoice::Nccl), all);
    assert_eq!(across(DevicePlaneChoice::Own), [true, true, false], "only allreduces do");
    assert_eq!(across(DevicePlaneChoice::Staged), none);
    assert_eq!(within(DevicePlaneChoice::Auto), all);
    assert_eq!(within(DevicePlaneChoice::Nccl), all, "what NCCL cannot do, kernels of our own do");
    assert_eq!(within(DevicePlaneChoice::Staged), none);
}

/// Whether these work: sums of singles, sums of shorts, and gathering shorts.
fn run_works(transport: Transport, plane: DevicePlaneChoice) -> [bool; 3] {
    let hooks = |rank| hooks_with_nccl(rank, PretendNccl::default());
    let answers = run_hooked(meetings(2, transport), with(plane), hooks, |engine| {
        let works = |collective, dtype| engine.works_on_devices(GroupId::WORLD, &collective, dtype).unwrap();
        let sum = || reduce(ReduceOp::Sum);
        [works(sum(), Dtype::F32), works(sum(), Dtype::I16), works(Collective::Allgather, Dtype::I16)]
    });
    assert_eq!(answers[0], answers[1]);
    answers[0]
}

/// Runs allreduces of growing tensors until one fails; says how it ended on each rank.
fn run_until_failure(hooks: impl Fn(usize) -> Hooks, rounds: usize) -> Vec<Option<String>> {
    let config = Config { deadline: Duration::from_secs(3), ..with(DevicePlaneChoice::Auto) };
    run_hooked(meetings(2, Transport::Nccl), config, hooks, move |engine| {
        for round in 0..rounds {
            let mut tensor = sum(&format!("t{}", round % 3), vec![1f32; 100 << round]);
            // Packed now and then, so that memory is allocated and folded.
            if round % 2 == 0 {
                tensor.request.collective = Collective::Allreduce { op: ReduceOp::Sum, prescale: 2.0, postscale: 0.5 };
            }
            match engine.run(moved(&engine, tensor)) {
                Ok(outcome) => {
                    let result = contents(&outcome.into_result().unwrap());
                    assert_eq!(result[..4], 2f32.to_ne_bytes());
                }
                Err(error) => return Some(error.to_string()),
            }
        }
        None
    })
}

/// Runs the same allreduces again and again, ahead of devices, until one fails; says how it ended on each rank.
fn run_ahead_until_failure(hooks: impl Fn(usize) -> Hooks, rounds: usize) -> Vec<Option<String>> {
    let config = Config { deadline: Duration::from_secs(3), ..with(DevicePlaneChoice::Auto) };
    run_hooked(meetings(2, Transport::Nccl), config, hooks, move |engine| {
        for round in 0..rounds {
            let tensor = moved(&engine, scaled(&format!("t{}", round % 2), vec![1f32; 3000])).running_ahead();
            match engine.run(tensor).map(|outcome| there_or_failed(&engine, outcome)) {
                Ok(Ok(outcome)) => {
                    let result = contents(&outcome.into_result().unwrap());
                    assert_eq!(result[..4], 2f32.to_ne_bytes());
                }
                Ok(Err(error)) | Err(error) => return Some(error.to_string()),
            }
        }
        leave_together(&engine)
    })
}

/// Every kind of call fails once on one rank, early or late; all ranks end with the cause.
#[test]
fn faults_are_named_on_all_ranks() {
    let refused = || DeviceError::Nccl {
        call: "ncclCommInitRankConfig",
        code: 2,
        text: "unhandled system error".to_owned(),
        detail: "no socket interface found".to_owned(),
    };
    let out_of_memory = || DeviceError::OutOfMemory { bytes: 1 << 20, free_and_total: None };
    let strikes: Vec<(Fault, DeviceError, &str)> = vec![
        (Fault::NcclId, refused(), "no socket interface found"),
        (Fault::NcclJoin, refused(), "no socket interface found"),
        (Fault::NcclCall, refused(), "no socket interface found"),
        (Fault::NcclLook, DeviceFaults::remote_error(), "remote process exited"),
        (Fault::Record, DeviceFaults::illegal_address(), "illegal memory access"),
        (Fault::Look, DeviceFaults::illegal_address(), "illegal memory access"),
        (Fault::Fold, DeviceFaults::illegal_address(), "illegal memory access"),
        (Fault::Allocate, out_of_memory(), "has no 1.0 MiB left"),
    ];
    let mut struck = 0;
    for (call, error, words) in strikes {
        for (after, ahead) in [(0, false), (1, false), (7, false), (3, true), (7, true), (20, true)] {
            for victim in 0..2 {
                let faults = DeviceFaults::default().at(call, after, error.clone());
                let libraries: Vec<PretendNccl> = (0..2)
                    .map(|rank| {
                        PretendNccl::with(if rank == victim { faults.clone() } else { DeviceFaults::default() })
                    })
                    .collect();
                let lent = libraries.clone();
                let hooks = move |rank: usize| {
                    let of_device = if rank == victim { faults.clone() } else { DeviceFaults::default() };
                    Hooks { nccl: Some(Arc::new(lent[rank].clone())), ..hooks_with(rank, of_device) }
                };
                let ended = if ahead { run_ahead_until_failure(hooks, 8) } else { run_until_failure(hooks, 6) };
                let which = format!("{call:?} after {after} on rank {victim}, ahead: {ahead}");
                // Some calls are not made as often, and one rank alone asks for the id.
                if ended.iter().any(Option::is_some) {
                    struck += 1;
                    let all: Vec<&str> = ended.iter().map(|error| error.as_deref().unwrap_or("went on")).collect();
                    assert!(all.iter().all(|error| error.contains(words)), "{which}: {all:?}");
                }
                check_ends(&libraries, &which);
            }
        }
    }
    assert!(struck > 24, "most faults strike: {struck}");
}

/// Every communicator that was made is ended, in order or not.
fn check_ends(libraries: &[PretendNccl], which: &str) {
    for library in libraries {
        let NcclEnds { joined, ended, aborted } = library.ends();
        assert_eq!(joined, ended + aborted, "{which}: {:?}", library.ends());
    }
}

#[test]
fn communicators_of_ranks_that_leave_in_order_are_ended_in_order() {
    let library = PretendNccl::default();
    let lent = library.clone();
    let ended = run_until_failure(move |rank| hooks_with_nccl(rank, lent.clone()), 4);
    assert_eq!(ended, [None, None]);
    assert_eq!(library.ends(), NcclEnds { joined: 2, ended: 2, aborted: 0 });
}

/// A rank whose device never comes to its calls holds the others up; nothing hangs, and nobody waits for NCCL.
#[test]
fn a_device_that_never_comes_ends_at_the_deadline() {
    let libraries = [PretendNccl::default(), PretendNccl::default().stuck_after(2)];
    let lent = libraries.clone();
    let ended = run_until_failure(move |rank| hooks_with_nccl(rank, lent[rank].clone()), 4);
    assert!(ended.iter().all(|error| error.as_deref().is_some_and(|error| error.contains("t2"))), "{ended:?}");
    check_ends(&libraries, "a deadline");
    assert_eq!(libraries[0].ends().aborted, 1);
}

/// A rank dies while the others' devices wait for it in the middle of a collective: they end with its name.
#[test]
fn a_rank_that_dies_in_the_middle_is_named_without_a_deadline() {
    for size in [2, 4] {
        let stuck = PretendNccl::default().stuck_after(1);
        let libraries: Vec<PretendNccl> =
            (0..size).map(|rank| if rank == 1 { stuck.clone() } else { PretendNccl::default() }).collect();
        let lent = libraries.clone();
        let hooks = move |rank: usize| hooks_with_nccl(rank, lent[rank].clone());
        let ended = run_hooked(meetings(size, Transport::Nccl), with_no_deadline(), hooks, |engine| {
            engine.run(moved(&engine, sum("first", vec![1f32; 1000]))).unwrap();
            let ticket = engine.submit(moved(&engine, sum("gradient", vec![1f32; 100_000]))).unwrap();
            if engine.rank() == Rank(1) {
                lapse("rank 1, which hangs in its device", Duration::from_millis(200));
                engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was killed".to_owned());
            }
            match ticket.wait() {
                Err(error @ Error::Failed(_)) => error.to_string(),
                other => panic!("{other:?}"),
            }
        });
        assert!(ended.iter().all(|error| error.contains("rank 1 was killed")), "{ended:?}");
        check_ends(&libraries, "a death");
    }
}

/// Communicators that nothing uses when a rank dies are aborted as well: an orderly end would wait for that rank.
#[test]
fn a_rank_that_dies_between_collectives_leaves_nothing_to_wait_for() {
    let library = PretendNccl::default();
    let lent = library.clone();
    let hooks = move |rank| hooks_with_nccl(rank, lent.clone());
    run_hooked(meetings(2, Transport::Nccl), with(DevicePlaneChoice::Auto), hooks, |engine| {
        engine.run(moved(&engine, sum("first", vec![1f32; 1000]))).unwrap();
        engine.run(sum("both are here", vec![1f32])).unwrap();
        if engine.rank() == Rank(1) {
            engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was killed".to_owned());
        }
        let error = engine.run(moved(&engine, sum("gradient", vec![1f32; 1000]))).unwrap_err().to_string();
        assert!(error.contains("rank 1 was killed"), "{error}");
    });
    assert_eq!(library.ends(), NcclEnds { joined: 2, ended: 0, aborted: 2 });
}

/// NCCL notices the end of a rank before the engine does; the rank is named all the same.
#[test]
fn what_nccl_notices_first_is_named_by_the_engine() {
    let faults = DeviceFaults::default().at(Fault::NcclLook, 0, DeviceFaults::remote_error());
    let libraries = [PretendNccl::with(faults), PretendNccl::default()];
    let lent = libraries.clone();
    let hooks = move |rank: usize| hooks_with_nccl(rank, lent[rank].clone());
    let ended = run_hooked(meetings(2, Transport::Nccl), with_no_deadline(), hooks, |engine| {
        let ticket = engine.submit(moved(&engine, sum("gradient", vec![1f32; 1000]))).unwrap();
        if engine.rank() == Rank(1) {
            // NCCL has noticed by then, and nobody was told yet.
            lapse("rank 1, whose end NCCL notices first", Duration::from_millis(100));
            engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was killed".to_owned());
        }
        ticket.wait().unwrap_err().to_string()
    });
    assert!(ended.iter().all(|error| error.contains("rank 1 was killed")), "{ended:?}");
    check_ends(&libraries, "a death that NCCL notices");
}

/// A peer that never joins: the others wait for NCCL without blocking, and end when it is found to be gone.
#[test]
fn a_rank_that_dies_while_ranks_join_is_named() {
    let libraries = [
        PretendNccl::default(),
        PretendNccl::with(DeviceFaults::default().at(Fault::NcclJoin, 0, DeviceFaults::remote_error())),
    ];
    let lent = libraries.clone();
    let ended = run_until_failure(move |rank| hooks_with_nccl(rank, lent[rank].clone()), 1);
    assert!(
        ended.iter().all(|error| error.as_deref().is_some_and(|error| error.contains("remote process"))),
        "{ended:?}"
    );
    check_ends(&libraries, "a death while joining");
}

/// Process sets have communicators of their own, beside each other.
#[test]
fn process_sets_have_communicators_of_their_own() {
    let library = PretendNccl::default();
    let lent = library.clone();
    let hooks = move |rank| hooks_with_nccl(rank, lent.clone());
    run_hooked(meetings(4, Transport::Nccl), with(DevicePlaneChoice::Nccl), hooks, |engine| {
        let group = engine.add_group(&[Rank(0), Rank(1), Rank(3)]).unwrap();
        for round in 0..3 {
            let world = engine.submit(moved(&engine, sum("world", vec![1f32; 100]))).unwrap();
            if engine.rank() != Rank(2) {
                let tensor = sum("set", vec![round as f32; 100]).in_group(group);
                let outcome = engine.run(moved(&engine, tensor)).unwrap();
                assert_eq!(contents(&outcome.into_result().unwrap())[..4], (3.0 * round as f32).to_ne_bytes());
            }
            let outcome = world.wait().unwrap();
            assert_eq!(contents(&outcome.into_result().unwrap())[..4], 4f32.to_ne_bytes());
        }
    });
    assert_eq!(library.ends(), NcclEnds { joined: 7, ended: 7, aborted: 0 });
}
