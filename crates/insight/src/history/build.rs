//! Builds a history from the traces of all ranks.
//!
//! Records that belong to one operation have the same group and number on all ranks. An operation counts if all its
//! members completed it; one that was abandoned, or whose beginning or end some rank did not record, does not, and a
//! rank that waited for it waited for something unknown. A request's result is used at the latest when the same name is
//! submitted again; where the program never waited for it, because it was there in time, that is where the lane gets a
//! wait of no length, so that a replay keeps the order.
//!
//! Direct calls that are over at once are not all recorded; those that wait are. So a rank that came last may have no
//! record of a call that the others waited in: it came, and was done, when they were.
//!
//! Where rings have overflowed, the history begins when the last rank has begun to be recorded. Where traces are
//! missing or cut off, it is made of what there is (`gap.rs`).

use std::collections::{BTreeMap, HashMap, HashSet};

use super::device::{self, DeviceHistory};
use super::gap::{self, Usable};
use super::graph::{self, UnderWay};
use super::lane::{self, Blocked};
use super::{History, InputHistory, OperationHistory, Passage, Phase, RankHistory, own};
use farandole_trace::Trace;
use farandole_trace::event::{self, Collective, Event, GroupNumber, NameId, Record};
use farandole_trace::machine;

/// Why traces do not make a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// Two traces are of different jobs: they disagree about the number of ranks, or are of the same rank.
    DifferentJobs,
    /// A trace says that its job has more ranks than any.
    TooManyRanks(u32),
    /// Nothing was recorded.
    Nothing,
}

impl std::error::Error for BuildError {}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::DifferentJobs => write!(
                f,
                "the traces are of different jobs (they disagree about the number of ranks): leave only those of one in the folder"
            ),
            BuildError::TooManyRanks(size) => {
                write!(f, "a trace says that its job has {size} ranks, more than any has")
            }
            BuildError::Nothing => write!(f, "the traces are empty"),
        }
    }
}

/// An operation of a group, the same on all ranks.
pub(super) type Key = (GroupNumber, event::OperationNumber);

/// What one rank has recorded of one operation.
#[derive(Clone, Debug)]
struct Part {
    collective: Collective,
    bytes: u64,
    tensor_bytes: Vec<u64>,
    first_submitted_ns: Option<u64>,
    submitted_ns: Option<u64>,
    begun_ns: u64,
    packed_ns: Option<u64>,
    moved_ns: Option<u64>,
    done_ns: Option<u64>,
    thread: event::ThreadId,
}

/// A wait of the program's thread, or a moment behind which it used a result.
pub(super) struct Wait {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) key: Option<Key>,
}

/// What one rank has recorded.
struct RankRecords {
    recorded: bool,
    parts: BTreeMap<Key, Part>,
    waits: Vec<Wait>,
    there: (u64, u64),
}

/// A job of more ranks does not exist; a header that says so would have memory taken for each of them.
const RANKS_MAX: u32 = 1 << 20;

