//! What this interpreter's threads are doing, found out while the program is stuck.
//!
//! The caller is a thread of the engine that must have an answer within [`ANSWER_TIMEOUT`]. Python code needs the
//! interpreter's lock, and nobody can say how long that takes: a thread inside native code may hold it for hours. So
//! another thread is sent for the lock, and what it finds counts if it is back in time. If it is not, no thread of the
//! interpreter can be running Python code, since such a thread gives the lock away every few milliseconds; what they
//! were doing when they stopped can then be read without the lock, as `faulthandler` does.
//!
//! One thread at a time waits for the lock, and it is counted among those that an ending interpreter waits for
//! (`waiting`).

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farandole::stall::{Interpreter, Stacks, ThreadStack};
use pyo3::prelude::*;

use crate::waiting::Waiting;

/// How long the interpreter has to answer. Threads that run Python code give the lock away every few milliseconds, also
/// when asked by many.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of a source line is shown.
const MAX_CHARS: usize = 200;

/// Whether a thread waits for the interpreter's lock on behalf of us. Set by the thread that starts it, cleared by it.
static ASKING: AtomicBool = AtomicBool::new(false);

/// How this process can be looked at from outside, if it can. Prepared once: signal handlers stay.
static OUTSIDE: OnceLock<Option<Outside>> = OnceLock::new();

/// See the module's text.
struct Outside {
    signal: i32,
    descriptor: i32,
    /// The number that Python has for its main thread.
    main_thread: u64,
    /// One look at a time.
    looking: Mutex<()>,
}

/// File, line and function of a call.
type Call = (String, u64, String);

/// How the engine asks this interpreter.
pub(crate) fn prepare(py: Python<'_>) -> Stacks {
    OUTSIDE.get_or_init(|| {
        let watched = module(py).and_then(|module| module.call_method0("watch_from_outside"));
        let (signal, descriptor, main_thread) = watched.ok()?.extract().ok()?;
        Some(Outside { signal, descriptor, main_thread, looking: Mutex::new(()) })
    });
    Stacks::new(ask)
}

fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("farandole._stacks")
}

fn ask() -> Interpreter {
    let asked = Instant::now();
    let (sender, answers) = sync_channel(2);
    if !ASKING.swap(true, Ordering::Relaxed) {
        let started = std::thread::Builder::new().name("farandole-stacks".to_owned()).spawn(move || {
            let _waiting = Waiting::begin();
            Python::attach(|py| {
                // Whatever goes wrong here goes wrong in the user's interpreter, and costs a part of a report.
                let _ = tell(py, &sender);
            });
            ASKING.store(false, Ordering::Relaxed);
        });
        if started.is_err() {
            ASKING.store(false, Ordering::Relaxed);
        }
    } else {
        // The thread that was sent for an earlier question has not come back.
        drop(sender);
    }
    let mut found = None;
    while let Ok(threads) = answers.recv_timeout(ANSWER_TIMEOUT.saturating_sub(asked.elapsed())) {
        found = Some(threads);
    }
    found.map_or_else(|| Interpreter::Silent(asked.elapsed(), look_from_outside()), Interpreter::Answered)
}

/// Tells what the threads are doing: first what is at hand, then the same with the lines of the program.
fn tell(py: Python<'_>, sender: &SyncSender<Vec<ThreadStack>>) -> PyResult<()> {
    let module = module(py)?;
    let frames = module.call_method0("frames")?;
    let threads: Vec<(String, Vec<Call>)> = frames.extract()?;
    let line = |(file, line, function): Call| format!("{file}:{line} in {function}");
    let plain = threads.into_iter().map(|(name, calls)| thread(&name, calls.into_iter().map(line)));
    let _ = sender.send(plain.collect());
    let described: Vec<(String, Vec<String>)> = module.call_method1("with_sources", (frames,))?.extract()?;
    let _ = sender.send(described.into_iter().map(|(name, lines)| thread(&name, lines.into_iter())).collect());
    Ok(())
}

fn thread(name: &str, frames: impl Iterator<Item = String>) -> ThreadStack {
    let cut = |line: String| line.chars().take(MAX_CHARS).collect::<String>().into();
    ThreadStack { name: name.into(), frames: frames.map(cut).collect() }
}

/// What `faulthandler` sees. The signal is raised in this thread and handled in it before the call returns, so no other
/// thread is disturbed.
fn look_from_outside() -> Vec<ThreadStack> {
    let Some(Some(outside)) = OUTSIDE.get() else { return Vec::new() };
    let _looking = outside.looking.lock().unwrap_or_else(PoisonError::into_inner);
    // A descriptor of our own for the same memory: faulthandler's goes on from where it was.
    let Ok(mut file) = File::open(format!("/proc/self/fd/{}", outside.descriptor)) else { return Vec::new() };
    let before = file.metadata().map_or(0, |file| file.len());
    let mut written = String::new();
    let seen = signal_hook::low_level::raise(outside.signal)
        .and_then(|()| file.seek(SeekFrom::Start(before)))
        .and_then(|_| file.read_to_string(&mut written));
    if seen.is_ok() { threads_in(&written, outside.main_thread) } else { Vec::new() }
}

/// Reads what `faulthandler` writes: for each thread a line with its number, then its calls, the innermost first.
fn threads_in(text: &str, main_thread: u64) -> Vec<ThreadStack> {
    let mut threads: Vec<(bool, ThreadStack)> = Vec::new();
    for line in text.lines() {
        let heading = line.strip_prefix("Thread 0x").or_else(|| line.strip_prefix("Current thread 0x"));
        if let Some(rest) = heading {
            let number = rest.split(|letter: char| !letter.is_ascii_hexdigit()).next().unwrap_or_default();
            let is_main = u64::from_str_radix(number, 16) == Ok(main_thread);
            let name = if is_main { "MainThread".to_owned() } else { format!("thread 0x{number}") };
            threads.push((is_main, thread(&name, std::iter::empty())));
        } else if let (Some((_, thread)), Some(call)) = (threads.last_mut(), call_in(line)) {
            thread.frames.insert(0, call.chars().take(MAX_CHARS).collect::<String>().into());
        }
    }
    threads.retain(|(_, thread)| !thread.frames.is_empty());
    threads.sort_by_key(|(is_main, _)| !is_main);
    threads.into_iter().map(|(_, thread)| thread).collect()
}

/// `  File "train.py", line 3 in main`, in our words.
fn call_in(line: &str) -> Option<String> {
    let (file, rest) = line.trim().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    Some(format!("{file}:{number} in {function}"))
}
