//! Follows a recorder: what is new since the last reading.
//!
//! A [`Tail`] remembers how far it has read; any number of them may follow one recorder. Records are taken first and
//! tables afterwards, because a writer enters a name before the record: so every name of a record is in
//! the [`Update`] or in an earlier one.

use std::sync::Arc;

use crate::compact::{self, Template};
use crate::event::{GroupNumber, NameId, Record, ThreadId};
use crate::recorder::Recorder;
use crate::tables::thread_names;
use crate::trace::{NameEntry, Trace, TraceEnding};

/// How far a reader has read.
#[derive(Debug)]
pub(crate) struct Tail {
    /// For each ring the number of the next record.
    next: Vec<u64>,
    name: NameId,
    threads: Vec<Arc<str>>,
    groups: usize,
    settings: usize,
    /// Records before the first one that was read, until they are reported as dropped.
    skipped: u64,
    templates: Vec<Template>,
}

/// What is new.
#[derive(Debug, Default)]
pub(crate) struct Update {
    pub(crate) first_name: u32,
    pub(crate) names: Vec<NameEntry>,
    pub(crate) threads: Vec<(ThreadId, Arc<str>)>,
    pub(crate) groups: Vec<(GroupNumber, Vec<u32>)>,
    pub(crate) settings: Vec<(String, String)>,
    /// As words, each for itself, in no particular order.
    pub(crate) records: Vec<[u64; 4]>,
    pub(crate) dropped: u64,
}

impl Update {
    /// Whether nothing is new. An entry of a table comes once, so it counts without records, too.
    pub(crate) fn is_empty(&self) -> bool {
        let Update { first_name: _, names, threads, groups, settings, records, dropped } = self;
        names.is_empty()
            && threads.is_empty()
            && groups.is_empty()
            && settings.is_empty()
            && records.is_empty()
            && *dropped == 0
    }
}

impl Tail {
    /// Reads from the oldest record on that is still there.
    pub(crate) fn from_start() -> Tail {
        let (next, threads, templates) = (Vec::new(), Vec::new(), Vec::new());
        Tail { next, name: NameId(1), threads, groups: 0, settings: 0, skipped: 0, templates }
    }

    /// Reads the latest records of each ring, so many at most; what is older counts as dropped.
    pub(crate) fn latest(recorder: &Recorder, records: u64) -> Tail {
        let mut tail = Tail::from_start();
        tail.next = recorder.rings().iter().map(|ring| ring.written().saturating_sub(records)).collect();
        tail.skipped = tail.next.iter().sum();
        tail
    }

    /// Reads what comes from now on; names come from the start.
    pub(crate) fn from_now(recorder: &Recorder) -> Tail {
        let mut tail = Tail::from_start();
        tail.next = recorder.rings().iter().map(|ring| ring.written()).collect();
        tail
    }

    /// What is new since the last time.
    pub(crate) fn follow(&mut self, recorder: &Recorder) -> Update {
        let mut update = Update { dropped: std::mem::take(&mut self.skipped), ..Update::default() };
        let rings = recorder.rings();
        self.next.resize(rings.len(), 0);
        let mut records = Vec::new();
        for (ring, next) in rings.iter().zip(&mut self.next) {
            let (until, dropped) = ring.read(*next, &mut records);
            *next = until;
            update.dropped += dropped;
        }
        self.templates.extend(recorder.templates_since(self.templates.len()));
        update.records.reserve(records.len());
        for words in records {
            compact::expand(words, &self.templates, &mut update.records);
        }
        let (first, names) = recorder.names_since(self.name);
        self.name = NameId(first.0 + names.len() as u32);
        (update.first_name, update.names) = (first.0, names);
        update.groups = recorder.groups_since(self.groups);
        self.groups += update.groups.len();
        update.settings = recorder.settings_since(self.settings);
        self.settings += update.settings.len();
        let threads = thread_names();
        for (number, name) in threads.iter().enumerate() {
            if self.threads.get(number) != Some(name) {
                update.threads.push((ThreadId(number as u16), Arc::clone(name)));
            }
        }
        self.threads = threads;
        update
    }

    /// Everything that is in a recorder now.
    pub(crate) fn snapshot(recorder: &Recorder, occasion: &str) -> Trace {
        let update = Tail::from_start().follow(recorder);
        let mut trace = Trace { header: recorder.header().clone(), dropped: update.dropped, ..Trace::default() };
        for (number, named) in (update.first_name..).zip(update.names) {
            trace.names.insert(NameId(number), named);
        }
        trace.threads = update.threads.into_iter().map(|(thread, name)| (thread, name.to_string())).collect();
        trace.groups = update.groups.into_iter().collect();
        for (name, value) in update.settings {
            trace.header.set(name, value);
        }
        trace.records = update.records.into_iter().filter_map(Record::from_words).collect();
        trace.sort();
        trace.ending = TraceEnding::Complete(occasion.to_owned());
        trace
    }
}
