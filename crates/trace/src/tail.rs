//! Reading along: what is new in a recorder since one has last looked.
//!
//! A [`Tail`] remembers how far it has read; any number of them may follow one recorder. Records are taken first and
//! tables afterwards, because whoever writes a record has entered its name before: so every name of a record is among
//! the [`News`] or came with earlier ones.

use std::sync::Arc;

use crate::event::{Group, NameId, Record, ThreadId};
use crate::recorder::Recorder;
use crate::tables::thread_names;
use crate::terse::{self, Crew};
use crate::trace::{Ending, Named, Trace};

/// How far somebody has read.
#[derive(Debug)]
pub(crate) struct Tail {
    /// For each ring the number of the next record.
    next: Vec<u64>,
    name: NameId,
    threads: Vec<Arc<str>>,
    groups: usize,
    settings: usize,
    /// Records before the first one that was read, until they have been told as dropped.
    skipped: u64,
    crews: Vec<Crew>,
}

/// What is new.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) first_name: u32,
    pub(crate) names: Vec<Named>,
    pub(crate) threads: Vec<(ThreadId, Arc<str>)>,
    pub(crate) groups: Vec<(Group, Vec<u32>)>,
    pub(crate) settings: Vec<(String, String)>,
    /// As words, each for itself, in no particular order.
    pub(crate) records: Vec<[u64; 4]>,
    pub(crate) dropped: u64,
}

impl News {
    /// Whether nothing is new. What is new of a table is told once, so it counts without records, too.
    pub(crate) fn is_empty(&self) -> bool {
        let News { first_name: _, names, threads, groups, settings, records, dropped } = self;
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
    pub(crate) fn from_the_start() -> Tail {
        let (next, threads, crews) = (Vec::new(), Vec::new(), Vec::new());
        Tail { next, name: NameId(1), threads, groups: 0, settings: 0, skipped: 0, crews }
    }

    /// Reads the latest records of each ring, so many at most; what is older counts as dropped.
    pub(crate) fn latest(recorder: &Recorder, records: u64) -> Tail {
        let mut tail = Tail::from_the_start();
        tail.next = recorder.rings().iter().map(|ring| ring.written().saturating_sub(records)).collect();
        tail.skipped = tail.next.iter().sum();
        tail
    }

    /// Reads what comes from now on; names are told from the start.
    pub(crate) fn from_now(recorder: &Recorder) -> Tail {
        let mut tail = Tail::from_the_start();
        tail.next = recorder.rings().iter().map(|ring| ring.written()).collect();
        tail
    }

    /// What is new since the last time.
    pub(crate) fn follow(&mut self, recorder: &Recorder) -> News {
        let mut news = News { dropped: std::mem::take(&mut self.skipped), ..News::default() };
        let rings = recorder.rings();
        self.next.resize(rings.len(), 0);
        let mut records = Vec::new();
        for (ring, next) in rings.iter().zip(&mut self.next) {
            let (until, dropped) = ring.read(*next, &mut records);
            *next = until;
            news.dropped += dropped;
        }
        self.crews.extend(recorder.crews_since(self.crews.len()));
        news.records.reserve(records.len());
        for words in records {
            terse::expand(words, &self.crews, &mut news.records);
        }
        let (first, names) = recorder.names_since(self.name);
        self.name = NameId(first.0 + names.len() as u32);
        (news.first_name, news.names) = (first.0, names);
        news.groups = recorder.groups_since(self.groups);
        self.groups += news.groups.len();
        news.settings = recorder.settings_since(self.settings);
        self.settings += news.settings.len();
        let threads = thread_names();
        for (number, name) in threads.iter().enumerate() {
            if self.threads.get(number) != Some(name) {
                news.threads.push((ThreadId(number as u16), Arc::clone(name)));
            }
        }
        self.threads = threads;
        news
    }

    /// Everything that is in a recorder now.
    pub(crate) fn snapshot(recorder: &Recorder, occasion: &str) -> Trace {
        let news = Tail::from_the_start().follow(recorder);
        let mut trace = Trace { header: recorder.header().clone(), dropped: news.dropped, ..Trace::default() };
        for (number, named) in (news.first_name..).zip(news.names) {
            trace.names.insert(NameId(number), named);
        }
        trace.threads = news.threads.into_iter().map(|(thread, name)| (thread, name.to_string())).collect();
        trace.groups = news.groups.into_iter().collect();
        for (name, value) in news.settings {
            trace.header.set(name, value);
        }
        trace.records = news.records.into_iter().filter_map(Record::from_words).collect();
        trace.sort();
        trace.ending = Ending::Complete(occasion.to_owned());
        trace
    }
}
