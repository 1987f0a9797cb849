//! The worker threads of one shift, and the rack where finished steps wait.
//!
//! One lock guards everything that workers and the taker tell each other. A worker takes the next part that nobody has
//! taken. When all parts of the steps that were begun are taken, it begins the next step, if that is less than
//! `prefetch` steps ahead of what the taker has asked for; else it sleeps until the taker comes. Whoever brings the
//! last piece of a step joins it, without the lock, and puts it on the rack. The taker sleeps until its step lies
//! there. Nobody is missed: both sides change the state and ring under the lock.
//!
//! Parts are taken in order, so when one fails all parts before it are in somebody's hands and will be brought; parts
//! behind it are given up.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use farandole_trace::event::Phase;

use super::Craft;

type Made<C> = Result<<C as Craft>::Made, <C as Craft>::Error>;
type Piece<C> = Result<<C as Craft>::Piece, <C as Craft>::Error>;

/// A part of a step, by its number.
struct Job<C: Craft> {
    step: usize,
    number: usize,
    part: C::Part,
}

/// A step of which some parts are not made.
struct Begun<C: Craft> {
    /// By the parts' numbers.
    pieces: Vec<Option<Piece<C>>>,
    /// Parts that somebody will still bring.
    missing: usize,
}

struct Rack<C: Craft> {
    /// The first step that nobody has begun.
    next: usize,
    /// Workers may begin steps before this one.
    limit: usize,
    /// Parts of begun steps that nobody has taken, in order.
    untaken: VecDeque<Job<C>>,
    begun: BTreeMap<usize, Begun<C>>,
    ready: BTreeMap<usize, Made<C>>,
    /// Something has failed: what comes behind it is not wanted.
    failed: bool,
}

impl<C: Craft> Rack<C> {
    /// A part of this step has failed: nothing behind it is wanted.
    fn give_up_behind(&mut self, step: usize) {
        self.failed = true;
        let of_step = self.untaken.iter().filter(|job| job.step == step).count();
        self.untaken.clear();
        self.begun.split_off(&(step + 1));
        if let Some(begun) = self.begun.get_mut(&step) {
            begun.missing -= of_step;
        }
    }
}

struct Shared<C: Craft> {
    craft: Arc<C>,
    end: usize,
    rack: Mutex<Rack<C>>,
    /// Rung when workers may begin more steps, or are to end.
    more: Condvar,
    /// Rung when a step lies on the rack.
    made: Condvar,
    /// Set once, when the shift is dropped; workers look at it between samples, without the lock.
    over: AtomicBool,
}

impl<C: Craft> Shared<C> {
    fn rack(&self) -> MutexGuard<'_, Rack<C>> {
        // Nothing that panics runs under this lock.
        self.rack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each worker does.
    fn work(&self) {
        let mut desk = C::Desk::default();
        while let Some(Job { step, number, part }) = self.take_part() {
            let _phase = self.craft.recorder().map(|recorder| recorder.phase(Phase::InputWork));
            let made = self.craft.make(step, part, &mut desk, &|| !self.over.load(Ordering::Relaxed));
            // Nothing was made because nobody wants it any more.
            let Some(piece) = made.transpose() else { return };
            let Some(pieces) = self.bring(step, number, piece) else { continue };
            let made = pieces.and_then(|pieces| self.craft.join(step, pieces));
            let mut rack = self.rack();
            rack.failed |= made.is_err();
            rack.ready.insert(step, made);
            self.made.notify_one();
        }
    }

    /// The next part for a worker, or none when all are taken, something has failed or the shift is over.
    fn take_part(&self) -> Option<Job<C>> {
        let mut rack = self.rack();
        loop {
            if self.over.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = rack.untaken.pop_front() {
                return Some(job);
            }
            if rack.failed || rack.next >= self.end {
                return None;
            }
            if rack.next < rack.limit {
                // Workers that slept were all woken when the limit rose, and find the parts that are left.
                self.begin_step(&mut rack);
                continue;
            }
            let asleep = Instant::now();
            rack = self.more.wait(rack).unwrap_or_else(PoisonError::into_inner);
            self.craft.note_idle(asleep.elapsed());
        }
    }

