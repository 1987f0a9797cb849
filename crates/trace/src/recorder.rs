//! What one rank records, while it runs.
//!
//! A [`Recorder`] belongs to one rank. Frequent writers have a [`RingWriter`] with a ring of their own (`ring`): the
//! engine's driver has one, passed on with the right to drive, and so has each communicator for direct calls. All
//! other threads, those of the program with their phases, share one ring behind a lock that is held for one record.
//!
//! Writing costs one load of a flag, four stores, and a clock reading where the writer does not know the time already.
//! The rings are of fixed size and nobody empties them, so recording never waits, never fails and never grows; new
//! records overwrite old ones. Any number of readers (`tail`) follow a ring without affecting each other.
//!
//! What is deliberately not here: files and threads. A `TraceWriter` reads the rings and writes files;
//! [`Recorder::request_dump`] wakes it.

mod phases;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::clock;
use crate::compact::{Template, Templates};
use crate::event::{Event, GroupNumber, NameId, Record, TemplateEntry, TemplateId, ThreadId};
use crate::machine;
use crate::ring::{Producer, Ring};
use crate::ring_writer::RingWriter;
use crate::tables::NameTable;
use crate::tail::Tail;
use crate::trace::{NameEntry, Trace, TraceHeader};

pub use phases::{DEVICE_ROW, Edge, PhaseGuard};

/// Records of the ring that all threads of the program share: some ten for each iteration, so it reaches further back
/// than the driver's.
const MARKS: usize = 1 << 16;

/// Why a dump is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpReason {
    /// The rank's collectives were aborted.
    Abort,
    /// Ranks wait for others for too long.
    Stall,
}

/// See the module's text.
#[derive(Debug)]
pub struct Recorder {
    header: TraceHeader,
    /// Whether records are taken; read for each of them. Switched by benchmarks, which compare both ways in one run.
    on: AtomicBool,
    rings: Mutex<Vec<Arc<Ring>>>,
    /// Producers of writers that were dropped; the next writer continues in the same ring.
    spare: Mutex<Vec<Producer>>,
    marks: Mutex<Producer>,
    names: Mutex<NameTable>,
    /// A copy of the table's oldest number, for submitting threads that remember numbers. Behind by a moment at worst,
    /// which costs the text of a name that is about to be forgotten.
    oldest_name: AtomicU32,
    groups: Mutex<Vec<(GroupNumber, Vec<u32>)>>,
    /// Settings that became known after the start, as they came.
    settings: Mutex<Vec<(String, String)>>,
    templates: Mutex<Templates>,
    /// Whether a timeline shows when the driver took requests.
    cycles: AtomicBool,
    /// Whether a trace of the whole run is kept, so that samples of the program's stack are worth taking. Set by the
    /// trace writer; read by the sampler of the front end.
    samples: AtomicBool,
    bell: OnceLock<Bell>,
    /// Since when a thread has been waiting for the result of a request; zero: none does. Stored by threads before and
    /// after a wait, of several the last one counts; read by `live::Sampler`, because the record of a wait
    /// comes when it is over.
    blocked_since_ns: AtomicU64,
    /// Marks of iterations. This and the next two are counted whether records are taken or not, and order nothing.
    iterations: AtomicU64,
    /// Whether iterations are marked at their ends.
    marks_ends: AtomicBool,
    /// Collectives that are complete.
    collectives: AtomicU64,
    records: usize,
}

/// Wakes the trace writer.
struct Bell(Box<dyn Fn(DumpReason) + Send + Sync>);

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

/// Which rank it is that records.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The rank, in the world.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// The rank's host.
    pub host: String,
    /// The version of the program.
    pub version: String,
    /// Settings, by name.
    pub settings: Vec<(String, String)>,
}

impl Recorder {
    /// A recorder whose driver's ring has room for so many records; with none it is off, and takes next to no memory.
    pub fn new(identity: Identity, records: usize) -> Arc<Recorder> {
        let Identity { rank, size, host, version, mut settings } = identity;
        settings.extend(machine::settings());
        let (anchor_ns, anchor_unix_ns) = clock::anchor();
        let (pid, clock) = (std::process::id(), clock::id());
        let header = TraceHeader { rank, size, host, pid, clock, anchor_ns, anchor_unix_ns, version, settings };
        let (marks, ring) = Producer::new(MARKS.min(records));
        Arc::new(Recorder {
            header,
            on: AtomicBool::new(records > 0),
            rings: Mutex::new(vec![ring]),
            spare: Mutex::new(Vec::new()),
            marks: Mutex::new(marks),
            names: Mutex::new(NameTable::new()),
            oldest_name: AtomicU32::new(1),
            groups: Mutex::new(Vec::new()),
            settings: Mutex::new(Vec::new()),
            templates: Mutex::default(),
            cycles: AtomicBool::new(false),
            samples: AtomicBool::new(false),
            bell: OnceLock::new(),
            blocked_since_ns: AtomicU64::new(0),
            iterations: AtomicU64::new(0),
            marks_ends: AtomicBool::new(false),
            collectives: AtomicU64::new(0),
            records,
        })
    }