impl History {
    /// Puts the traces of a job, one for each rank, together. `clock` brings a time of the trace with this position to
    /// the common clock. Ranks of which there is no trace, or only the beginning of one, are named in
    /// [`History::gaps`].
    ///
    /// # Errors
    /// If traces do not belong together, or there is nothing in them.
    pub fn from_traces(traces: &[Trace], clock: impl Fn(usize, u64) -> u64) -> Result<History, BuildError> {
        let size = check(traces)?;
        let on_clock = |(position, trace): (usize, &Trace)| {
            trace.span_ns().map(|(from_ns, to_ns)| (clock(position, from_ns), clock(position, to_ns)))
        };
        let spans: Vec<Option<(u64, u64)>> = traces.iter().enumerate().map(on_clock).collect();
        let zero_ns = spans.iter().flatten().map(|span| span.0).min().ok_or(BuildError::Nothing)?;
        let from_zero = |span: Option<(u64, u64)>| span.map(|(from_ns, to_ns)| (from_ns - zero_ns, to_ns - zero_ns));
        let spans: Vec<Option<(u64, u64)>> = spans.into_iter().map(from_zero).collect();
        let Usable { positions, until_ns, gaps } = gap::usable(traces, size, &spans);
        let used: Vec<Option<&Trace>> =
            positions.iter().map(|position| position.map(|position| &traces[position])).collect();
        let end_ns = positions.iter().flatten().filter_map(|&position| spans[position]).map(|span| span.1).max();
        let end_ns = end_ns.ok_or(BuildError::Nothing)?;
        let clock = |rank: usize, time_ns: u64| {
            positions[rank].map_or(0, |position| clock(position, time_ns).saturating_sub(zero_ns).min(end_ns))
        };
        let mut records: Vec<RankRecords> = used
            .iter()
            .enumerate()
            .map(|(rank, trace)| RankRecords::of(*trace, &|time_ns| clock(rank, time_ns)))
            .collect();
        add_unrecorded_calls(&mut records);
        let (operations, found) = operations(&used, &records);
        let phases_of = |(rank, trace): (usize, &Option<&Trace>)| {
            let thread = trace.and_then(lane::program_thread);
            let (there, clock) = (records[rank].there, |time_ns| clock(rank, time_ns));
            trace.zip(thread).map_or(Vec::new(), |(trace, thread)| device::with_phases(trace, thread, there, &clock))
        };
        let phases: Vec<Vec<Phase>> = used.iter().enumerate().map(phases_of).collect();
        let loops = own::training_loops(&phases);
        let rank = |((rank, trace), phases): ((usize, &Option<&Trace>), Vec<Phase>)| {
            let Some(trace) = trace else { return RankHistory { missing: true, ..RankHistory::default() } };
            let input = LaneInput { phases, training_loop: loops[rank], end_ns };
            rank_history(trace, &records[rank], &found, input, &|time_ns| clock(rank, time_ns))
        };
        let ranks = used.iter().enumerate().zip(phases).map(rank).collect();
        let dropped = used.iter().flatten().map(|trace| trace.dropped).sum();
        let first = used.iter().flatten().next().ok_or(BuildError::Nothing)?;
        let settings = first.header.settings.iter().cloned().collect();
        let history = History { ranks, operations, end_ns, clock_error_ns: 0, settings, dropped, gaps };
        let began_ns = records.iter().filter(|records| records.recorded).map(|records| records.there.0).max();
        let from_ns = began_ns.filter(|&late_ns| dropped > 0 && late_ns < until_ns).unwrap_or(0);
        let known = (from_ns, until_ns.min(end_ns));
        let history = if known == (0, end_ns) { history } else { history.keep(&[known]) };
        debug_assert_eq!(history.check(), Ok(()), "invariant: what is built from traces is a history");
        Ok(history)
    }
}

/// The number of ranks of the job that these traces are of.
fn check(traces: &[Trace]) -> Result<usize, BuildError> {
    let size = traces.first().ok_or(BuildError::Nothing)?.header.size;
    let ranks: HashSet<u32> = traces.iter().map(|trace| trace.header.rank).collect();
    if size > RANKS_MAX {
        return Err(BuildError::TooManyRanks(size));
    }
    let alike = traces.iter().all(|trace| trace.header.size == size && trace.header.rank < size);
    if alike && ranks.len() == traces.len() { Ok(size as usize) } else { Err(BuildError::DifferentJobs) }
}

/// What is known of a rank's program before its lane is built.
struct LaneInput {
    phases: Vec<Phase>,
    training_loop: Option<(u64, u64)>,
    end_ns: u64,
}

/// What one rank did.
fn rank_history(
    trace: &Trace,
    records: &RankRecords,
    found: &HashMap<Key, usize>,
    LaneInput { phases, training_loop, end_ns }: LaneInput,
    clock: &dyn Fn(u64) -> u64,
) -> RankHistory {
    let thread = lane::program_thread(trace);
    let blocked = |wait: &Wait| (wait.from_ns, wait.to_ns, wait.key.and_then(|key| found.get(&key).copied()));
    let blocked: Vec<Blocked> = records.waits.iter().map(blocked).collect();
    let lane = lane::stretches(&phases, blocked, training_loop, records.there, end_ns);
    let pauses = thread.map_or(Vec::new(), |thread| device::pauses(trace, thread, clock));
    let lane = device::work_behind(lane, &pauses);
    let number = |key: &str| trace.header.setting(key).and_then(|value| value.parse().ok());
    RankHistory {
        missing: false,
        host: trace.header.host.clone(),
        cores: number("cores"),
        cpus: trace.header.setting("cpus").map(str::to_owned),
        threads: number("threads"),
        core_wait: number(machine::CORE_WAIT).map(|ns| ns as f64 / (records.there.1 - records.there.0).max(1) as f64),
        iterations: thread.map_or(Vec::new(), |thread| lane::iterations(trace, thread, records.there.1, clock)),
        samples: thread.map_or(Vec::new(), |thread| own::samples_of(trace, thread, &lane, clock)),
        device: DeviceHistory::of(trace, clock),
        input: InputHistory::of(trace, clock),
        lane,
        phases,
    }
}

