//! The timeline of all ranks in one file, on one clock, for chrome://tracing and ui.perfetto.dev.
//!
//! Each rank is a "process" of the viewer. Its threads are rows with the phases of the program; beside them lie one row
//! for the collectives of each group and one for direct calls, because the thread that drives them changes.
//! An operation is a bar with its pieces inside: packing, waiting (and for whom), the steps of large ones, unpacking.
//! The script's own code between phases is a bar that says where most of it was. Marks of iterations and epochs, stalls
//! and aborts are instants. In an elastic job a member is the "process", through all its generations; each is a bar in
//! a row of its own, and so are the phases by which the member came into it.
//!
//! Traces must be on one clock already ([`put_on_one_clock`](crate::align::put_on_one_clock)); how well they are is
//! noted in the file.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::align::ClockFit;
use crate::history::{OwnCode, own_code};
use farandole_trace::Trace;
use farandole_trace::event::{
    Collective, Event, GroupNumber, NameId, OperationNumber, Phase, Record, RecoveryStage, ThreadId,
};
use farandole_trace::json::{Escaped, Micros};

/// Rows of groups come after those of threads.
const GROUP_ROWS: u32 = 100_000;

/// The row of generations comes last.
const GENERATION_ROW: u32 = 200_000;

/// Writes the timeline of these traces, which `fits` have put on one clock.
///
/// # Errors
/// If it cannot be written.
pub fn write(traces: &[Trace], fits: &[ClockFit], out: &mut dyn Write) -> io::Result<()> {
    let start_ns = traces.iter().filter_map(Trace::span_ns).map(|(first, _)| first).min().unwrap_or(0);
    writeln!(out, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
    let mut list = EventList { out, start_ns, first: true };
    for (trace, own_code) in traces.iter().zip(own_code(traces)) {
        RankTimeline::new(trace, &mut list).write(own_code)?;
    }
    writeln!(list.out, "\n], \"otherData\": {{")?;
    for (index, (trace, fit)) in traces.iter().zip(fits).enumerate() {
        let comma = if index + 1 < traces.len() { "," } else { "" };
        let error = fit.error_ns.map_or_else(|| "unknown".to_owned(), |error| format!("at most {} us", Micros(error)));
        let (rank, dropped) = (trace.header.rank, trace.dropped);
        let generation = match trace.header.generation() {
            0 => String::new(),
            number => format!(" of generation {number}"),
        };
        writeln!(
            list.out,
            "\"rank {rank}{generation}\": \"error of its clock {error}; {dropped} records lost\"{comma}"
        )?;
    }
    writeln!(list.out, "}}}}")
}

/// The JSON list of events.
struct EventList<'a> {
    out: &'a mut dyn Write,
    start_ns: u64,
    first: bool,
}

impl EventList<'_> {
    fn event(&mut self, event: std::fmt::Arguments<'_>) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.first) { "" } else { ",\n" };
        write!(self.out, "{comma}{{{event}}}")
    }
}

/// An operation that has begun and not ended.
struct OpenOperation {
    collective: Collective,
    start_ns: u64,
    /// When the piece began that it is in.
    since_ns: u64,
    bytes: u64,
    requests: u32,
    first_name: Option<NameId>,
    /// For whom it waits.
    waiting: Option<Option<u32>>,
    /// Pieces, which are written after the bar that holds them.
    pieces: Vec<(String, u64, u64)>,
}

/// One rank's part.
struct RankTimeline<'a, 'p, 'o> {
    trace: &'a Trace,
    list: &'p mut EventList<'o>,
    phases: BTreeMap<ThreadId, Vec<(Phase, NameId, u64)>>,
    under_way: BTreeMap<(GroupNumber, OperationNumber), OpenOperation>,
    rows: BTreeMap<u32, String>,
}