    /// A recorder that records nothing.
    pub fn off() -> Arc<Recorder> {
        Recorder::new(Identity::default(), 0)
    }

    /// The header of its traces.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Whether records are taken.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Takes no more records for now; for measuring what recording costs.
    pub fn pause(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// Takes records again.
    pub fn resume(&self) {
        self.on.store(self.records > 0, Ordering::Relaxed);
    }

    /// A writer with a ring of its own.
    pub fn ring_writer(self: &Arc<Recorder>) -> RingWriter {
        let spare = lock(&self.spare).pop();
        let producer = spare.unwrap_or_else(|| {
            let (producer, ring) = Producer::new(self.records);
            lock(&self.rings).push(ring);
            producer
        });
        RingWriter::new(producer, Arc::clone(self))
    }

    /// Takes a producer back; the next writer continues in its ring.
    pub(crate) fn reuse(&self, producer: Producer) {
        lock(&self.spare).push(producer);
    }

    /// The number of a name; valid while [`Recorder::knows`] says so. The shape of a tensor is kept where the name is
    /// new.
    pub fn intern(&self, text: &Arc<str>, shape: &[u64]) -> NameId {
        if !self.is_on() {
            return NameId::NONE;
        }
        let mut names = lock(&self.names);
        let id = names.intern(text, shape);
        self.oldest_name.store(names.first(), Ordering::Relaxed);
        id
    }

    /// Whether a number still stands for its name.
    #[inline]
    pub fn knows(&self, id: NameId) -> bool {
        id.0 >= self.oldest_name.load(Ordering::Relaxed)
    }

    /// Notes the members of a group.
    pub fn note_group(&self, group: GroupNumber, ranks: Vec<u32>) {
        lock(&self.groups).push((group, ranks));
    }

    /// Notes a setting that became known, or has changed, since the start. Unchanged values are ignored.
    pub fn note_setting(&self, name: &str, value: &str) {
        let mut settings = lock(&self.settings);
        let last = settings.iter().rev().chain(&self.header.settings).find(|(known, _)| known == name);
        if self.is_on() && last.is_none_or(|(_, known)| known != value) {
            settings.push((name.to_owned(), value.to_owned()));
        }
    }

    /// Enters the requests of a bucket of so many bytes that comes again and again, for
    /// [`RingWriter::write_edge`] and [`RingWriter::write_bucket`]. `None` if there are too many of such; then each
    /// gets records of its own.
    pub fn template(&self, requests: impl IntoIterator<Item = TemplateEntry>, bytes: u64) -> Option<TemplateId> {
        lock(&self.templates).enter(requests.into_iter().collect(), bytes)
    }

    /// Whether [`Event::Cycle`] is recorded.
    #[inline]
    pub fn wants_cycles(&self) -> bool {
        self.cycles.load(Ordering::Relaxed)
    }

    /// Records [`Event::Cycle`] from now on.
    pub(crate) fn want_cycles(&self) {
        self.cycles.store(true, Ordering::Relaxed);
    }

    /// Whether [`Event::Sampled`] is recorded.
    #[inline]
    pub fn wants_samples(&self) -> bool {
        self.samples.load(Ordering::Relaxed) && self.is_on()
    }

    /// Records [`Event::Sampled`] from now on.
    pub(crate) fn want_samples(&self) {
        self.samples.store(true, Ordering::Relaxed);
    }

    /// Records [`Event::Sampled`] no more.
    pub(crate) fn want_no_samples(&self) {
        self.samples.store(false, Ordering::Relaxed);
    }

    /// Records that a thread was seen at this place of the program while it was in no phase; the sample stands for so
    /// many nanoseconds.
    pub fn note_sample(&self, thread: ThreadId, place: &str, ns: u64) {
        if self.is_on() {
            let name = self.intern(&place.into(), &[]);
            let record = Record { time_ns: clock::now_ns(), thread, event: Event::Sampled { name, ns } };
            lock(&self.marks).write(record.to_words());
        }
    }

    /// Whether what devices do is timed: as with samples, only while a trace of the whole run is kept.
    #[inline]
    pub fn wants_device_times(&self) -> bool {
        self.wants_samples()
    }

    /// Records that this thread gave its device nothing to do from one moment to another, and that the device was idle
    /// for the last so many nanoseconds of that. It is known later.
    pub fn note_device_idle(&self, since_ns: u64, until_ns: u64, ns: u64) {
        if self.is_on() && since_ns <= until_ns {
            let event = Event::DeviceIdle { since_ns, ns: ns.min(until_ns - since_ns) };
            lock(&self.marks).write(Record { time_ns: until_ns, thread: ThreadId::current(), event }.to_words());
        }
    }

    /// Records that the device of this thread has waited for the result of a request from one moment to another. It is
    /// known later; the thread itself went on.
    pub fn note_device_wait(&self, request: &str, since_ns: u64, until_ns: u64) {
        if self.is_on() && since_ns <= until_ns {
            let event = Event::Waited { name: self.intern(&request.into(), &[]), since_ns };
            lock(&self.marks).write(Record { time_ns: until_ns, thread: ThreadId::current(), event }.to_words());
        }
    }

    /// Counts collectives of this rank that are complete.
    #[inline]
    pub fn count_collectives(&self, count: u64) {
        self.collectives.fetch_add(count, Ordering::Relaxed);
    }

    /// The program's own collectives come from here on: what was needed to begin does not count.
    pub fn begin_counting(&self) {
        self.collectives.store(0, Ordering::Relaxed);
    }

    /// Collectives of this rank that are complete.
    pub fn collectives(&self) -> u64 {
        self.collectives.load(Ordering::Relaxed)
    }

    /// From now on, the mark of an iteration says that one has ended. Without this call, that one begins.
    pub fn mark_iteration_ends(&self) {
        self.marks_ends.store(true, Ordering::Relaxed);
    }

    /// How many iterations the program has completed, and in which one it is, counted from one; zeros where it marks
    /// none.
    pub fn iterations(&self) -> (u64, u64) {
        let marked = self.iterations.load(Ordering::Relaxed);
        let is_inside = u64::from(marked > 0 && self.marks_ends.load(Ordering::Relaxed));
        (marked, marked + is_inside)
    }

    /// Records an event of this thread, now.
    pub fn mark(&self, event: Event) {
        self.count_iteration(&event);
        if self.is_on() {
            let record = Record { time_ns: clock::now_ns(), thread: ThreadId::current(), event };
            lock(&self.marks).write(record.to_words());
        }
    }

    fn count_iteration(&self, event: &Event) {
        if matches!(event, Event::Iteration { .. }) {
            self.iterations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records an event of this thread that was earlier, before there was a recorder perhaps.
    pub fn mark_at(&self, time_ns: u64, event: Event) {
        if self.is_on() {
            lock(&self.marks).write(Record { time_ns, thread: ThreadId::current(), event }.to_words());
        }
    }

    /// This thread is about to wait for the result of a request, since this moment.
    #[inline]
    pub fn block(&self, since_ns: u64) {
        self.blocked_since_ns.store(since_ns, Ordering::Relaxed);
    }

    /// The wait is over, and its record was left.
    #[inline]
    pub fn unblock(&self) {
        // Release: a thread that sees this sees the record.
        self.blocked_since_ns.store(0, Ordering::Release);
    }

    /// Since when a thread waits, if one does.
    pub fn blocked_since_ns(&self) -> Option<u64> {
        Some(self.blocked_since_ns.load(Ordering::Acquire)).filter(|since_ns| *since_ns > 0)
    }

    /// Gives the row of this thread a name, for front ends whose threads have names that the system does not know.
    pub fn name_thread(&self, name: &str) {
        if self.is_on() {
            ThreadId::name_current(name);
        }
    }

    /// Asks the trace writer, if there is one, to dump what is in memory. Returns at once.
    pub fn request_dump(&self, reason: DumpReason) {
        if let Some(Bell(ring)) = self.bell.get() {
            ring(reason);
        }
    }

    /// Everything that is in memory now.
    pub fn snapshot(&self, occasion: &str) -> Trace {
        Tail::snapshot(self, occasion)
    }

    /// Sets what wakes the trace writer; the first one counts.
    pub(crate) fn on_dump_request(&self, ring: impl Fn(DumpReason) + Send + Sync + 'static) {
        let _ = self.bell.set(Bell(Box::new(ring)));
    }

    pub(crate) fn rings(&self) -> Vec<Arc<Ring>> {
        lock(&self.rings).clone()
    }

    pub(crate) fn names_since(&self, from: NameId) -> (NameId, Vec<NameEntry>) {
        let names = lock(&self.names);
        let (first, since) = names.since(from);
        (first, since.cloned().collect())
    }

    pub(crate) fn groups_since(&self, from: usize) -> Vec<(GroupNumber, Vec<u32>)> {
        lock(&self.groups).get(from..).unwrap_or_default().to_vec()
    }

    pub(crate) fn settings_since(&self, from: usize) -> Vec<(String, String)> {
        lock(&self.settings).get(from..).unwrap_or_default().to_vec()
    }

    pub(crate) fn templates_since(&self, from: usize) -> Vec<Template> {
        lock(&self.templates).since(from).to_vec()
    }
}

/// Valid between any two statements, also if a holder panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Phase;

    #[test]
    fn what_ring_writers_and_threads_write_is_in_the_trace() {
        let recorder = Recorder::new(Identity { rank: 1, size: 2, ..Identity::default() }, 100);
        recorder.note_group(GroupNumber::WORLD, vec![0, 1]);
        let mut writer = recorder.ring_writer();
        let name = recorder.intern(&"w".into(), &[3, 4]);
        writer.write(5, Event::Done { name, group: GroupNumber::WORLD, operation: crate::event::OperationNumber(1) });
        drop(recorder.user_phase("augment"));
        recorder.begin_phase("input wait");
        let trace = recorder.snapshot("test");
        assert_eq!(trace.records.len(), 4);
        assert_eq!(trace.header.rank, 1);
        assert_eq!(trace.groups[&GroupNumber::WORLD], [0, 1]);
        assert_eq!(*trace.names.get(name).unwrap().shape, [3, 4]);
        let last = trace.records.last().unwrap();
        assert_eq!(last.event, Event::PhaseBegin { phase: Phase::InputWait, name: NameId::NONE });
        assert!(trace.threads.contains_key(&last.thread));
    }

    #[test]
    fn what_others_did_has_rows_of_their_own_and_late_settings_count() {
        let recorder =
            Recorder::new(Identity { settings: vec![("threads".into(), "1".into())], ..Identity::default() }, 100);
        recorder.note_phase_of("loader worker 0", "input work", 10, 20);
        recorder.note_phase_of("loader worker 1", "input work", 15, 25);
        recorder.note_phase_of("loader worker 0", "input work", 20, 30);
        recorder.note_phase_of("loader worker 0", "input work", 50, 40);
        recorder.note_setting("threads", "4");
        let trace = recorder.snapshot("test");
        let rows: Vec<&str> = trace.records.iter().map(|record| trace.threads[&record.thread].as_str()).collect();
        let (first, second) = ("loader worker 0", "loader worker 1");
        assert_eq!(rows, [first, second, first, first, second, first], "a phase that ends before it begins is none");
        assert!(trace.records.is_sorted_by_key(|record| record.time_ns));
        assert_eq!(trace.header.setting("threads"), Some("4"));
    }

    #[test]
    fn what_a_device_did_is_known_later_and_is_no_longer_than_the_time_it_lies_in() {
        let recorder = Recorder::new(Identity::default(), 100);
        assert!(!recorder.wants_device_times(), "no trace is kept");
        recorder.note_device_idle(100, 150, 20);
        recorder.note_device_idle(200, 250, 51);
        recorder.note_device_idle(250, 200, 1);
        recorder.note_device_wait("w", 300, 310);
        let mut trace = recorder.snapshot("test");
        let waited = Event::Waited { name: trace.names.find("w").unwrap(), since_ns: 300 };
        assert_eq!(trace.records.pop().map(|record| (record.time_ns, record.event)), Some((310, waited)));
        let told: Vec<(u64, Event)> = trace.records.iter().map(|record| (record.time_ns, record.event)).collect();
        let idle = |since_ns, ns| Event::DeviceIdle { since_ns, ns };
        assert_eq!(told, [(150, idle(100, 20)), (250, idle(200, 50))]);
    }

    #[test]
    fn groups_that_come_and_go_share_a_ring() {
        let recorder = Recorder::new(Identity::default(), 100);
        for number in 0..50 {
            recorder.ring_writer().write(number, Event::Cycle);
        }
        assert_eq!(recorder.rings().len(), 2, "one for marks, one for writers");
        assert_eq!(recorder.snapshot("test").records.len(), 50);
    }

    #[test]
    fn a_recorder_that_is_off_takes_nothing() {
        let recorder = Recorder::off();
        recorder.ring_writer().write(5, Event::Cycle);
        drop(recorder.user_phase("augment"));
        recorder.resume();
        recorder.mark(Event::Cycle);
        assert_eq!(recorder.snapshot("test").records, []);
    }
}
