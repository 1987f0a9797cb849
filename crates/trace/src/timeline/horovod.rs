//! One rank's timeline while it runs, in the form that Horovod's users know.
//!
//! Each tensor is a row (a "process" of the viewer). On it lie, one after the other, `NEGOTIATE_ALLREDUCE` from the
//! first request that the coordinator has heard of until the bucket starts, with a tick for each rank as it arrives;
//! then `ALLREDUCE` until the request is done, and inside of it what is done with the bucket: `QUEUE` until all ranks
//! have come to it where that matters, `MEMCPY_IN_FUSION_BUFFER`, `FARANDOLE_ALLREDUCE` for the travel,
//! `MEMCPY_OUT_FUSION_BUFFER`. `CYCLE_START` marks the moments at which the driver took requests in. Ranks that repeat
//! a learned order do not negotiate, so there `NEGOTIATE_…` is the time in which a request waits for its turn.
//!
//! The formatter turns records into events, and nothing else: it has no file and no clock. It shows only what it has
//! seen the beginning of, so a timeline may begin and end in the middle of anything.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::event::{Collective, Dtype, Event, GroupNumber, NameId, OperationNumber, Record};
use crate::json::{Escaped, Micros};
use crate::trace::Names;

/// Whether the driver's cycles are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycles {
    /// With `CYCLE_START`.
    Marked,
    /// Not at all.
    Unmarked,
}

/// A bucket that is under way.
#[derive(Debug)]
struct Bucket {
    collective: Collective,
    /// Its tensors' rows.
    rows: Vec<u32>,
    /// When the activity began that it is in.
    since_ns: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct TimelineFormatter {
    start_ns: u64,
    cycles: Cycles,
    /// The row of each tensor of each group.
    rows: HashMap<(GroupNumber, NameId), u32>,
    /// Rows whose negotiation is open.
    negotiating: HashMap<u32, Collective>,
    /// Element types of the requests of rows, for the operation's arguments.
    dtypes: HashMap<u32, Dtype>,
    running: HashMap<(GroupNumber, OperationNumber), Bucket>,
    text: String,
}

impl TimelineFormatter {
    /// Times count from `start_ns`.
    pub(crate) fn new(start_ns: u64, cycles: Cycles) -> TimelineFormatter {
        TimelineFormatter {
            start_ns,
            cycles,
            rows: HashMap::new(),
            negotiating: HashMap::new(),
            dtypes: HashMap::new(),
            running: HashMap::new(),
            text: String::new(),
        }
    }

    /// The first events of a file.
    pub(crate) fn preamble(start_unix_ns: u64) -> String {
        format!(
            "{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \
             \"args\": {{\"start_time_since_epoch_in_micros\":{}}}}},\n\
             {{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"args\": {{\"sort_index\": 0}}}}",
            start_unix_ns / 1000
        )
    }

    /// Events, each after a comma and on a line of its own, for these records.
    pub(crate) fn format(&mut self, records: &[Record], names: &Names) -> String {
        for record in records {
            self.format_record(record, names);
        }
        std::mem::take(&mut self.text)
    }

    fn format_record(&mut self, record: &Record, names: &Names) {
        let time_ns = record.time_ns.max(self.start_ns);
        match record.event {
            Event::Submitted { name, group, collective, dtype, .. } => {
                let row = self.row(group, name, names);
                self.dtypes.insert(row, dtype);
                self.negotiate(row, collective, time_ns);
            }
            Event::Arrived { name, group, rank } => {
                let row = self.row(group, name, names);
                // Which collective it is only a request of our own tells; nearly always it is the one before.
                let collective = self.negotiating.get(&row).copied().unwrap_or(Collective::Allreduce);
                self.negotiate(row, collective, time_ns);
                self.event(format_args!("\"ph\": \"X\", \"name\": \"{rank}\""), time_ns, row, ", \"dur\": 0");
            }
            Event::Started { group, operation, collective, requests, .. } if requests > 0 => {
                let bucket = Bucket { collective, rows: Vec::new(), since_ns: time_ns };
                self.running.insert((group, operation), bucket);
            }
            Event::Fused { name, group, operation, .. } => self.fuse(name, group, operation, time_ns, names),
            Event::Entered { group, operation } => self.activity(group, operation, |_| "QUEUE", time_ns),
            Event::Packed { group, operation } => {
                self.activity(group, operation, |_| "MEMCPY_IN_FUSION_BUFFER", time_ns);
            }
            Event::Transferred { group, operation } => self.activity(group, operation, travel_of, time_ns),
            Event::Finished { group, operation } => {
                self.activity(group, operation, |_| "MEMCPY_OUT_FUSION_BUFFER", time_ns);
                let bucket = self.running.remove(&(group, operation));
                for row in bucket.map(|bucket| bucket.rows).unwrap_or_default() {
                    self.event(format_args!("\"ph\": \"E\""), time_ns, row, "");
                }
            }
            Event::Abandoned { group, operation } => self.abandon(group, operation, time_ns),
            Event::Failed { name, group } => {
                let row = self.row(group, name, names);
                if self.negotiating.remove(&row).is_some() {
                    self.event(format_args!("\"ph\": \"E\""), time_ns, row, "");
                }
            }
            Event::Cycle if self.cycles == Cycles::Marked => {
                self.line(format_args!("\"ph\": \"i\", \"name\": \"CYCLE_START\""), time_ns, ", \"s\": \"g\"");
            }
            _ => {}
        }
    }

