//! What a trace file says, as values: [`Trace`].
//!
//! Records are in the order of their times, whatever order they lay in; names, threads and groups are tables beside
//! them. A trace is a value that can as well be made by hand, for a test whose answer is known: make a [`TraceHeader`],
//! give out names with [`Names::intern`], push records.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::event::{Event, GroupNumber, NameId, Phase, Record, ThreadId};
use crate::file::{self, ReadError};

/// The rank, host, clock and settings of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    /// The rank, in the world.
    pub rank: u32,
    /// Number of ranks in the world.
    pub size: u32,
    /// The rank's host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Which clock the times are from: ranks with the same text read the same clock. The kernel's id of this boot,
    /// where it has one.
    pub clock: String,
    /// A moment on the monotonic clock …
    pub anchor_ns: u64,
    /// … and the same moment in nanoseconds since 1970, as far as the host knows the time of day.
    pub anchor_unix_ns: u64,
    /// The version of the program that wrote the trace.
    pub version: String,
    /// Settings of the engine, by name.
    pub settings: Vec<(String, String)>,
}

impl TraceHeader {
    /// The value of a setting.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Gives a setting a value, also if it has one.
    pub fn set(&mut self, name: String, value: String) {
        self.settings.retain(|(known, _)| *known != name);
        self.settings.push((name, value));
    }

    /// The header of a file, without reading the rest.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn read(path: &Path) -> Result<TraceHeader, ReadError> {
        use std::io::Read as _;
        let unreadable = |error: std::io::Error| ReadError::Unreadable(error.to_string());
        let mut start = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(file::HEADER_MAX_BYTES).read_to_end(&mut start).map_err(unreadable)?;
        Ok(Trace::decode(&start)?.header)
    }
}

/// Texts by number. Number 0 is no name.
#[derive(Clone, Debug, Default)]
pub struct Names {
    texts: BTreeMap<NameId, NameEntry>,
    /// A number of each text. A text may have several, where a recorder has forgotten it in between.
    ids: HashMap<Arc<str>, NameId>,
}

/// A text and what else is known of what bears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The name.
    pub text: Arc<str>,
    /// For a tensor, its dimensions when it was first submitted.
    pub shape: Arc<[u64]>,
}

impl Names {
    /// Enters a text under a number; for decoders.
    pub fn insert(&mut self, id: NameId, named: NameEntry) {
        self.ids.entry(Arc::clone(&named.text)).or_insert(id);
        self.texts.insert(id, named);
    }

    /// The number of a text, which is given out if there is none yet.
    pub fn intern(&mut self, text: &str) -> NameId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = NameId(self.texts.keys().next_back().map_or(1, |last| last.0.saturating_add(1)));
        self.insert(id, NameEntry { text: text.into(), shape: Arc::new([]) });
        id
    }

    /// The text of a number. A name that was forgotten before the trace was written is "?".
    pub fn text(&self, id: NameId) -> &str {
        self.get(id).map_or("?", |named| &named.text)
    }

    /// The number of a text, if it has one.
    pub fn find(&self, text: &str) -> Option<NameId> {
        self.ids.get(text).copied()
    }

    /// All that is known under a number.
    pub fn get(&self, id: NameId) -> Option<&NameEntry> {
        self.texts.get(&id)
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (NameId, &NameEntry)> {
        self.texts.iter().map(|(id, named)| (*id, named))
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        self.texts == other.texts
    }
}

/// How a trace ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TraceEnding {
    /// With everything that was to be written; the text says on what occasion.
    Complete(String),
    /// In the middle: its writer was killed, or still writes.
    #[default]
    CutOff,
    /// In something that is not a block of a trace, at this byte. What stands before it is good.
    Damaged {
        /// Where the damage begins.
        at_byte: u64,
    },
}

/// A file that should be a trace and cannot be read as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Where it lies.
    pub path: PathBuf,
    /// What is wrong with it.
    pub error: ReadError,
}

impl Unreadable {
    /// The rank whose trace it would be, by its name.
    pub fn rank(&self) -> Option<usize> {
        let name = self.path.file_name()?.to_str()?;
        name.strip_prefix("rank-")?.split('.').next()?.parse().ok()
    }
}

