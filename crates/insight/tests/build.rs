//! Histories out of records: every moment is where the records say.

use farandole_insight::history::{Activity, BuildError, History, Lack};
use farandole_insight::loss::{LossCause, TimeSplit};
use farandole_insight::verdict::Devices;
use farandole_trace::event::{
    Collective, DeviceCache, DeviceStep, Dtype, Event, GroupNumber, NameId, OperationNumber, Phase, ThreadId,
};
use farandole_trace::{DEVICE_ROW, Trace, TraceEnding, TraceHeader};

const PROGRAM: ThreadId = ThreadId(1);
const ENGINE: ThreadId = ThreadId(2);

fn trace(rank: u32, size: u32) -> Trace {
    Trace::new(TraceHeader { rank, size, host: "host".to_owned(), ..TraceHeader::default() })
}

/// Submits one tensor and waits for it: begun 2 behind `there`, packed after 1 more, moved after 10 more, done after 1
/// more.
fn allreduce(trace: &mut Trace, number: u64, submitted_ns: u64, there_ns: u64) {
    let name = trace.names.intern("weight");
    let (group, operation) = (GroupNumber::WORLD, OperationNumber(number));
    let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 4096);
    trace.push(submitted_ns, PROGRAM, Event::Submitted { name, group, collective, dtype, bytes });
    let begun_ns = there_ns + 2;
    trace.push(begun_ns, ENGINE, Event::Started { group, operation, collective, dtype, requests: 1, bytes });
    trace.push(begun_ns, ENGINE, Event::Fused { name, group, operation, bytes });
    trace.push(begun_ns + 1, ENGINE, Event::Packed { group, operation });
    trace.push(begun_ns + 11, ENGINE, Event::Transferred { group, operation });
    trace.push(begun_ns + 12, ENGINE, Event::Finished { group, operation });
    trace.push(begun_ns + 12, PROGRAM, Event::Waited { name, since_ns: submitted_ns });
}

/// Two ranks; the second comes later to everything by `lag_ns`.
fn job(lag_ns: u64) -> Vec<Trace> {
    let mut traces = vec![trace(0, 2), trace(1, 2)];
    for (rank, trace) in traces.iter_mut().enumerate() {
        for number in 0..3u64 {
            let zero_ns = 1000 + 200 * number;
            trace.push(zero_ns, PROGRAM, Event::Iteration { number });
            trace.push_phase(PROGRAM, Phase::InputWait, zero_ns, zero_ns + 20);
            let work_ns = 50 + if rank == 1 { lag_ns } else { 0 };
            trace.push_phase(PROGRAM, Phase::Forward, zero_ns + 20, zero_ns + 20 + work_ns);
            allreduce(trace, number, zero_ns + 20 + work_ns, zero_ns + 70 + lag_ns);
        }
        trace.push(1600, PROGRAM, Event::Epoch { number: 1 });
        trace.sort();
    }
    traces
}

#[test]
fn records_become_lanes_operations_and_iterations() {
    let history = History::from_traces(&job(30), |_, time_ns| time_ns).unwrap();
    assert_eq!(history.check(), Ok(()));
    assert_eq!((history.end_ns, history.operations.len(), history.iterations()), (600, 3, 3));
    let first = &history.ranks[0].lane[..4];
    let spans: Vec<_> = first.iter().map(|stretch| (stretch.to_ns, stretch.activity)).collect();
    assert_eq!(
        spans,
        [(20, Activity::Input), (70, Activity::Compute), (114, Activity::Blocked(Some(0))), (200, Activity::Compute)]
    );
    let split = TimeSplit::of(&history);
    let lost: Vec<_> = split.losses.iter().map(|loss| (loss.cause.clone(), loss.ns)).collect();
    assert_eq!(
        lost,
        [
            (LossCause::Input, 120),
            (LossCause::Late(1), 90),
            (LossCause::Transfer, 60),
            (LossCause::Agreement, 12),
            (LossCause::Packing, 12)
        ]
    );
}

