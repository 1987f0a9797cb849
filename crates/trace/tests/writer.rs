//! The trace writer: what it writes while a rank runs, and what is left when it is ended or killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farandole_testing::Folder;
use farandole_trace::event::{Collective, Dtype, GroupNumber, OperationNumber};
use farandole_trace::{
    Cycles, DumpReason, Event, FallbackFolder, GenerationView, Identity, JOBS_KEPT, Recorder, RingWriter, Trace,
    TraceEnding, TraceWriter, WriterOptions, clock,
};

fn recorder() -> Arc<Recorder> {
    Recorder::new(Identity { rank: 2, size: 4, host: "here".to_owned(), ..Identity::default() }, 10_000)
}

/// One request from its submission to its end.
fn live(ring: &mut RingWriter, name: &str, number: u64) {
    let (group, operation) = (GroupNumber::WORLD, OperationNumber(number));
    let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 12);
    let name = ring.recorder().intern(&name.into(), &[3]);
    for event in [
        Event::Submitted { name, group, collective, dtype, bytes },
        Event::Cycle,
        Event::Started { group, operation, collective, dtype, requests: 1, bytes },
        Event::Fused { name, group, operation, bytes },
        Event::Packed { group, operation },
        Event::Transferred { group, operation },
        Event::Finished { group, operation },
        Event::Done { name, group, operation },
    ] {
        ring.write(clock::now_ns(), event);
    }
}

fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    farandole_testing::wait_until(what, Duration::from_secs(60), holds);
}

fn is_array(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap();
    text.starts_with("[\n") && text.ends_with("}\n]\n")
}

#[test]
fn a_timeline_is_whole_at_any_time_and_complete_when_it_is_stopped() {
    let folder = Folder::new();
    let recorder = recorder();
    let mut ring = recorder.ring_writer();
    live(&mut ring, "before", 1);
    let writer = TraceWriter::start(&recorder, WriterOptions::default()).unwrap();
    let path = folder.join("timeline.json");
    writer.start_timeline(&path, Cycles::Marked).unwrap();
    assert!(is_array(&path));
    live(&mut ring, "allreduce.during", 2);
    wait_until("what has happened is in the file while the timeline goes on", || {
        assert!(is_array(&path));
        let text = std::fs::read_to_string(&path).unwrap();
        text.contains("allreduce.during") && text.contains("NEGOTIATE_ALLREDUCE") && text.contains("CYCLE_START")
    });
    live(&mut ring, "just before the end", 3);
    writer.stop_timeline().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(is_array(&path) && text.contains("just before the end"), "{text}");
    assert!(text.contains("start_time_since_epoch_in_micros") && !text.contains("\"before\""), "{text}");
    live(&mut ring, "after", 4);
    writer.stop_timeline().unwrap();
    drop(writer);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing is written after the end");
}

#[test]
fn a_timeline_that_is_stopped_right_after_its_start_has_what_lies_between() {
    let folder = Folder::new();
    let recorder = recorder();
    let mut ring = recorder.ring_writer();
    let writer = TraceWriter::start(&recorder, WriterOptions::default()).unwrap();
    let path = folder.join("timeline.json");
    for number in 0..300 {
        writer.start_timeline(&path, Cycles::Unmarked).unwrap();
        live(&mut ring, "between", number);
        writer.stop_timeline().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(is_array(&path) && text.contains("between"), "timeline {number}: {text}");
    }
}

#[test]
fn a_timeline_that_cannot_be_written_is_an_error_of_whoever_asked() {
    let writer = TraceWriter::start(&recorder(), WriterOptions::default()).unwrap();
    assert!(writer.start_timeline(Path::new("/nowhere/timeline.json"), Cycles::Unmarked).is_err());
}

/// A trace that is being kept and has one request.
fn keep_first_request(folder: &Folder) -> (Arc<Recorder>, RingWriter, TraceWriter, PathBuf) {
    let recorder = recorder();
    let mut ring = recorder.ring_writer();
    let options = WriterOptions { trace_in: Some(folder.to_path_buf()), ..WriterOptions::default() };
    let writer = TraceWriter::start(&recorder, options).unwrap();
    live(&mut ring, "first", 1);
    let path = folder.join("rank-00002.trace");
    wait_until("the first request is in the file", || Trace::read(&path).unwrap().records.len() == 8);
    (recorder, ring, writer, path)
}

