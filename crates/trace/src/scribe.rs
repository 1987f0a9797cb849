//! The thread that writes: traces and timelines, from a rank's recorder to files.
//!
//! A rank has at most one scribe. It sleeps until it is rung for and, while it writes a trace or a timeline, looks at
//! the recorder every so often; it takes nothing that others wait for, so whatever it does and however long the disk
//! takes, collectives go on and nobody else times out. What it can do:
//!
//! - *Keep* a trace of the whole run in a folder: it appends what is new, so a rank that is killed leaves a trace up to
//!   that moment.
//! - *Save* what is in memory now to a file, on a signal, a trouble or a stall. The file appears whole or not at all.
//! - Write a *timeline* while the rank runs, between [`Scribe::start_timeline`] and [`Scribe::stop_timeline`].
//!
//! A file that cannot be written is given up with one line on standard error; the run goes on.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use signal_hook::SigId;

use crate::event::{NameId, words_to_bytes};
use crate::file::{Draft, EXTENSION, name_of};
use crate::machine;
use crate::recorder::{Occasion, Recorder};
use crate::saved::Saved;
use crate::tail::Tail;
use crate::timeline::Cycles;
use crate::timeline::live::LiveTimeline;
use crate::trace::Header;

/// How often a timeline is written: programs read it while it is written, and expect what they have done a tenth of a
/// second ago.
const TIMELINE_PERIOD: Duration = Duration::from_millis(20);

/// How often a trace is written: what a killed rank has done since is lost.
const TRACE_PERIOD: Duration = Duration::from_millis(100);

/// How long somebody waits for the scribe to begin or end a timeline, or to write its last words. A disk that takes
/// longer has other troubles, and a rank must be able to leave.
const PATIENCE: Duration = Duration::from_secs(10);

/// A place for traces that nobody has asked for: among temporary files, for their owner's eyes only, and bounded in
/// size.
#[derive(Clone, Debug)]
pub struct LastResort {
    /// The folder, the same for all ranks of a job. It is made when it is needed.
    pub folder: PathBuf,
    /// What the names of such folders begin with. Older ones beside it are removed, but for [`JOBS_KEPT`].
    pub family: String,
    /// Whether this rank tells on standard error where it has written.
    pub tells: bool,
}

/// Jobs whose unasked traces are kept: the last one, and some to compare it with.
pub const JOBS_KEPT: usize = 4;

/// Records of each ring that are written unasked: 1 MiB. A quarter of what a driver's ring holds by default, and still
/// tens of iterations of a large model.
const LATEST_RECORDS: u64 = 1 << 15;

/// What a scribe is to do from the start.
#[derive(Clone, Debug, Default)]
pub struct Duties {
    /// Keep a trace of the whole run in this folder.
    pub keep_in: Option<PathBuf>,
    /// Save what is in memory to this folder when there is trouble or a stall.
    pub save_trouble_in: Option<PathBuf>,
    /// Where the latest of what is in memory goes on such an occasion if nobody has said where.
    pub last_resort: Option<LastResort>,
    /// Save what is in memory when this signal comes: to one of the folders above or, without any, to the folder for
    /// temporary files.
    pub signal: Option<i32>,
    /// Begin a timeline at once.
    pub timeline: Option<(PathBuf, Cycles)>,
}

/// See the module's text. Dropping it writes what is left and ends it.
#[derive(Debug)]
pub struct Scribe {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
    signals: Vec<SigId>,
    pid: u32,
}