#[test]
fn clocks_are_brought_together() {
    let mut traces = job(0);
    traces[1].records.iter_mut().for_each(|record| record.time_ns += 1_000_000);
    for record in &mut traces[1].records {
        if let Event::Waited { since_ns, .. } = &mut record.event {
            *since_ns += 1_000_000;
        }
    }
    let aligned = History::from_traces(&traces, |rank, time_ns| time_ns - 1_000_000 * rank as u64).unwrap();
    assert_eq!(aligned, History::from_traces(&job(0), |_, time_ns| time_ns).unwrap());
}

#[test]
fn a_wait_in_pieces_is_one_wait() {
    let mut traces = job(30);
    for record in traces.iter_mut().flat_map(|trace| &mut trace.records) {
        if let Event::Waited { since_ns, .. } = &mut record.event {
            *since_ns += 1;
        }
    }
    // The first piece is over before the request travels: the program looked whether it was interrupted.
    for trace in &mut traces {
        let name = trace.names.find("weight").unwrap();
        let waits: Vec<u64> = trace
            .records
            .iter()
            .filter_map(|record| if let Event::Waited { since_ns, .. } = record.event { Some(since_ns) } else { None })
            .collect();
        for since_ns in waits {
            trace.push(since_ns, PROGRAM, Event::Waited { name, since_ns: since_ns - 1 });
        }
        trace.sort();
    }
    let pieces = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    let whole = History::from_traces(&job(30), |_, time_ns| time_ns).unwrap();
    assert_eq!(TimeSplit::of(&pieces).losses, TimeSplit::of(&whole).losses);
}

#[test]
fn a_wait_for_input_is_lost_only_as_far_as_the_device_has_nothing_to_do() {
    let mut traces = job(0);
    // Of 20 in each of three iterations the device has work for 15, for all, and for none.
    for trace in &mut traces {
        for (number, idle_ns) in [(0, 5), (1, 0), (2, 20)] {
            let since_ns = 1000 + 200 * number;
            trace.push(since_ns + 20, PROGRAM, Event::DeviceIdle { since_ns, ns: idle_ns });
        }
        let hits =
            |hits, misses| Event::CacheHits { group: GroupNumber::WORLD, cache: DeviceCache::Exports, hits, misses };
        let took = |number, ns| {
            let (operation, step) = (OperationNumber(number), DeviceStep::Fold);
            Event::DeviceTook { group: GroupNumber::WORLD, operation, step, ns }
        };
        for (time_ns, event) in [(1090, hits(5, 5)), (1290, hits(14, 6)), (1085, took(0, 7)), (1285, took(1, 9))] {
            trace.push(time_ns, ENGINE, event);
        }
        trace.sort();
    }
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!(history.check(), Ok(()));
    let lost: Vec<_> = TimeSplit::of(&history).losses.into_iter().map(|loss| (loss.cause, loss.ns)).collect();
    assert_eq!(lost[..2], [(LossCause::Transfer, 60), (LossCause::Input, 50)]);
    let devices = Devices::of(&history);
    assert_eq!((devices.ranks.len(), devices.ranks[0].idle_ns, devices.ranks[0].hidden_input_ns), (2, 25, 35));
    assert_eq!((devices.caches[0].hits, devices.caches[0].misses), (28, 12), "of both ranks, once");
    let second = Devices::of(&history.cut(&"iterations=1".parse().unwrap()).unwrap());
    assert_eq!((second.caches[0].hits, second.caches[0].misses), (18, 2));
    assert_eq!(second.ranks[0].steps_ns[1], (DeviceStep::Fold, 9));
}

#[test]
fn a_rank_whose_stream_waits_is_blocked_though_its_program_has_gone_on() {
    let mut traces = job(30);
    // The program of rank 0 asks for its next batch while its device waits for the result, from 70 to 114.
    let since_ns = 1080;
    traces[0].push_phase(PROGRAM, Phase::InputWait, since_ns, since_ns + 60);
    traces[0].push(since_ns + 60, PROGRAM, Event::DeviceIdle { since_ns, ns: 10 });
    traces[0].sort();
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!(history.check(), Ok(()));
    let spans: Vec<_> = history.ranks[0].lane[2..5].iter().map(|stretch| (stretch.to_ns, stretch.activity)).collect();
    // It is idle for the last 10 only: behind the wait it has the rest of the step to do.
    assert_eq!(spans, [(114, Activity::Blocked(Some(0))), (130, Activity::Compute), (140, Activity::Input)]);
    assert_eq!(Devices::of(&history).ranks[0].communication_ns, 3 * 44);
}

