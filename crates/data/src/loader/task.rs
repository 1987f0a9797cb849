//! What a worker pool does: a batch is cut into parts, any thread makes any part, and the parts are joined.
//!
//! **Why parts.** If each of sixteen workers made a whole batch, the first batch would be ready after the time that one
//! thread needs for all of it, and sixteen half-made batches would take memory meanwhile. All workers make parts of the
//! earliest step instead: the first batch is ready sooner by the number of workers, and two or three steps ahead keep
//! any number of workers busy. A part has several samples where samples are small, so that taking one (a lock, a
//! microsecond) costs nothing beside making it.
//!
//! **Invariant:** a batch depends neither on the number of threads nor on how its step was cut.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use farandole_trace::Recorder;

/// What is made, and how. See the module's text.
pub(crate) trait BatchTask: Send + Sync + 'static {
    /// Memory that a worker reuses from one part to the next.
    type Scratch: Default;
    /// A part of a step, to be made.
    type Part: Send;
    /// A part that is made.
    type Piece: Send;
    /// A whole step.
    type Batch: Send;
    /// Why there is none.
    type Error: Send;

    /// Cuts a step into parts, at least one. Called under the lock of the reorder buffer: it is quick and does not
    /// panic.
    fn cut(&self, step: usize) -> Vec<Self::Part>;

    /// Makes one part, or nothing if it is not wanted any more, which is asked after each sample. A panic is an error.
    fn make(
        &self,
        step: usize,
        part: Self::Part,
        scratch: &mut Self::Scratch,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Self::Piece>, Self::Error>;

    /// Joins the pieces of a step, in the order of the parts. A panic is an error.
    fn join(&self, step: usize, pieces: Vec<Self::Piece>) -> Result<Self::Batch, Self::Error>;

    /// Where the work of worker threads is recorded.
    fn recorder(&self) -> Option<&Arc<Recorder>>;

    /// A worker has waited this long, because enough batches were made ahead.
    fn note_idle(&self, _time: Duration) {}

    /// The error for a pool without a single thread, with the system's message.
    fn no_thread(&self, cause: String) -> Self::Error;
}

/// Makes a step in this thread.
pub(super) fn make_here<T: BatchTask>(task: &T, step: usize, scratch: &mut T::Scratch) -> Result<T::Batch, T::Error> {
    let always = || true;
    let pieces = task.cut(step).into_iter().map(|part| {
        let made = task.make(step, part, scratch, &always)?;
        Ok(made.expect("invariant: a thread that works for itself is not told to stop"))
    });
    let pieces: Vec<T::Piece> = pieces.collect::<Result<_, T::Error>>()?;
    task.join(step, pieces)
}

/// Runs `work`, and returns the message of a panic if it ends in one. What the panic left half done must not be used
/// afterwards.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
    })
}

/// The number of samples of a part: few enough that every worker gets some of a step, within the two limits.
pub(crate) fn part_samples(batch: usize, workers: usize, (least, most): (usize, usize)) -> usize {
    batch.div_ceil(workers.max(1)).clamp(least, most)
}
