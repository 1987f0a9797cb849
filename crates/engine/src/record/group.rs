//! What a group's driver writes down: one line for each boundary that a request or a bucket passes.
//!
//! A record has a ring writer of its own, because the driver has the group to itself. Every entry takes the time from
//! the turn that it belongs to, which costs nothing; where a bucket is so large that packing or unpacking it takes
//! longer than some turns, the clock is looked at. Times of one record never go backwards.
//!
//! Entries about a request are written before its ticket is done: whoever has the result finds them.
//!
//! A bucket that comes again in every iteration has its requests in the recorder's table (a *template*), and one record
//! for all of them when it begins and one when it ends. Buckets that were negotiated may never come again; their
//! requests have records of their own.
//!
//! A small bucket that comes again is *held*: what it passes is remembered, and written as one record when it ends. It
//! is spelled out, boundary by boundary, as soon as it turns out not to end at once: it waits for a peer for longer
//! than a moment ([`MOMENT_NS`]), the driver is about to sleep over it, another thread takes over, or something goes
//! wrong. So whoever looks at a rank that is stuck finds where it is, and what a held bucket lacks in a ring is what
//! has happened within the last moment. Waits that are shorter than one leave no record in any bucket.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::agree::Bucket;
use farandole_plan::{GroupId, Rank, Request};
use farandole_trace::clock::now_ns;
use farandole_trace::event::{GroupNumber, NameId, OperationNumber, TemplateEntry, TemplateId, ThreadId};
use farandole_trace::{BucketTimes, Event, Recorder, RingWriter};

use super::device::ToldCaches;
use super::turn_length::TurnLength;
use super::{collective, dtype};
use crate::exec::step_trace::{self, StepTrace};
use crate::pending::{Pending, PendingTable};
use crate::tensor_table::QuickHasher;

/// Buckets from this size on are timed by looking at the clock: copying so much takes ten microseconds, three looks
/// less than a tenth of one.
const TIMED_FROM_BYTES: u64 = 128 << 10;

/// Waits for peers that are over sooner than this leave no records. Nearly all waits of ranks that work alike are: each
/// takes a step when the other has taken its own, some microseconds earlier or later.
const MOMENT_NS: u64 = 5_000;

/// The turn in which a bucket of up to this size ends takes less than a microsecond, and about as long as the last one
/// did.
const TINY_BYTES: u64 = 4 << 10;

/// What a submission leaves for the record: who asked, when, and the number of the name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) name: NameId,
    pub(crate) thread: ThreadId,
    /// `None` if the driver will see it at once: the caller drives.
    pub(crate) time_ns: Option<u64>,
}

/// The moment from which the driver counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) instant: std::time::Instant,
    pub(crate) time_ns: u64,
}

impl Start {
    pub(crate) fn now() -> Start {
        Start { instant: std::time::Instant::now(), time_ns: now_ns() }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct GroupRecord {
    pub(super) writer: RingWriter,
    pub(super) start_ns: u64,
    /// How long this process has been asleep: what it is told are moments of awake time, what it writes is real time.
    slept_ns: u64,
    pub(super) group: GroupNumber,
    /// The time of the last entry about the running bucket.
    last_ns: u64,
    /// Whether the running bucket is large enough to look at the clock for it.
    timed: bool,
    /// Whether it is recorded that the running bucket waits for a peer.
    waiting: bool,
    /// Since when nothing could be done for the running bucket, if so.
    still_since_ns: Option<u64>,
    /// What is not written yet of the running bucket.
    held: Option<Held>,
    /// The begin of the turn in which a tiny bucket ended.
    tiny_ended_ns: Option<u64>,
    last_turns: TurnLength,
    /// The requests of the running bucket, if they are in the recorder's table.
    template: Option<TemplateId>,
    /// Templates by the hash of their bucket's plan.
    templates: HashMap<u64, Known, BuildHasherDefault<QuickHasher>>,
    /// The one that was asked for last: programs with one bucket ask for no other.
    latest: Option<(u64, Known)>,
    pub(super) told_caches: ToldCaches,
}

/// A bucket that has begun and may be over in a moment.
#[derive(Clone, Copy, Debug)]
struct Held {
    template: TemplateId,
    started: Event,
    started_ns: u64,
    entered: bool,
    packed_ns: Option<u64>,
}

/// A template that the recorder has.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: TemplateId,
    /// The first name that the recorder will forget; names get new numbers then.
    oldest: NameId,
}

impl GroupRecord {
    pub(crate) fn new(recorder: &Arc<Recorder>, group: GroupId, ranks: &[Rank], start: Start) -> GroupRecord {
        let group = GroupNumber::from(group.0);
        recorder.note_group(group, ranks.iter().map(|rank| rank.0).collect());
        let (writer, start_ns) = (recorder.ring_writer(), start.time_ns);
        GroupRecord {
            writer,
            start_ns,
            slept_ns: 0,
            group,
            last_ns: 0,
            timed: false,
            waiting: false,
            still_since_ns: None,
            held: None,
            tiny_ended_ns: None,
            last_turns: TurnLength::default(),
            template: None,
            templates: HashMap::default(),
            latest: None,
            told_caches: ToldCaches::default(),
        }
    }

