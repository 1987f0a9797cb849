//! Back-off: how a thread waits for its peers. It spins, then yields between looks, then sleeps.
//!
//! A hand-over between two cores takes a tenth of a microsecond; going to sleep and being woken takes several. So while
//! every rank of the host has a core of its own, it pays to look again at once, for about as long as a system call
//! takes. After that the thread yields between looks: with the core to itself that costs little, and if the peer that
//! is waited for sits on the same core after all (more ranks than cores, or a scheduler that has put two on one), it is
//! the quickest way to let it run. Only then it sleeps. Where others compute on the cores (`crowd`), it sleeps instead
//! of yielding.
//!
//! A rank with peers on other hosts yields from the first look on. Its looks are system calls, beside which a yield is
//! cheap, and what it waits for may need this core: the kernel's part of receiving, or the peer itself where hosts are
//! namespaces of one machine. There, with 2 cores that others used too, 4 KB took 220 us with 200 looks, 36 us with 8
//! and 27 us with none.
//!
//! Direct calls count their looks, which takes no clock. The driver of named requests, whose looks differ in length,
//! goes by time. Where the thread sleeps, and who wakes it, is not decided here.

use std::thread;
use std::time::{Duration, Instant};

use super::crowd::Crowd;

/// Looks of a direct call on a rank that has a core of its own before it starts to yield: two to four microseconds. Two
/// ranks that have been put on one core after all spend them in every hand-over. With forty times more, small
/// operations took 300 µs at times, probably for this reason; with twice as many, 30 to 60 µs at times with 16 ranks on
/// 16 cores.
const LOOKS_WITH_CORE: u32 = 100;
/// Yields before a direct call sleeps: some hundred microseconds, several times what two wake-ups cost.
const YIELDS: u32 = 500;
/// The same for a rank with peers on other hosts: longer than a message between two hosts takes there and back, and
/// than the 140 us that a line of 1 Gbit/s needs for 16 KB (asleep by then, a rank gets them 2 us late); short beside
/// the 500 us for the 64 KB that the kernel hands over at once. Who is awake all that time uses up its share of a busy
/// core and gets it late when the data comes: with 200 yields 64 KB took 3 us longer.
const YIELDS_BETWEEN_HOSTS: u32 = 120;
/// All yields of a direct call together take no longer than this: a thread that yields does not listen to its peers'
/// control lines, and on busy cores each yield may take half a millisecond.
const YIELDS_MAX_TIME: Duration = Duration::from_millis(20);
/// How long the driver spins where every rank has a core: some tens of hand-overs between cores. Longer makes
/// everything slow when two ranks have been put on one core.
const DRIVER_SPIN: Duration = Duration::from_micros(5);
/// How long the driver waits awake, if the settings leave it to us: several times what falling asleep and being woken
/// cost.
const DRIVER_AWAKE: Duration = Duration::from_micros(200);
/// A sleeping direct call looks around at least this often, in case a peer died without closing anything that would
/// wake it.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// What to do when nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Sleep until somebody rings.
    Sleep,
}

/// For how long looks follow each other at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spin {
    Looks(u32),
    For(Duration),
}

/// How long a thread spins and yields before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    spin: Spin,
    /// Yields at most.
    yields: u32,
    /// The time from when on it sleeps: since the first look of a wait that spins for a time, else since the first
    /// yield. Zero: it sleeps at once.
    awake: Duration,
}

/// A wait: what was spent since something last moved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    looks: u32,
    yields: u32,
    since: Option<Instant>,
    /// Others compute on this core: yielding is not worth it.
    crowded: bool,
}

impl Backoff {
    /// For direct calls of a rank whose host has `local_ranks` of the job's `ranks`.
    pub(crate) fn of_calls(local_ranks: usize, ranks: usize) -> Backoff {
        let allowed = thread::available_parallelism().map_or(1, usize::from);
        let one_host = local_ranks == ranks;
        let has_core = one_host && have_cores(local_ranks, allowed, online_cores().unwrap_or(allowed));
        Backoff {
            spin: Spin::Looks(if has_core { LOOKS_WITH_CORE } else { 0 }),
            yields: if one_host { YIELDS } else { YIELDS_BETWEEN_HOSTS },
            awake: YIELDS_MAX_TIME,
        }
    }

    /// For the driver of named requests, turned by a caller that waits or by the worker, on a host with `local_ranks`.
    /// `awake` is the user's setting.
    pub(crate) fn of_driver(local_ranks: usize, awake: Option<Duration>) -> DriverBackoff {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let if_fits = |fits: bool, time: Duration| if fits { time } else { Duration::ZERO };
        let spin = Spin::For(if_fits(local_ranks <= cores, DRIVER_SPIN));
        let backoff = |awake| Backoff { spin, yields: u32::MAX, awake };
        DriverBackoff {
            caller: backoff(awake.unwrap_or(DRIVER_AWAKE)),
            // A caller that waits leaves its core to us; the worker needs a core beside the caller's.
            worker: backoff(awake.unwrap_or(if_fits(2 * local_ranks <= cores, DRIVER_AWAKE))),
        }
    }