/// Where orders for the scribe lie, and the bell beside them.
#[derive(Debug)]
struct Desk {
    orders: Mutex<VecDeque<Order>>,
    bell: UnixStream,
    signalled: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Order {
    StartTimeline { path: PathBuf, cycles: Cycles, reply: SyncSender<io::Result<()>> },
    StopTimeline { reply: SyncSender<io::Result<()>> },
    Save(Occasion),
    End { reply: SyncSender<io::Result<()>> },
}

impl Desk {
    fn lay(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push_back(order);
        // A bell that is full of rings has been heard by nobody yet and will be.
        let _ = (&self.bell).write(&[1]);
    }
}

impl Scribe {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread or its bell cannot be made, or a file that it is to write from the start.
    pub fn start(recorder: &Arc<Recorder>, duties: Duties) -> io::Result<Scribe> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let signalled = Arc::new(AtomicBool::new(false));
        let desk = Arc::new(Desk { orders: Mutex::default(), bell, signalled });
        let mut signals = Vec::new();
        if let Some(signal) = duties.signal {
            signals.push(signal_hook::flag::register(signal, Arc::clone(&desk.signalled))?);
            signals.push(signal_hook::low_level::pipe::register(signal, desk.bell.try_clone()?)?);
        }
        let keeping = duties.keep_in.as_ref().map(|folder| Keeping::create(folder, recorder)).transpose()?;
        let timeline = duties.timeline.as_ref();
        let timeline = timeline.map(|(path, cycles)| LiveTimeline::create(path, *cycles, recorder)).transpose()?;
        if keeping.is_some() {
            recorder.want_samples();
        }
        recorder.on_ring({
            let desk = Arc::clone(&desk);
            move |occasion| desk.lay(Order::Save(occasion))
        });
        let work = Work {
            recorder: Arc::clone(recorder),
            desk: Arc::clone(&desk),
            ear,
            duties,
            keeping,
            timeline,
            core_wait_ns: machine::core_wait_ns(),
        };
        let thread = std::thread::Builder::new().name("farandole-scribe".to_owned()).spawn(move || work.run())?;
        Ok(Scribe { desk, thread: Some(thread), signals, pid: std::process::id() })
    }

    /// Begins a timeline in this file, with what is recorded from now on. One that is being written ends.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn start_timeline(&self, path: &Path, cycles: Cycles) -> io::Result<()> {
        let (reply, answer) = sync_channel(1);
        self.desk.lay(Order::StartTimeline { path: path.to_owned(), cycles, reply });
        answer_of(&answer)
    }

    /// Ends the timeline, if there is one; everything that was recorded until now is in its file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn stop_timeline(&self) -> io::Result<()> {
        let (reply, answer) = sync_channel(1);
        self.desk.lay(Order::StopTimeline { reply });
        answer_of(&answer)
    }
}

/// What the scribe answers, if it does so in time.
fn answer_of(answer: &Receiver<io::Result<()>>) -> io::Result<()> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the thread that writes files does not answer");
    answer.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(late()))
}

impl Drop for Scribe {
    fn drop(&mut self) {
        for signal in self.signals.drain(..) {
            signal_hook::low_level::unregister(signal);
        }
        let Some(thread) = self.thread.take() else { return };
        if self.pid != std::process::id() {
            // The thread did not come along into this process.
            std::mem::forget(thread);
            return;
        }
        let (reply, answer) = sync_channel(1);
        self.desk.lay(Order::End { reply });
        // A thread that hangs in a write is left behind.
        if answer_of(&answer).is_ok() {
            let _ = thread.join();
        }
    }
}

/// What the thread works on.
struct Work {
    recorder: Arc<Recorder>,
    desk: Arc<Desk>,
    ear: UnixStream,
    duties: Duties,
    keeping: Option<Keeping>,
    timeline: Option<LiveTimeline>,
    /// How long the main thread had waited for a core when this began.
    core_wait_ns: Option<u64>,
}

impl Work {
    fn run(mut self) {
        loop {
            self.sleep();
            if self.desk.signalled.swap(false, Ordering::Relaxed) {
                self.save("signal");
            }
            self.follow();
            loop {
                let order = self.desk.orders.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                match order {
                    None => break,
                    Some(Order::End { reply }) => {
                        self.end();
                        let _ = reply.send(Ok(()));
                        return;
                    }
                    Some(order) => self.obey(order),
                }
            }
        }
    }

