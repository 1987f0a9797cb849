//! Records as they lie in rings: shorter than in files, where one tells of many.
//!
//! Most buckets are the same in every iteration. So the requests of such a bucket are entered in a table once, as a
//! *crew*, and the record of the bucket's begin or end has the crew's number: it stands for itself and for what is to
//! be said of each request (`Fused` behind `Started`, `Done` behind `Finished`), at the same moment, by the same
//! thread. A bucket that is over soon has one record from its begin to its end ([`whole`]). Whoever reads a ring gets
//! them all ([`expand`]) or what is said of the bucket itself ([`read`]); nobody else knows that there are crews.
//!
//! A short record has the words of its event, with the highest bit of the kind set, and the crew's number where
//! `Started` has the number of its requests and `Finished` has nothing. That of a whole bucket has the words of its
//! `Started`, with nothing but that bit for a kind, and its *way* where `Started` has the bytes, which the crew has,
//! too:
//!
//! ```text
//! word 3   group 16 | entered 1 | packed 23 | finished 24, in nanoseconds after the begin
//! ```

use std::sync::Arc;

use crate::event::{CrewId, Event, Member, Record};

/// Says that a record is a short one. Kinds of events are smaller.
const SHORT: u64 = 0x80;

/// The kind of `Started`.
const STARTED: u64 = 6;

/// Requests that all crews together may have; 4 MiB. Programs whose order keeps changing come to this, and then have
/// long records.
const MEMBERS_MAX: usize = 1 << 18;

/// Requests that travel together.
#[derive(Clone, Debug)]
pub(crate) struct Crew {
    requests: Arc<[Member]>,
    /// Of the bucket.
    bytes: u64,
}

/// The crews of a recorder; none is ever forgotten, because rings refer to them.
#[derive(Debug, Default)]
pub(crate) struct Crews {
    crews: Vec<Crew>,
    requests: usize,
}

impl Crews {
    /// Enters a crew; `None` if there are too many.
    pub(crate) fn enter(&mut self, requests: Arc<[Member]>, bytes: u64) -> Option<CrewId> {
        let total = self.requests + requests.len();
        if total > MEMBERS_MAX {
            return None;
        }
        self.requests = total;
        self.crews.push(Crew { requests, bytes });
        Some(CrewId(self.crews.len() as u32 - 1))
    }

    /// The crews from this number on.
    pub(crate) fn since(&self, from: usize) -> &[Crew] {
        self.crews.get(from..).unwrap_or_default()
    }
}

/// What a bucket passes between its begin and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Whether this rank had to know that all ranks had come before it packed.
    pub entered: bool,
    /// When its contribution lay in its place.
    pub packed_ns: u64,
    /// When its steps were taken and its results in their places.
    pub finished_ns: u64,
}

/// The words of a bucket's begin or end, with what that is for each request of the crew.
#[inline]
pub(crate) fn short(record: Record, crew: CrewId) -> [u64; 4] {
    let [time, head, number, tail] = record.to_words();
    [time, head & u64::from(u32::MAX) | SHORT | u64::from(crew.0) << 32, number, tail]
}

/// The words of a bucket from its begin to its end. `None` if it took so long that they do not fit: eight milliseconds
/// or more.
#[inline]
pub(crate) fn whole(started: Record, crew: CrewId, way: Way) -> Option<[u64; 4]> {
    let [time, head, number, tail] = started.to_words();
    let (packed, finished) = (way.packed_ns.wrapping_sub(time), way.finished_ns.wrapping_sub(time));
    if packed >= 1 << 23 || finished >= 1 << 24 {
        return None;
    }
    let head = head & 0xffff_ff00 | SHORT | u64::from(crew.0) << 32;
    Some([time, head, number, tail >> 48 << 48 | u64::from(way.entered) << 47 | packed << 24 | finished])
}

/// What a short record says of its bucket.
pub(crate) struct Told<'a> {
    crew: &'a Crew,
    pub(crate) started: Option<Record>,
    way: Option<Way>,
    pub(crate) finished: Option<Record>,
}

/// What these words say, if they are a short record.
pub(crate) fn read(words: [u64; 4], crews: &[Crew]) -> Option<Told<'_>> {
    let [time, head, number, tail] = words;
    if head & SHORT == 0 {
        return None;
    }
    let crew = crews.get((head >> 32) as usize)?;
    let requests = crew.requests.len() as u32;
    let plain = head & u64::from(u32::MAX) & !SHORT;
    if plain & 0xff != 0 {
        let mut record = Record::from_words([time, plain, number, tail])?;
        return match &mut record.event {
            Event::Started { requests: told, .. } => {
                *told = requests;
                Some(Told { crew, started: Some(record), way: None, finished: None })
            }
            Event::Finished { .. } => Some(Told { crew, started: None, way: None, finished: Some(record) }),
            _ => None,
        };
    }
    let (entered, packed_ns) = (tail >> 47 & 1 == 1, time.wrapping_add(tail >> 24 & 0x7f_ffff));
    let way = Way { entered, packed_ns, finished_ns: time.wrapping_add(tail & 0xff_ffff) };
    let mut started = Record::from_words([time, plain | STARTED, number, tail >> 48 << 48])?;
    let Event::Started { group, operation, requests: told, bytes, .. } = &mut started.event else { return None };
    (*told, *bytes) = (requests, crew.bytes);
    let event = Event::Finished { group: *group, operation: *operation };
    let finished = Record { time_ns: way.finished_ns, event, ..started };
    Some(Told { crew, started: Some(started), way: Some(way), finished: Some(finished) })
}