impl<'a, 'p, 'o> RankTimeline<'a, 'p, 'o> {
    fn new(trace: &'a Trace, list: &'p mut EventList<'o>) -> RankTimeline<'a, 'p, 'o> {
        RankTimeline { trace, list, phases: BTreeMap::new(), under_way: BTreeMap::new(), rows: BTreeMap::new() }
    }

    fn write(mut self, own_code: Vec<OwnCode>) -> io::Result<()> {
        let header = &self.trace.header;
        // The part of an identity that users know.
        let name = header.host.split('/').next().unwrap_or_default();
        let (rank, host) = (header.member(), Escaped(name));
        let who = if header.generation() > 0 { "member" } else { "rank" };
        let naming = format_args!("\"name\": \"{who} {rank} on {host}\"");
        self.list.event(format_args!(
            "\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {rank}, \"args\": {{{naming}}}"
        ))?;
        self.list.event(format_args!(
            "\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": {rank}, \"args\": {{\"sort_index\": {rank}}}"
        ))?;
        for record in &self.trace.records {
            self.write_record(record)?;
        }
        self.generation()?;
        for own in own_code {
            let row = self.thread_row(own.thread);
            let place = own.place.map_or_else(String::new, |place| format!(" ({place})"));
            self.bar(row, &format!("own code{place}"), own.from_ns, own.to_ns, "")?;
        }
        let last_ns = self.trace.span_ns().map_or(0, |(_, last)| last);
        // What has not ended lasts until the end of the trace.
        for (thread, open) in std::mem::take(&mut self.phases) {
            for (phase, name, begin_ns) in open.into_iter().rev() {
                self.phase(thread, phase, name, begin_ns, last_ns)?;
            }
        }
        for ((group, operation), open_operation) in std::mem::take(&mut self.under_way) {
            self.operation(group, operation, open_operation, last_ns)?;
        }
        for (row, name) in std::mem::take(&mut self.rows) {
            let name = Escaped(&name);
            self.list.event(format_args!(
                "\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": {rank}, \"tid\": {row}, \"args\": {{\"name\": \"{name}\"}}"
            ))?;
        }
        Ok(())
    }

    fn write_record(&mut self, record: &Record) -> io::Result<()> {
        let Record { time_ns, thread, event } = *record;
        match event {
            Event::Started { group, operation, collective, requests, bytes, .. } => {
                let open_operation = OpenOperation {
                    collective,
                    start_ns: time_ns,
                    since_ns: time_ns,
                    bytes,
                    requests,
                    first_name: None,
                    waiting: None,
                    pieces: Vec::new(),
                };
                self.under_way.insert((group, operation), open_operation);
            }
            Event::Fused { name, group, operation, .. } => {
                if let Some(open_operation) = self.under_way.get_mut(&(group, operation)) {
                    open_operation.first_name.get_or_insert(name);
                }
            }
            Event::Entered { group, operation } => self.piece(group, operation, time_ns, |_| "enter".to_owned()),
            Event::Packed { group, operation } => self.piece(group, operation, time_ns, |_| "pack".to_owned()),
            Event::Stepped { group, operation, step, peer, .. } => {
                self.piece(group, operation, time_ns, |_| match peer {
                    Some(peer) => format!("{step} (rank {peer})"),
                    None => step.word().to_owned(),
                })
            }
            Event::Waiting { group, operation, peer } => {
                self.piece(group, operation, time_ns, |_| "work".to_owned());
                if let Some(open_operation) = self.under_way.get_mut(&(group, operation)) {
                    open_operation.waiting = Some(peer);
                }
            }
            Event::Resumed { group, operation } => {
                self.piece(group, operation, time_ns, |open_operation| match open_operation.waiting {
                    Some(Some(peer)) => format!("wait for rank {peer}"),
                    _ => "wait".to_owned(),
                })
            }
            Event::Transferred { group, operation } => self.piece(group, operation, time_ns, |_| "work".to_owned()),
            Event::Finished { group, operation } => {
                self.piece(group, operation, time_ns, |_| "unpack".to_owned());
                if let Some(open_operation) = self.under_way.remove(&(group, operation)) {
                    self.operation(group, operation, open_operation, time_ns)?;
                }
            }
            Event::Abandoned { group, operation } => {
                self.under_way.remove(&(group, operation));
            }
            Event::PhaseBegin { phase, name } => {
                self.phases.entry(thread).or_default().push((phase, name, time_ns));
            }
            Event::PhaseEnd { phase, name } => {
                let open = self.phases.entry(thread).or_default();
                // What lies above has lost its end.
                if let Some(place) = open.iter().rposition(|(other, named, _)| (*other, *named) == (phase, name)) {
                    let (_, _, begin_ns) = open[place];
                    open.truncate(place);
                    self.phase(thread, phase, name, begin_ns, time_ns)?;
                }
            }
            Event::Iteration { number } => self.instant(thread, &format!("iteration {number}"), time_ns)?,
            Event::Epoch { number } => self.instant(thread, &format!("epoch {number}"), time_ns)?,
            Event::Stalled { name, rank, .. } => {
                let text = format!("stall: {} waits for rank {rank}", self.trace.text(name));
                self.instant(thread, &text, time_ns)?;
            }
            Event::Aborted { name } => self.instant(thread, self.trace.text(name), time_ns)?,
            Event::StepLost { fate } => self.instant(thread, &format!("the interrupted step is {fate}"), time_ns)?,
            _ => {}
        }
        Ok(())
    }

    /// The generation as a bar, from when it is connected, and before it the way to it.
    fn generation(&mut self) -> io::Result<()> {
        let header = &self.trace.header;
        let (Some((first_ns, last_ns)), 1..) = (self.trace.span_ns(), header.generation()) else { return Ok(()) };
        self.rows.insert(GENERATION_ROW, "generations".to_owned());
        let mut stages: Vec<(RecoveryStage, u64)> = Vec::new();
        for record in &self.trace.records {
            if let Event::Recovery { stage } = record.event
                && stages.iter().all(|(known, _)| *known != stage)
            {
                stages.push((stage, record.time_ns));
            }
        }
        let connected = stages.iter().find(|(stage, _)| *stage == RecoveryStage::Connected);
        let name = format!("generation {}, rank {} of {}", header.generation(), header.rank, header.size);
        let lost = self.trace.records.iter().filter_map(|record| match record.event {
            Event::MemberLost { name, member } => Some(format!("member {member}: {}", self.trace.text(name))),
            _ => None,
        });
        let lost: Vec<String> = lost.collect();
        let arguments = format!(", \"args\": {{\"lost before\": \"{}\"}}", Escaped(&lost.join("; ")));
        self.bar(GENERATION_ROW, &name, connected.map_or(first_ns, |(_, at_ns)| *at_ns), last_ns, &arguments)?;
        for pair in stages.windows(2) {
            let [(_, from_ns), (stage, to_ns)] = pair else { continue };
            let name = match stage {
                RecoveryStage::Noticed | RecoveryStage::Asked => "leaving",
                RecoveryStage::Agreed => "agreeing",
                RecoveryStage::Connected => "connecting",
                RecoveryStage::Synchronised => "synchronising",
                RecoveryStage::Stepped => "first step",
            };
            self.bar(GENERATION_ROW, name, *from_ns, *to_ns, "")?;
        }
        Ok(())
    }

    /// What an operation was in since the last time is over.
    fn piece(
        &mut self,
        group: GroupNumber,
        operation: OperationNumber,
        time_ns: u64,
        name: impl Fn(&OpenOperation) -> String,
    ) {
        if let Some(open_operation) = self.under_way.get_mut(&(group, operation)) {
            let name = name(open_operation);
            let since_ns = std::mem::replace(&mut open_operation.since_ns, time_ns);
            open_operation.waiting = None;
            if time_ns > since_ns {
                open_operation.pieces.push((name, since_ns, time_ns));
            }
        }
    }

    fn operation(
        &mut self,
        group: GroupNumber,
        operation: OperationNumber,
        open_operation: OpenOperation,
        end_ns: u64,
    ) -> io::Result<()> {
        let row = GROUP_ROWS + u32::from(group.0);
        self.rows.entry(row).or_insert_with(|| match group {
            GroupNumber::WORLD => "collectives".to_owned(),
            GroupNumber::DIRECT => "direct collectives".to_owned(),
            GroupNumber(number) => format!("collectives of group {number}"),
        });
        let OpenOperation { collective, start_ns, bytes, requests, first_name, pieces, .. } = open_operation;
        let tensor = first_name.map_or_else(String::new, |name| format!(" {}", self.trace.text(name)));
        let more = if requests > 1 { format!(" and {} more", requests - 1) } else { String::new() };
        let arguments =
            format!(", \"args\": {{\"bytes\": {bytes}, \"requests\": {requests}, \"operation\": {}}}", operation.0);
        self.bar(row, &format!("{collective}{tensor}{more}"), start_ns, end_ns, &arguments)?;
        for (name, begin_ns, end_ns) in pieces {
            self.bar(row, &name, begin_ns, end_ns, "")?;
        }
        Ok(())
    }

    fn phase(&mut self, thread: ThreadId, phase: Phase, name: NameId, begin_ns: u64, end_ns: u64) -> io::Result<()> {
        let row = self.thread_row(thread);
        let name = if phase == Phase::User { self.trace.text(name) } else { phase.word() };
        self.bar(row, name, begin_ns, end_ns, "")
    }

    fn thread_row(&mut self, thread: ThreadId) -> u32 {
        let row = u32::from(thread.0);
        let name = self.trace.threads.get(&thread);
        self.rows.entry(row).or_insert_with(|| name.cloned().unwrap_or_else(|| format!("thread {row}")));
        row
    }

    fn bar(&mut self, row: u32, name: &str, begin_ns: u64, end_ns: u64, more: &str) -> io::Result<()> {
        let (rank, name) = (self.trace.header.member(), Escaped(name));
        let (begin, length) = (Micros(begin_ns - self.list.start_ns), Micros(end_ns.saturating_sub(begin_ns)));
        self.list.event(format_args!(
            "\"ph\": \"X\", \"name\": \"{name}\", \"pid\": {rank}, \"tid\": {row}, \"ts\": {begin}, \"dur\": {length}{more}"
        ))
    }

    fn instant(&mut self, thread: ThreadId, name: &str, time_ns: u64) -> io::Result<()> {
        let row = self.thread_row(thread);
        let (rank, name, time) = (self.trace.header.member(), Escaped(name), Micros(time_ns - self.list.start_ns));
        self.list.event(format_args!(
            "\"ph\": \"i\", \"name\": \"{name}\", \"pid\": {rank}, \"tid\": {row}, \"ts\": {time}, \"s\": \"p\""
        ))
    }
}

#[cfg(test)]
mod tests {
    use farandole_trace::GenerationView;

