//! Strikes a program with one fault after the other: every kind, at every event of every rank.
//!
//! A program has a *main part*, which is struck, and an *after part*, in which whoever was not needed after the fault
//! learns of it. A run without a fault counts the events of the main part; then each is struck in a run of its own.
//!
//! What must hold: with a fault that ends something, every survivor fails, with words that name the fault, long before
//! the deadline unless the deadline is the only thing that can tell; with a mere delay nobody fails; and a result that
//! a rank does get is right (the programs check that).
#![allow(unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farandole_engine::Error;
use farandole_engine::connector::{Medium, ThreadWorld, Wrap};
use farandole_plan::Rank;
use farandole_transport::Bell;
use farandole_transport::fault::{At, Fault, FaultAction, Faults};
use farandole_transport::frame::Checksum;
use farandole_transport::memory::MemoryOptions;
use farandole_transport::stream::FrameOptions;

/// For faults that only the deadline can tell: nothing moves for so long. Short, because each costs it. The run is
/// repeated with the next one where a machine with other things to do has let a rank wait for so long before the fault;
/// and where the fault has struck what nobody needed: a mapped buffer that was made later than the last tensor for it.
const SHORT_DEADLINES: [Duration; 5] =
    [Duration::from_millis(150), Duration::from_millis(600), LONGER_DEADLINE, LONGER_DEADLINE, LONGER_DEADLINE];
const LONGER_DEADLINE: Duration = Duration::from_secs(3);

/// For all others: an error must come without it.
const LONG_DEADLINE: Duration = farandole_testing::NEVER;

/// Shorter than any deadline, longer than a rank looks around before it sleeps.
const DELAY: Duration = Duration::from_millis(3);

/// Runs that go on at the same time. They mostly wait: for a deadline, or for ranks that come late on purpose.
const AT_ONCE: usize = 4;

/// What all ranks of one run have in common.
#[derive(Clone)]
pub struct Run {
    pub size: usize,
    pub thread_world: ThreadWorld,
    pub deadline: Duration,
    faults: Faults,
    action: Option<FaultAction>,
    main_events: Arc<Mutex<Vec<u64>>>,
}

impl Run {
    fn new(size: usize, medium: Medium, fault: Option<Fault>, deadline: Duration) -> Run {
        let faults = Faults::new(fault);
        let wrap: Wrap = {
            let faults = faults.clone();
            Arc::new(move |_group, mesh, bell: &Bell| faults.wrap(mesh, bell))
        };
        let thread_world = ThreadWorld::new(size, medium).with_wrap(wrap);
        let action = fault.map(|fault| fault.action);
        Run { size, thread_world, deadline, faults, action, main_events: Arc::new(Mutex::new(vec![0; size])) }
    }

    /// Whether a fault has struck that everybody must hear of. When all ranks have come to the end of the main part,
    /// the answer is the same for all of them and does not change any more.
    pub fn must_fail(&self) -> bool {
        self.faults.has_struck() && !matches!(self.action, None | Some(FaultAction::Delay(_)))
    }

    /// Whether the fault has struck when its rank was through with the main part: the program has taken a way with
    /// fewer events. The end of the after part may concern some ranks only.
    fn was_struck_after_the_main_part(&self, fault: Fault) -> bool {
        let events = self.main_events.lock().unwrap()[fault.rank.index()];
        matches!(fault.at, At::Event(event) if events > 0 && event >= events)
    }

    /// A rank has come to the end of the main part.
    pub fn main_part_ends(&self, rank: Rank) {
        self.main_events.lock().unwrap()[rank.index()] = self.faults.events(rank);
    }
}

/// Runs a program on all ranks of a run and says how each ended.
pub type Program<'a> = &'a (dyn Fn(&Run) -> Vec<Option<Error>> + Sync);

