//! Who drives: the driver lock.
//!
//! All work of the engine (agreeing, moving bytes, completing tickets) is done by [`Driver::turn`], and the driver sits
//! in one mutex: the *driver lock*. Whoever holds it drives. There are two kinds of holders.
//!
//! The *worker* is a thread of the engine. It makes sure that work goes on when no caller cares. It takes the driver
//! lock, turns until nothing moves, releases the driver lock and only then sleeps on the [`Waiter`] (*listens*).
//!
//! A *caller* that waits for a ticket has nothing better to do, so it takes the driver lock if it is free and drives
//! itself until its ticket is done. A small blocking collective therefore runs from submission to result on the
//! caller's own thread: no thread is woken, no core changes hands. If the driver lock is taken, the caller sleeps on
//! its ticket.
//!
//! The rule: **whoever releases the driver lock while there is work left, or while the command queue is
//! not empty, wakes the worker.** The scenarios, by name:
//!
//! - *blocking call*: the worker listens. The caller pushes its request without ringing, takes the driver lock, drives,
//!   finds its ticket done, finds no work left, releases the driver lock. The worker never woke up.
//! - *fire and forget*: a caller pushes and goes away. The command queue says whether the driver is asleep; if so, the
//!   push rings the bell, the worker wakes and drives.
//! - *a thousand pushes*: the first push rings and the worker wakes. If it drove at once, it would take the core and
//!   the driver lock from the caller that is still pushing and will soon wait; and it would fall asleep again in the
//!   middle of the pushes and be rung for each of them. So it *naps* when it finds something in the command queue, and
//!   again after taking something in: it sleeps [`NAP`] without saying that it is asleep. Pushes during a nap do not
//!   ring; a caller that waits drives at once.
//! - *two waiting callers*: one drives, one sleeps on its ticket. If the first is done first, work is left, and the
//!   worker takes over.
//! - *just too late*: a caller pushes quietly, and the holder has already looked into the command queue for the last
//!   time but not yet released the driver lock. The caller fails to take the driver lock; the push told it that the
//!   driver was asleep, so it rings, and the worker takes over.
//! - *no further request*: the thread that made the last request waits. What its request lacks in a learned order will
//!   not come, so the driver is told (`Command::Awaits`, or directly by a caller that drives), and the ranks negotiate
//!   at once. A thread that waits while another one submits says nothing.
//! - *stolen edge*: the waiter reports an event once, to one thread. The worker listens while a caller drives and
//!   sleeps in the same waiter; the event wakes the worker. It finds the driver lock taken, passes the event on by
//!   ringing the bell, and *stands aside* for [`ASIDE`] instead of listening, so that this does not happen again for
//!   each event. When its time is up it tries the driver lock; while a caller drives on, it stands aside again.
//!
//! Not here: what a turn does (`driver`), and how a value gets to the caller (`completion`).

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use farandole_plan::GroupId;
use farandole_trace::clock::now_ns;
use farandole_trace::event::{NameId, ThreadId};
use farandole_trace::{Event, Recorder};
use farandole_transport::{Bell, Waiter};

use crate::command_queue::{After, CommandQueue};
use crate::completion::Slot;
use crate::driver::{Command, Driver, Turn};
use crate::exec::backoff::{DriverBackoff, Next, Wait};
use crate::exec::crowd::Crowd;
use crate::group::Look;

/// Length of the worker's nap after it has taken something in. About the time in which a script submits the gradients
/// of a small model; it is also the delay of a request that nobody waits for.
const NAP: Duration = Duration::from_micros(100);

/// How long the worker stands aside while a caller drives. After a caller that leaves no work, nobody listens for this
/// long: a peer's death is noticed that much later. Shorter would wake the worker for nothing more often.
const ASIDE: Duration = Duration::from_millis(1);

/// The longest sleep. Everything that must be noticed wakes us; this bounds the damage of a wake-up that was lost
/// outside our hands.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// What a caller waits for.
pub(crate) trait Awaited {
    /// Whether it is there.
    fn is_fulfilled(&self) -> bool;

    /// Sleeps until it is there or the deadline has passed, and says which.
    fn sleep(&self, deadline: Option<Instant>) -> bool;

    /// The request, if it is the outcome of one.
    fn request(&self) -> Option<(GroupId, &Arc<str>)> {
        None
    }
}

impl<T> Awaited for Slot<T> {
    fn is_fulfilled(&self) -> bool {
        Slot::is_fulfilled(self)
    }

