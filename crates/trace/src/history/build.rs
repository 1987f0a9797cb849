//! A history out of the traces of all ranks.
//!
//! Records that belong to one operation have the same group and number on all ranks. An operation counts if all its members went through
//! it; one that was given up, or whose beginning or end some rank did not record, does not, and who waited for it waited for
//! something unknown. A request's result is used at the latest when the same name is submitted again; where the program never
//! waited for it, because it was there in time, that is where the lane gets a wait of no length, so that a replay keeps the order.
//!
//! Direct calls that are over at once are not all recorded; those that wait are. So a rank that came last may have no record of a call that
//! the others waited in: it came, and was done, when they were.
//!
//! Where rings have overflowed, the history begins when the last rank has begun to be recorded.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::lane::{self, Blocked};
use super::{CollectiveKind, History, Operation, Passage, RankHistory};
use crate::event::{self, Collective, Event, Group, NameId, Record};
use crate::trace::Trace;

/// Why traces do not make a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// There is no trace of these ranks.
    Missing(Vec<usize>),
    /// Two traces are of different jobs: they disagree about the number of ranks.
    DifferentJobs,
    /// Nothing was recorded.
    Nothing,
}

impl std::error::Error for BuildError {}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::Missing(ranks) => {
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                write!(
                    f,
                    "there is no trace of rank {}: bring the files of all hosts into one folder, or run again with --trace",
                    ranks.join(", ")
                )
            }
            BuildError::DifferentJobs => write!(f, "the traces are of jobs with different numbers of ranks"),
            BuildError::Nothing => write!(f, "the traces are empty"),
        }
    }
}

/// An operation of a group, the same on all ranks.
type Key = (Group, event::Operation);

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
struct Wait {
    from_ns: u64,
    to_ns: u64,
    key: Option<Key>,
}

/// What one rank has recorded.
struct Account {
    parts: BTreeMap<Key, Part>,
    waits: Vec<Wait>,
    there: (u64, u64),
}

impl History {
    /// Puts the traces of all ranks, in the order of ranks, together. `clock` brings a time of the trace with this position to the
    /// common clock.
    ///
    /// # Errors
    /// If traces are missing, or do not belong together.
    pub fn from_traces(traces: &[Trace], clock: impl Fn(usize, u64) -> u64) -> Result<History, BuildError> {
        check(traces)?;
        let spans: Vec<(u64, u64)> = traces
            .iter()
            .enumerate()
            .filter_map(|(rank, trace)| trace.span_ns().map(|(from, to)| (clock(rank, from), clock(rank, to))))
            .collect();
        let zero_ns = spans.iter().map(|span| span.0).min().ok_or(BuildError::Nothing)?;
        let end_ns = spans.iter().map(|span| span.1).max().ok_or(BuildError::Nothing)? - zero_ns;
        let clock = |rank: usize, time_ns: u64| clock(rank, time_ns).saturating_sub(zero_ns).min(end_ns);
        let threads: Vec<_> = traces.iter().map(lane::program_thread).collect();
        let mut accounts: Vec<Account> = traces
            .iter()
            .enumerate()
            .map(|(rank, trace)| Account::of(trace, threads[rank], &|time_ns| clock(rank, time_ns)))
            .collect();
        add_unrecorded_calls(&mut accounts);
        let (operations, places) = operations(traces, &accounts);
        let mut ranks = Vec::with_capacity(traces.len());
        for (rank, trace) in traces.iter().enumerate() {
            let account = &accounts[rank];
            let clock = |time_ns| clock(rank, time_ns);
            let blocked = |wait: &Wait| (wait.from_ns, wait.to_ns, wait.key.and_then(|key| places.get(&key).copied()));
            let blocked: Vec<Blocked> = account.waits.iter().map(blocked).collect();
            let phases = threads[rank].map_or(Vec::new(), |thread| lane::phases(trace, thread, account.there, &clock));
            let number = |key: &str| {
                let found = trace.header.settings.iter().find(|(name, _)| name == key);
                found.and_then(|(_, value)| value.parse().ok())
            };
            ranks.push(RankHistory {
                host: trace.header.host.clone(),
                cores: number("cores"),
                threads: number("threads"),
                lane: lane::stretches(&phases, blocked, account.there, end_ns),
                iterations: threads[rank]
                    .map_or(Vec::new(), |thread| lane::iterations(trace, thread, account.there.1, &clock)),
                phases,
            });
        }
        let dropped = traces.iter().map(|trace| trace.dropped).sum();
        let settings = traces[0].header.settings.iter().cloned().collect();
        let history = History { ranks, operations, end_ns, clock_error_ns: 0, settings, dropped };
        let late_ns = accounts.iter().map(|account| account.there.0).max().unwrap_or(0);
        let history = if dropped > 0 && late_ns < end_ns { history.keep(&[(late_ns, end_ns)]) } else { history };
        debug_assert_eq!(history.check(), Ok(()), "invariant: what is built from traces is a history");
        Ok(history)
    }
}

fn check(traces: &[Trace]) -> Result<(), BuildError> {
    let size = traces.first().ok_or(BuildError::Nothing)?.header.size;
    if traces.iter().any(|trace| trace.header.size != size) {
        return Err(BuildError::DifferentJobs);
    }
    let there: HashSet<u32> = traces.iter().map(|trace| trace.header.rank).collect();
    let missing: Vec<usize> = (0..size).filter(|rank| !there.contains(rank)).map(|rank| rank as usize).collect();
    if missing.is_empty() && traces.len() == size as usize { Ok(()) } else { Err(BuildError::Missing(missing)) }
}