    /// Another thread drives from now on.
    pub(crate) fn pick_up(&mut self) {
        self.spell_out();
        self.writer.bind_thread();
    }

    /// Writes down what is held of the running bucket, as it was.
    pub(super) fn spell_out(&mut self) {
        let Some(Held { template, started, started_ns, entered, packed_ns }) = self.held.take() else { return };
        self.writer.write_edge(started_ns, started, template);
        if let (Some(packed_ns), Event::Started { group, operation, .. }) = (packed_ns, started) {
            if entered {
                self.writer.write(packed_ns, Event::Entered { group, operation });
            }
            self.writer.write(packed_ns, Event::Packed { group, operation });
        }
    }

    /// Collectives of this rank are complete.
    pub(crate) fn count_collectives(&self, count: u64) {
        self.writer.recorder().count_collectives(count);
    }

    /// Where it writes.
    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        self.writer.recorder()
    }

    /// A moment as it is recorded.
    pub(crate) fn at(&self, now: Duration) -> u64 {
        self.start_ns + self.slept_ns + now.as_nanos() as u64
    }

    /// This process has been asleep for so long in all.
    pub(crate) fn slept(&mut self, slept: Duration) {
        self.slept_ns = slept.as_nanos() as u64;
    }

    /// Enters something about the running bucket.
    pub(super) fn enter(&mut self, now: Duration, event: Event) {
        self.look(now);
        self.writer.write(self.last_ns, event);
    }

    /// Enters the begin or the end of the running bucket for all its requests.
    fn enter_for_all(&mut self, now: Duration, event: Event) {
        self.look(now);
        let template = self.template.expect("invariant: only a bucket with a template is entered for all of it");
        self.writer.write_edge(self.last_ns, event, template);
    }

    fn look(&mut self, now: Duration) {
        let time_ns = if self.timed && self.writer.is_on() { now_ns() } else { self.at(now) };
        self.last_ns = self.last_ns.max(time_ns);
    }

    /// The driver has taken orders in.
    pub(crate) fn cycle(&mut self, now: Duration) {
        if self.writer.recorder().wants_cycles() {
            self.writer.write(self.at(now), Event::Cycle);
        }
    }

    /// A request has come in.
    pub(crate) fn submitted(&mut self, request: &Request, pending: &Pending, now: Duration) {
        let Mark { name, thread, time_ns } = pending.mark;
        let bytes = pending.input.as_ref().map_or(0, |region| region.len_bytes() as u64);
        let (group, collective, dtype) = (self.group, collective(&request.collective), dtype(request.dtype));
        let event = Event::Submitted { name, group, collective, dtype, bytes };
        self.writer.write_for(thread, time_ns.unwrap_or_else(|| self.at(now)), event);
    }