    fn sleep(&self, deadline: Option<Instant>) -> bool {
        Slot::sleep(self, deadline)
    }
}

/// The driver and the ways to it.
pub(crate) struct DriverLock {
    driver: Mutex<Driver>,
    commands: CommandQueue<Command>,
    waiter: Arc<Waiter>,
    bell: Bell,
    worker: OnceLock<Thread>,
    backoff: DriverBackoff,
    crowd: Crowd,
    /// The thread that made the last request. When it waits, no further request comes until its own is done; the
    /// agreement need not wait for one. A thread that reads this while another one submits reads either: the agreement
    /// forgets a wait at the next request (`Member::awaits`).
    submitter: AtomicU16,
}

/// What is recorded of a wait: the number of the request's name, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note<'a> {
    pub(crate) name: NameId,
    pub(crate) recorder: &'a Recorder,
}

impl Note<'_> {
    /// The wait has begun and is not over at once: whoever watches the rank may see it before there is a record of it.
    fn begin(&self, since_ns: u64) -> u64 {
        self.recorder.block(since_ns);
        since_ns
    }
}

/// Whether a push wakes the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// If nobody drives, the worker is woken.
    Ringing,
    /// The pusher is about to wait and will drive if it can.
    Quiet,
    /// The pusher has more to push, and wakes somebody after the last.
    Later,
}

impl DriverLock {
    pub(crate) fn new(driver: Driver, waiter: Arc<Waiter>, backoff: DriverBackoff) -> DriverLock {
        let bell = waiter.bell();
        let (driver, crowd) = (Mutex::new(driver), Crowd::default());
        let (commands, worker, submitter) = (CommandQueue::new(), OnceLock::new(), AtomicU16::new(u16::MAX));
        DriverLock { driver, commands, waiter, bell, worker, backoff, crowd, submitter }
    }

    /// A thread makes a request.
    pub(crate) fn note_submitter(&self, thread: ThreadId) {
        self.submitter.store(thread.0, Ordering::Relaxed);
    }

    /// Hands an order to the driver.
    pub(crate) fn push(&self, order: Command, push: Push) -> After {
        let after = self.commands.push(order);
        if after == After::Ring && push == Push::Ringing {
            self.bell.ring();
        }
        after
    }

    /// As [`DriverLock::push`], for an order that is told the time.
    pub(crate) fn push_stamped(&self, order: impl FnOnce(u64) -> Command, push: Push) -> After {
        let after = self.commands.push_stamped(now_ns, order);
        if after == After::Ring && push == Push::Ringing {
            self.bell.ring();
        }
        after
    }

    /// Wakes the worker after quiet pushes that found the driver asleep, for a pusher that does not drive.
    pub(crate) fn make_up_for(&self, after: After) {
        if after == After::Ring {
            self.bell.ring();
        }
    }

    /// Waits until the slot is fulfilled or the deadline has passed; drives meanwhile if nobody else does. `after` is
    /// what a quiet push said, if there was one; `note` says what is recorded of the wait.
    pub(crate) fn wait(
        &self,
        slot: &impl Awaited,
        deadline: Option<Instant>,
        after: After,
        note: Option<Note<'_>>,
    ) -> bool {
        let done = || slot.is_fulfilled();
        if after == After::Nothing && done() {
            return true;
        }
        if let Some(driver) = self.try_lock_driver() {
            return self.drive(driver, slot, deadline, note);
        }
        let since_ns = note.map(|note| note.begin(now_ns()));
        // Just too late.
        if after == After::Ring {
            self.bell.ring();
        }
        if let Some((group, name)) = self.last_request(slot) {
            let _ = self.push(Command::Awaits { group, name: Arc::clone(name) }, Push::Ringing);
        }
        let finished = slot.sleep(deadline);
        if let (Some(Note { name, recorder }), Some(since_ns)) = (note, since_ns) {
            recorder.mark(Event::Waited { name, since_ns });
            recorder.unblock();
        }
        finished
    }

