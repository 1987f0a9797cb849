//! The thread that writes traces and timelines from a rank's recorder to files.
//!
//! A rank has at most one trace writer. It sleeps until it is woken and, while it writes a trace or a timeline, reads
//! the recorder periodically. It holds no lock that others wait for, so collectives go on however long the disk takes.
//! It can:
//!
//! - *Trace* the whole run into a folder: it appends what is new, so a rank that is killed leaves a trace up to that
//!   moment.
//! - *Dump* what is in memory to a file, on a signal, an abort or a stall. The file appears whole or not at all.
//! - Write a *timeline* while the rank runs, between [`TraceWriter::start_timeline`] and
//!   [`TraceWriter::stop_timeline`].
//!
//! A file that cannot be written is given up with one line on standard error; the run goes on.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use signal_hook::SigId;

use crate::dump_notice::DumpNotice;
use crate::machine;
use crate::private_folder::{PrivateFolder, TemporaryFolder};
use crate::recorder::{DumpReason, Recorder};
use crate::tail::Tail;
use crate::timeline::Cycles;
use crate::timeline::live::LiveTimeline;
use crate::trace_files::{FallbackFolder, RunTrace, dump_all, remove_older, write};

/// How often a timeline is written: programs read it while it is written, and expect what they did a tenth of a second
/// ago.
const TIMELINE_PERIOD: Duration = Duration::from_millis(20);

/// How often a trace is written. A killed rank loses what it recorded since.
const TRACE_PERIOD: Duration = Duration::from_millis(100);

/// How long a caller waits for the thread to begin or end a timeline, or to end. A disk that takes longer is broken,
/// and a rank must be able to leave.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Records of each ring in a fallback dump: 1 MiB. A quarter of what a driver's ring holds by default, and still
/// tens of iterations of a large model.
const LATEST_RECORDS: u64 = 1 << 15;

/// What a trace writer does from the start.
#[derive(Clone, Debug, Default)]
pub struct WriterOptions {
    /// Write a trace of the whole run to this folder.
    pub trace_in: Option<PathBuf>,
    /// Dump what is in memory to this folder on an abort or a stall.
    pub dump_in: Option<PathBuf>,
    /// Where the latest records go on an abort or a stall without `dump_in`.
    pub fallback: Option<FallbackFolder>,
    /// Dump what is in memory when this signal comes: to one of the folders above or, without any, to the folder for
    /// temporary files.
    pub signal: Option<i32>,
    /// Begin a timeline at once.
    pub timeline: Option<(PathBuf, Cycles)>,
}

/// See the module's text. Dropping it writes what is left and ends it.
#[derive(Debug)]
pub struct TraceWriter {
    queue: Arc<CommandQueue>,
    thread: Option<JoinHandle<()>>,
    signals: Vec<SigId>,
    pid: u32,
}

/// Commands for the thread, and the bell that wakes it.
#[derive(Debug)]
struct CommandQueue {
    commands: Mutex<VecDeque<Command>>,
    bell: UnixStream,
    signalled: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Command {
    StartTimeline { path: PathBuf, cycles: Cycles, reply: SyncSender<io::Result<()>> },
    StopTimeline { reply: SyncSender<io::Result<()>> },
    Dump(DumpReason),
    End { reply: SyncSender<io::Result<()>> },
}

impl CommandQueue {
    fn push(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        // A full socket wakes the thread as well.
        let _ = (&self.bell).write(&[1]);
    }
}

impl TraceWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread or its bell cannot be made, or a file that it is to write from the start.
    pub fn start(recorder: &Arc<Recorder>, options: WriterOptions) -> io::Result<TraceWriter> {
        let (bell, wake) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let signalled = Arc::new(AtomicBool::new(false));
        let queue = Arc::new(CommandQueue { commands: Mutex::default(), bell, signalled });
        let mut signals = Vec::new();
        if let Some(signal) = options.signal {
            signals.push(signal_hook::flag::register(signal, Arc::clone(&queue.signalled))?);
            signals.push(signal_hook::low_level::pipe::register(signal, queue.bell.try_clone()?)?);
        }
        let run_trace = options.trace_in.as_ref().map(|folder| RunTrace::create(folder, recorder)).transpose()?;
        let timeline = options.timeline.as_ref();
        let timeline = timeline.map(|(path, cycles)| LiveTimeline::create(path, *cycles, recorder)).transpose()?;
        if run_trace.is_some() {
            recorder.want_samples();
        }
        recorder.on_dump_request({
            let queue = Arc::clone(&queue);
            move |occasion| queue.push(Command::Dump(occasion))
        });
        let thread = WriterThread {
            recorder: Arc::clone(recorder),
            queue: Arc::clone(&queue),
            wake,
            options,
            run_trace,
            timeline,
            signal_folder: None,
            core_wait_ns: machine::core_wait_ns(),
        };
        let thread = std::thread::Builder::new().name("farandole-writer".to_owned()).spawn(move || thread.run())?;
        Ok(TraceWriter { queue, thread: Some(thread), signals, pid: std::process::id() })
    }