    fn begin_step(&self, rack: &mut Rack<C>) {
        let step = rack.next;
        rack.next += 1;
        let parts = self.craft.cut(step);
        rack.begun.insert(step, Begun { pieces: parts.iter().map(|_| None).collect(), missing: parts.len() });
        let jobs = parts.into_iter().enumerate().map(|(number, part)| Job { step, number, part });
        rack.untaken.extend(jobs);
    }

    /// Takes a piece in. If it is the last one of its step, all pieces come out, or the first error among them.
    fn bring(&self, step: usize, number: usize, piece: Piece<C>) -> Option<Result<Vec<C::Piece>, C::Error>> {
        let mut rack = self.rack();
        // A step behind one that has failed is not kept.
        let begun = rack.begun.get_mut(&step)?;
        let failed = piece.is_err();
        begun.pieces[number] = Some(piece);
        begun.missing -= 1;
        if failed {
            rack.give_up_behind(step);
        }
        if rack.begun.get(&step)?.missing > 0 {
            return None;
        }
        let begun = rack.begun.remove(&step)?;
        drop(rack);
        // Parts that were given up lie behind the first error.
        Some(begun.pieces.into_iter().flatten().collect())
    }
}

/// See the module's text.
pub(super) struct Crew<C: Craft> {
    shared: Arc<Shared<C>>,
    prefetch: usize,
    threads: Vec<JoinHandle<()>>,
}

impl<C: Craft> Crew<C> {
    /// Starts so many workers on these steps. Fewer do if the system gives no more; none is an error.
    pub(super) fn start(
        craft: Arc<C>,
        steps: Range<usize>,
        workers: usize,
        prefetch: usize,
    ) -> Result<Crew<C>, C::Error> {
        let rack = Rack {
            next: steps.start,
            limit: steps.start.saturating_add(prefetch),
            untaken: VecDeque::new(),
            begun: BTreeMap::new(),
            ready: BTreeMap::new(),
            failed: false,
        };
        let shared = Arc::new(Shared {
            craft,
            end: steps.end,
            rack: Mutex::new(rack),
            more: Condvar::new(),
            made: Condvar::new(),
            over: AtomicBool::new(false),
        });
        let mut crew = Crew { shared, prefetch, threads: Vec::with_capacity(workers) };
        for worker in 0..workers {
            let shared = Arc::clone(&crew.shared);
            let thread = std::thread::Builder::new().name(format!("{} {worker}", shared.craft.thread_name()));
            match thread.spawn(move || shared.work()) {
                Ok(thread) => crew.threads.push(thread),
                Err(error) if crew.threads.is_empty() => return Err(crew.shared.craft.no_thread(error.to_string())),
                Err(_) => break,
            }
        }
        Ok(crew)
    }

    /// Waits for a step, at most until the deadline. Steps are asked for one after the other.
    pub(super) fn take(&mut self, step: usize, deadline: Option<Instant>) -> Option<Made<C>> {
        let shared = &self.shared;
        let mut rack = shared.rack();
        loop {
            if let Some(made) = rack.ready.remove(&step) {
                // This step is in the taker's hands now: one more may be made.
                rack.limit = (step + 1).saturating_add(self.prefetch);
                shared.more.notify_all();
                return Some(made);
            }
            let Some(deadline) = deadline else {
                rack = shared.made.wait(rack).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.checked_duration_since(Instant::now())?;
            rack = shared.made.wait_timeout(rack, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<C: Craft> Drop for Crew<C> {
    fn drop(&mut self) {
        {
            // Under the lock, so that no worker is between looking and falling asleep.
            let _rack = self.shared.rack();
            self.shared.over.store(true, Ordering::Relaxed);
            self.shared.more.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches what its samples throw; nothing else of it can panic.
            let _ = thread.join();
        }
    }
}