    /// The awaited request, if no further one comes before it is done.
    fn last_request<'a>(&self, awaited: &'a impl Awaited) -> Option<(GroupId, &'a Arc<str>)> {
        awaited.request().filter(|_| self.submitter.load(Ordering::Relaxed) == ThreadId::current().0)
    }

    /// A caller's drive. It began to wait when its first turn began: the driver reads the clock then anyway, and
    /// owns a recorder.
    fn drive(
        &self,
        mut driver: MutexGuard<'_, Driver>,
        awaited: &impl Awaited,
        deadline: Option<Instant>,
        note: Option<Note<'_>>,
    ) -> bool {
        self.commands.wake_up();
        driver.pick_up();
        driver.after_sleep();
        let mut wait = Wait::default();
        let mut since: Option<Duration> = None;
        let mut is_told = false;
        let finished = loop {
            let turn = driver.turn(&self.commands, Look::Glance);
            let first = since.is_none();
            let since = *since.get_or_insert(driver.turned_at());
            if awaited.is_fulfilled() {
                break true;
            }
            if let (true, Some(note)) = (first, note) {
                note.begin(driver.time_ns(since));
            }
            if turn == Turn::Over {
                break false;
            }
            if turn == Turn::Moved {
                wait = Wait::default();
                continue;
            }
            if !std::mem::replace(&mut is_told, true)
                && let Some((group, name)) = self.last_request(awaited)
            {
                driver.awaits(group, name);
                continue;
            }
            let left = deadline.map_or(LONGEST_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break false;
            }
            if self.backoff.caller.spend(&self.crowd, &mut wait) == Next::Look {
                continue;
            }
            self.doze(&mut driver, left);
            wait = Wait::default();
        };
        if let (Some(Note { name, recorder }), Some(since)) = (note, since) {
            driver.note_wait(name, since);
            recorder.unblock();
        }
        self.release(driver);
        finished || awaited.is_fulfilled()
    }

    /// Sleeps while holding the driver lock.
    fn doze(&self, driver: &mut Driver, at_most: Duration) {
        driver.before_sleep();
        if self.commands.fall_asleep() && driver.turn(&self.commands, Look::Thorough) == Turn::Still {
            let at_most = driver.next_timeout().min(at_most).min(LONGEST_SLEEP);
            if let Err(error) = self.waiter.wait(at_most) {
                driver.fail_all(error.into());
            }
        }
        self.commands.wake_up();
        driver.after_sleep();
    }

    fn release(&self, driver: MutexGuard<'_, Driver>) {
        let work_left = driver.has_work();
        let nothing_came = self.commands.fall_asleep();
        drop(driver);
        if work_left || !nothing_came {
            self.wake_worker();
        }
    }

    /// Makes the worker look, wherever it sleeps.
    pub(crate) fn wake_worker(&self) {
        self.bell.ring();
        if let Some(worker) = self.worker.get() {
            worker.unpark();
        }
    }

    fn try_lock_driver(&self) -> Option<MutexGuard<'_, Driver>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The waiter that the driver's holders sleep on; new meshes are to wake it.
    pub(crate) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// The worker's life. Returns when the driver is over.
    pub(crate) fn work(&self) {
        self.worker.get_or_init(std::thread::current);
        let mut heard_something = false;
        loop {
            let Some(mut driver) = self.try_lock_driver() else {
                if heard_something {
                    self.bell.ring();
                }
                heard_something = false;
                std::thread::park_timeout(ASIDE);
                continue;
            };
            match self.work_a_while(&mut driver) {
                Sleep::Never => return,
                Sleep::For(at_most) => {
                    drop(driver);
                    heard_something = self.waiter.wait(at_most).unwrap_or(true);
                    if self.commands.may_hold_something() {
                        std::thread::park_timeout(NAP);
                    }
                }
            }
        }
    }

    /// Turns until nothing moves and says how long to sleep.
    fn work_a_while(&self, driver: &mut Driver) -> Sleep {
        self.commands.wake_up();
        driver.pick_up();
        driver.after_sleep();
        let mut wait = Wait::default();
        let mut took_something = false;
        loop {
            match driver.turn(&self.commands, Look::Glance) {
                Turn::Over => return Sleep::Never,
                Turn::Moved => {
                    took_something |= driver.took_something();
                    wait = Wait::default();
                    continue;
                }
                Turn::Still => {}
            }
            if driver.has_work() && self.backoff.worker.spend(&self.crowd, &mut wait) == Next::Look {
                continue;
            }
            driver.before_sleep();
            if took_something {
                return Sleep::For(driver.next_timeout().min(NAP));
            }
            if self.commands.fall_asleep() && driver.turn(&self.commands, Look::Thorough) == Turn::Still {
                return Sleep::For(driver.next_timeout().min(LONGEST_SLEEP));
            }
            self.commands.wake_up();
            driver.after_sleep();
        }
    }
}

enum Sleep {
    For(Duration),
    Never,
}