impl Account {
    fn of(trace: &Trace, thread: Option<event::ThreadId>, clock: &dyn Fn(u64) -> u64) -> Account {
        let there = trace.span_ns().map_or((0, 0), |(from, to)| (clock(from), clock(to)));
        let mut account = Account { parts: BTreeMap::new(), waits: Vec::new(), there };
        let mut submitted: HashMap<(Group, NameId), u64> = HashMap::new();
        let mut carried_by: HashMap<NameId, Key> = HashMap::new();
        let mut used: HashSet<Key> = HashSet::new();
        for Record { time_ns, thread: by, event } in &trace.records {
            let at_ns = clock(*time_ns);
            match *event {
                Event::Submitted { name, group, .. } => {
                    submitted.insert((group, name), at_ns);
                    if let Some(key) = carried_by.remove(&name)
                        && used.insert(key)
                    {
                        account.waits.push(Wait { from_ns: at_ns, to_ns: at_ns, key: Some(key) });
                    }
                }
                Event::Fused { name, group, operation, bytes } => {
                    carried_by.insert(name, (group, operation));
                    if let Some(part) = account.parts.get_mut(&(group, operation)) {
                        part.add(bytes, submitted.remove(&(group, name)));
                    }
                }
                Event::Waited { name, since_ns } if thread == Some(*by) => {
                    let key = carried_by.get(&name).copied();
                    used.extend(key);
                    account.waits.push(Wait { from_ns: clock(since_ns), to_ns: at_ns, key });
                }
                _ => account.hear_of_operation(*by, at_ns, event),
            }
        }
        let direct = |(key, part): (&Key, &Part)| {
            let done_ns = part.done_ns.filter(|_| key.0 == Group::DIRECT && thread == Some(part.thread))?;
            Some(Wait { from_ns: part.begun_ns, to_ns: done_ns, key: Some(*key) })
        };
        let waits: Vec<Wait> = account.parts.iter().filter_map(direct).collect();
        account.waits.extend(waits);
        account
    }

    fn hear_of_operation(&mut self, thread: event::ThreadId, at_ns: u64, event: &Event) {
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
            Event::Travelled { group, operation } => self.mark((group, operation), |part| part.moved_ns = Some(at_ns)),
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

/// Gives every rank a part in the direct calls that others waited in, at the moment at which the first of these could go on.
fn add_unrecorded_calls(accounts: &mut [Account]) {
    let mut calls: BTreeMap<Key, (Part, u64)> = BTreeMap::new();
    for (&key, part) in accounts.iter().flat_map(|account| &account.parts) {
        let Some(done_ns) = part.done_ns.filter(|_| key.0 == Group::DIRECT) else { continue };
        let first = calls.entry(key).or_insert_with(|| (part.clone(), done_ns));
        first.1 = first.1.min(done_ns);
    }
    for account in accounts {
        for (&key, (part, at_ns)) in &calls {
            if account.parts.contains_key(&key) || !(account.there.0..=account.there.1).contains(at_ns) {
                continue;
            }
            let (begun_ns, moment) = (*at_ns, Some(*at_ns));
            let (packed_ns, moved_ns, done_ns) = (moment, moment, moment);
            account.parts.insert(key, Part { begun_ns, packed_ns, moved_ns, done_ns, ..part.clone() });
            account.waits.push(Wait { from_ns: *at_ns, to_ns: *at_ns, key: Some(key) });
        }
    }
}

/// The operations that all members went through, by their beginning, and where each of them is.
fn operations(traces: &[Trace], accounts: &[Account]) -> (Vec<Operation>, HashMap<Key, usize>) {
    let mut passages: BTreeMap<Key, Vec<Passage>> = BTreeMap::new();
    for (rank, account) in accounts.iter().enumerate() {
        for (&key, part) in account.parts.iter().filter(|(_, part)| part.collective != Collective::Internal) {
            passages.entry(key).or_default().extend(part.passage(rank));
        }
    }
    let mut found: Vec<(Key, Operation)> = Vec::new();
    for (key, passages) in passages {
        let Some(first) = passages.first().map(|passage| passage.rank) else { continue };
        let members = traces[first].groups.get(&key.0).map_or(traces.len(), Vec::len);
        if passages.len() != members {
            continue;
        }
        let part = &accounts[first].parts[&key];
        let tensor_bytes = if part.tensor_bytes.is_empty() { vec![part.bytes] } else { part.tensor_bytes.clone() };
        let group = if key.0 == Group::DIRECT { 0 } else { u32::from(key.0.0) };
        found.push((key, Operation { group, collective: kind(part.collective), tensor_bytes, passages }));
    }
    found.sort_by_key(|(key, operation)| (operation.begun_ns(), *key));
    let places = found.iter().enumerate().map(|(place, (key, _))| (*key, place)).collect();
    (found.into_iter().map(|(_, operation)| operation).collect(), places)
}

fn kind(collective: Collective) -> CollectiveKind {
    match collective {
        Collective::Allreduce | Collective::Adasum => CollectiveKind::Allreduce,
        Collective::Allgather => CollectiveKind::Allgather,
        Collective::Broadcast => CollectiveKind::Broadcast,
        Collective::Alltoall => CollectiveKind::Alltoall,
        Collective::ReduceScatter => CollectiveKind::Reducescatter,
        Collective::Barrier => CollectiveKind::Barrier,
        Collective::Join | Collective::Internal => CollectiveKind::Other,
    }
}