    /// Begins a timeline in this file, with what is recorded from now on. One that is being written ends.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn start_timeline(&self, path: &Path, cycles: Cycles) -> io::Result<()> {
        let (reply, receiver) = sync_channel(1);
        self.queue.push(Command::StartTimeline { path: path.to_owned(), cycles, reply });
        reply_of(&receiver)
    }

    /// Ends the timeline, if there is one; everything that was recorded until now is in its file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn stop_timeline(&self) -> io::Result<()> {
        let (reply, receiver) = sync_channel(1);
        self.queue.push(Command::StopTimeline { reply });
        reply_of(&receiver)
    }
}

/// The reply of the thread, if it comes in time.
fn reply_of(receiver: &Receiver<io::Result<()>>) -> io::Result<()> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the thread that writes files does not answer");
    receiver.recv_timeout(REPLY_TIMEOUT).unwrap_or_else(|_| Err(late()))
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        for signal in self.signals.drain(..) {
            signal_hook::low_level::unregister(signal);
        }
        let Some(thread) = self.thread.take() else { return };
        if self.pid != std::process::id() {
            // This process was forked; the thread is not in it.
            std::mem::forget(thread);
            return;
        }
        let (reply, receiver) = sync_channel(1);
        self.queue.push(Command::End { reply });
        // A thread that hangs in a write is left behind.
        if reply_of(&receiver).is_ok() {
            let _ = thread.join();
        }
    }
}

/// The thread's state.
struct WriterThread {
    recorder: Arc<Recorder>,
    queue: Arc<CommandQueue>,
    wake: UnixStream,
    options: WriterOptions,
    run_trace: Option<RunTrace>,
    timeline: Option<LiveTimeline>,
    /// Made by the first signal without another folder.
    signal_folder: Option<PathBuf>,
    /// How long the main thread had waited for a core when tracing began.
    core_wait_ns: Option<u64>,
}

impl WriterThread {
    fn run(mut self) {
        loop {
            self.sleep();
            if self.queue.signalled.swap(false, Ordering::Relaxed) {
                self.dump("signal");
            }
            self.follow();
            loop {
                let command = self.queue.commands.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                match command {
                    None => break,
                    Some(Command::End { reply }) => {
                        self.end();
                        let _ = reply.send(Ok(()));
                        return;
                    }
                    Some(command) => self.execute(command),
                }
            }
        }
    }

