//! What is recorded of requests and direct calls: every boundary, in order, under the same number on all ranks.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::harness::pretend_device::{moved, moved_to_private_memory};
use crate::harness::{Transport, config, ranks, ranks_with, sum};
use farandole_engine::connector::{Medium, ThreadWorld};
use farandole_engine::{Communicator, Config, DirectSettings};
use farandole_plan::{Rank, ReduceOp};
use farandole_testing::{Folder, Sleeper, lapse, wait_until};
use farandole_trace::event::{Collective, DeviceCache, DeviceStep, Dtype, GroupNumber, OperationNumber, StepKind};
use farandole_trace::{Event, Identity, Record, Recorder, Trace, TraceWriter, WriterOptions};

/// The events of one operation, in order, waiting left out.
fn events_of(trace: &Trace, group: GroupNumber, operation: OperationNumber) -> Vec<Event> {
    let about = |event: &Event| match *event {
        Event::Started { group, operation, .. }
        | Event::Fused { group, operation, .. }
        | Event::Entered { group, operation }
        | Event::Packed { group, operation }
        | Event::Stepped { group, operation, .. }
        | Event::Transferred { group, operation }
        | Event::Finished { group, operation }
        | Event::Done { group, operation, .. } => Some((group, operation)),
        _ => None,
    };
    let events = trace.records.iter().map(|record| record.event);
    events.filter(|event| about(event) == Some((group, operation))).collect()
}

/// The operation that each request of a name travelled in.
fn operations(trace: &Trace, name: &str) -> Vec<OperationNumber> {
    let id = trace.names.find(name).unwrap();
    let fused = trace.records.iter().filter_map(|record| match record.event {
        Event::Fused { name, operation, .. } if name == id => Some(operation),
        _ => None,
    });
    fused.collect()
}

#[test]
fn a_request_leaves_a_record_at_every_boundary() {
    for transport in Transport::ALL {
        let traces = ranks(3, transport, move |engine| {
            for _ in 0..5 {
                engine.run(sum("w", vec![1_f32; 10])).unwrap();
            }
            engine.recorder().snapshot("test")
        });
        let first = operations(&traces[0], "w");
        assert_eq!(first.len(), 5);
        for trace in &traces {
            assert_eq!(operations(trace, "w"), first, "{transport:?}: operations have the same numbers on all ranks");
            let name = trace.names.find("w").unwrap();
            let (group, collective, dtype, bytes) = (GroupNumber::WORLD, Collective::Allreduce, Dtype::F32, 40);
            for &operation in &first {
                let mut events = events_of(trace, group, operation);
                events.retain(|event| !matches!(event, Event::Entered { .. }));
                let expected = [
                    Event::Started { group, operation, collective, dtype, requests: 1, bytes },
                    Event::Fused { name, group, operation, bytes },
                    Event::Packed { group, operation },
                    Event::Transferred { group, operation },
                    Event::Finished { group, operation },
                    Event::Done { name, group, operation },
                ];
                assert_eq!(events, expected, "{transport:?}");
            }
            let submitted = Event::Submitted { name, group, collective, dtype, bytes };
            assert_eq!(trace.records.iter().filter(|record| record.event == submitted).count(), 5);
            assert_eq!(*trace.names.get(name).unwrap().shape, [10]);
            assert_eq!(trace.groups[&group], [0, 1, 2]);
        }
        let coordinators = &traces[0];
        let heard = |event: &Event| matches!(event, Event::Arrived { rank: 1 | 2, .. });
        assert!(coordinators.records.iter().any(|record| heard(&record.event)), "{transport:?}");
    }
}

#[test]
fn the_steps_of_a_large_bucket_add_up() {
    for transport in Transport::ALL {
        let traces = ranks(2, transport, |engine| {
            engine.run(sum("large", vec![1_f32; 1 << 19])).unwrap();
            engine.recorder().snapshot("test")
        });
        for trace in &traces {
            let operation = operations(trace, "large")[0];
            let mut bytes: BTreeMap<StepKind, u64> = BTreeMap::new();
            for event in events_of(trace, GroupNumber::WORLD, operation) {
                if let Event::Stepped { step, bytes: more, .. } = event {
                    *bytes.entry(step).or_default() += more;
                }
            }
            // Half of the two megabytes is combined here and half there, or each combines all of it.
            assert!([1 << 20, 2 << 20].contains(&bytes[&StepKind::Reduce]), "{transport:?}: {bytes:?}");
        }
    }
}

