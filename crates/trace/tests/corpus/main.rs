//! Replays the seeds of this crate's fuzz targets: what the fuzzer checks of any bytes holds for these without a
//! fuzzer.

mod sample;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;
mod trace;

use farandole_trace::event::{
    Collective, DeviceCache, DeviceStep, Dtype, GroupNumber, InputStage, NameId, OperationNumber, Phase, StepKind,
    ThreadId,
};
use farandole_trace::live::{Counts, LiveSample, Stall};
use farandole_trace::{Event, Trace, TraceEnding, TraceHeader};
use seeds::{Seed, replay};

/// A trace with one event of each kind.
fn everything() -> Trace {
    let header = TraceHeader {
        rank: 1,
        size: 2,
        host: "node-1".to_owned(),
        pid: 4242,
        clock: "5a1c".to_owned(),
        anchor_ns: 1000,
        anchor_unix_ns: 1_700_000_000_000_000_000,
        version: "0.1.0".to_owned(),
        settings: vec![("fusion_threshold_bytes".to_owned(), "67108864".to_owned())],
    };
    let mut trace = Trace::new(header);
    trace.threads.insert(ThreadId(0), "main".to_owned());
    trace.threads.insert(ThreadId(1), "farandole-1".to_owned());
    let name = trace.names.intern("layer1.weight");
    let cause = trace.names.intern("rank 0 is gone");
    let place = trace.names.intern("train.py:42 in log_metrics");
    let (group, operation, collective, dtype) =
        (GroupNumber::WORLD, OperationNumber(1), Collective::Allreduce, Dtype::F32);
    let events = [
        Event::Submitted { name, group, collective, dtype, bytes: 400 },
        Event::Cycle,
        Event::Arrived { name, group, rank: 0 },
        Event::Started { group, operation, collective, dtype, requests: 1, bytes: 400 },
        Event::Fused { name, group, operation, bytes: 400 },
        Event::Entered { group, operation },
        Event::Packed { group, operation },
        Event::Stepped { group, operation, step: StepKind::Send, peer: Some(0), bytes: 200 },
        Event::Waiting { group, operation, peer: Some(0) },
        Event::Resumed { group, operation },
        Event::Transferred { group, operation },
        Event::Finished { group, operation },
        Event::Done { name, group, operation },
        Event::Abandoned { group, operation: OperationNumber(2) },
        Event::Skipped { group: GroupNumber::DIRECT, operation: OperationNumber(64), calls: 63, bytes: 252 },
        Event::PhaseBegin { phase: Phase::InputWait, name: NameId::NONE },
        Event::PhaseEnd { phase: Phase::InputWait, name: NameId::NONE },
        Event::Iteration { number: 3 },
        Event::Epoch { number: 1 },
        Event::Stalled { name, group, missing: 1, rank: 0 },
        Event::Failed { name, group },
        Event::Aborted { name: cause },
        Event::Sampled { name: place, ns: 25_000_000 },
        Event::DeviceIdle { since_ns: 2100, ns: 90 },
        Event::DeviceTook { group, operation, step: DeviceStep::Fold, ns: 22_000 },
        Event::CacheHits { group, cache: DeviceCache::Mappings, hits: 93, misses: 7 },
        Event::InputTook { stage: InputStage::Read, workers: 2, samples: 32, ns: 64_000, amount: 1 << 33 },
        Event::InputTook { stage: InputStage::Decode, workers: 2, samples: 32, ns: 1 << 40, amount: 32 * 160 * 120 },
        Event::InputTook { stage: InputStage::Change, workers: 0, samples: 1, ns: 7, amount: 32 * 32 },
    ];
    for (index, event) in events.into_iter().enumerate() {
        trace.push(2000 + 10 * index as u64, ThreadId((index % 2) as u16), event);
    }
    trace.dropped = 12;
    trace
}

#[test]
fn traces_of_the_corpus_are_read_or_refused() {
    let trace = everything();
    let bytes = trace.encode();
    assert_eq!(Trace::decode(&bytes).as_ref(), Ok(&trace));
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 4;
    let mut next_version = bytes.clone();
    next_version[8] += 1;
    let unfinished = Trace { ending: TraceEnding::CutOff, ..trace.clone() }.encode();
    let made: [Seed; 8] = [
        ("everything", bytes.clone()),
        ("empty", Trace::new(TraceHeader::default()).encode()),
        ("unfinished", unfinished),
        ("cut_off", bytes[..bytes.len() * 2 / 3].to_vec()),
        ("only_the_first_bytes", bytes[..10].to_vec()),
        ("flipped_bit", flipped),
        ("next_version", next_version),
        ("something_else", b"[{\"name\": \"process_name\"}]".to_vec()),
    ];
    replay("trace", &made, trace::check);
}

/// Compares a trace that was written before some events were known with a new one without these.
fn old_is_read(seed: &str, is_new: impl Fn(&Event) -> bool) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/trace").join(seed);
    let old = Trace::read(&path).expect("a seed of the corpus is a trace");
    let mut new = everything();
    new.records.retain(|record| !is_new(&record.event));
    assert_eq!((old.unknown, &old.ending, old.records), (0, &new.ending, new.records));
}

#[test]
fn traces_that_know_no_samples_of_the_stack_are_still_read() {
    let is_new = |event: &Event| is_of_device(event) || is_of_input(event) || matches!(event, Event::Sampled { .. });
    old_is_read("before_samples", is_new);
}

#[test]
fn traces_that_know_nothing_of_devices_are_still_read() {
    old_is_read("before_devices", |event| is_of_device(event) || is_of_input(event));
}

#[test]
fn traces_that_know_no_stages_of_the_input_are_still_read() {
    old_is_read("before_input", is_of_input);
}

fn is_of_input(event: &Event) -> bool {
    matches!(event, Event::InputTook { .. })
}

fn is_of_device(event: &Event) -> bool {
    matches!(event, Event::DeviceIdle { .. } | Event::DeviceTook { .. } | Event::CacheHits { .. })
}

#[test]
fn samples_of_the_corpus_are_read_or_refused() {
    let counts = Counts { time_ns: 1, iterations: 2, iteration_ns: 3, operations: 4, ..Counts::default() };
    let stall = Stall { time_ns: 7, name: "model/w".to_owned(), missing: 2, rank: 1 };
    let sample = LiveSample {
        counts: Counts { bytes: u64::MAX, waited_ns: 5, input_ns: 6, rss_bytes: 8, cpu_ns: 9, ..counts },
        iteration: Some(41),
        epoch: Some(0),
        blocked_ns: 10,
        peer: Some(3),
        phase: "augment ü".to_owned(),
        stall: Some(stall),
    };
    let bytes = sample.encode();
    assert_eq!(LiveSample::decode(&bytes), Some(sample));
    let mut longer = bytes.clone();
    longer.push(0);
    let mut no_text = bytes.clone();
    *no_text.last_mut().unwrap() = 0xff;
    let another_form = [&[2], &bytes[1..]].concat();
    for damaged in [&bytes[..bytes.len() - 1], &longer, &no_text, &another_form, &[]] {
        assert_eq!(LiveSample::decode(damaged), None);
    }
    let made: [Seed; 7] = [
        ("everything", bytes.clone()),
        ("nothing", LiveSample::default().encode()),
        ("cut_off", bytes[..bytes.len() / 2].to_vec()),
        ("longer", longer),
        ("no_text", no_text),
        ("another_form", another_form),
        ("empty", Vec::new()),
    ];
    replay("sample", &made, sample::check);
}