    /// The row of a tensor, which is named if it is new.
    fn row(&mut self, group: GroupNumber, name: NameId, names: &Names) -> u32 {
        let next = self.rows.len() as u32 + 1;
        let row = *self.rows.entry((group, name)).or_insert(next);
        if row == next {
            let text = Escaped(names.text(name));
            let _ = write!(
                self.text,
                ",\n{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {row}, \"args\": {{\"name\": \"{text}\"}}}}\
                 ,\n{{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": {row}, \"args\": {{\"sort_index\": {row}}}}}"
            );
        }
        row
    }

    fn negotiate(&mut self, row: u32, collective: Collective, time_ns: u64) {
        if self.negotiating.insert(row, collective).is_none() {
            let word = word_of(collective);
            self.event(format_args!("\"ph\": \"B\", \"name\": \"NEGOTIATE_{word}\""), time_ns, row, "");
        }
    }

    fn fuse(&mut self, name: NameId, group: GroupNumber, operation: OperationNumber, time_ns: u64, names: &Names) {
        let row = self.row(group, name, names);
        let Some(bucket) = self.running.get_mut(&(group, operation)) else { return };
        bucket.rows.push(row);
        let word = word_of(bucket.collective);
        if self.negotiating.remove(&row).is_some() {
            self.event(format_args!("\"ph\": \"E\""), time_ns, row, "");
        }
        let shape = names.get(name).map(|named| &*named.shape).unwrap_or_default();
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        let dtype = self.dtypes.get(&row).map_or("unknown", |dtype| dtype.word());
        let arguments = format!(", \"args\": {{\"dtype\": \"{dtype}\", \"shape\": \"[{}]\"}}", shape.join(", "));
        self.event(format_args!("\"ph\": \"B\", \"name\": \"{word}\""), time_ns, row, &arguments);
    }

    /// A bucket has ended what it was in since the last time.
    fn activity(
        &mut self,
        group: GroupNumber,
        operation: OperationNumber,
        name: impl Fn(Collective) -> &'static str,
        time_ns: u64,
    ) {
        let Some(mut bucket) = self.running.remove(&(group, operation)) else { return };
        let (name, since_ns) = (name(bucket.collective), std::mem::replace(&mut bucket.since_ns, time_ns));
        for row in &bucket.rows {
            self.event(format_args!("\"ph\": \"B\", \"name\": \"{name}\""), since_ns, *row, "");
            self.event(format_args!("\"ph\": \"E\""), time_ns, *row, "");
        }
        self.running.insert((group, operation), bucket);
    }

    /// A bucket is given up: its tensors negotiate again.
    fn abandon(&mut self, group: GroupNumber, operation: OperationNumber, time_ns: u64) {
        let Some(Bucket { collective, rows, .. }) = self.running.remove(&(group, operation)) else { return };
        for row in rows {
            self.event(format_args!("\"ph\": \"E\""), time_ns, row, "");
            self.negotiate(row, collective, time_ns);
        }
    }

    fn event(&mut self, head: std::fmt::Arguments<'_>, time_ns: u64, row: u32, more: &str) {
        self.line(head, time_ns, format_args!(", \"pid\": {row}{more}"));
    }

    fn line(&mut self, head: std::fmt::Arguments<'_>, time_ns: u64, more: impl std::fmt::Display) {
        let time = Micros(time_ns - self.start_ns);
        let _ = write!(self.text, ",\n{{{head}, \"ts\": {time}{more}}}");
    }
}

/// A collective as Horovod spells it.
fn word_of(collective: Collective) -> &'static str {
    match collective {
        Collective::Allreduce => "ALLREDUCE",
        Collective::Allgather => "ALLGATHER",
        Collective::Broadcast => "BROADCAST",
        Collective::Alltoall => "ALLTOALL",
        Collective::ReduceScatter => "REDUCESCATTER",
        Collective::Barrier => "BARRIER",
        Collective::Join => "JOIN",
        Collective::Adasum => "ADASUM",
        Collective::Internal => "INTERNAL",
        Collective::Reduce => "REDUCE",
        Collective::Gather => "GATHER",
        Collective::Scatter => "SCATTER",
    }
}