    /// Looks that are worth making without a pause for others.
    pub(crate) fn looks(&self) -> u32 {
        match self.spin {
            Spin::Looks(looks) => looks,
            Spin::For(_) => 0,
        }
    }

    /// Whether a wait has come to the point where the thread lets others run before the next look.
    pub(crate) fn lets_others_run(&self, wait: &Wait) -> bool {
        wait.looks >= self.looks()
    }

    /// Nothing moved: spends a moment and says what to do.
    pub(crate) fn spend(&self, crowd: &Crowd, wait: &mut Wait) -> Next {
        if wait.looks == 0 {
            wait.crowded = crowd.begin_wait();
        }
        wait.looks = wait.looks.saturating_add(1);
        let spins = match self.spin {
            Spin::Looks(looks) => wait.looks <= looks,
            Spin::For(time) => {
                let now = Instant::now();
                let waited = now - *wait.since.get_or_insert(now);
                if wait.crowded || waited >= self.awake {
                    return Next::Sleep;
                }
                waited < time
            }
        };
        if spins {
            std::hint::spin_loop();
            return Next::Look;
        }
        if wait.crowded || wait.yields >= self.yields {
            return Next::Sleep;
        }
        let (began, ended) = crowd.yield_now();
        wait.yields = wait.yields.saturating_add(1);
        let waited = ended - *wait.since.get_or_insert(began);
        wait.crowded = crowd.is_there();
        if waited >= self.awake {
            // The next look may find something; if not, the thread sleeps.
            wait.yields = self.yields;
        }
        Next::Look
    }
}

/// The driver's back-off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriverBackoff {
    /// For a caller that drives while it waits for its ticket.
    pub(crate) caller: Backoff,
    /// For the worker, beside which the callers want to compute.
    pub(crate) worker: Backoff,
}

/// Whether every rank of the host can be taken to have a core: this one may use `allowed` of `online`. A rank that may
/// use a single core has been bound to it, and whoever binds ranks gives each its own if there are enough.
fn have_cores(local_ranks: usize, allowed: usize, online: usize) -> bool {
    local_ranks <= allowed || (allowed == 1 && local_ranks <= online)
}

/// Cores of this machine, whether or not this process may use them.
pub(crate) fn online_cores() -> Option<usize> {
    count_cores(&std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

/// The number of cores in a list such as `0-3,8,10-11`.
fn count_cores(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_ranks_have_cores_and_crowded_ones_do_not() {
        assert!(have_cores(2, 2, 2) && have_cores(2, 1, 2));
        assert!(!have_cores(4, 2, 2) && !have_cores(4, 1, 2) && !have_cores(4, 2, 64));
    }

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(count_cores("0-3,8,10-11\n"), Some(7));
        assert_eq!(count_cores("0"), Some(1));
        assert_eq!(count_cores("3-1"), None);
        assert_eq!(count_cores(""), None);
    }

    fn looks_before_sleep(backoff: &Backoff, crowd: &Crowd) -> usize {
        let mut wait = Wait::default();
        std::iter::repeat_with(|| backoff.spend(crowd, &mut wait)).take_while(|next| *next == Next::Look).count()
    }

    #[test]
    fn where_others_compute_a_rank_sleeps_without_yielding() {
        let (backoff, crowd) = (Backoff::of_calls(1, 1), Crowd::default());
        crowd.find_for_tests();
        let waits: Vec<usize> = (0..50).map(|_| looks_before_sleep(&backoff, &crowd)).collect();
        assert!(waits.iter().all(|&waited| waited == backoff.looks() as usize), "{waits:?}");
        let driver = Backoff::of_driver(1, None);
        assert_eq!(looks_before_sleep(&driver.caller, &crowd), 0);
    }

    #[test]
    fn every_wait_ends_in_sleep() {
        for (local_ranks, ranks) in [(1, 1), (1, 2), (1000, 1000)] {
            let backoff = Backoff::of_calls(local_ranks, ranks);
            let looks = looks_before_sleep(&backoff, &Crowd::default());
            assert!(looks <= (backoff.looks() + backoff.yields) as usize);
        }
        let driver = Backoff::of_driver(1, Some(Duration::from_micros(50)));
        looks_before_sleep(&driver.caller, &Crowd::default());
        let never = Backoff::of_driver(1, Some(Duration::ZERO));
        assert_eq!(looks_before_sleep(&never.worker, &Crowd::default()), 0);
    }

    #[test]
    fn yields_of_a_direct_call_are_bounded_in_time() {
        let backoff = Backoff { spin: Spin::Looks(0), yields: u32::MAX, awake: Duration::from_millis(1) };
        farandole_testing::at_least(backoff.awake, || looks_before_sleep(&backoff, &Crowd::default()));
    }
}
