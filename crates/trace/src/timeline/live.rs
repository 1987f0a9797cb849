//! The file of a timeline that is being written.
//!
//! **Invariant:** between any two writes the file is a complete JSON array. New events are written over the closing
//! bracket, with a new one, in one call, so that a rank that is killed leaves a valid file; only a disk that fills up
//! in the middle of a write can break it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::horovod::{Cycles, TimelineFormatter};
use crate::clock::now_ns;
use crate::event::{NameId, Record};
use crate::recorder::Recorder;
use crate::tail::Tail;
use crate::trace::Names;

/// What stands at the end of the file between writes.
const CLOSING: &[u8] = b"\n]\n";

/// A timeline that is being written.
#[derive(Debug)]
pub(crate) struct LiveTimeline {
    file: File,
    /// Where the closing bracket stands.
    end: u64,
    tail: Tail,
    names: Names,
    formatter: TimelineFormatter,
}

impl LiveTimeline {
    /// Begins a file; what is recorded from now on will be in it.
    pub(crate) fn create(path: &Path, cycles: Cycles, recorder: &Recorder) -> io::Result<LiveTimeline> {
        if cycles == Cycles::Marked {
            recorder.want_cycles();
        }
        let tail = Tail::from_now(recorder);
        let start_ns = now_ns();
        let header = recorder.header();
        let start_unix_ns = header.anchor_unix_ns + start_ns.saturating_sub(header.anchor_ns);
        let file = File::create(path)?;
        let formatter = TimelineFormatter::new(start_ns, cycles);
        let mut live = LiveTimeline { file, end: 0, tail, names: Names::default(), formatter };
        live.append(format!("[\n{}", TimelineFormatter::preamble(start_unix_ns)))?;
        Ok(live)
    }

    /// Writes what is new.
    pub(crate) fn follow(&mut self, recorder: &Recorder) -> io::Result<()> {
        let update = self.tail.follow(recorder);
        for (number, named) in (update.first_name..).zip(update.names) {
            self.names.insert(NameId(number), named);
        }
        let mut records: Vec<Record> = update.records.into_iter().filter_map(Record::from_words).collect();
        records.sort_by_key(|record| record.time_ns);
        let text = self.formatter.format(&records, &self.names);
        if text.is_empty() { Ok(()) } else { self.append(text) }
    }

    fn append(&mut self, text: String) -> io::Result<()> {
        let mut bytes = text.into_bytes();
        let len = bytes.len() as u64;
        bytes.extend_from_slice(CLOSING);
        self.file.write_all_at(&bytes, self.end)?;
        self.end += len;
        Ok(())
    }
}
