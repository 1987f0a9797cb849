//! The compact encoding of records in rings: one record stands for many.
//!
//! Most buckets are the same in every iteration. The requests of such a bucket are entered once in a table, as a
//! *template*. The record of the bucket's begin or end carries the template's number and stands for itself and for one
//! event of each request (`Fused` after `Started`, `Done` after `Finished`), at the same time, on the same thread. A
//! bucket that ends within milliseconds has one record in all ([`encode_bucket`]). Readers of a ring get all records
//! ([`expand`]) or those of the bucket itself ([`decode`]); files contain no templates.
//!
//! A compact record has the words of its event, with the highest bit of the kind set. The template's number stands
//! where `Started` has the number of its requests and `Finished` has nothing. The record of a whole bucket has the
//! words of its `Started`, with nothing but that bit as its kind, and its times in place of the bytes, which the
//! template has:
//!
//! ```text
//! word 3   group 16 | entered 1 | packed 23 | finished 24, in nanoseconds after the begin
//! ```

use std::sync::Arc;

use crate::event::{Event, Record, TemplateEntry, TemplateId};

/// The bit that marks a compact record. Kinds of events are smaller.
const COMPACT: u64 = 0x80;

/// The kind of `Started`.
const STARTED: u64 = 6;

/// Entries of all templates together; 4 MiB. Programs whose order keeps changing reach this limit, and then have
/// plain records.
const TEMPLATE_ENTRIES_MAX: usize = 1 << 18;

/// The requests of a bucket that comes again and again.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    requests: Arc<[TemplateEntry]>,
    /// Of the bucket.
    bytes: u64,
}

/// The templates of a recorder. None is ever removed, because rings refer to them.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    templates: Vec<Template>,
    requests: usize,
}

impl Templates {
    /// Enters a template; `None` if there are too many.
    pub(crate) fn enter(&mut self, requests: Arc<[TemplateEntry]>, bytes: u64) -> Option<TemplateId> {
        let total = self.requests + requests.len();
        if total > TEMPLATE_ENTRIES_MAX {
            return None;
        }
        self.requests = total;
        self.templates.push(Template { requests, bytes });
        Some(TemplateId(self.templates.len() as u32 - 1))
    }

    /// The templates from this number on.
    pub(crate) fn since(&self, from: usize) -> &[Template] {
        self.templates.get(from..).unwrap_or_default()
    }
}

/// When a bucket passed the stages between its begin and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTimes {
    /// Whether this rank had to know that all ranks had come before it packed.
    pub entered: bool,
    /// When its contribution lay in its place.
    pub packed_ns: u64,
    /// When its steps were taken and its results in their places.
    pub finished_ns: u64,
}

/// The words of a bucket's begin or end, which stand for each request of the template as well.
#[inline]
pub(crate) fn encode_edge(record: Record, template: TemplateId) -> [u64; 4] {
    let [time, head, number, tail] = record.to_words();
    [time, head & u64::from(u32::MAX) | COMPACT | u64::from(template.0) << 32, number, tail]
}

/// The words of a bucket from its begin to its end. `None` if it took so long that they do not fit: eight milliseconds
/// or more.
#[inline]
pub(crate) fn encode_bucket(started: Record, template: TemplateId, times: BucketTimes) -> Option<[u64; 4]> {
    let [time, head, number, tail] = started.to_words();
    let (packed, finished) = (times.packed_ns.wrapping_sub(time), times.finished_ns.wrapping_sub(time));
    if packed >= 1 << 23 || finished >= 1 << 24 {
        return None;
    }
    let head = head & 0xffff_ff00 | COMPACT | u64::from(template.0) << 32;
    Some([time, head, number, tail >> 48 << 48 | u64::from(times.entered) << 47 | packed << 24 | finished])
}

/// What a compact record says of its bucket.
pub(crate) struct Decoded<'a> {
    template: &'a Template,
    pub(crate) started: Option<Record>,
    times: Option<BucketTimes>,
    pub(crate) finished: Option<Record>,
}

/// Decodes these words, if they are a compact record.
pub(crate) fn decode(words: [u64; 4], templates: &[Template]) -> Option<Decoded<'_>> {
    let [time, head, number, tail] = words;
    if head & COMPACT == 0 {
        return None;
    }
    let template = templates.get((head >> 32) as usize)?;
    let requests = template.requests.len() as u32;
    let plain = head & u64::from(u32::MAX) & !COMPACT;
    if plain & 0xff != 0 {
        let mut record = Record::from_words([time, plain, number, tail])?;
        return match &mut record.event {
            Event::Started { requests: decoded, .. } => {
                *decoded = requests;
                Some(Decoded { template, started: Some(record), times: None, finished: None })
            }
            Event::Finished { .. } => Some(Decoded { template, started: None, times: None, finished: Some(record) }),
            _ => None,
        };
    }
    let (entered, packed_ns) = (tail >> 47 & 1 == 1, time.wrapping_add(tail >> 24 & 0x7f_ffff));
    let times = BucketTimes { entered, packed_ns, finished_ns: time.wrapping_add(tail & 0xff_ffff) };
    let mut started = Record::from_words([time, plain | STARTED, number, tail >> 48 << 48])?;
    let Event::Started { group, operation, requests: decoded, bytes, .. } = &mut started.event else { return None };
    (*decoded, *bytes) = (requests, template.bytes);
    let event = Event::Finished { group: *group, operation: *operation };
    let finished = Record { time_ns: times.finished_ns, event, ..started };
    Some(Decoded { template, started: Some(started), times: Some(times), finished: Some(finished) })
}