#[test]
fn a_rank_that_comes_late_is_seen_on_the_common_clock() {
    const LATE: Duration = Duration::from_millis(200);
    let has_asked = Arc::new(Barrier::new(2));
    let traces = ranks(2, Transport::Shm, move |engine| {
        for turn in 0..12 {
            if turn < 11 {
                engine.run(sum("w", vec![1_f32; 10])).unwrap();
            } else if engine.rank() == Rank(1) {
                has_asked.wait();
                lapse("rank 1, which is late", LATE);
                engine.run(sum("w", vec![1_f32; 10])).unwrap();
            } else {
                let ticket = engine.submit(sum("w", vec![1_f32; 10])).unwrap();
                has_asked.wait();
                ticket.wait().unwrap();
            }
        }
        engine.recorder().snapshot("test")
    });
    let operation = *operations(&traces[0], "w").last().unwrap();
    let start = |trace: &Trace| {
        let started = |event: &Event| matches!(event, Event::Started { operation: other, .. } if *other == operation);
        trace.records.iter().find(|record| started(&record.event)).unwrap().time_ns
    };
    // The ranks share a host and so a clock.
    let submitted = |event: &Event| matches!(event, Event::Submitted { .. });
    let asked = traces[0].records.iter().rfind(|record| submitted(&record.event)).unwrap().time_ns;
    let late_ns = start(&traces[1]) - asked;
    assert!(late_ns >= LATE.as_nanos() as u64, "{late_ns}");
}

#[test]
fn a_small_bucket_that_waits_for_a_rank_is_seen_while_it_does() {
    let seen = Arc::new(AtomicBool::new(false));
    let traces = ranks(2, Transport::Shm, move |engine| {
        // So often that the bucket comes without words, and is over before anything is written about it.
        (0..12).for_each(|_| drop(engine.run(sum("w", vec![1_f32; 10])).unwrap()));
        let recorder = Arc::clone(engine.recorder());
        let is_seen = || {
            let trace = recorder.snapshot("test");
            let mut waits = trace.records.iter().rev().filter_map(|record| match record.event {
                Event::Waiting { group: GroupNumber::WORLD, operation, peer: Some(1) } => Some(operation),
                _ => None,
            });
            let Some(last) = operations(&trace, "w").last().copied() else { return false };
            let done = Event::Done { name: trace.names.find("w").unwrap(), group: GroupNumber::WORLD, operation: last };
            waits.next() == Some(last) && trace.records.iter().all(|record| record.event != done)
        };
        let limit = Duration::from_secs(60);
        if engine.rank() == Rank(0) {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    wait_until("the bucket to be seen while it waits", limit, is_seen);
                    seen.store(true, Ordering::Release);
                });
                engine.run(sum("w", vec![1_f32; 10])).unwrap();
            });
        } else {
            wait_until("rank 0 to see the bucket", limit, || seen.load(Ordering::Acquire));
            engine.run(sum("w", vec![1_f32; 10])).unwrap();
        }
        (seen.load(Ordering::Acquire), engine.recorder().snapshot("test"))
    });
    assert!(traces[0].0, "{:?}", traces[0].1.records.iter().rev().take(20).collect::<Vec<_>>());
}

#[test]
fn a_thread_that_waits_for_its_result_says_since_when() {
    const LATE: Duration = Duration::from_millis(100);
    let (teller, waiter) = std::sync::mpsc::channel();
    let (teller, waiter) = (teller, Mutex::new(waiter));
    let traces = ranks(2, Transport::Shm, move |engine| {
        if engine.rank() == Rank(1) {
            let waiter: Sleeper = waiter.lock().unwrap().recv().unwrap();
            waiter.wait_until_asleep();
            lapse("rank 1, which is late", LATE);
        }
        let ticket = engine.submit(sum("w", vec![1_f32; 10])).unwrap();
        if engine.rank() == Rank(0) {
            teller.send(Sleeper::this_thread()).unwrap();
        }
        ticket.wait().unwrap();
        engine.recorder().snapshot("test")
    });
    let name = traces[0].names.find("w").unwrap();
    let waited: u64 = traces[0]
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::Waited { name: of, since_ns } if of == name => Some(record.time_ns - since_ns),
            _ => None,
        })
        .sum();
    assert!(waited >= LATE.as_nanos() as u64, "{waited}");
}