/// What the travel of a bucket is called.
fn travel_of(collective: Collective) -> &'static str {
    match collective {
        Collective::Allreduce => "FARANDOLE_ALLREDUCE",
        Collective::Allgather => "FARANDOLE_ALLGATHER",
        Collective::Broadcast => "FARANDOLE_BCAST",
        Collective::Alltoall => "FARANDOLE_ALLTOALL",
        Collective::ReduceScatter => "FARANDOLE_REDUCESCATTER",
        Collective::Barrier => "FARANDOLE_BARRIER",
        Collective::Join => "FARANDOLE_JOIN",
        Collective::Adasum => "FARANDOLE_ADASUM_ALLREDUCE",
        Collective::Internal => "FARANDOLE_INTERNAL",
        Collective::Reduce => "FARANDOLE_REDUCE",
        Collective::Gather => "FARANDOLE_GATHER",
        Collective::Scatter => "FARANDOLE_SCATTER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ThreadId;

    fn tell(cycles: Cycles, events: &[(u64, Event)]) -> String {
        let mut names = Names::default();
        names.intern("allreduce.\"w\"");
        let record = |&(time_ns, event): &(u64, Event)| Record { time_ns, thread: ThreadId(0), event };
        let records: Vec<Record> = events.iter().map(record).collect();
        TimelineFormatter::new(1000, cycles).format(&records, &names)
    }

    fn life() -> Vec<(u64, Event)> {
        let (name, group, operation) = (NameId(1), GroupNumber::WORLD, OperationNumber(7));
        let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 12);
        vec![
            (2000, Event::Submitted { name, group, collective, dtype, bytes }),
            (2100, Event::Cycle),
            (2500, Event::Arrived { name, group, rank: 1 }),
            (3000, Event::Started { group, operation, collective, dtype, requests: 1, bytes }),
            (3000, Event::Fused { name, group, operation, bytes }),
            (3100, Event::Packed { group, operation }),
            (4000, Event::Transferred { group, operation }),
            (4500, Event::Finished { group, operation }),
            (4500, Event::Done { name, group, operation }),
        ]
    }

    #[test]
    fn a_request_is_told_in_horovods_words() {
        let text = tell(Cycles::Marked, &life());
        let lines: Vec<&str> = text.trim_start_matches(",\n").split(",\n").collect();
        assert!(lines[0].contains("allreduce.\\\"w\\\""), "{}", lines[0]);
        let events: Vec<&str> = lines[2..].to_vec();
        let expected = [
            r#"{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1.000, "pid": 1}"#,
            r#"{"ph": "i", "name": "CYCLE_START", "ts": 1.100, "s": "g"}"#,
            r#"{"ph": "X", "name": "1", "ts": 1.500, "pid": 1, "dur": 0}"#,
            r#"{"ph": "E", "ts": 2.000, "pid": 1}"#,
            r#"{"ph": "B", "name": "ALLREDUCE", "ts": 2.000, "pid": 1, "args": {"dtype": "float32", "shape": "[]"}}"#,
            r#"{"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 2.000, "pid": 1}"#,
            r#"{"ph": "E", "ts": 2.100, "pid": 1}"#,
            r#"{"ph": "B", "name": "FARANDOLE_ALLREDUCE", "ts": 2.100, "pid": 1}"#,
            r#"{"ph": "E", "ts": 3.000, "pid": 1}"#,
            r#"{"ph": "B", "name": "MEMCPY_OUT_FUSION_BUFFER", "ts": 3.000, "pid": 1}"#,
            r#"{"ph": "E", "ts": 3.500, "pid": 1}"#,
            r#"{"ph": "E", "ts": 3.500, "pid": 1}"#,
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn a_timeline_that_begins_in_the_middle_of_an_operation_ends_nothing_that_it_has_not_begun() {
        let text = tell(Cycles::Unmarked, &life()[5..]);
        assert!(!text.contains("\"ph\": \"E\"") && !text.contains("CYCLE_START"), "{text}");
    }

    #[test]
    fn begins_and_ends_are_as_many() {
        let (name, group) = (NameId(1), GroupNumber::WORLD);
        let mut events = life();
        events[7] = (4500, Event::Abandoned { group, operation: OperationNumber(7) });
        events[8] = (4600, Event::Failed { name, group });
        let text = tell(Cycles::Unmarked, &events);
        assert_eq!(text.matches("\"ph\": \"B\"").count(), text.matches("\"ph\": \"E\"").count(), "{text}");
    }
}