/// Appends the records that lie in a ring as these words. Words that are no record go through as they are.
pub(crate) fn expand(words: [u64; 4], templates: &[Template], into: &mut Vec<[u64; 4]>) {
    let Some(Decoded { template, started, times, finished }) = decode(words, templates) else {
        return into.push(words);
    };
    if let Some(Record { time_ns, thread, event }) = started
        && let Event::Started { group, operation, .. } = event
    {
        let mut push = |time_ns, event| into.push(Record { time_ns, thread, event }.to_words());
        push(time_ns, event);
        for &TemplateEntry { name, bytes } in &*template.requests {
            push(time_ns, Event::Fused { name, group, operation, bytes });
        }
        if let Some(BucketTimes { entered, packed_ns, finished_ns }) = times {
            if entered {
                push(packed_ns, Event::Entered { group, operation });
            }
            push(packed_ns, Event::Packed { group, operation });
            push(finished_ns, Event::Transferred { group, operation });
        }
    }
    if let Some(Record { time_ns, thread, event }) = finished
        && let Event::Finished { group, operation } = event
    {
        into.push(Record { time_ns, thread, event }.to_words());
        for &TemplateEntry { name, .. } in &*template.requests {
            into.push(Record { time_ns, thread, event: Event::Done { name, group, operation } }.to_words());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Collective, Dtype, GroupNumber, NameId, OperationNumber, ThreadId};

    #[test]
    fn a_template_is_read_as_if_each_request_had_its_records() {
        let mut templates = Templates::default();
        let (one, two) = (TemplateEntry { name: NameId(7), bytes: 40 }, TemplateEntry { name: NameId(9), bytes: 8 });
        templates.enter([two].into(), 8).unwrap();
        let template = templates.enter([one, two].into(), 48).unwrap();
        let (group, operation) = (GroupNumber(3), OperationNumber(1 << 45 | 9));
        let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::BF16, 48);
        let record = |event| Record { time_ns: 77, thread: ThreadId(5), event };
        let started = Event::Started { group, operation, collective, dtype, requests: 2, bytes };
        let finished = Event::Finished { group, operation };
        let mut read = Vec::new();
        for event in [started, finished] {
            expand(encode_edge(record(event), template), templates.since(0), &mut read);
        }
        expand(record(Event::Cycle).to_words(), templates.since(0), &mut read);
        let fused = |TemplateEntry { name, bytes }: TemplateEntry| Event::Fused { name, group, operation, bytes };
        let done = |TemplateEntry { name, .. }: TemplateEntry| Event::Done { name, group, operation };
        let expected = [started, fused(one), fused(two), finished, done(one), done(two), Event::Cycle];
        let read: Vec<Record> = read.into_iter().map(|words| Record::from_words(words).unwrap()).collect();
        assert_eq!(read, expected.map(record));
    }

    #[test]
    fn a_bucket_that_is_over_soon_is_read_as_if_each_boundary_had_its_records() {
        let mut templates = Templates::default();
        let one = TemplateEntry { name: NameId(7), bytes: 40 };
        let template = templates.enter([one].into(), 64).unwrap();
        let (group, operation) = (GroupNumber(3), OperationNumber(1 << 45 | 9));
        let (collective, dtype, bytes, requests) = (Collective::Allreduce, Dtype::F32, 64, 1);
        let started = Event::Started { group, operation, collective, dtype, requests, bytes };
        let record = |time_ns, event| Record { time_ns, thread: ThreadId(5), event };
        for entered in [false, true] {
            let times = BucketTimes { entered, packed_ns: 80, finished_ns: 99 };
            let mut read = Vec::new();
            expand(encode_bucket(record(77, started), template, times).unwrap(), templates.since(0), &mut read);
            let mut expected = vec![
                record(77, started),
                record(77, Event::Fused { name: one.name, group, operation, bytes: 40 }),
                record(80, Event::Entered { group, operation }),
                record(80, Event::Packed { group, operation }),
                record(99, Event::Transferred { group, operation }),
                record(99, Event::Finished { group, operation }),
                record(99, Event::Done { name: one.name, group, operation }),
            ];
            expected.retain(|record| entered || !matches!(record.event, Event::Entered { .. }));
            let read: Vec<Record> = read.into_iter().map(|words| Record::from_words(words).unwrap()).collect();
            assert_eq!(read, expected);
        }
        let times = |packed_ns, finished_ns| BucketTimes { entered: false, packed_ns, finished_ns };
        let decoded = |times| encode_bucket(record(77, started), template, times).is_some();
        assert!(
            decoded(times(77, 76 + (1 << 24))) && !decoded(times(77, 77 + (1 << 24))),
            "what does not fit is not decoded like this"
        );
        assert!(!decoded(times(77 + (1 << 23), 77 + (1 << 23))) && !decoded(times(76, 99)));
    }

    #[test]
    fn an_order_that_keeps_changing_does_not_fill_the_memory() {
        let mut templates = Templates::default();
        let requests: Arc<[TemplateEntry]> =
            vec![TemplateEntry { name: NameId(1), bytes: 0 }; TEMPLATE_ENTRIES_MAX / 2].into();
        assert!(templates.enter(Arc::clone(&requests), 0).is_some());
        assert!(templates.enter(Arc::clone(&requests), 0).is_some());
        assert!(templates.enter([requests[0]].into(), 0).is_none());
    }
}