#[test]
fn what_a_device_still_does_for_a_phase_is_part_of_it() {
    let mut traces = job(40);
    let device = ThreadId(9);
    traces[1].threads.insert(device, DEVICE_ROW.to_owned());
    // The program of rank 1 has gone on to its next forward pass, and its device still evaluates.
    traces[1].push_phase(device, Phase::Evaluation, 1205, 1260);
    traces[1].sort();
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!(history.check(), Ok(()));
    let split = TimeSplit::of(&history);
    assert!(split.lost_ns("sequential") > 0 && split.lost_ns("late") < 3 * 40, "{:?}", split.losses);
}

#[test]
fn a_direct_call_blocks_its_thread() {
    let mut traces = vec![trace(0, 2), trace(1, 2)];
    for (rank, trace) in traces.iter_mut().enumerate() {
        let (group, operation) = (GroupNumber::DIRECT, OperationNumber(7));
        let (collective, dtype) = (Collective::Barrier, Dtype::U8);
        trace.push(0, PROGRAM, Event::Epoch { number: 0 });
        let called_ns = if rank == 0 { 10 } else { 50 };
        trace.push(called_ns, PROGRAM, Event::Started { group, operation, collective, dtype, requests: 0, bytes: 0 });
        trace.push(60, PROGRAM, Event::Finished { group, operation });
    }
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    let split = TimeSplit::of(&history);
    assert_eq!((split.lost_ns("late"), split.lost_ns("transfer"), split.useful_ns), (40, 20, 60));
}

#[test]
fn a_rank_without_a_record_of_a_call_that_another_waited_in_came_last() {
    let mut traces = vec![trace(0, 2), trace(1, 2)];
    let (group, operation) = (GroupNumber::DIRECT, OperationNumber(7));
    let (collective, dtype) = (Collective::Allreduce, Dtype::F32);
    traces[0].push(0, PROGRAM, Event::Epoch { number: 0 });
    traces[0].push(10, PROGRAM, Event::Started { group, operation, collective, dtype, requests: 0, bytes: 8 });
    traces[0].push(60, PROGRAM, Event::Finished { group, operation });
    traces[1].push(0, PROGRAM, Event::Epoch { number: 0 });
    traces[1].push(60, PROGRAM, Event::Epoch { number: 1 });
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    let split = TimeSplit::of(&history);
    assert_eq!((history.check(), history.operations.len(), split.lost_ns("late")), (Ok(()), 1, 50));
}

#[test]
fn an_operation_that_was_given_up_does_not_count() {
    let mut traces = job(0);
    let (group, operation) = (GroupNumber::WORLD, OperationNumber(1));
    traces[1].push(1290, ENGINE, Event::Abandoned { group, operation });
    traces[1].sort();
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!((history.check(), history.operations.len()), (Ok(()), 2));
    assert!(history.ranks[0].lane.iter().any(|stretch| stretch.activity == Activity::Blocked(None)));
}

#[test]
fn a_history_begins_where_all_rings_reach_back_to() {
    let mut traces = job(0);
    traces[1].records.retain(|record| record.time_ns >= 1150);
    traces[1].dropped = 12;
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!((history.check(), history.dropped), (Ok(()), 12));
    // The first record of rank 1 that is left is the mark of its second iteration.
    assert_eq!((history.end_ns, history.ranks[0].lane[0].activity), (400, Activity::Input));
}

#[test]
fn a_missing_rank_is_named_and_the_others_are_known() {
    let traces = job(30);
    let history = History::from_traces(&traces[1..], |_, time_ns| time_ns).unwrap();
    assert_eq!((history.check(), history.size(), history.recorded_size()), (Ok(()), 2, 1));
    assert_eq!((history.operations.len(), history.iterations(), history.hosts()), (3, 3, 1));
    assert_eq!(history.gaps[0].to_string(), "Rank 0 is left out: there is no trace of it here.");
    let both = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!(history.ranks[1].lane, both.ranks[1].lane);
    let split = TimeSplit::of(&history);
    assert_eq!((split.total_ns, split.strips[0].len()), (600, 0));
}

