//! Work that is done ahead of whoever needs it, by a crew of threads, and handed out in order.
//!
//! A [`Craft`] says what is made: the trainer's batches (`loader`) or those of a front end (`feed`). Work comes in
//! numbered *steps*, one batch each. A step is cut into *parts*, which are made by any thread in any order; the pieces
//! are joined when the last of them is there. [`Shift`] is one walk through the steps, with threads (`threads`) or,
//! with no workers, in the thread that asks.
//!
//! **Why parts.** With whole batches, sixteen workers hold sixteen half-made batches before the first one is ready,
//! which then comes after the time that one thread needs for all of it. With parts all workers make the earliest step
//! together: the first batch comes sooner by the number of workers, and two or three steps ahead keep any number of
//! them busy, so that is all the memory it takes. A part is several samples where these are small, so that taking one
//! (a lock, a microsecond) costs nothing beside making it.
//!
//! **Invariant:** what is made does not depend on how many threads there are, nor on how a step was cut. A step that
//! fails, fails with the error of its first part that did; nothing is begun behind a failure, and nobody waits for it.
//! When a shift is dropped, also in the middle, its threads have ended.
//!
//! What is deliberately not here: what a part is, and memory.

mod threads;

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_trace::Recorder;

use threads::Crew;

/// What is made, and how. See the module's text.
pub(crate) trait Craft: Send + Sync + 'static {
    /// What a worker keeps from one part to the next: memory that is used again.
    type Desk: Default;
    /// A part of a step, to be made.
    type Part: Send;
    /// The same, made.
    type Piece: Send;
    /// A whole step.
    type Made: Send;
    /// Why there is none.
    type Error: Send;

    /// Cuts a step into parts, at least one. Called under the crew's lock: it is quick, and does not panic.
    fn cut(&self, step: usize) -> Vec<Self::Part>;

    /// Makes one part, or nothing if it is not wanted any more, which is asked after each sample. A panic is an error.
    fn make(
        &self,
        step: usize,
        part: Self::Part,
        desk: &mut Self::Desk,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Self::Piece>, Self::Error>;

    /// Puts the pieces of a step together, in the order of the parts. A panic is an error.
    fn join(&self, step: usize, pieces: Vec<Self::Piece>) -> Result<Self::Made, Self::Error>;

    /// What threads that work are called.
    fn thread_name(&self) -> &'static str;

    /// Where the work of worker threads is recorded.
    fn recorder(&self) -> Option<&Arc<Recorder>>;

    /// A worker had nothing to do for so long, because enough was made ahead.
    fn note_idle(&self, _time: Duration) {}

    /// The error for a crew without a single thread, with the system's words.
    fn no_thread(&self, cause: String) -> Self::Error;
}

/// One walk through the steps of a craft, in order. Ends with the first error.
pub(crate) struct Shift<C: Craft> {
    state: State<C>,
    next: usize,
    end: usize,
}

enum State<C: Craft> {
    Alone(Arc<C>, Box<C::Desk>),
    Crew(Crew<C>),
    Failed(C::Error),
    Over,
}

impl<C: Craft> Shift<C> {
    /// Begins. Workers start at once, and are at most `prefetch` steps ahead of what was asked for.
    pub(crate) fn begin(craft: Arc<C>, steps: Range<usize>, workers: usize, prefetch: usize) -> Shift<C> {
        let state = if workers == 0 || steps.is_empty() {
            State::Alone(craft, Box::default())
        } else {
            match Crew::start(craft, steps.clone(), workers, prefetch.max(1)) {
                Ok(crew) => State::Crew(crew),
                Err(error) => State::Failed(error),
            }
        };
        Shift { state, next: steps.start, end: steps.end }
    }

    /// The step that is asked for next.
    pub(crate) fn next_step(&self) -> usize {
        self.next
    }

    /// How many steps there may still be.
    pub(crate) fn left(&self) -> usize {
        self.end.saturating_sub(self.next)
    }

    /// The next step, or none when all are over. With a limit of time, [`Taken::NotYet`] says that it has passed; with
    /// no workers the step is made here, however long it takes.
    pub(crate) fn take(&mut self, limit: Option<Duration>) -> Taken<C> {
        if self.next >= self.end && !matches!(self.state, State::Failed(_)) {
            // Threads have nothing left to do and end now, not only when the shift is dropped.
            self.state = State::Over;
            return Taken::Over;
        }
        let step = self.next;
        let made = match std::mem::replace(&mut self.state, State::Over) {
            State::Alone(craft, mut desk) => {
                let made = make_alone(&*craft, step, &mut desk);
                self.state = State::Alone(craft, desk);
                made
            }
            State::Crew(mut crew) => {
                let made = crew.take(step, limit.map(|limit| Instant::now() + limit));
                self.state = State::Crew(crew);
                let Some(made) = made else { return Taken::NotYet };
                made
            }
            State::Failed(error) => Err(error),
            State::Over => return Taken::Over,
        };
        self.next += 1;
        if made.is_err() {
            self.state = State::Over;
        }
        Taken::Made(made)
    }
}

/// What [`Shift::take`] found.
pub(crate) enum Taken<C: Craft> {
    Made(Result<C::Made, C::Error>),
    NotYet,
    Over,
}

/// A step, made in this thread.
fn make_alone<C: Craft>(craft: &C, step: usize, desk: &mut C::Desk) -> Result<C::Made, C::Error> {
    let parts = craft.cut(step).into_iter();
    let always = || true;
    let pieces = parts.map(|part| {
        let made = craft.make(step, part, desk, &always)?;
        Ok(made.expect("invariant: nobody tells a thread that works for itself to stop"))
    });
    let pieces: Vec<C::Piece> = pieces.collect::<Result<_, C::Error>>()?;
    craft.join(step, pieces)
}

/// Does something, and gives back the words of a panic if it ends in one. Whatever the panic left half done must not be
/// used afterwards.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| words_of(panic.as_ref()))
}

/// What a panic said.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}

/// How many samples a part of a step has: so few that every worker gets some of a step, and so many, between the two
/// limits, that taking parts costs nothing beside making them.
pub(crate) fn part_samples(batch: usize, workers: usize, least: usize, most: usize) -> usize {
    batch.div_ceil(workers.max(1)).clamp(least, most)
}

#[cfg(test)]
mod tests;
