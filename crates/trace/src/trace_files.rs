//! The files of traces: that of a whole run, dumps of what is in memory, and the folders of dumps.
//!
//! The trace of a run is appended to; a dump appears whole or not at all. The folder of dumps that nobody has asked for
//! can be read by its owner only, and older ones are removed. When a file is written is decided in `writer`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::event::NameId;
use crate::file::{EXTENSION, TraceEncoder, name_of};
use crate::private_folder::PrivateFolder;
use crate::record::words_to_bytes;
use crate::recorder::Recorder;
use crate::tail::Tail;
use crate::trace::TraceHeader;

/// Where dumps go that nobody has asked for: a folder for temporary files that only its owner can read, bounded in
/// size.
#[derive(Clone, Debug)]
pub struct FallbackFolder {
    /// The folder, the same for all ranks of a job. It is created when it is needed.
    pub folder: PathBuf,
    /// What the names of such folders begin with. Older ones beside it are removed, but for [`JOBS_KEPT`].
    pub prefix: String,
    /// Whether this rank says on standard error where it has written.
    pub announces: bool,
}

/// Jobs whose fallback folders are kept: the last one, and some to compare it with.
pub const JOBS_KEPT: usize = 4;

/// The trace of the whole run while it is written.
#[derive(Debug)]
pub(crate) struct RunTrace {
    pub(crate) path: PathBuf,
    file: File,
    tail: Tail,
    encoder: TraceEncoder,
}

impl RunTrace {
    pub(crate) fn create(folder: &Path, recorder: &Recorder) -> io::Result<RunTrace> {
        std::fs::create_dir_all(folder)?;
        let path = free_path(folder, recorder.header());
        let mut file = File::create(&path)?;
        let mut encoder = TraceEncoder::begin(recorder.header());
        file.write_all(&encoder.take())?;
        Ok(RunTrace { path, file, tail: Tail::from_start(), encoder })
    }

    pub(crate) fn follow(&mut self, recorder: &Recorder) -> io::Result<()> {
        let update = self.tail.follow(recorder);
        if update.is_empty() {
            return Ok(());
        }
        encode_update(&mut self.encoder, update);
        self.file.write_all(&self.encoder.take())
    }

    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.encoder.end("end of run");
        self.file.write_all(&self.encoder.take())
    }
}

/// The path of a rank's trace: over one of an earlier run, but not over one of this process, which may be a rank
/// several times.
fn free_path(folder: &Path, own: &TraceHeader) -> PathBuf {
    let is_ours =
        |path: &PathBuf| TraceHeader::read(path).is_ok_and(|header| header.pid == own.pid && header.host == own.host);
    let first = folder.join(name_of(own));
    let later = (2_u32..).map(|time| first.with_extension(format!("{time}.{EXTENSION}")));
    let mut paths = std::iter::once(first.clone()).chain(later);
    paths.find(|path| !is_ours(path)).expect("invariant: a process is not started over four thousand million times")
}

/// Writes what is in memory to the rank's file in a folder. It appears there whole or not at all.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn dump_all(recorder: &Recorder, folder: &Path, occasion: &str) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    write(recorder, Tail::from_start(), folder, occasion)
}

pub(crate) fn write(recorder: &Recorder, mut tail: Tail, folder: &Path, occasion: &str) -> io::Result<PathBuf> {
    let path = folder.join(name_of(recorder.header()));
    let temporary_path = path.with_extension(format!("encoder-{}", std::process::id()));
    let mut encoder = TraceEncoder::begin(recorder.header());
    encode_update(&mut encoder, tail.follow(recorder));
    encoder.end(occasion);
    let written =
        std::fs::write(&temporary_path, encoder.take()).and_then(|()| std::fs::rename(&temporary_path, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary_path);
    }
    written.map(|()| path)
}

/// Removes the fallback folders of earlier jobs. Folders of other users and files that are not traces stay.
pub(crate) fn remove_older(fallback: &FallbackFolder) {
    let Some(parent) = fallback.folder.parent() else { return };
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let is_one = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(&fallback.prefix));
    let mut folders: Vec<(std::time::SystemTime, PathBuf, PrivateFolder)> = entries
        .flatten()
        .filter(|entry| is_one(&entry.file_name()) && entry.path() != fallback.folder)
        .filter_map(|entry| {
            // Only private folders count: the kept ones must not be crowded out by another user's.
            let folder = PrivateFolder::open(&entry.path()).ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, entry.path(), folder))
        })
        .collect();
    folders.sort_by_key(|(modified, ..)| *modified);
    let surplus = folders.len().saturating_sub(JOBS_KEPT - 1);
    for (_, path, folder) in folders.into_iter().take(surplus) {
        for name in folder.names().unwrap_or_default() {
            if Path::new(&name).extension().is_some_and(|extension| extension == EXTENSION) {
                let _ = folder.remove_file(&name);
            }
        }
        let _ = std::fs::remove_dir(path);
    }
}

fn encode_update(encoder: &mut TraceEncoder, update: crate::tail::Update) {
    encoder.names(NameId(update.first_name), &update.names);
    for (thread, name) in &update.threads {
        encoder.thread(*thread, name);
    }
    for (group, ranks) in &update.groups {
        encoder.group(*group, ranks);
    }
    for (name, value) in &update.settings {
        encoder.setting(name, value);
    }
    encoder.records(update.records.into_iter().map(words_to_bytes));
    encoder.dropped(update.dropped);
}