#[test]
fn a_trace_that_is_cut_off_ends_the_history() {
    let mut traces = job(0);
    traces[1].records.retain(|record| record.time_ns <= 1400);
    traces[1].ending = TraceEnding::CutOff;
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!((history.check(), history.end_ns, history.recorded_size()), (Ok(()), 400, 2));
    assert_eq!((history.gaps[0].rank, history.gaps[0].lack), (1, Lack::After(400)));
    assert!(history.ranks[1].lane.iter().all(|stretch| stretch.activity != Activity::Ended));
}

#[test]
fn a_trace_of_which_little_is_left_is_left_out() {
    let mut traces = job(0);
    traces[1].records.retain(|record| record.time_ns <= 1250);
    traces[1].ending = TraceEnding::Damaged { at_byte: 77 };
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!((history.check(), history.end_ns, history.recorded_size()), (Ok(()), 600, 1));
    let said = history.gaps[0].to_string();
    assert!(said.contains("its trace ends after 0.000 s of 0.000 s; the file is damaged from byte 77 on"), "{said}");
    traces[1].records.clear();
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert!(history.gaps[0].to_string().contains("its trace is empty"), "{:?}", history.gaps);
}

#[test]
fn traces_of_different_jobs_are_refused() {
    let mut traces = job(0);
    traces[1].header.size = 3;
    let build = |traces: &[Trace]| History::from_traces(traces, |_, time_ns| time_ns).unwrap_err();
    assert_eq!(build(&traces), BuildError::DifferentJobs);
    traces[1].header = traces[0].header.clone();
    assert_eq!(build(&traces), BuildError::DifferentJobs, "two of the same rank");
    traces[0].header.size = u32::MAX;
    assert_eq!(build(&traces[..1]), BuildError::TooManyRanks(u32::MAX));
    assert_eq!(build(&[]), BuildError::Nothing);
}

#[test]
fn a_thread_that_loads_is_not_the_program() {
    let mut traces = job(0);
    for trace in &mut traces {
        (0..50).for_each(|batch| trace.push_phase(ThreadId(9), Phase::InputWork, 1000 + batch, 1001 + batch));
        trace.push(1001, ThreadId(9), Event::PhaseBegin { phase: Phase::InputWork, name: NameId::NONE });
        trace.sort();
    }
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!(history, History::from_traces(&job(0), |_, time_ns| time_ns).unwrap());
}

/// Two ranks that mark every part of a step, and log for 30 behind it; before that they set up for 100.
fn logging() -> Vec<Trace> {
    let mut traces = vec![trace(0, 2), trace(1, 2)];
    for trace in &mut traces {
        let (log, main) = (trace.names.intern("train.py:42 in log"), trace.names.intern("train.py:9 in main"));
        trace.push(900, PROGRAM, Event::Epoch { number: 0 });
        trace.push(950, PROGRAM, Event::Sampled { name: main, ns: 25 });
        for number in 0..3u64 {
            let zero_ns = 1000 + 200 * number;
            trace.push_phase(PROGRAM, Phase::InputWait, zero_ns, zero_ns + 20);
            trace.push_phase(PROGRAM, Phase::Forward, zero_ns + 20, zero_ns + 50);
            trace.push_phase(PROGRAM, Phase::Backward, zero_ns + 50, zero_ns + 100);
            trace.push_phase(PROGRAM, Phase::OptimizerStep, zero_ns + 100, zero_ns + 170);
            allreduce(trace, number, zero_ns + 100, zero_ns + 100);
            trace.push(zero_ns + 170, PROGRAM, Event::Iteration { number });
            trace.push(zero_ns + 190, PROGRAM, Event::Sampled { name: log, ns: 20 });
        }
        trace.push(1600, PROGRAM, Event::Epoch { number: 1 });
        trace.sort();
    }
    traces
}