/// What one rank has recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Who, where, with which settings.
    pub header: TraceHeader,
    /// The texts.
    pub names: Names,
    /// Names of threads.
    pub threads: BTreeMap<ThreadId, String>,
    /// World ranks of the members of each group that this rank is in.
    pub groups: BTreeMap<GroupNumber, Vec<u32>>,
    /// What happened, in the order of time.
    pub records: Vec<Record>,
    /// Records that were overwritten by later ones before they could be written.
    pub dropped: u64,
    /// Records of a kind that this version does not know.
    pub unknown: u64,
    /// Whether the file was complete.
    pub ending: TraceEnding,
}

impl Trace {
    /// An empty trace, to be filled by hand.
    pub fn new(header: TraceHeader) -> Trace {
        let ranks = (0..header.size).collect();
        let groups = BTreeMap::from([(GroupNumber::WORLD, ranks)]);
        Trace { header, groups, ending: TraceEnding::Complete("made by hand".to_owned()), ..Trace::default() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is no trace, or is of a version that this program does not know. A file whose writer was
    /// killed is read as far as it goes; see [`Trace::ending`].
    pub fn read(path: &Path) -> Result<Trace, ReadError> {
        let bytes = std::fs::read(path).map_err(|error| ReadError::Unreadable(error.to_string()))?;
        Trace::decode(&bytes)
    }

    /// Reads the traces of all ranks in a folder, in the order of generations and ranks; and says which files are no
    /// traces that this program can read. Where there are several elastic jobs, or one and traces of something else,
    /// those of the job that began last count.
    ///
    /// # Errors
    /// If the folder cannot be read, with its path, or if there is no trace that can.
    pub fn read_folder(folder: &Path) -> Result<(Vec<Trace>, Vec<Unreadable>), (PathBuf, ReadError)> {
        let unreadable = |error: std::io::Error| (folder.to_owned(), ReadError::Unreadable(error.to_string()));
        let mut traces: Vec<Trace> = Vec::new();
        let mut spoilt: Vec<Unreadable> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|extension| extension == file::EXTENSION) {
                match Trace::read(&path) {
                    Ok(trace) => traces.push(trace),
                    Err(error) => spoilt.push(Unreadable { path, error }),
                }
            }
        }
        traces.sort_by_key(|trace| trace.header.anchor_unix_ns);
        let job = traces.last().and_then(|trace| trace.header.elastic_job()).map(str::to_owned);
        // A rank that was started again has several; the last one counts.
        let mut last: BTreeMap<(u64, u32), Trace> = BTreeMap::new();
        for trace in traces.into_iter().filter(|trace| trace.header.elastic_job() == job.as_deref()) {
            last.insert((trace.header.generation(), trace.header.rank), trace);
        }
        spoilt.sort_by(|a, b| a.path.cmp(&b.path));
        match spoilt.first() {
            Some(first) if last.is_empty() => Err((first.path.clone(), first.error.clone())),
            None if last.is_empty() => Err((folder.to_owned(), ReadError::NoTraces)),
            _ => Ok((last.into_values().collect(), spoilt)),
        }
    }

    /// Reads a file's bytes; see [`Trace::read`].
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn decode(bytes: &[u8]) -> Result<Trace, ReadError> {
        file::decode(bytes)
    }

    /// The bytes of a file that says the same.
    pub fn encode(&self) -> Vec<u8> {
        file::encode(self)
    }

    /// Adds a record; for traces that are made by hand.
    pub fn push(&mut self, time_ns: u64, thread: ThreadId, event: Event) {
        self.records.push(Record { time_ns, thread, event });
    }

    /// Adds a phase of the program; for traces that are made by hand.
    pub fn push_phase(&mut self, thread: ThreadId, phase: Phase, begin_ns: u64, end_ns: u64) {
        self.push(begin_ns, thread, Event::PhaseBegin { phase, name: NameId::NONE });
        self.push(end_ns, thread, Event::PhaseEnd { phase, name: NameId::NONE });
    }

    /// Puts the records in the order of their times; those of one time stay as they are.
    pub fn sort(&mut self) {
        self.records.sort_by_key(|record| record.time_ns);
    }

    /// The text of a name.
    pub fn text(&self, id: NameId) -> &str {
        self.names.text(id)
    }

    /// The first and the last moment of the trace.
    pub fn span_ns(&self) -> Option<(u64, u64)> {
        Some((self.records.first()?.time_ns, self.records.last()?.time_ns))
    }
}