    /// Sleeps until the bell rings or it is time to write.
    fn sleep(&mut self) {
        let period = match (&self.timeline, &self.keeping) {
            (Some(_), _) => Some(TIMELINE_PERIOD),
            (None, Some(_)) => Some(TRACE_PERIOD),
            (None, None) => None,
        };
        // A socket whose settings cannot be changed is looked at as often as a trace is written, at worst.
        if self.ear.set_read_timeout(period).is_err() {
            std::thread::sleep(TRACE_PERIOD);
            return;
        }
        let mut rings = [0; 64];
        let _ = self.ear.read(&mut rings);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::StartTimeline { path, cycles, reply } => {
                // For the one that ends.
                self.follow();
                let begun = LiveTimeline::create(&path, cycles, &self.recorder).map(|live| self.timeline = Some(live));
                let _ = reply.send(begun);
            }
            Order::StopTimeline { reply } => {
                // Orders may come together: what was recorded between them has not been written yet.
                self.follow();
                self.timeline = None;
                let _ = reply.send(Ok(()));
            }
            Order::Save(Occasion::Trouble) => self.save("trouble"),
            Order::Save(Occasion::Stall) => self.save("stall"),
            Order::End { .. } => {}
        }
    }

    /// Writes what is new to whatever is being written.
    fn follow(&mut self) {
        let rank = self.recorder.header().rank;
        if let Some(keeping) = &mut self.keeping
            && let Err(error) = keeping.follow(&self.recorder)
        {
            let path = keeping.path.display();
            eprintln!("farandole: rank {rank}: writing the trace {path}: {error}; it ends here");
            self.keeping = None;
            self.recorder.want_no_samples();
        }
        if let Some(timeline) = &mut self.timeline
            && let Err(error) = timeline.follow(&self.recorder)
        {
            eprintln!("farandole: rank {rank}: writing the timeline: {error}; it ends here");
            self.timeline = None;
        }
    }

    /// Saves what is in memory, unless it is being kept anyway.
    fn save(&mut self, occasion: &str) {
        if self.keeping.is_some() {
            return;
        }
        let header = self.recorder.header();
        let (folder, saved, tells) = match (&self.duties.save_trouble_in, &self.duties.last_resort) {
            (Some(folder), _) => (folder.clone(), save(&self.recorder, folder, occasion), true),
            // Whoever sends a signal wants all there is.
            (None, last_resort) if occasion == "signal" => {
                let temporary = || std::env::temp_dir().join(format!("farandole-trace-{}", std::process::id()));
                let folder = last_resort.as_ref().map_or_else(temporary, |resort| resort.folder.clone());
                let saved = private_folder(&folder).and_then(|()| save(&self.recorder, &folder, occasion));
                (folder, saved, true)
            }
            (None, Some(resort)) => {
                let saved = private_folder(&resort.folder).and_then(|()| {
                    write(&self.recorder, Tail::latest(&self.recorder, LATEST_RECORDS), &resort.folder, occasion)
                });
                remove_older(resort);
                (resort.folder.clone(), saved, resort.tells)
            }
            (None, None) => return,
        };
        match saved {
            Ok(path) if tells => eprintln!("{}", Saved { rank: header.rank, path: &path, occasion }),
            Ok(_) => {}
            Err(error) => {
                eprintln!("farandole: rank {}: saving a trace in {}: {error}", header.rank, folder.display());
            }
        }
    }

    fn end(mut self) {
        self.recorder.want_no_samples();
        if let Some((before_ns, now_ns)) = self.core_wait_ns.zip(machine::core_wait_ns()) {
            self.recorder.note_setting(machine::CORE_WAIT, &now_ns.saturating_sub(before_ns).to_string());
        }
        self.follow();
        if let Some(keeping) = &mut self.keeping
            && let Err(error) = keeping.end()
        {
            let path = keeping.path.display();
            eprintln!("farandole: rank {}: ending the trace {path}: {error}", self.recorder.header().rank);
        }
    }
}

/// A trace of the whole run, in the making.
#[derive(Debug)]
struct Keeping {
    path: PathBuf,
    file: File,
    tail: Tail,
    draft: Draft,
}

