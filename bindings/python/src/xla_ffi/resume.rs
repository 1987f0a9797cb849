//! Threads on which XLA goes on when a collective is done.
//!
//! Whoever fulfils a future of XLA's runs what waited for it: the rest of the backward pass, perhaps. The thread that
//! takes completions from the engine must not do that, or all other collectives would wait for it. So it passes the
//! future on ([`keep`]) to one of a few threads that have nothing else to do, as many as there are processors at most.
//! They are started when they are first needed.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Future;
use crate::op_error::OpError;

/// What has come of a call.
type Done = (Future, Result<(), OpError>);

/// Locked for a moment by the threads here and by those that pass futures on, and never while XLA runs.
static STATE: Mutex<State> = Mutex::new(State { waiting: VecDeque::new(), idle: 0, threads: 0 });

static CHANGED: Condvar = Condvar::new();

struct State {
    /// Futures that nobody has begun with.
    waiting: VecDeque<Done>,
    /// Threads that sleep on `CHANGED`.
    idle: usize,
    threads: usize,
}

/// Fulfils a future on a thread that may run XLA's program.
pub(crate) fn keep(future: Future, result: Result<(), OpError>) {
    let mut state = lock();
    state.waiting.push_back((future, result));
    if state.waiting.len() <= state.idle {
        drop(state);
        CHANGED.notify_one();
        return;
    }
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    if state.threads >= most {
        return;
    }
    state.threads += 1;
    drop(state);
    if std::thread::Builder::new().name("farandole-xla".to_owned()).spawn(work).is_ok() {
        return;
    }
    let mut state = lock();
    state.threads -= 1;
    // Better slowly than never.
    let left = if state.threads == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
    drop(state);
    left.into_iter().for_each(|(future, result)| future.keep(result));
}

/// A thread's life.
fn work() {
    loop {
        let (future, result) = next();
        future.keep(result);
    }
}

fn next() -> Done {
    let mut state = lock();
    loop {
        if let Some(done) = state.waiting.pop_front() {
            return done;
        }
        state.idle += 1;
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
    }
}

fn lock() -> MutexGuard<'static, State> {
    // Valid between any two statements, also if a holder panicked.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