#[test]
fn a_kept_trace_grows_while_the_rank_runs_and_says_when_it_is_complete() {
    let folder = Folder::new();
    let (_recorder, mut ring, writer, path) = keep_first_request(&folder);
    assert_eq!(Trace::read(&path).unwrap().ending, TraceEnding::CutOff, "as if the rank were killed now");
    // Far more than the ring has room for, but not at once.
    for number in 0..5000 {
        live(&mut ring, "second", number);
        if number % 500 == 0 {
            let so_far = 8 * (number as usize + 2);
            wait_until("all so far is in the file", || Trace::read(&path).unwrap().records.len() == so_far);
        }
    }
    drop(writer);
    let trace = Trace::read(&path).unwrap();
    assert_eq!(trace.ending, TraceEnding::Complete("end of run".to_owned()));
    assert_eq!(trace.records.len() as u64 + trace.dropped, 8 * 5001);
    assert_eq!(trace.dropped, 0);
    assert!(trace.records.is_sorted_by_key(|record| record.time_ns));
}

#[test]
fn what_is_new_without_a_record_is_not_lost() {
    let folder = Folder::new();
    let (recorder, mut ring, writer, path) = keep_first_request(&folder);
    // A name, a group and the name of this thread, which the writer looks at before it is asked for a timeline.
    let (name, group) = (recorder.intern(&"second".into(), &[]), GroupNumber::from(7));
    recorder.note_group(group, vec![0, 2]);
    recorder.name_thread("the thread of this test");
    writer.start_timeline(&folder.join("timeline.json"), Cycles::Unmarked).unwrap();
    ring.write(clock::now_ns(), Event::Aborted { name });
    drop(writer);
    let trace = Trace::read(&path).unwrap();
    assert_eq!(trace.records.len(), 9);
    assert!(trace.threads.values().any(|thread| thread == "the thread of this test"), "{:?}", trace.threads);
    assert!(trace.groups.contains_key(&group), "{:?}", trace.groups);
    assert!(trace.names.get(name).is_some(), "{:?}", trace.names);
}

#[test]
fn a_process_that_is_a_rank_twice_leaves_two_traces() {
    let folder = Folder::new();
    let options = WriterOptions { trace_in: Some(folder.to_path_buf()), ..WriterOptions::default() };
    for _ in 0..2 {
        drop(TraceWriter::start(&recorder(), options.clone()).unwrap());
    }
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["rank-00002.2.trace", "rank-00002.trace"]);
    assert_eq!(Trace::read_folder(&folder).unwrap().0.len(), 1, "of a rank the last trace counts");
}

#[test]
fn ranks_of_an_elastic_job_leave_a_trace_for_each_generation() {
    let folder = Folder::new();
    let options = WriterOptions { trace_in: Some(folder.to_path_buf()), ..WriterOptions::default() };
    let keep = |job: &str, number, rank, members: &[u64]| {
        let (member, size) = (members[rank as usize], members.len() as u32);
        let view = GenerationView { job: job.into(), number, member, members: members.to_vec() };
        let identity = Identity { rank, size, settings: view.settings(), ..Identity::default() };
        drop(TraceWriter::start(&Recorder::new(identity, 100), options.clone()).unwrap());
    };
    keep("earlier", 7, 0, &[0, 1]);
    // Rank 0 is lost, and rank 1 becomes rank 0.
    keep("this", 1, 0, &[0, 1]);
    keep("this", 1, 1, &[0, 1]);
    keep("this", 2, 0, &[1]);
    assert!(folder.join("rank-00001.generation-1.trace").exists());
    let (traces, spoilt) = Trace::read_folder(&folder).unwrap();
    assert_eq!(spoilt, []);
    let read: Vec<_> = traces.iter().map(|trace| (trace.header.generation(), trace.header.member())).collect();
    assert_eq!(read, [(1, 0), (1, 1), (2, 1)], "each in its generation, and none of another job");
}

#[test]
fn trouble_leaves_a_trace_where_that_was_asked_for() {
    let folder = Folder::new();
    let recorder = recorder();
    live(&mut recorder.ring_writer(), "last", 1);
    let options = WriterOptions { dump_in: Some(folder.to_path_buf()), ..WriterOptions::default() };
    let _writer = TraceWriter::start(&recorder, options).unwrap();
    recorder.request_dump(DumpReason::Abort);
    let path = folder.join("rank-00002.trace");
    wait_until("the trace appears", || path.exists());
    let trace = Trace::read(&path).unwrap();
    assert_eq!((trace.records.len(), trace.ending), (8, TraceEnding::Complete("trouble".to_owned())));
}