impl Keeping {
    fn create(folder: &Path, recorder: &Recorder) -> io::Result<Keeping> {
        std::fs::create_dir_all(folder)?;
        let path = free_path(folder, recorder.header());
        let mut file = File::create(&path)?;
        let mut draft = Draft::begin(recorder.header());
        file.write_all(&draft.take())?;
        Ok(Keeping { path, file, tail: Tail::from_the_start(), draft })
    }

    fn follow(&mut self, recorder: &Recorder) -> io::Result<()> {
        let news = self.tail.follow(recorder);
        if news.is_empty() {
            return Ok(());
        }
        put_news(&mut self.draft, news);
        self.file.write_all(&self.draft.take())
    }

    fn end(&mut self) -> io::Result<()> {
        self.draft.end("end of run");
        self.file.write_all(&self.draft.take())
    }
}

/// Where a rank's trace goes: over one of an earlier run, but not over one of this process, which may be a rank several
/// times.
fn free_path(folder: &Path, own: &Header) -> PathBuf {
    let is_ours =
        |path: &PathBuf| Header::read(path).is_ok_and(|header| header.pid == own.pid && header.host == own.host);
    let later = (2_u32..).map(|time| folder.join(format!("rank-{:05}.{time}.{EXTENSION}", own.rank)));
    let mut paths = std::iter::once(folder.join(name_of(own.rank))).chain(later);
    paths.find(|path| !is_ours(path)).expect("invariant: a process is not started over four thousand million times")
}

/// Writes what is in memory to the rank's file in a folder. It appears there whole or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn save(recorder: &Recorder, folder: &Path, occasion: &str) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    write(recorder, Tail::from_the_start(), folder, occasion)
}

fn write(recorder: &Recorder, mut tail: Tail, folder: &Path, occasion: &str) -> io::Result<PathBuf> {
    let path = folder.join(name_of(recorder.header().rank));
    let draft_path = path.with_extension(format!("draft-{}", std::process::id()));
    let mut draft = Draft::begin(recorder.header());
    put_news(&mut draft, tail.follow(recorder));
    draft.end(occasion);
    let written = std::fs::write(&draft_path, draft.take()).and_then(|()| std::fs::rename(&draft_path, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft_path);
    }
    written.map(|()| path)
}

/// Makes a folder that only its owner can look into. One that is there already must be such a folder: where everybody
/// may write, anybody may have put something else in its place.
fn private_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is there and not this user's own folder"));
    }
    Ok(())
}

/// Removes what earlier jobs have left beside a folder of last resort. What is not ours, or holds anything but traces,
/// stays.
fn remove_older(resort: &LastResort) {
    let Some(parent) = resort.folder.parent() else { return };
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let is_one = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(&resort.family));
    let mut folders: Vec<(std::time::SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| is_one(&entry.file_name()) && entry.path() != resort.folder)
        .filter_map(|entry| {
            let found = entry.metadata().ok().filter(std::fs::Metadata::is_dir)?;
            Some((found.modified().ok()?, entry.path()))
        })
        .collect();
    folders.sort();
    let surplus = folders.len().saturating_sub(JOBS_KEPT - 1);
    for (_, folder) in folders.into_iter().take(surplus) {
        for file in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if file.path().extension().is_some_and(|extension| extension == EXTENSION) {
                let _ = std::fs::remove_file(file.path());
            }
        }
        let _ = std::fs::remove_dir(&folder);
    }
}

fn put_news(draft: &mut Draft, news: crate::tail::News) {
    draft.names(NameId(news.first_name), &news.names);
    for (thread, name) in &news.threads {
        draft.thread(*thread, name);
    }
    for (group, ranks) in &news.groups {
        draft.group(*group, ranks);
    }
    for (name, value) in &news.settings {
        draft.setting(name, value);
    }
    draft.records(news.records.into_iter().map(words_to_bytes));
    draft.dropped(news.dropped);
}