    /// A bucket begins.
    pub(crate) fn started(&mut self, bucket: &Bucket, table: &PendingTable, now: Duration) {
        let plan = &*bucket.plan;
        let bytes = plan.elems * plan.dtype.size_bytes() as u64;
        self.spell_out();
        (self.timed, self.waiting, self.template) = (bytes >= TIMED_FROM_BYTES, false, None);
        self.still_since_ns = None;
        if !self.writer.is_on() {
            return;
        }
        let (group, operation) = (self.group, OperationNumber(bucket.operation.0));
        let (collective, dtype) = (collective(&plan.collective), dtype(plan.dtype));
        let requests = bucket.requests.len() as u32;
        let started = Event::Started { group, operation, collective, dtype, requests, bytes };
        self.template = self.template_of(bucket, table, bytes);
        if let (Some(template), false) = (self.template, self.timed) {
            self.look(now);
            let started_ns = self.last_ns;
            self.held = Some(Held { template, started, started_ns, entered: false, packed_ns: None });
            return;
        }
        if self.template.is_some() {
            return self.enter_for_all(now, started);
        }
        self.enter(now, started);
        for TemplateEntry { name, bytes } in requests_of(bucket, table) {
            self.writer.write(self.last_ns, Event::Fused { name, group, operation, bytes });
        }
    }

    /// The template of a bucket that comes again and again. What is in it follows from the plan, unless this rank has
    /// joined or the recorder was off when requests were submitted.
    fn template_of(&mut self, bucket: &Bucket, table: &PendingTable, bytes: u64) -> Option<TemplateId> {
        if !bucket.replayed {
            return None;
        }
        let (recorder, hash) = (self.writer.recorder(), bucket.plan.hash);
        let latest = self.latest.filter(|(of, _)| *of == hash).map(|(_, known)| known);
        if let Some(known) = latest.or_else(|| self.templates.get(&hash).copied())
            && recorder.knows(known.oldest)
        {
            self.latest = Some((hash, known));
            return Some(known.id);
        }
        let whole = bucket.requests.iter().all(Option::is_some);
        let oldest = requests_of(bucket, table).map(|request| request.name).min()?;
        if !whole || oldest == NameId::NONE {
            return None;
        }
        let id = recorder.template(requests_of(bucket, table), bytes)?;
        self.templates.insert(hash, Known { id, oldest });
        Some(id)
    }

    /// All ranks have come to the bucket.
    pub(crate) fn entered(&mut self, bucket: &Bucket, now: Duration) {
        if let Some(held) = &mut self.held {
            held.entered = true;
            return;
        }
        self.enter(now, Event::Entered { group: self.group, operation: OperationNumber(bucket.operation.0) });
    }

    /// This rank's contribution lies in its place.
    pub(crate) fn packed(&mut self, bucket: &Bucket, now: Duration) {
        if self.held.is_some() {
            self.look(now);
            self.held.iter_mut().for_each(|held| held.packed_ns = Some(self.last_ns));
            return;
        }
        self.enter(now, Event::Packed { group: self.group, operation: OperationNumber(bucket.operation.0) });
    }

    /// Whether the run of the bucket that has just started is to be traced step by step.
    pub(crate) fn wants_step_trace(&self, bucket: &Bucket) -> bool {
        self.writer.is_on() && bucket.plan.elems * bucket.plan.dtype.size_bytes() as u64 >= step_trace::FROM_BYTES
    }

    /// Enters the steps that a run has taken.
    pub(crate) fn steps(&mut self, bucket: &Bucket, step_trace: &mut StepTrace) {
        let (group, operation) = (self.group, OperationNumber(bucket.operation.0));
        for note in step_trace.drain() {
            self.last_ns = self.last_ns.max(note.time_ns);
            let (step, peer, bytes) = (note.kind, note.peer.map(|peer| peer.0), note.bytes);
            self.writer.write(self.last_ns, Event::Stepped { group, operation, step, peer, bytes });
        }
    }

    /// Nothing could be done for the bucket; `peer` finds out for whom it waits.
    pub(crate) fn still(&mut self, bucket: &Bucket, now: Duration, peer: impl FnOnce() -> Option<Rank>) {
        if self.waiting || !self.writer.is_on() {
            return;
        }
        let now_ns = self.at(now);
        let since_ns = *self.still_since_ns.get_or_insert(now_ns.max(self.last_ns));
        if now_ns >= since_ns + MOMENT_NS {
            self.wait(bucket, since_ns, peer);
        }
    }