#[test]
fn a_signal_leaves_a_trace() {
    let folder = Folder::new();
    let recorder = recorder();
    live(&mut recorder.ring_writer(), "last", 1);
    let signal = signal_hook::consts::SIGUSR2;
    let options =
        WriterOptions { dump_in: Some(folder.to_path_buf()), signal: Some(signal), ..WriterOptions::default() };
    let _writer = TraceWriter::start(&recorder, options).unwrap();
    signal_hook::low_level::raise(signal).unwrap();
    let path = folder.join("rank-00002.trace");
    wait_until("the trace appears", || path.exists());
    assert_eq!(Trace::read(&path).unwrap().ending, TraceEnding::Complete("signal".to_owned()));
}

/// A recorder with more records than a trace of last resort takes.
fn busy_recorder() -> Arc<Recorder> {
    let recorder = Recorder::new(Identity { rank: 2, size: 3, ..Identity::default() }, 1 << 16);
    let mut ring = recorder.ring_writer();
    (0..50_000).for_each(|time_ns| ring.write(time_ns, Event::Cycle));
    recorder
}

#[test]
fn without_a_folder_the_latest_is_kept_for_the_owner_alone_and_few_jobs_stay() {
    use std::os::unix::fs::PermissionsExt as _;
    let around = Folder::new();
    std::fs::create_dir_all(&around).unwrap();
    for job in 0..7 {
        let folder = around.join(format!("prefix-{job}"));
        let fallback = FallbackFolder { folder: folder.clone(), prefix: "prefix-".to_owned(), announces: false };
        let recorder = busy_recorder();
        let writer =
            TraceWriter::start(&recorder, WriterOptions { fallback: Some(fallback), ..WriterOptions::default() })
                .unwrap();
        recorder.request_dump(DumpReason::Stall);
        drop(writer);
        let trace = Trace::read(&folder.join("rank-00002.trace")).unwrap();
        assert_eq!((trace.records.len(), trace.dropped), (1 << 15, 50_000 - (1 << 15)));
        assert_eq!(trace.records.last().unwrap().time_ns, 49_999, "the latest are kept");
        assert_eq!(trace.ending, TraceEnding::Complete("stall".to_owned()));
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
    std::fs::create_dir(around.join("something-else")).unwrap();
    let left = std::fs::read_dir(&around).unwrap().count();
    assert_eq!(left, JOBS_KEPT + 1, "older ones go, and nothing else");
}

#[test]
fn folders_of_other_users_neither_lose_traces_nor_replace_kept_ones() {
    let around = Folder::new();
    let names: Vec<String> = (0..2 * JOBS_KEPT).map(|number| format!("prefix-{number}")).collect();
    for name in &names {
        std::fs::create_dir(around.join(name)).unwrap();
        std::fs::write(around.join(name).join("rank-00000.trace"), "").unwrap();
        std::os::unix::fs::chown(around.join(name), Some(65534), None).expect("this test needs root");
    }
    let folder = around.join("prefix-own");
    let fallback = FallbackFolder { folder: folder.clone(), prefix: "prefix-".to_owned(), announces: false };
    let recorder = busy_recorder();
    let writer =
        TraceWriter::start(&recorder, WriterOptions { fallback: Some(fallback), ..WriterOptions::default() }).unwrap();
    recorder.request_dump(DumpReason::Stall);
    drop(writer);
    assert!(folder.join("rank-00002.trace").exists());
    for name in names {
        assert!(around.join(&name).join("rank-00000.trace").exists(), "{name}");
    }
}

#[test]
fn a_folder_that_others_can_look_into_is_not_used() {
    let around = Folder::new();
    let folder = around.join("prefix-1");
    std::fs::create_dir_all(&folder).unwrap();
    let fallback = FallbackFolder { folder: folder.clone(), prefix: "prefix-".to_owned(), announces: true };
    let recorder = busy_recorder();
    let writer =
        TraceWriter::start(&recorder, WriterOptions { fallback: Some(fallback), ..WriterOptions::default() }).unwrap();
    recorder.request_dump(DumpReason::Abort);
    drop(writer);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}