    /// Sleeps until the bell rings or the period is over.
    fn sleep(&mut self) {
        let period = match (&self.timeline, &self.run_trace) {
            (Some(_), _) => Some(TIMELINE_PERIOD),
            (None, Some(_)) => Some(TRACE_PERIOD),
            (None, None) => None,
        };
        // Without a timeout on the socket, poll it.
        if self.wake.set_read_timeout(period).is_err() {
            std::thread::sleep(TRACE_PERIOD);
            return;
        }
        let mut rings = [0; 64];
        let _ = self.wake.read(&mut rings);
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::StartTimeline { path, cycles, reply } => {
                // Completes the timeline that ends.
                self.follow();
                let begun = LiveTimeline::create(&path, cycles, &self.recorder).map(|live| self.timeline = Some(live));
                let _ = reply.send(begun);
            }
            Command::StopTimeline { reply } => {
                // Commands may come together: what was recorded between them has not been written yet.
                self.follow();
                self.timeline = None;
                let _ = reply.send(Ok(()));
            }
            Command::Dump(DumpReason::Abort) => self.dump("trouble"),
            Command::Dump(DumpReason::Stall) => self.dump("stall"),
            Command::End { .. } => {}
        }
    }

    /// Writes what is new to whatever is being written.
    fn follow(&mut self) {
        let rank = self.recorder.header().rank;
        if let Some(run_trace) = &mut self.run_trace
            && let Err(error) = run_trace.follow(&self.recorder)
        {
            let path = run_trace.path.display();
            log::warn!("rank {rank}: writing the trace {path}: {error}; it ends here");
            self.run_trace = None;
            self.recorder.want_no_samples();
        }
        if let Some(timeline) = &mut self.timeline
            && let Err(error) = timeline.follow(&self.recorder)
        {
            log::warn!("rank {rank}: writing the timeline: {error}; it ends here");
            self.timeline = None;
        }
    }

    /// Dumps what is in memory, unless a trace of the whole run is written.
    fn dump(&mut self, occasion: &str) {
        if self.run_trace.is_some() {
            return;
        }
        let rank = self.recorder.header().rank;
        let (folder, saved, announces) = match (&self.options.dump_in, &self.options.fallback) {
            (Some(folder), _) => (folder.clone(), dump_all(&self.recorder, folder, occasion), true),
            // A signal asks for all there is.
            (None, Some(fallback)) if occasion == "signal" => {
                let saved = PrivateFolder::create(&fallback.folder)
                    .and_then(|_| dump_all(&self.recorder, &fallback.folder, occasion));
                (fallback.folder.clone(), saved, true)
            }
            (None, None) if occasion == "signal" => {
                let saved = self.folder_for_signals().and_then(|folder| dump_all(&self.recorder, &folder, occasion));
                (std::env::temp_dir(), saved, true)
            }
            (None, Some(fallback)) => {
                let saved = PrivateFolder::create(&fallback.folder).and_then(|_| {
                    write(&self.recorder, Tail::latest(&self.recorder, LATEST_RECORDS), &fallback.folder, occasion)
                });
                remove_older(fallback);
                (fallback.folder.clone(), saved, fallback.announces)
            }
            (None, None) => return,
        };
        match saved {
            Ok(path) if announces => log::warn!("{}", DumpNotice { rank, path: &path, occasion }),
            Ok(_) => {}
            Err(error) => {
                log::warn!("rank {rank}: saving a trace in {}: {error}", folder.display());
            }
        }
    }

    /// The folder of dumps on a signal where the options name none. It outlives the process.
    fn folder_for_signals(&mut self) -> io::Result<PathBuf> {
        if self.signal_folder.is_none() {
            self.signal_folder = Some(TemporaryFolder::new("farandole-trace")?.keep());
        }
        Ok(self.signal_folder.clone().expect("invariant: it was made above"))
    }

    fn end(mut self) {
        self.recorder.want_no_samples();
        if let Some((before_ns, now_ns)) = self.core_wait_ns.zip(machine::core_wait_ns()) {
            self.recorder.note_setting(machine::CORE_WAIT, &now_ns.saturating_sub(before_ns).to_string());
        }
        self.follow();
        if let Some(run_trace) = &mut self.run_trace
            && let Err(error) = run_trace.end()
        {
            let path = run_trace.path.display();
            log::warn!("rank {}: ending the trace {path}: {error}", self.recorder.header().rank);
        }
    }
}