    use super::*;
    use crate::align::put_on_one_clock;
    use farandole_trace::TraceHeader;
    use farandole_trace::event::Dtype;

    #[test]
    fn a_member_is_one_process_through_its_generations() {
        let made = |number, rank, members: &[u64]| {
            let (job, member) = ("j".to_owned(), members[rank as usize]);
            let view = GenerationView { job, number, member, members: members.to_vec() };
            let (size, settings) = (members.len() as u32, view.settings());
            let mut trace = Trace::new(TraceHeader { rank, size, settings, ..TraceHeader::default() });
            let zero_ns = number * 100_000;
            for (stage, at_ns) in RecoveryStage::ALL.iter().zip((zero_ns..).step_by(1000)) {
                trace.push(at_ns, ThreadId(0), Event::Recovery { stage: *stage });
            }
            trace.push(zero_ns + 50_000, ThreadId(0), Event::Iteration { number: 0 });
            trace
        };
        let mut traces = vec![made(1, 1, &[0, 1]), made(2, 0, &[1])];
        let fits = put_on_one_clock(&mut traces);
        let mut out = Vec::new();
        write(&traces, &fits, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = read["traceEvents"].as_array().unwrap();
        assert!(events.iter().all(|event| event["pid"] == 1), "{text}");
        let named = |name: &str| events.iter().find(|event| event["name"] == name).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(named("process_name")["args"]["name"], "member 1 on ");
        assert_eq!(named("generation 1, rank 1 of 2")["dur"], 47.0);
        assert_eq!(named("generation 2, rank 0 of 1")["ts"], 103.0);
        assert_eq!(named("synchronising")["dur"], 1.0);
    }

    #[test]
    fn own_code_is_a_bar_that_says_where_it_was() {
        let mut trace = Trace::new(TraceHeader { rank: 0, size: 1, ..TraceHeader::default() });
        let (main, log) = (ThreadId(0), trace.names.intern("train.py:42 in log"));
        for zero_ns in [0, 10_000] {
            trace.push_phase(main, Phase::Forward, zero_ns, zero_ns + 2000);
            trace.push_phase(main, Phase::Backward, zero_ns + 2000, zero_ns + 6000);
        }
        trace.push(9000, main, Event::Sampled { name: log, ns: 3000 });
        trace.sort();
        let mut traces = [trace];
        let fits = put_on_one_clock(&mut traces);
        let mut bytes = Vec::new();
        write(&traces, &fits, &mut bytes).unwrap();
        let list: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let events = list["traceEvents"].as_array().unwrap();
        let own: Vec<_> =
            events.iter().filter(|event| event["name"].as_str().unwrap().starts_with("own code")).collect();
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(own[0]["name"], "own code (train.py:42 in log)");
        assert_eq!((own[0]["ts"].as_f64(), own[0]["dur"].as_f64()), (Some(6.0), Some(4.0)));
    }

    fn rank(rank: u32, ahead_ns: u64) -> Trace {
        let (host, clock) = (format!("host \"{rank}\""), format!("clock {rank}"));
        let mut trace = Trace::new(TraceHeader { rank, size: 2, host, clock, ..TraceHeader::default() });
        trace.threads.insert(ThreadId(0), "main".to_owned());
        let name = trace.names.intern("w");
        let (group, operation, main) = (GroupNumber::WORLD, OperationNumber(1), ThreadId(0));
        let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 40);
        let at = |time_ns: u64| time_ns + ahead_ns;
        trace.push(at(500), main, Event::Iteration { number: 3 });
        trace.push_phase(main, Phase::Forward, at(1000), at(2000));
        trace.push(at(3000), main, Event::Started { group, operation, collective, dtype, requests: 2, bytes });
        trace.push(at(3000), main, Event::Fused { name, group, operation, bytes });
        trace.push(at(3500), main, Event::Packed { group, operation });
        trace.push(at(4000), main, Event::Waiting { group, operation, peer: Some(1 - rank) });
        trace.push(at(6000), main, Event::Resumed { group, operation });
        trace.push(at(7000), main, Event::Finished { group, operation });
        trace.push(at(7500), main, Event::PhaseBegin { phase: Phase::Backward, name: NameId::NONE });
        trace.push(at(8000), main, Event::Cycle);
        trace
    }

