//! Records as they lie in rings: shorter than in files, where one tells of many.
//!
//! Most buckets are the same in every iteration. So the requests of such a bucket are entered in a table once, as a *crew*, and the record of the
//! bucket's begin or end has the crew's number: it stands for itself and for what is to be said of each request (`Fused` behind `Started`, `Done`
//! behind `Finished`), at the same moment, by the same thread. Whoever reads a ring gets them all ([`expand`]); nobody else knows that there are crews.
//!
//! A short record has the words of its event, with the highest bit of the kind set, and the crew's number where `Started` has the number of its requests and
//! `Finished` has nothing.

use std::sync::Arc;

use crate::event::{CrewId, Event, Member, Record};

/// Says that a record is a short one. Kinds of events are smaller.
const SHORT: u64 = 0x80;

/// Requests that all crews together may have; 4 MiB. Programs whose order keeps changing come to this, and then have long records.
const MEMBERS_MAX: usize = 1 << 18;

/// The crews of a recorder; none is ever forgotten, because rings refer to them.
#[derive(Debug, Default)]
pub(crate) struct Crews {
    crews: Vec<Arc<[Member]>>,
    requests: usize,
}

impl Crews {
    /// Enters a crew; `None` if there are too many.
    pub(crate) fn enter(&mut self, requests: Arc<[Member]>) -> Option<CrewId> {
        let total = self.requests + requests.len();
        if total > MEMBERS_MAX {
            return None;
        }
        self.requests = total;
        self.crews.push(requests);
        Some(CrewId(self.crews.len() as u32 - 1))
    }

    /// The crews from this number on.
    pub(crate) fn since(&self, from: usize) -> &[Arc<[Member]>] {
        self.crews.get(from..).unwrap_or_default()
    }
}

/// The words of a bucket's begin or end, with what that is for each request of the crew.
#[inline]
pub(crate) fn short(record: Record, crew: CrewId) -> [u64; 4] {
    let [time, head, number, tail] = record.to_words();
    [time, head & u64::from(u32::MAX) | SHORT | u64::from(crew.0) << 32, number, tail]
}

/// Appends the records that lie in a ring as these words. Words that are no record go through as they are.
pub(crate) fn expand(words: [u64; 4], crews: &[Arc<[Member]>], into: &mut Vec<[u64; 4]>) {
    let [time, head, number, tail] = words;
    if head & SHORT == 0 {
        return into.push(words);
    }
    let requests: &[Member] = crews.get((head >> 32) as usize).map_or(&[], |crew| crew);
    let plain = [time, head & u64::from(u32::MAX) & !SHORT, number, tail];
    let Some(Record { time_ns, thread, event }) = Record::from_words(plain) else { return into.push(words) };
    let mut push = |event| into.push(Record { time_ns, thread, event }.to_words());
    match event {
        Event::Started { group, operation, collective, dtype, bytes, .. } => {
            push(Event::Started { group, operation, collective, dtype, requests: requests.len() as u32, bytes });
            for &Member { name, bytes } in requests {
                push(Event::Fused { name, group, operation, bytes });
            }
        }
        Event::Finished { group, operation } => {
            push(event);
            for &Member { name, .. } in requests {
                push(Event::Done { name, group, operation });
            }
        }
        _ => into.push(words),
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
        crews.enter([two].into()).unwrap();
        let crew = crews.enter([one, two].into()).unwrap();
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
    fn an_order_that_keeps_changing_does_not_fill_the_memory() {
        let mut crews = Crews::default();
        let requests: Arc<[Member]> = vec![Member { name: NameId(1), bytes: 0 }; MEMBERS_MAX / 2].into();
        assert!(crews.enter(Arc::clone(&requests)).is_some());
        assert!(crews.enter(Arc::clone(&requests)).is_some());
        assert!(crews.enter([requests[0]].into()).is_none());
    }
}
