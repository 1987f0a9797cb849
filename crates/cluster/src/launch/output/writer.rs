//! Writes to the screen and to files, on a thread of its own.
//!
//! A terminal can be held (Ctrl-S), a pipe can be full, a disk slow; the launcher's loop must go on all the same,
//! because heartbeats depend on it. So a thread writes, and a count of bytes under way says when there is no
//! [room](Writer::has_room): then the launcher stops reading from agents, they stop reading from pipes, and ranks wait
//! in their `write`, as they would without a launcher.
//!
//! A target that fails is reported once and then left alone. Only a closed standard output is more than that: nobody
//! listens any more, and the launcher ends the job as a shell's pipeline would.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::launch::job_spec::Drawer;

/// So many bytes may be under way. Enough to keep a terminal busy, little beside what a rank's own buffers hold.
const MOST_BYTES: usize = 4 << 20;

/// Where bytes go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Stdout,
    Stderr,
    File(PathBuf),
}

/// There is no room now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The launcher's end of the writing thread.
#[derive(Debug)]
pub(crate) struct Writer {
    /// `None` only while being finished.
    pieces: Option<Sender<(Target, Vec<u8>)>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Added to by the loop, subtracted from by the thread; only a measure, orders nothing.
    bytes: AtomicUsize,
    /// Set by the thread when standard output is closed, read by the loop.
    closed: AtomicBool,
}

impl Writer {
    /// Starts the thread. Whoever draws on the screen steps aside for it.
    pub(crate) fn start(drawer: Option<Drawer>) -> Result<Writer> {
        let (pieces, to_write) = channel();
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("farandole-output".into())
            .spawn(move || write_all(&to_write, &theirs, drawer.as_ref()))
            .map_err(|error| Error::local("starting the thread that writes output", error))?;
        Ok(Writer { pieces: Some(pieces), shared, thread: Some(thread) })
    }

    /// Whether more should be written now.
    pub(crate) fn has_room(&self) -> bool {
        self.shared.bytes.load(Ordering::Relaxed) < MOST_BYTES
    }

    /// Whether standard output has been closed by whoever read it.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    /// Hands bytes to the thread.
    pub(super) fn write(&mut self, target: Target, bytes: Vec<u8>) {
        self.shared.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        if let Some(pieces) = &self.pieces {
            // The thread ends only when this sender is dropped.
            let _ = pieces.send((target, bytes));
        }
    }

    /// Waits until everything is written.
    pub(crate) fn finish(mut self) {
        self.pieces = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_all(to_write: &Receiver<(Target, Vec<u8>)>, shared: &Shared, drawer: Option<&Drawer>) {
    let mut files: HashMap<PathBuf, Option<File>> = HashMap::new();
    for (target, bytes) in to_write {
        match target {
            Target::Stdout | Target::Stderr => {
                let mut write = || write_to_screen(&target, &bytes, shared);
                match drawer {
                    Some(drawer) => drawer.step_aside(&mut write),
                    None => write(),
                }
            }
            Target::File(path) => write_to_file(&mut files, path, &bytes),
        }
        shared.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
    }
}

fn write_to_screen(target: &Target, bytes: &[u8], shared: &Shared) {
    if *target == Target::Stdout {
        let mut stdout = io::stdout().lock();
        if stdout.write_all(bytes).and_then(|()| stdout.flush()).is_err() {
            shared.closed.store(true, Ordering::Relaxed);
        }
    } else {
        // Nobody can be told that standard error fails.
        drop(io::stderr().lock().write_all(bytes));
    }
}

/// Appends to a file that is created on first use. One that fails is given up, aloud.
fn write_to_file(files: &mut HashMap<PathBuf, Option<File>>, path: PathBuf, bytes: &[u8]) {
    let mut given_up = None;
    let slot = files.entry(path.clone()).or_insert_with(|| match create(&path) {
        Ok(file) => Some(file),
        Err(error) => {
            given_up = Some(error);
            None
        }
    });
    if let Some(file) = slot
        && let Err(error) = file.write_all(bytes)
    {
        given_up = Some(error);
        *slot = None;
    }
    if let Some(error) = given_up {
        let words = format!("farandole: {} is incomplete from here on: {error}\n", path.display());
        drop(io::stderr().lock().write_all(words.as_bytes()));
    }
}

fn create(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    File::create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_what_was_written_when_the_writer_is_finished() {
        let directory = farandole_testing::Folder::new();
        let path = directory.join("rank.0/stdout");
        let mut writer = Writer::start(None).unwrap();
        writer.write(Target::File(path.clone()), b"one\n".to_vec());
        writer.write(Target::File(path.clone()), b"two\n".to_vec());
        writer.finish();
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn who_draws_on_the_screen_steps_aside_for_each_piece() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let drawer = Drawer::new(move |write| {
            count.fetch_add(1, Ordering::Relaxed);
            write();
        });
        let mut writer = Writer::start(Some(drawer)).unwrap();
        writer.write(Target::Stderr, b"one\n".to_vec());
        writer.write(Target::File("/dev/null".into()), b"a file is not drawn on\n".to_vec());
        writer.write(Target::Stderr, b"two\n".to_vec());
        writer.finish();
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_full_disk_costs_the_file_and_nothing_else() {
        let mut writer = Writer::start(None).unwrap();
        writer.write(Target::File("/dev/full".into()), b"lost\n".to_vec());
        writer.write(Target::File("/proc/no/such/place".into()), b"lost\n".to_vec());
        writer.finish();
    }
}