    #[test]
    fn ranks_are_processes_threads_are_rows_and_clocks_are_one() {
        let mut traces = [rank(0, 1_000_000), rank(1, 9_000_000_000)];
        let fits = put_on_one_clock(&mut traces);
        let mut bytes = Vec::new();
        write(&traces, &fits, &mut bytes).unwrap();
        let list: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let events = list["traceEvents"].as_array().unwrap();
        let find = |pid: u64, name: &str| {
            events.iter().find(|event| event["pid"] == pid && event["name"] == name).unwrap_or_else(|| panic!("{name}"))
        };
        for pid in 0..2 {
            let bar = find(pid, "allreduce w and 1 more");
            assert_eq!((bar["ts"].as_f64(), bar["dur"].as_f64()), (Some(2.5), Some(4.0)), "on one clock");
            assert_eq!(bar["args"]["bytes"], 40);
            let wait = find(pid, &format!("wait for rank {}", 1 - pid));
            assert_eq!((wait["ts"].as_f64(), wait["dur"].as_f64()), (Some(5.5 - 2.0), Some(2.0)));
            assert_eq!(find(pid, "forward")["tid"], 0);
            assert_eq!(find(pid, "backward")["dur"].as_f64(), Some(0.5), "what has no end lasts to the end");
            assert_eq!(find(pid, "iteration 3")["ph"], "i");
        }
        assert!(list["otherData"]["rank 1"].as_str().unwrap().contains("at most"), "{list}");
    }
}
