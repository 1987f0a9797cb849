//! Where the program is while it is in no phase: looks at the Python stack, for the trace.
//!
//! A front end that marks phases has the thread that trains call [`watch_own_code`]. From then on, as long as a trace
//! of the whole run is kept, a thread of ours wakes up every [`PERIOD`]; if the watched thread is in no phase and waits
//! for no collective, it takes the interpreter's lock, asks `_stacks.place` where that thread is, and records the
//! answer. Whoever is in a phase pays nothing but the counting of phases.
//!
//! **The interpreter's lock** is held for one look, some ten microseconds. A thread in native code may keep it from us;
//! the look then comes when that code returns, still at the line that called it, and stands for all the time since the
//! look before.
//!
//! **Shutdown:** what [`take_sampler`] gives is called, with the lock released, before the job ends and so before the
//! interpreter does. It tells the thread and waits for it; the thread also counts among those that an ending
//! interpreter waits for (`waiting`), and does not try for the lock of one that is ending.
//!
//! **Fork:** a child has no such thread. It marks no phases (`records`) and never stops one, because its `shutdown`
//! does nothing. `SAMPLER` is locked by threads that hold the interpreter's lock and for a moment only, so no child
//! inherits it locked.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole::{Recorder, ThreadId};
use pyo3::prelude::*;

use crate::records::recording;
use crate::waiting::Waiting;

/// Forty looks in a second: a minute of training shows what takes a hundredth of the time, and the looks themselves
/// cost a thousandth.
const PERIOD: Duration = Duration::from_millis(25);

/// The phases of the watched thread. Written by that thread, read by the sampler.
static WATCHED: Watched =
    Watched { thread: AtomicU64::new(0), open: AtomicU64::new(0), outside_since_ns: AtomicU64::new(0) };

static SAMPLER: Mutex<Option<Sampler>> = Mutex::new(None);

struct Watched {
    /// Which thread: the number that [`NUMBER`] has there. Zero: none.
    thread: AtomicU64,
    /// Phases that are open on it.
    open: AtomicU64,
    /// When the last of them ended, on [`now_ns`]'s clock. Also tells one stay outside of phases from the next.
    outside_since_ns: AtomicU64,
}

thread_local! {
    /// A number for this thread, if it was ever watched.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The thread that was watched last, for marks that other threads make on its behalf. Locked for a moment only.
static PROGRAM: Mutex<Option<ThreadId>> = Mutex::new(None);

/// The thread that trains, if a front end has said which one that is.
pub(crate) fn program_thread() -> Option<ThreadId> {
    *PROGRAM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to look where this thread, which Python calls `ident`, is while it is in no phase.
#[pyfunction]
pub(crate) fn watch_own_code(ident: u64) {
    // Numbers are given out once in the process.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let Some(job) = recording() else { return };
    *PROGRAM.lock().unwrap_or_else(PoisonError::into_inner) = Some(ThreadId::current());
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    if WATCHED.thread.swap(NUMBER.get(), Ordering::Relaxed) != NUMBER.get() {
        WATCHED.open.store(0, Ordering::Relaxed);
        WATCHED.outside_since_ns.store(now_ns(), Ordering::Relaxed);
    }
    let recorder = Arc::clone(job.world.recorder());
    let mut sampler = lock_sampler();
    let is_there = sampler.as_ref().is_some_and(|sampler| !sampler.thread.is_finished());
    if is_there || !recorder.wants_samples() {
        return;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let looking = Looking { recorder, stop: Arc::clone(&stop), ident, thread: ThreadId::current() };
    let thread = std::thread::Builder::new().name("farandole-sampler".to_owned()).spawn(move || looking.run());
    // Without the thread the trace has no places, and everything else.
    *sampler = thread.ok().map(|thread| Sampler { stop, thread });
}

/// A phase begins on this thread.
pub(crate) fn entered() {
    if NUMBER.get() != 0 && NUMBER.get() == WATCHED.thread.load(Ordering::Relaxed) {
        // No other thread writes it.
        WATCHED.open.store(WATCHED.open.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// A phase ends on this thread.
pub(crate) fn left() {
    if NUMBER.get() != 0 && NUMBER.get() == WATCHED.thread.load(Ordering::Relaxed) {
        // One that had begun before the thread was watched is not counted.
        let open = WATCHED.open.load(Ordering::Relaxed).saturating_sub(1);
        if open == 0 {
            WATCHED.outside_since_ns.store(now_ns(), Ordering::Relaxed);
        }
        WATCHED.open.store(open, Ordering::Relaxed);
    }
}

/// Takes the sampler, if there is one; what comes back ends it within a given time, and is to be called without the
/// interpreter's lock.
pub(crate) fn take_sampler(_py: Python<'_>) -> Option<impl FnOnce(Duration) + Send + use<>> {
    let Sampler { stop, thread } = lock_sampler().take()?;
    WATCHED.thread.store(0, Ordering::Relaxed);
    Some(move |at_most: Duration| {
        stop.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        let deadline = Instant::now() + at_most;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
    })
}

/// What the thread works with.
struct Looking {
    recorder: Arc<Recorder>,
    stop: Arc<AtomicBool>,
    /// The watched thread, as Python calls it.
    ident: u64,
    /// The same thread in traces.
    thread: ThreadId,
}

impl Looking {
    fn run(&self) {
        let mut looked_ns = now_ns();
        loop {
            std::thread::park_timeout(PERIOD);
            if self.stop.load(Ordering::Relaxed) || !self.recorder.wants_samples() {
                return;
            }
            if let Some(outside_since_ns) = self.outside_since()
                && let Some(place) = self.look(outside_since_ns)
            {
                let stands_for_ns = now_ns().saturating_sub(looked_ns.max(outside_since_ns));
                self.recorder.note_sample(self.thread, &place, stands_for_ns);
            }
            looked_ns = now_ns();
        }
    }

    /// Since when the watched thread has been in no phase, if it is in none and waits for no collective.
    fn outside_since(&self) -> Option<u64> {
        let outside = WATCHED.open.load(Ordering::Relaxed) == 0 && self.recorder.blocked_since_ns().is_none();
        outside.then(|| WATCHED.outside_since_ns.load(Ordering::Relaxed))
    }

    /// Where the thread is, if it is still where it was when the look was wanted.
    fn look(&self, outside_since_ns: u64) -> Option<String> {
        let _waiting = Waiting::begin();
        let place = |py: Python<'_>| {
            if self.outside_since() != Some(outside_since_ns) {
                return None;
            }
            // Whatever goes wrong here goes wrong in the user's interpreter, and costs one look.
            let found = py.import("farandole._stacks").and_then(|module| module.call_method1("place", (self.ident,)));
            found.and_then(|found| found.extract::<Option<String>>()).ok().flatten()
        };
        Python::try_attach(place).flatten()
    }
}

/// Nanoseconds on a clock of this process.
fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn lock_sampler() -> MutexGuard<'static, Option<Sampler>> {
    SAMPLER.lock().unwrap_or_else(PoisonError::into_inner)
}