#[test]
fn what_a_device_does_is_timed_while_a_trace_is_kept_and_its_caches_are_counted() {
    let folder = Arc::new(Folder::new());
    for is_kept in [true, false] {
        let folder = Arc::clone(&folder);
        let traces = ranks(2, Transport::Device, move |engine| {
            let trace_in = is_kept.then(|| folder.to_path_buf());
            let options = WriterOptions { trace_in, ..WriterOptions::default() };
            let _writer = TraceWriter::start(engine.recorder(), options).unwrap();
            for _ in 0..4 {
                engine.run(moved(&engine, sum("mapped", vec![1_f32; 1000]))).unwrap();
                engine.run(moved_to_private_memory(sum("packed", vec![1_f32; 1000]))).unwrap();
            }
            engine.recorder().snapshot("test")
        });
        let took = |trace: &Trace, name: &str, wanted: DeviceStep| {
            let of_name = operations(trace, name);
            let took = |record: &Record| match record.event {
                Event::DeviceTook { operation, step, ns, .. } if step == wanted => {
                    of_name.contains(&operation).then_some(ns)
                }
                _ => None,
            };
            trace.records.iter().filter_map(took).collect::<Vec<u64>>()
        };
        let [first, second] = [&traces[0], &traces[1]];
        let times = if is_kept { 4 } else { 0 };
        for (trace, name, step, times) in [
            (first, "mapped", DeviceStep::Pack, 0),
            (first, "mapped", DeviceStep::Fold, times),
            (first, "packed", DeviceStep::Pack, times),
            (first, "packed", DeviceStep::Fold, times),
            (second, "packed", DeviceStep::Unpack, times),
            // The ranks share a device, and the first works for it.
            (second, "packed", DeviceStep::Fold, 0),
        ] {
            let took = took(trace, name, step);
            assert_eq!(took.len(), times, "{name}, {step}");
            assert!(took.iter().all(|ns| *ns >= 1000), "{name}, {step}: {took:?}");
        }
        let exports = |record: &Record| match record.event {
            Event::CacheHits { cache: DeviceCache::Exports, hits, misses, .. } => Some((hits, misses)),
            _ => None,
        };
        let told: Vec<(u64, u64)> = second.records.iter().filter_map(exports).collect();
        assert!(told.is_sorted() && told.last().is_some_and(|&(hits, misses)| hits + misses >= 6), "{told:?}");
    }
}

#[test]
fn a_recorder_of_no_records_records_nothing() {
    let off = Config { recorder_records: 0, ..config() };
    let traces = ranks_with(2, Transport::Memory, off, |engine| {
        engine.run(sum("w", vec![1_f32; 10])).unwrap();
        engine.recorder().snapshot("test")
    });
    assert!(traces.iter().all(|trace| trace.records.is_empty()));
}

#[test]
fn direct_calls_are_recorded_or_counted() {
    const CALLS: u64 = 1000;
    let thread_world = ThreadWorld::new(2, Medium::Windows);
    let program = |rank: u32, thread_world: &ThreadWorld| {
        let recorder = Recorder::new(Identity { rank, size: 2, ..Identity::default() }, 100_000);
        let settings = DirectSettings { deadline: Duration::from_secs(20), ..DirectSettings::default() };
        let patience = Duration::from_secs(10);
        let mut communicator = Communicator::join(&mut thread_world.enter(Rank(rank)), settings, patience).unwrap();
        communicator.record_with(&recorder);
        for _ in 0..CALLS {
            communicator.allreduce(&mut [1_f32], ReduceOp::Sum).unwrap();
        }
        communicator.allreduce(&mut vec![1_f32; 1 << 18], ReduceOp::Sum).unwrap();
        recorder.snapshot("test")
    };
    let traces: Vec<Trace> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                let thread_world = &thread_world;
                scope.spawn(move || program(rank, thread_world))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for trace in &traces {
        let (mut calls, mut last_bytes, mut finished) = (0, 0, 0);
        for record in &trace.records {
            match record.event {
                Event::Started {
                    group: GroupNumber::DIRECT,
                    collective: Collective::Allreduce,
                    requests: 0,
                    bytes,
                    ..
                } => {
                    calls += 1;
                    last_bytes = bytes;
                }
                Event::Skipped { calls: skipped, bytes, .. } => {
                    calls += u64::from(skipped);
                    assert_eq!(bytes, 4 * u64::from(skipped));
                }
                Event::Finished { .. } => finished += 1,
                _ => {}
            }
        }
        assert_eq!((calls, last_bytes), (CALLS + 1, 1 << 20));
        assert!(finished > 0);
        let operation = OperationNumber(CALLS + 1);
        assert!(
            events_of(trace, GroupNumber::DIRECT, operation).len() >= 4,
            "the last one is large and left a step trace"
        );
    }
}
