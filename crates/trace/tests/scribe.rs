//! A scribe at work: what it writes while a rank runs, and what is left when it is ended or killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_trace::event::{Collective, Dtype, Group, Operation};
use farandole_trace::{
    Cycles, Duties, Ending, Event, Identity, JOBS_KEPT, LastResort, Occasion, Pen, Recorder, Scribe, Trace, clock,
};

/// A folder of its own for each test, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("farandole-scribe-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn recorder() -> Arc<Recorder> {
    Recorder::new(Identity { rank: 2, size: 4, host: "here".to_owned(), ..Identity::default() }, 10_000)
}

/// One request from its submission to its end.
fn live(pen: &mut Pen, name: &str, number: u64) {
    let (group, operation) = (Group::WORLD, Operation(number));
    let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 12);
    let name = pen.recorder().intern(&name.into(), &[3]);
    for event in [
        Event::Submitted { name, group, collective, dtype, bytes },
        Event::Cycle,
        Event::Started { group, operation, collective, dtype, requests: 1, bytes },
        Event::Fused { name, group, operation, bytes },
        Event::Packed { group, operation },
        Event::Travelled { group, operation },
        Event::Finished { group, operation },
        Event::Done { name, group, operation },
    ] {
        pen.write(clock::now_ns(), event);
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_array(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap();
    text.starts_with("[\n") && text.ends_with("}\n]\n")
}

#[test]
fn a_timeline_is_whole_at_any_time_and_complete_when_it_is_stopped() {
    let folder = Folder::new("timeline");
    let recorder = recorder();
    let mut pen = recorder.pen();
    live(&mut pen, "before", 1);
    let scribe = Scribe::start(&recorder, Duties::default()).unwrap();
    let path = folder.0.join("timeline.json");
    scribe.start_timeline(&path, Cycles::Marked).unwrap();
    assert!(is_array(&path));
    live(&mut pen, "allreduce.during", 2);
    wait_until("what has happened is in the file while the timeline goes on", || {
        assert!(is_array(&path));
        let text = std::fs::read_to_string(&path).unwrap();
        text.contains("allreduce.during") && text.contains("NEGOTIATE_ALLREDUCE") && text.contains("CYCLE_START")
    });
    live(&mut pen, "just before the end", 3);
    scribe.stop_timeline().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(is_array(&path) && text.contains("just before the end"), "{text}");
    assert!(text.contains("start_time_since_epoch_in_micros") && !text.contains("\"before\""), "{text}");
    live(&mut pen, "after", 4);
    scribe.stop_timeline().unwrap();
    drop(scribe);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing is written after the end");
}

#[test]
fn a_timeline_that_is_stopped_right_after_its_start_has_what_lies_between() {
    let folder = Folder::new("short-timeline");
    let recorder = recorder();
    let mut pen = recorder.pen();
    let scribe = Scribe::start(&recorder, Duties::default()).unwrap();
    let path = folder.0.join("timeline.json");
    for number in 0..300 {
        scribe.start_timeline(&path, Cycles::Unmarked).unwrap();
        live(&mut pen, "between", number);
        scribe.stop_timeline().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(is_array(&path) && text.contains("between"), "timeline {number}: {text}");
    }
}

#[test]
fn a_timeline_that_cannot_be_written_is_an_error_of_whoever_asked() {
    let scribe = Scribe::start(&recorder(), Duties::default()).unwrap();
    assert!(scribe.start_timeline(Path::new("/nowhere/timeline.json"), Cycles::Unmarked).is_err());
}

/// A trace that is being kept and has one request.
fn keep_first_request(folder: &Folder) -> (Arc<Recorder>, Pen, Scribe, PathBuf) {
    let recorder = recorder();
    let mut pen = recorder.pen();
    let duties = Duties { keep_in: Some(folder.0.clone()), ..Duties::default() };
    let scribe = Scribe::start(&recorder, duties).unwrap();
    live(&mut pen, "first", 1);
    let path = folder.0.join("rank-00002.trace");
    wait_until("the first request is in the file", || Trace::read(&path).unwrap().records.len() == 8);
    (recorder, pen, scribe, path)
}

#[test]
fn a_kept_trace_grows_while_the_rank_runs_and_says_when_it_is_complete() {
    let folder = Folder::new("kept");
    let (_recorder, mut pen, scribe, path) = keep_first_request(&folder);
    assert_eq!(Trace::read(&path).unwrap().ending, Ending::CutOff, "as if the rank were killed now");
    // Far more than the ring has room for, but not at once.
    for number in 0..5000 {
        live(&mut pen, "second", number);
        if number % 500 == 0 {
            std::thread::sleep(Duration::from_millis(120));
        }
    }
    drop(scribe);
    let trace = Trace::read(&path).unwrap();
    assert_eq!(trace.ending, Ending::Complete("end of run".to_owned()));
    assert_eq!(trace.records.len() as u64 + trace.dropped, 8 * 5001);
    assert_eq!(trace.dropped, 0);
    assert!(trace.records.is_sorted_by_key(|record| record.time_ns));
}

#[test]
fn what_is_new_without_a_record_is_not_lost() {
    let folder = Folder::new("tables");
    let (recorder, mut pen, scribe, path) = keep_first_request(&folder);
    // A name, a group and the name of this thread, which the scribe looks at before it is asked for a timeline.
    let (name, group) = (recorder.intern(&"second".into(), &[]), Group::from(7));
    recorder.note_group(group, vec![0, 2]);
    recorder.name_thread("the thread of this test");
    scribe.start_timeline(&folder.0.join("timeline.json"), Cycles::Unmarked).unwrap();
    pen.write(clock::now_ns(), Event::Trouble { name });
    drop(scribe);
    let trace = Trace::read(&path).unwrap();
    assert_eq!(trace.records.len(), 9);
    assert!(trace.threads.values().any(|thread| thread == "the thread of this test"), "{:?}", trace.threads);
    assert!(trace.groups.contains_key(&group), "{:?}", trace.groups);
    assert!(trace.names.get(name).is_some(), "{:?}", trace.names);
}

#[test]
fn a_process_that_is_a_rank_twice_leaves_two_traces() {
    let folder = Folder::new("twice");
    let duties = Duties { keep_in: Some(folder.0.clone()), ..Duties::default() };
    for _ in 0..2 {
        drop(Scribe::start(&recorder(), duties.clone()).unwrap());
    }
    let mut names: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["rank-00002.2.trace", "rank-00002.trace"]);
    assert_eq!(Trace::read_folder(&folder.0).unwrap().0.len(), 1, "of a rank the last trace counts");
}