#[test]
fn what_lies_between_the_phases_of_the_training_loop_is_own_code() {
    let history = History::from_traces(&logging(), |_, time_ns| time_ns).unwrap();
    assert_eq!(history.check(), Ok(()));
    let rank = &history.ranks[0];
    // Behind the last step there is no loop any more, and before the first forward there is none yet.
    assert_eq!(rank.spent_ns(Activity::Own), 2 * 30);
    assert_eq!(rank.lane[0].activity, Activity::Compute);
    let seen: Vec<(u64, &str)> = rank.samples.iter().map(|sample| (sample.at_ns, sample.place.as_str())).collect();
    assert_eq!(seen, [(290, "train.py:42 in log"), (490, "train.py:42 in log")]);
    assert_eq!(TimeSplit::of(&history).lost_ns("own"), 2 * 60);
    // Without marks of the forward pass nobody knows where it is, and what has no mark is work.
    let mut traces = logging();
    let is_forward = |event: &Event| {
        matches!(event, Event::PhaseBegin { phase: Phase::Forward, .. } | Event::PhaseEnd { phase: Phase::Forward, .. })
    };
    traces.iter_mut().for_each(|trace| trace.records.retain(|record| !is_forward(&record.event)));
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!((TimeSplit::of(&history).lost_ns("own"), history.ranks[0].samples.len()), (0, 0));
}

/// The step of a compiled graph on one rank: its requests are submitted by a thread of the graph, and no thread waits
/// for one of them.
fn graph_step(trace: &mut Trace, number: u64, zero_ns: u64, (submitted_ns, there_ns): (u64, u64)) {
    const GRAPH: ThreadId = ThreadId(3);
    let (group, operation) = (GroupNumber::WORLD, OperationNumber(number));
    let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 4096);
    let names = [trace.names.intern("first"), trace.names.intern("second")];
    trace.push(zero_ns, PROGRAM, Event::Iteration { number });
    for (name, at_ns) in names.into_iter().zip([submitted_ns - 10, submitted_ns]) {
        trace.push(at_ns, GRAPH, Event::Submitted { name, group, collective, dtype, bytes });
    }
    trace.push(there_ns, ENGINE, Event::Started { group, operation, collective, dtype, requests: 2, bytes: 2 * bytes });
    names.into_iter().for_each(|name| trace.push(there_ns, ENGINE, Event::Fused { name, group, operation, bytes }));
    trace.push(there_ns + 1, ENGINE, Event::Packed { group, operation });
    trace.push(there_ns + 4, ENGINE, Event::Transferred { group, operation });
    trace.push(there_ns + 5, ENGINE, Event::Finished { group, operation });
    names.into_iter().for_each(|name| trace.push(there_ns + 5, ENGINE, Event::Done { name, group, operation }));
    trace.push_phase(PROGRAM, Phase::TrainingStep, zero_ns, there_ns + 10);
}

#[test]
fn a_compiled_graph_waits_for_a_late_rank_though_no_thread_waits_for_a_request() {
    let mut traces = vec![trace(0, 2), trace(1, 2)];
    for (rank, trace) in traces.iter_mut().enumerate() {
        trace.header.set("framework".to_owned(), "tensorflow".to_owned());
        for number in 0..3u64 {
            let zero_ns = 1000 + 200 * number;
            let own_ns = if rank == 1 { 150 } else { 50 };
            graph_step(trace, number, zero_ns, (zero_ns + own_ns, zero_ns + 151));
        }
        trace.sort();
    }
    let history = History::from_traces(&traces, |_, time_ns| time_ns).unwrap();
    assert_eq!(history.check(), Ok(()));
    let first: Vec<_> = history.ranks[0].lane[..3].iter().map(|stretch| (stretch.to_ns, stretch.activity)).collect();
    assert_eq!(first, [(50, Activity::Compute), (156, Activity::Blocked(Some(0))), (161, Activity::Compute)]);
    let split = TimeSplit::of(&history);
    assert_eq!(split.losses[0].cause, LossCause::Late(1), "{:?}", split.losses);
    assert_eq!(split.losses[0].ns, 300, "{:?}", split.losses);
}