impl RankRecords {
    fn of(trace: Option<&Trace>, clock: &dyn Fn(u64) -> u64) -> RankRecords {
        let Some(trace) = trace else {
            return RankRecords { recorded: false, parts: BTreeMap::new(), waits: Vec::new(), there: (0, 0) };
        };
        let thread = lane::program_thread(trace);
        let there = trace.span_ns().map_or((0, 0), |(from, to)| (clock(from), clock(to)));
        let mut records = RankRecords { recorded: true, parts: BTreeMap::new(), waits: Vec::new(), there };
        let mut submitted: HashMap<(GroupNumber, NameId), u64> = HashMap::new();
        let mut carried_by: HashMap<NameId, Key> = HashMap::new();
        let mut used: HashSet<Key> = HashSet::new();
        // Waits that were over before their request travelled: the program looked at something else in between.
        let mut early: HashMap<NameId, Vec<usize>> = HashMap::new();
        let mut graph = graph::has_graphs(trace.header.setting("framework")).then(UnderWay::default);
        for Record { time_ns, thread: by, event } in &trace.records {
            let at_ns = clock(*time_ns);
            match *event {
                Event::Submitted { name, group, .. } => {
                    submitted.insert((group, name), at_ns);
                    graph.iter_mut().for_each(|graph| graph.submit(at_ns, (group, name)));
                    early.remove(&name);
                    if let Some(key) = carried_by.remove(&name)
                        && used.insert(key)
                    {
                        records.waits.push(Wait { from_ns: at_ns, to_ns: at_ns, key: Some(key) });
                    }
                }
                Event::Fused { name, group, operation, bytes } => {
                    carried_by.insert(name, (group, operation));
                    for wait in early.remove(&name).into_iter().flatten() {
                        records.waits[wait].key = Some((group, operation));
                        used.insert((group, operation));
                    }
                    if let Some(part) = records.parts.get_mut(&(group, operation)) {
                        part.add(bytes, submitted.remove(&(group, name)));
                    }
                }
                Event::Waited { name, since_ns } if thread == Some(*by) => {
                    let key = carried_by.get(&name).copied();
                    used.extend(key);
                    if key.is_none() {
                        early.entry(name).or_default().push(records.waits.len());
                    }
                    records.waits.push(Wait { from_ns: clock(since_ns), to_ns: at_ns, key });
                }
                Event::Done { name, group, operation } => {
                    let finish = |graph: &mut UnderWay| graph.finish(at_ns, (group, operation), name);
                    let waits = graph.as_mut().map_or(Vec::new(), finish);
                    used.extend(waits.iter().filter_map(|wait| wait.key));
                    records.waits.extend(waits);
                }
                Event::Failed { name, group } => graph.iter_mut().for_each(|graph| graph.fail((group, name))),
                _ => records.take_operation_event(*by, at_ns, event),
            }
        }
        let direct = |(key, part): (&Key, &Part)| {
            let done_ns = part.done_ns.filter(|_| key.0 == GroupNumber::DIRECT && thread == Some(part.thread))?;
            Some(Wait { from_ns: part.begun_ns, to_ns: done_ns, key: Some(*key) })
        };
        let waits: Vec<Wait> = records.parts.iter().filter_map(direct).collect();
        records.waits.extend(waits);
        records
    }

    fn take_operation_event(&mut self, thread: event::ThreadId, at_ns: u64, event: &Event) {
        match *event {
            Event::Started { group, operation, collective, bytes, .. } => {
                let part = Part {
                    collective,
                    bytes,
                    tensor_bytes: Vec::new(),
                    first_submitted_ns: None,
                    submitted_ns: None,
                    begun_ns: at_ns,
                    packed_ns: None,
                    moved_ns: None,
                    done_ns: None,
                    thread,
                };
                self.parts.insert((group, operation), part);
            }
            Event::Packed { group, operation } => self.mark((group, operation), |part| part.packed_ns = Some(at_ns)),
            Event::Transferred { group, operation } => {
                self.mark((group, operation), |part| part.moved_ns = Some(at_ns))
            }
            Event::Finished { group, operation } => self.mark((group, operation), |part| part.done_ns = Some(at_ns)),
            Event::Abandoned { group, operation } => {
                self.parts.remove(&(group, operation));
            }
            _ => {}
        }
    }