    /// The driver is about to sleep, and will not be back in a moment.
    pub(crate) fn doze(&mut self, bucket: &Bucket, peer: impl FnOnce() -> Option<Rank>) {
        if let (Some(since_ns), false, true) = (self.still_since_ns, self.waiting, self.writer.is_on()) {
            self.wait(bucket, since_ns, peer);
        }
    }

    /// The bucket has begun to wait.
    fn wait(&mut self, bucket: &Bucket, since_ns: u64, peer: impl FnOnce() -> Option<Rank>) {
        self.spell_out();
        self.waiting = true;
        self.last_ns = self.last_ns.max(since_ns);
        let (operation, peer) = (OperationNumber(bucket.operation.0), peer().map(|peer| peer.0));
        self.writer.write(self.last_ns, Event::Waiting { group: self.group, operation, peer });
    }

    /// Something could be done for the bucket.
    pub(crate) fn moved(&mut self, bucket: &Bucket, now: Duration) {
        self.still_since_ns = None;
        if std::mem::take(&mut self.waiting) {
            // The turn in which it moved began when it could.
            self.last_ns = self.last_ns.max(self.at(now));
            let event = Event::Resumed { group: self.group, operation: OperationNumber(bucket.operation.0) };
            self.writer.write(self.last_ns, event);
        }
    }

    /// All steps are taken.
    pub(crate) fn travelled(&mut self, bucket: &Bucket, now: Duration) {
        // One that is held is finished in the same turn.
        if self.held.is_none() {
            self.enter_travelled(bucket, now);
        }
    }

    fn enter_travelled(&mut self, bucket: &Bucket, now: Duration) {
        self.enter(now, Event::Transferred { group: self.group, operation: OperationNumber(bucket.operation.0) });
    }

    /// The results of a bucket are in their places.
    pub(crate) fn finished<'a>(&mut self, bucket: &Bucket, done: impl IntoIterator<Item = &'a Pending>, now: Duration) {
        let (group, operation) = (self.group, OperationNumber(bucket.operation.0));
        if let Some(Held { template, started, started_ns, entered, packed_ns }) = self.held {
            self.look(now);
            let times = packed_ns.map(|packed_ns| BucketTimes { entered, packed_ns, finished_ns: self.last_ns });
            if times.is_some_and(|times| self.writer.write_bucket(started_ns, started, template, times)) {
                self.held = None;
                let tiny = matches!(started, Event::Started { bytes, .. } if bytes <= TINY_BYTES);
                self.tiny_ended_ns = tiny.then(|| self.at(now));
                return;
            }
            self.spell_out();
            self.enter_travelled(bucket, now);
        }
        if self.template.is_some() {
            return self.enter_for_all(now, Event::Finished { group, operation });
        }
        self.enter(now, Event::Finished { group, operation });
        for pending in done {
            self.writer.write(self.last_ns, Event::Done { name: pending.mark.name, group, operation });
        }
    }

    /// The thread that drives has waited for a request since then, and goes on now, at the end of a turn that began
    /// then.
    pub(crate) fn waited(&mut self, name: NameId, since: Duration, turned_at: Duration) {
        if self.writer.is_on() {
            let (since_ns, begun_ns) = (self.at(since), self.at(turned_at));
            let time_ns = match self.tiny_ended_ns.take() {
                Some(ended_ns) if ended_ns == begun_ns => self.last_turns.end_ns(begun_ns, now_ns),
                _ => now_ns(),
            };
            self.writer.write(time_ns.max(since_ns), Event::Waited { name, since_ns });
        }
    }
}

/// The requests of a bucket that are this rank's.
fn requests_of(bucket: &Bucket, table: &PendingTable) -> impl Iterator<Item = TemplateEntry> {
    bucket.requests.iter().flatten().map(|id| {
        let Pending { mark, input, .. } = table.get(*id);
        TemplateEntry { name: mark.name, bytes: input.as_ref().map_or(0, |region| region.len_bytes() as u64) }
    })
}