#[test]
fn trouble_leaves_a_trace_where_that_was_asked_for() {
    let folder = Folder::new("trouble");
    let recorder = recorder();
    live(&mut recorder.pen(), "last", 1);
    let duties = Duties { save_trouble_in: Some(folder.0.clone()), ..Duties::default() };
    let _scribe = Scribe::start(&recorder, duties).unwrap();
    recorder.ring(Occasion::Trouble);
    let path = folder.0.join("rank-00002.trace");
    wait_until("the trace appears", || path.exists());
    let trace = Trace::read(&path).unwrap();
    assert_eq!((trace.records.len(), trace.ending), (8, Ending::Complete("trouble".to_owned())));
}

#[test]
fn a_signal_leaves_a_trace() {
    let folder = Folder::new("signal");
    let recorder = recorder();
    live(&mut recorder.pen(), "last", 1);
    let signal = signal_hook::consts::SIGUSR2;
    let duties = Duties { save_trouble_in: Some(folder.0.clone()), signal: Some(signal), ..Duties::default() };
    let _scribe = Scribe::start(&recorder, duties).unwrap();
    signal_hook::low_level::raise(signal).unwrap();
    let path = folder.0.join("rank-00002.trace");
    wait_until("the trace appears", || path.exists());
    assert_eq!(Trace::read(&path).unwrap().ending, Ending::Complete("signal".to_owned()));
}

/// A recorder with more records than a trace of last resort takes.
fn busy_recorder() -> Arc<Recorder> {
    let recorder = Recorder::new(Identity { rank: 2, size: 3, ..Identity::default() }, 1 << 16);
    let mut pen = recorder.pen();
    (0..50_000).for_each(|time_ns| pen.write(time_ns, Event::Cycle));
    recorder
}

#[test]
fn without_a_folder_the_latest_is_kept_for_the_owner_alone_and_few_jobs_stay() {
    use std::os::unix::fs::PermissionsExt as _;
    let around = Folder::new("last-resort");
    std::fs::create_dir_all(&around.0).unwrap();
    for job in 0..7 {
        let folder = around.0.join(format!("family-{job}"));
        let last_resort = LastResort { folder: folder.clone(), family: "family-".to_owned(), tells: false };
        let recorder = busy_recorder();
        let scribe = Scribe::start(&recorder, Duties { last_resort: Some(last_resort), ..Duties::default() }).unwrap();
        recorder.ring(Occasion::Stall);
        drop(scribe);
        let trace = Trace::read(&folder.join("rank-00002.trace")).unwrap();
        assert_eq!((trace.records.len(), trace.dropped), (1 << 15, 50_000 - (1 << 15)));
        assert_eq!(trace.records.last().unwrap().time_ns, 49_999, "the latest are kept");
        assert_eq!(trace.ending, Ending::Complete("stall".to_owned()));
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
    std::fs::create_dir(around.0.join("something-else")).unwrap();
    let left = std::fs::read_dir(&around.0).unwrap().count();
    assert_eq!(left, JOBS_KEPT + 1, "older ones go, and nothing else");
}

#[test]
fn a_folder_that_others_can_look_into_is_not_used() {
    let around = Folder::new("not-private");
    let folder = around.0.join("family-1");
    std::fs::create_dir_all(&folder).unwrap();
    let last_resort = LastResort { folder: folder.clone(), family: "family-".to_owned(), tells: true };
    let recorder = busy_recorder();
    let scribe = Scribe::start(&recorder, Duties { last_resort: Some(last_resort), ..Duties::default() }).unwrap();
    recorder.ring(Occasion::Trouble);
    drop(scribe);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}