/// Calls `strike` for each of these cases, on threads of their own. At least so many faults must strike in all, and
/// nothing may be left behind.
pub fn strike_all<C: Copy + Send>(cases: &[C], at_least: usize, strike: impl Fn(C) -> usize + Sync) {
    let before = Holdings::now();
    let strikes: usize = std::thread::scope(|scope| {
        let strike = &strike;
        let workers: Vec<_> = cases.iter().map(|&case| scope.spawn(move || strike(case))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    println!("{strikes} faults struck");
    assert!(strikes > at_least, "only {strikes} faults struck");
    before.assert_unchanged();
}

/// Strikes a program at every event. Says how many faults struck.
pub fn strike_everywhere(what: &str, size: usize, medium: Medium, program: Program<'_>) -> usize {
    let unharmed = Run::new(size, medium, None, LONG_DEADLINE);
    let errors = program(&unharmed);
    assert!(errors.iter().all(Option::is_none), "{what} on {size} ranks without a fault: {errors:?}");
    let events = unharmed.main_events.lock().unwrap().clone();
    assert!(events.iter().all(|&events| events > 0), "{what} on {size} ranks: {events:?} events");
    // Shared memory has no checksum: nothing lies between two ranks that could damage it.
    // A cut and a delay are between two ranks and show all they can do in the smaller worlds.
    let actions: &[FaultAction] = match medium {
        _ if size > 3 => &[FaultAction::Kill, FaultAction::Drop],
        Medium::Windows => &[FaultAction::Kill, FaultAction::Cut, FaultAction::Drop, FaultAction::Delay(DELAY)],
        Medium::Pipes(_) => {
            &[FaultAction::Kill, FaultAction::Cut, FaultAction::Drop, FaultAction::Delay(DELAY), FaultAction::Corrupt]
        }
    };
    let mut faults = Vec::new();
    for (rank, &events) in events.iter().enumerate() {
        for &action in actions {
            faults.extend((0..events).map(|event| Fault { rank: Rank::from(rank), at: At::Event(event), action }));
        }
    }
    let next = AtomicUsize::new(0);
    let strike_some = || {
        let mut strikes = 0;
        while let Some(&fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
            strikes += usize::from(strike(what, size, medium, fault, program));
        }
        strikes
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(strike_some)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    })
}

/// Runs a program with one fault. Says whether the fault struck: a program may take another way and have an event less.
fn strike(what: &str, size: usize, medium: Medium, fault: Fault, program: Program<'_>) -> bool {
    let deadlines = if fault.action == FaultAction::Drop { &SHORT_DEADLINES[..] } else { &[LONG_DEADLINE] };
    let attempt = |deadline| {
        let run = Run::new(size, medium, Some(fault), deadline);
        let errors = program(&run);
        (run, errors)
    };
    let mut attempts = deadlines.iter().copied().map(attempt);
    let mut last = attempts.next().expect("there is a deadline");
    while last.0.faults.has_struck() != last.1.iter().any(Option::is_some) {
        let Some(next) = attempts.next() else { break };
        last = next;
    }
    judge(&format!("{what} on {size} ranks, {fault:?}"), medium, fault, &last.0, &last.1)
}

/// Looks at what became of a run with one fault.
fn judge(context: &str, medium: Medium, fault: Fault, run: &Run, errors: &[Option<Error>]) -> bool {
    if !run.faults.has_struck() || matches!(fault.action, FaultAction::Delay(_)) {
        assert!(errors.iter().all(Option::is_none), "{context} ends nothing, but {errors:?}");
        return run.faults.has_struck();
    }
    let late = run.was_struck_after_the_main_part(fault);
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| !run.faults.is_killed(Rank::from(*rank))) {
        if late && error.is_none() {
            continue;
        }
        let Some(Error::Failed(failure)) = error else {
            panic!("{context}: rank {rank} did not fail: {errors:?}");
        };
        let says = |words: &str| failure.what.contains(words);
        let named = match fault.action {
            FaultAction::Kill => {
                let rank = fault.rank;
                says(&format!("rank {rank} on localhost is gone")) || says(&format!("rank {rank} is gone"))
            }
            // Without a checksum of its own the payload is taken as it comes; the header always has one.
            FaultAction::Corrupt => match medium {
                Medium::Pipes(MemoryOptions { shape: FrameOptions { checksum: Checksum::Crc32c, .. }, .. }) => {
                    says("damaged")
                }
                _ => says("a frame header with a wrong check"),
            },
            // A frame that is missing is noticed by the next one, if there is one, or else by the deadline; memory that
            // is missing at once.
            FaultAction::Drop => {
                (says("waited") && says("FARANDOLE_TIMEOUT_SECONDS"))
                    || says("unexpected")
                    || says("growing shared memory")
            }
            _ => says("is gone"),
        };
        assert!(named, "{context}: rank {rank} says {:?}", failure.what);
    }
    true
}

/// What a process must not have more of afterwards.
#[derive(Debug, PartialEq, Eq)]
pub struct Holdings {
    descriptors: usize,
    threads: usize,
    /// Mapped parts of shared memory.
    segments: usize,
}

impl Holdings {
    pub fn now() -> Holdings {
        let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let segments = maps.lines().filter(|line| line.contains("memfd:farandole")).count();
        Holdings { descriptors: count("fd"), threads: count("task"), segments }
    }

    /// Threads of the injector that delay something sleep a few milliseconds longer than a run may.
    pub fn assert_unchanged(&self) {
        let deadline = farandole_testing::Deadline::after(Duration::from_secs(30));
        loop {
            let now = Holdings::now();
            if now == *self {
                return;
            }
            deadline.pause(format!("something was left behind: {now:?} instead of {self:?}"));
        }
    }
}