    fn mark(&mut self, key: Key, set: impl FnOnce(&mut Part)) {
        if let Some(part) = self.parts.get_mut(&key) {
            set(part);
        }
    }
}

impl Part {
    /// One more tensor.
    fn add(&mut self, bytes: u64, submitted_ns: Option<u64>) {
        self.tensor_bytes.push(bytes);
        if let Some(at_ns) = submitted_ns {
            self.first_submitted_ns = Some(self.first_submitted_ns.map_or(at_ns, |first_ns| first_ns.min(at_ns)));
            self.submitted_ns = Some(self.submitted_ns.map_or(at_ns, |last_ns| last_ns.max(at_ns)));
        }
    }

    /// The passage of a rank, its moments in order whatever was not recorded.
    fn passage(&self, rank: usize) -> Option<Passage> {
        let done_ns = self.done_ns?;
        let moved_ns = self.moved_ns.unwrap_or(done_ns).min(done_ns);
        let packed_ns = self.packed_ns.unwrap_or(self.begun_ns).min(moved_ns);
        let begun_ns = self.begun_ns.min(packed_ns);
        let submitted_ns = self.submitted_ns.unwrap_or(begun_ns).min(begun_ns);
        let first_submitted_ns = self.first_submitted_ns.unwrap_or(submitted_ns).min(submitted_ns);
        Some(Passage { rank, first_submitted_ns, submitted_ns, begun_ns, packed_ns, moved_ns, done_ns })
    }
}

/// Gives every rank a part in the direct calls that others waited in, at the moment at which the first of these could
/// go on.
fn add_unrecorded_calls(records: &mut [RankRecords]) {
    let mut calls: BTreeMap<Key, (Part, u64)> = BTreeMap::new();
    for (&key, part) in records.iter().flat_map(|records| &records.parts) {
        let Some(done_ns) = part.done_ns.filter(|_| key.0 == GroupNumber::DIRECT) else { continue };
        let first = calls.entry(key).or_insert_with(|| (part.clone(), done_ns));
        first.1 = first.1.min(done_ns);
    }
    for records in records {
        for (&key, (part, at_ns)) in &calls {
            if !records.recorded
                || records.parts.contains_key(&key)
                || !(records.there.0..=records.there.1).contains(at_ns)
            {
                continue;
            }
            let (begun_ns, moment) = (*at_ns, Some(*at_ns));
            let (packed_ns, moved_ns, done_ns) = (moment, moment, moment);
            records.parts.insert(key, Part { begun_ns, packed_ns, moved_ns, done_ns, ..part.clone() });
            records.waits.push(Wait { from_ns: *at_ns, to_ns: *at_ns, key: Some(key) });
        }
    }
}

/// The operations that all recorded members went through, by their beginning, and where each of them is.
fn operations(traces: &[Option<&Trace>], records: &[RankRecords]) -> (Vec<OperationHistory>, HashMap<Key, usize>) {
    let mut passages: BTreeMap<Key, Vec<Passage>> = BTreeMap::new();
    for (rank, records) in records.iter().enumerate() {
        for (&key, part) in records.parts.iter().filter(|(_, part)| part.collective != Collective::Internal) {
            passages.entry(key).or_default().extend(part.passage(rank));
        }
    }
    let mut found: Vec<(Key, OperationHistory)> = Vec::new();
    for (key, passages) in passages {
        let Some(first) = passages.first().map(|passage| passage.rank) else { continue };
        let recorded = |rank: &&u32| records.get(**rank as usize).is_some_and(|records| records.recorded);
        let members = traces[first].and_then(|trace| trace.groups.get(&key.0)).map_or_else(
            || records.iter().filter(|records| records.recorded).count(),
            |members| members.iter().filter(recorded).count(),
        );
        if passages.len() != members {
            continue;
        }
        let part = &records[first].parts[&key];
        let tensor_bytes = if part.tensor_bytes.is_empty() { vec![part.bytes] } else { part.tensor_bytes.clone() };
        let group = if key.0 == GroupNumber::DIRECT { 0 } else { u32::from(key.0.0) };
        found.push((key, OperationHistory { group, collective: part.collective, tensor_bytes, passages }));
    }
    found.sort_by_key(|(key, operation)| (operation.begun_ns(), *key));
    let positions = found.iter().enumerate().map(|(position, (key, _))| (*key, position)).collect();
    (found.into_iter().map(|(_, operation)| operation).collect(), positions)
}
