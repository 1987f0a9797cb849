//! Tensors in device memory: every type and operation gives the bits of host memory, wherever the tensors lie; and
//! every fault of a device ends with its cause, on all ranks.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farandole_device::Error as DeviceError;
use farandole_device::pretend::{Call as DeviceCall, DeviceFaults, Pretend};
use farandole_engine::{Config, Engine, Error, Outcome, Submission, wait_all};
use farandole_plan::{Collective, Dtype, ErrorClass, GroupId, Rank, ReduceOp};
use farandole_tensor::{OwnedBytes, Region};
use farandole_testing::{Deadline, wait_until};

use crate::harness::pretend_device::{
    contents, held_as_singles, hooks_with, moved, moved_to_private_memory, when_there, widened,
};
use crate::harness::reference::{Call, Inputs, Solved};
use crate::harness::{Transport, config, meetings, ranks, ranks_with, run_hooked, sum};

/// Only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

const OPS: [ReduceOp; 5] = [ReduceOp::Average, ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Factors for contributions and results. Prescales are powers of two, so that everything stays exact.
const FACTORS: [(f64, f64); 4] = [(1.0, 1.0), (0.25, 1.0), (1.0, 0.1), (0.5, 3.0)];

/// Every collective, with every type and operation where it reduces.
pub(crate) fn calls(size: usize, inputs: Inputs) -> Vec<Solved> {
    let mut solved = Vec::new();
    for (turn, (dtype, op)) in Dtype::ALL.iter().flat_map(|dtype| OPS.map(|op| (*dtype, op))).enumerate() {
        let (prescale, postscale) = FACTORS[turn % FACTORS.len()];
        let root = Rank((turn % size) as u32);
        let collectives = [
            Collective::Allreduce { op, prescale, postscale },
            Collective::Reduce { root, op, prescale, postscale },
            Collective::ReduceScatter { op, prescale, postscale },
            match turn % 5 {
                0 => Collective::Broadcast { root },
                1 => Collective::Allgather,
                2 => Collective::Alltoall { splits: None },
                3 => Collective::Gather { root },
                _ => Collective::Scatter { root, splits: None },
            },
        ];
        for collective in collectives {
            let call = Call {
                number: solved.len() as u64,
                group: GroupId::WORLD,
                collective,
                dtype,
                rows: [1, 130, 3000, 0, 7001][turn % 5],
                row_elems: [1, 3, 2][turn % 3],
                batch: None,
                priority: 0,
                inputs,
            };
            solved.push(Solved::new(&call, turn as u64, &vec![false; size]));
        }
    }
    solved
}

/// Runs all calls alone and together, with tensors that `place` puts somewhere.
pub(crate) fn check_all(engine: &Engine, all: &[Solved], place: impl Fn(Submission) -> Submission) {
    let me = engine.rank().index();
    let submission = |solved: &Solved| solved.submission(me, engine.size());
    let right = |solved: &Solved, how: &str, outcome: Outcome| {
        let result = contents(&when_there(outcome).into_result().unwrap());
        assert!(*result == *solved.expected.as_ref().unwrap()[me], "rank {me}, {how}: {:?}", solved.call);
    };
    for solved in all {
        right(solved, "alone", engine.run(place(submission(solved))).unwrap());
    }
    for solved in all {
        let is_reduce = matches!(solved.call.collective, Collective::Reduce { .. });
        let len = solved.expected.as_ref().unwrap()[me].len();
        let output = OwnedBytes::from_slice(&vec![0xa5; if is_reduce { solved.inputs[me].len() } else { len }]);
        let apart = submission(solved).with_output(Region::from_owned_bytes(output, solved.call.dtype));
        let mut outcome = when_there(engine.run(place(apart)).unwrap());
        let input = outcome.input.take().unwrap();
        assert!(contents(&input) == solved.inputs[me], "the input of {:?} changed", solved.call);
        if is_reduce && solved.call.collective.root() != Some(engine.rank()) {
            let untouched = contents(&outcome.into_result().unwrap());
            assert!(untouched.iter().all(|byte| *byte == 0xa5), "the output of {:?} changed", solved.call);
            continue;
        }
        right(solved, "apart", outcome);
    }
    let tickets: Vec<_> = all.iter().map(|solved| engine.submit(place(submission(solved))).unwrap()).collect();
    for (solved, outcome) in all.iter().zip(wait_all(tickets)) {
        right(solved, "together", outcome.unwrap());
    }
}

#[test]
fn tensors_on_devices_give_the_bits_of_host_memory() {
    for size in [2, 4] {
        ranks(size, Transport::Device, move |engine| {
            let all = calls(engine.size(), Inputs::Extreme);
            for _ in 0..2 {
                check_all(&engine, &all, |submission| moved(&engine, submission));
            }
        });
    }
}

#[test]
fn tensors_that_cannot_be_mapped_are_packed() {
    for (size, transport) in [(3, Transport::Device), (4, Transport::DeviceHosts)] {
        ranks(size, transport, move |engine| {
            let works = |solved: &Solved| {
                let call = &solved.call;
                engine.works_on_devices(GroupId::WORLD, &call.collective, call.dtype).unwrap()
            };
            let all: Vec<Solved> = calls(engine.size(), Inputs::Extreme).into_iter().filter(works).collect();
            // On one rank, on all, and in turns.
            for rounds in 0..3 {
                let private = rounds == 1 || engine.rank().index() == rounds;
                check_all(&engine, &all, |submission| match private {
                    true => moved_to_private_memory(submission),
                    false => moved(&engine, submission),
                });
            }
        });
    }
}

/// Halves on some ranks, singles that travel as halves on others: the result is that of halves.
#[test]
fn singles_that_travel_as_halves_give_the_bits_of_halves() {
    for (size, transport) in [(3, Transport::Device), (2, Transport::DeviceHosts), (4, Transport::DeviceHosts)] {
        ranks(size, transport, move |engine| {
            let is_halves = |solved: &Solved| {
                let Call { dtype, collective, .. } = &solved.call;
                matches!(dtype, Dtype::F16 | Dtype::BF16) && matches!(collective, Collective::Allreduce { .. })
            };
            let all: Vec<Solved> = calls(size, Inputs::Extreme).into_iter().filter(is_halves).collect();
            for round in 0..6 {
                check_held(&engine, &all, round);
            }
        });
    }
}

/// Runs calls on halves. Who holds them in singles, and who runs ahead, depends on the round.
fn check_held(engine: &Engine, all: &[Solved], round: usize) {
    let me = engine.rank().index();
    let as_singles = |number: usize| round < 2 || (me + number + round).is_multiple_of(2);
    let submit = |(number, solved): (usize, &Solved)| {
        let mut submission = solved.submission(me, engine.size());
        if round % 3 == 1 {
            let output = OwnedBytes::from_slice(&vec![0xa5; solved.inputs[me].len()]);
            submission = submission.with_output(Region::from_owned_bytes(output, solved.call.dtype));
        }
        let held = if as_singles(number) { held_as_singles(submission) } else { submission };
        let runs_ahead = round.is_multiple_of(2);
        engine.submit(Submission { runs_ahead, ..moved(engine, held) }).unwrap()
    };
    let tickets: Vec<_> = all.iter().enumerate().map(submit).collect();
    for (number, outcome) in wait_all(tickets).into_iter().enumerate() {
        let (solved, halves) = (&all[number], all[number].expected.as_ref().unwrap()[me].to_vec());
        let right = if as_singles(number) { widened(&halves, solved.call.dtype) } else { halves };
        let result = contents(&when_there(outcome.unwrap()).into_result().unwrap());
        assert!(result == right, "rank {me}, round {round}: {:?}", solved.call);
    }
}

#[test]
fn singles_are_rounded_once_on_their_way_out_and_back() {
    ranks(2, Transport::Device, |engine| {
        // Above one, halves are 2^-10 apart: the first is rounded down, the second to even, the third stays.
        let mut submission = sum("t", vec![1.0 + 2f32.powi(-12), 1.0 + 3.0 * 2f32.powi(-11), 2f32.powi(-10)]);
        submission.request.dtype = Dtype::F16;
        let outcome = engine.run(moved(&engine, submission)).unwrap();
        let result = contents(&when_there(outcome).into_result().unwrap());
        let values: Vec<f32> = result.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(values, [2.0, 2.0 + 4.0 * 2f32.powi(-10), 2f32.powi(-9)]);
    });
}

#[test]
fn device_memory_is_for_ranks_that_share_a_host() {
    for (transport, expected) in [(Transport::Device, true), (Transport::Shm, false), (Transport::Tcp, false)] {
        ranks(2, transport, move |engine| {
            let works = |group, collective| engine.works_on_devices(group, &collective, Dtype::F32).unwrap();
            assert_eq!(works(GroupId::WORLD, Collective::Allgather), expected);
            assert!(!works(GroupId::WORLD, Collective::Barrier));
            let alone = engine.add_group(&[engine.rank()]);
            assert!(alone.is_err() || !works(alone.unwrap(), Collective::Allgather));
        });
    }
    ranks(2, Transport::Shm, |engine| {
        let error = engine.submit(moved_to_private_memory(sum("t", vec![1f32; 4]))).unwrap_err().to_string();
        assert!(error.contains("do not see each other's device memory"), "{error}");
    });
}

/// Programs that run ahead get the same bits, whether all ranks do or only some, and wherever tensors lie.
#[test]
fn programs_that_run_ahead_get_the_same_bits() {
    for size in [2, 4] {
        ranks(size, Transport::Device, move |engine| {
            let all = calls(engine.size(), Inputs::Extreme);
            check_all(&engine, &all, |submission| moved(&engine, submission).running_ahead());
            check_all(&engine, &all, |submission| moved_to_private_memory(submission).running_ahead());
            check_all(&engine, &all, |submission| {
                let runs_ahead = engine.rank() == Rank(1);
                Submission { runs_ahead, ..moved(&engine, submission) }
            });
        });
    }
}

/// The outcome comes when the work is queued, before any rank's data are there; buckets follow each other on devices.
#[test]
fn the_host_runs_ahead_of_devices() {
    ranks(2, Transport::Device, |engine| {
        let mut outcomes = Vec::new();
        for round in 0..20 {
            let tensor = moved(&engine, sum(&format!("t{}", round % 2), vec![round as f32; 1000])).running_ahead();
            let ready = tensor.ready.clone().unwrap();
            let outcome = engine.run(tensor).unwrap();
            let after = outcome.after.clone().expect("it is queued, not done");
            outcomes.push((round, ready, after, outcome));
        }
        let late = outcomes.iter().filter(|(_, _, after, _)| !after.has_happened().unwrap()).count();
        assert!(late > 0, "all were done before the host had queued the last");
        for (round, ready, _, outcome) in outcomes {
            let result = contents(&when_there(outcome).into_result().unwrap());
            assert!(ready.has_happened().unwrap(), "devices wait for data");
            assert_eq!(result[..4], (2.0 * round as f32).to_ne_bytes());
        }
        engine.run(sum("both are here", vec![1f32])).unwrap();
    });
}

/// A rank whose data never come holds up the devices of the others; when it is lost, these go on, and the engine says
/// why before their results can be seen.
#[test]
fn devices_that_wait_for_a_lost_rank_are_let_go() {
    let config = Config { deadline: Duration::from_secs(20), ..config() };
    // Rank 1 lets its data come only when rank 0 has been let go without them.
    let is_let_go = Arc::new(AtomicBool::new(false));
    ranks_with(2, Transport::Device, config, move |engine| {
        let stuck = Pretend::with(u32::MAX, DeviceFaults::default()).device();
        let (stream, never) = (stuck.stream().unwrap(), stuck.words(Box::new(NeverWritten::default())).unwrap());
        stream.wait_word(&never, 0, 1).unwrap();
        let mut tensor = moved(&engine, sum("gradient", vec![1f32; 1000])).running_ahead();
        if engine.rank() == Rank(1) {
            tensor.ready = Some(stream.record().unwrap());
        }
        let outcome = engine.run(tensor).unwrap();
        let after = outcome.after.clone().expect("it is queued, not done");
        // Both are told, as by the launcher.
        engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was killed".to_owned());
        if engine.rank() == Rank(1) {
            wait_until("the other device to be let go", PATIENCE, || is_let_go.load(Ordering::Acquire));
            never.set(0, 1);
        }
        wait_until("the device to be let go", PATIENCE, || after.has_happened().unwrap());
        is_let_go.store(true, Ordering::Release);
        let failure = engine.failure().expect("the engine has failed before devices are let go").to_string();
        assert!(failure.contains("rank 1 was killed"), "{failure}");
    });
}

/// A word that nobody writes but the test.
#[derive(Default)]
pub(crate) struct NeverWritten([AtomicU32; 1]);

impl AsRef<[AtomicU32]> for NeverWritten {
    fn as_ref(&self) -> &[AtomicU32] {
        &self.0
    }
}

/// A bucket that is queued and stands still for longer than the user allows names the rank whose data do not come.
#[test]
fn a_queued_bucket_that_stands_still_ends_the_group() {
    let config = Config { deadline: Duration::from_millis(300), ..config() };
    let errors = ranks_with(2, Transport::Device, config, |engine| {
        let stuck = Pretend::with(0, DeviceFaults::default()).device();
        let (stream, never) = (stuck.stream().unwrap(), stuck.words(Box::new(NeverWritten::default())).unwrap());
        stream.wait_word(&never, 0, 1).unwrap();
        let mut tensor = moved(&engine, sum("gradient", vec![1f32; 1000])).running_ahead();
        if engine.rank() == Rank(1) {
            tensor.ready = Some(stream.record().unwrap());
        }
        let outcome = engine.run(tensor).unwrap();
        assert!(outcome.after.is_some());
        wait_until("the engine to notice", PATIENCE, || engine.failure().is_some());
        never.set(0, 1);
        drop(when_there(outcome));
        engine.failure().unwrap().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("FARANDOLE_TIMEOUT_SECONDS")), "{errors:?}");
}

#[test]
fn a_rank_whose_tensor_lies_elsewhere_is_told_so() {
    let errors = ranks(2, Transport::Device, |engine| {
        let mine = sum("t", vec![1f32; 100]);
        let mine = if engine.rank() == Rank(0) { moved(&engine, mine) } else { mine };
        let error = engine.run(mine).unwrap_err().to_string();
        // A rank that leaves at once would be the cause for the other.
        engine.run(sum("both are here", vec![1f32])).unwrap();
        error
    });
    assert!(errors.iter().all(|error| error.contains("CPU/GPU device selection")), "{errors:?}");
}

/// Every kind of call fails once on one rank, early or late; all ranks end with the cause.
#[test]
fn faults_of_a_device_are_named_on_all_ranks() {
    let out_of_memory = || DeviceError::OutOfMemory { bytes: 1 << 20, free_and_total: Some((1 << 10, 1 << 34)) };
    let gone = || DeviceError::NotShareable("the other process has freed it".to_owned());
    let sticky = DeviceFaults::illegal_address;
    let strikes: Vec<(DeviceCall, DeviceError, &str)> = vec![
        (DeviceCall::Record, sticky(), "illegal memory access"),
        (DeviceCall::Look, sticky(), "illegal memory access"),
        (DeviceCall::Fold, sticky(), "illegal memory access"),
        (DeviceCall::Allocate, out_of_memory(), "has no 1.0 MiB left"),
        (DeviceCall::Export, sticky(), "illegal memory access"),
        (DeviceCall::Import, gone(), "has freed it"),
        (DeviceCall::Copy, sticky(), "illegal memory access"),
    ];
    for (call, error, words) in strikes {
        // The third fold is an Adasum; the second allocation of a rank that folds is its scratch memory.
        let mut when = vec![(Transport::Device, 0), (Transport::Device, 2), (Transport::DeviceHosts, 1)];
        if call == DeviceCall::Allocate {
            when.push((Transport::Device, 1));
        }
        for (transport, after) in when {
            for victim in 0..2 {
                for runs_ahead in [false, true] {
                    let fault = DeviceFaults::default().at(call, after, error.clone());
                    let which = format!("{call:?} after {after} on rank {victim}, {transport:?}, ahead: {runs_ahead}");
                    check_fault(transport, fault, victim, runs_ahead, words, &which);
                }
            }
        }
    }
}

/// An outcome when its result is there, or why the engine has failed.
pub(crate) fn there_or_failed(engine: &Engine, outcome: Outcome) -> Result<Outcome, Error> {
    let (deadline, found_out) = (Deadline::after(PATIENCE), Deadline::after(Duration::from_secs(6)));
    // The other rank may have left.
    let failure = || engine.failure().filter(|error| matches!(error, Error::Failed(_)));
    while let Some(after) = &outcome.after {
        if let Some(failure) = failure() {
            return Err(failure);
        }
        match after.has_happened() {
            Ok(true) => break,
            Ok(false) => {
                deadline.check("the end of a queued bucket, well or not");
            }
            // A device that has failed computes nothing more, and the engine finds out why; unless it has seen the
            // event before: then the result is there, and the next bucket finds out.
            Err(_) if found_out.is_over() => break,
            Err(_) => {}
        }
        deadline.pause("the end of a queued bucket");
    }
    failure().map_or(Ok(outcome), Err)
}

/// Nobody leaves before all have their last results: an engine that the others have left does not look at its device
/// any more. Says how that failed.
pub(crate) fn leave_together(engine: &Engine) -> Option<String> {
    engine.run(sum("leaving", vec![0f32])).err().map(|error| error.to_string())
}

fn check_fault(transport: Transport, fault: DeviceFaults, victim: usize, runs_ahead: bool, words: &str, which: &str) {
    let config = Config { deadline: Duration::from_secs(5), ..config() };
    let hooks = move |rank| hooks_with(rank, if rank == victim { fault.clone() } else { DeviceFaults::default() });
    let ended = run_hooked(meetings(2, transport), config, hooks, move |engine| {
        for round in 0..12 {
            // Packed now and then, so that memory is allocated.
            let tensor = sum(&format!("t{}", round % 3), vec![1f32; 100 << round]);
            let (tensor, expected) = if round % 3 == 2 { as_adasum(&engine, tensor) } else { (tensor, 2f32) };
            let tensor = if round % 2 == 0 { moved(&engine, tensor) } else { moved_to_private_memory(tensor) };
            let tensor = Submission { runs_ahead, ..tensor };
            match engine.run(tensor).map(|outcome| there_or_failed(&engine, outcome)) {
                Ok(Ok(outcome)) => {
                    let result = contents(&outcome.into_result().unwrap());
                    assert_eq!(result[..4], expected.to_ne_bytes());
                }
                Ok(Err(error)) | Err(error) => return Some(error.to_string()),
            }
        }
        leave_together(&engine)
    });
    // Some calls are never made on some ranks: only one of two ranks that share a device folds and maps.
    if ended.iter().any(Option::is_some) {
        let all: Vec<&str> = ended.iter().map(|error| error.as_deref().unwrap_or("went on")).collect();
        assert!(all.iter().all(|error| error.contains(words)), "{which}: {all:?}");
    }
}

/// The same of ones on two ranks with Adasum, if that is carried out on devices, and its result.
fn as_adasum(engine: &Engine, mut sum: Submission) -> (Submission, f32) {
    let collective = Collective::Allreduce { op: ReduceOp::Adasum, prescale: 1.0, postscale: 1.0 };
    if !engine.works_on_devices(GroupId::WORLD, &collective, Dtype::F32).unwrap() {
        return (sum, 2.0);
    }
    sum.request.collective = collective;
    (sum, 1.0)
}

#[test]
fn a_rank_that_leaves_while_others_wait_for_its_device_is_named() {
    for (size, transport) in [(2, Transport::Device), (4, Transport::DeviceHosts)] {
        let config = Config { deadline: Duration::from_secs(5), ..config() };
        let errors = ranks_with(size, transport, config, |engine| {
            if engine.rank() == Rank(1) {
                engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was killed".to_owned());
            }
            match engine.run(moved(&engine, sum("gradient", vec![1f32; 1000]))) {
                Err(error @ Error::Failed(_)) => error.to_string(),
                other => panic!("{other:?}"),
            }
        });
        assert!(errors.iter().all(|error| error.contains("rank 1 was killed")), "{errors:?}");
    }
}

/// What the engine has logged.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

#[test]
fn ranks_that_meant_to_have_different_devices_and_have_the_same_are_named_once() {
    log::set_logger(&Keep).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let sharing = |size, ranks_per_gpu| {
        LOGGED.lock().unwrap().clear();
        let config = Config { ranks_per_gpu, ..config() };
        ranks_with(size, Transport::Device, config, |engine| {
            let all: Vec<Solved> = calls(engine.size(), Inputs::Extreme).into_iter().take(6).collect();
            check_all(&engine, &all, |submission| moved(&engine, submission));
        });
        let logged = LOGGED.lock().unwrap();
        logged.iter().filter(|line| line.contains("use the same GPU")).cloned().collect::<Vec<String>>()
    };
    // Ranks 0 and 1 have a device, and so have 2 and 3.
    let said = sharing(4, 1);
    assert!(matches!(&said[..], [line] if line.starts_with("ranks 0, 1 use the same GPU (")), "{said:?}");
    assert_eq!(sharing(4, 2), [""; 0], "they were meant to share");
    assert_eq!(sharing(4, 0), [""; 0], "nobody knows");
}