/// Appends the records that lie in a ring as these words. Words that are no record go through as they are.
pub(crate) fn expand(words: [u64; 4], crews: &[Crew], into: &mut Vec<[u64; 4]>) {
    let Some(Told { crew, started, way, finished }) = read(words, crews) else { return into.push(words) };
    if let Some(Record { time_ns, thread, event }) = started
        && let Event::Started { group, operation, .. } = event
    {
        let mut push = |time_ns, event| into.push(Record { time_ns, thread, event }.to_words());
        push(time_ns, event);
        for &Member { name, bytes } in &*crew.requests {
            push(time_ns, Event::Fused { name, group, operation, bytes });
        }
        if let Some(Way { entered, packed_ns, finished_ns }) = way {
            if entered {
                push(packed_ns, Event::Entered { group, operation });
            }
            push(packed_ns, Event::Packed { group, operation });
            push(finished_ns, Event::Travelled { group, operation });
        }
    }
    if let Some(Record { time_ns, thread, event }) = finished
        && let Event::Finished { group, operation } = event
    {
        into.push(Record { time_ns, thread, event }.to_words());
        for &Member { name, .. } in &*crew.requests {
            into.push(Record { time_ns, thread, event: Event::Done { name, group, operation } }.to_words());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Collective, Dtype, Group, NameId, Operation, ThreadId};

    #[test]
    fn a_crew_is_read_as_if_each_request_had_its_records() {
        let mut crews = Crews::default();
        let (one, two) = (Member { name: NameId(7), bytes: 40 }, Member { name: NameId(9), bytes: 8 });
        crews.enter([two].into(), 8).unwrap();
        let crew = crews.enter([one, two].into(), 48).unwrap();
        let (group, operation) = (Group(3), Operation(1 << 45 | 9));
        let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::BF16, 48);
        let record = |event| Record { time_ns: 77, thread: ThreadId(5), event };
        let started = Event::Started { group, operation, collective, dtype, requests: 2, bytes };
        let finished = Event::Finished { group, operation };
        let mut read = Vec::new();
        for event in [started, finished] {
            expand(short(record(event), crew), crews.since(0), &mut read);
        }
        expand(record(Event::Cycle).to_words(), crews.since(0), &mut read);
        let fused = |Member { name, bytes }: Member| Event::Fused { name, group, operation, bytes };
        let done = |Member { name, .. }: Member| Event::Done { name, group, operation };
        let expected = [started, fused(one), fused(two), finished, done(one), done(two), Event::Cycle];
        let read: Vec<Record> = read.into_iter().map(|words| Record::from_words(words).unwrap()).collect();
        assert_eq!(read, expected.map(record));
    }

    #[test]
    fn a_bucket_that_is_over_soon_is_read_as_if_each_boundary_had_its_records() {
        let mut crews = Crews::default();
        let one = Member { name: NameId(7), bytes: 40 };
        let crew = crews.enter([one].into(), 64).unwrap();
        let (group, operation) = (Group(3), Operation(1 << 45 | 9));
        let (collective, dtype, bytes, requests) = (Collective::Allreduce, Dtype::F32, 64, 1);
        let started = Event::Started { group, operation, collective, dtype, requests, bytes };
        let record = |time_ns, event| Record { time_ns, thread: ThreadId(5), event };
        for entered in [false, true] {
            let way = Way { entered, packed_ns: 80, finished_ns: 99 };
            let mut read = Vec::new();
            expand(whole(record(77, started), crew, way).unwrap(), crews.since(0), &mut read);
            let mut expected = vec![
                record(77, started),
                record(77, Event::Fused { name: one.name, group, operation, bytes: 40 }),
                record(80, Event::Entered { group, operation }),
                record(80, Event::Packed { group, operation }),
                record(99, Event::Travelled { group, operation }),
                record(99, Event::Finished { group, operation }),
                record(99, Event::Done { name: one.name, group, operation }),
            ];
            expected.retain(|record| entered || !matches!(record.event, Event::Entered { .. }));
            let read: Vec<Record> = read.into_iter().map(|words| Record::from_words(words).unwrap()).collect();
            assert_eq!(read, expected);
        }
        let way = |packed_ns, finished_ns| Way { entered: false, packed_ns, finished_ns };
        let told = |way| whole(record(77, started), crew, way).is_some();
        assert!(
            told(way(77, 76 + (1 << 24))) && !told(way(77, 77 + (1 << 24))),
            "what does not fit is not told like this"
        );
        assert!(!told(way(77 + (1 << 23), 77 + (1 << 23))) && !told(way(76, 99)));
    }

    #[test]
    fn an_order_that_keeps_changing_does_not_fill_the_memory() {
        let mut crews = Crews::default();
        let requests: Arc<[Member]> = vec![Member { name: NameId(1), bytes: 0 }; MEMBERS_MAX / 2].into();
        assert!(crews.enter(Arc::clone(&requests), 0).is_some());
        assert!(crews.enter(Arc::clone(&requests), 0).is_some());
        assert!(crews.enter([requests[0]].into(), 0).is_none());
    }
}
