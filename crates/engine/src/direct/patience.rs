//! How a caller's thread waits for its peers: first by looking again and again, then by letting others run, then
//! asleep.
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

use std::thread;
use std::time::Duration;

use crate::crowd::Crowd;

/// Looks of a rank that has a core of its own before it starts to yield: two to four microseconds. Two ranks that have
/// been put on one core after all spend them in every hand-over. With forty times more, small operations took 300 µs at
/// times, probably for this reason; with twice as many, 30 to 60 µs at times with 16 ranks on 16 cores.
const LOOKS_WITH_CORE: u32 = 100;
/// Yields before a rank goes to sleep: some hundred microseconds, several times what two wake-ups cost.
const YIELDS: u32 = 500;
/// The same for a rank with peers on other hosts: longer than a message between two hosts takes there and back, and
/// than the 140 us that a line of 1 Gbit/s needs for 16 KB (asleep by then, a rank gets them 2 us late); short beside
/// the 500 us for the 64 KB that the kernel hands over at once. Who is awake all that time uses up its share of a busy
/// core and gets it late when the data comes: with 200 yields 64 KB took 3 us longer.
const YIELDS_BETWEEN_HOSTS: u32 = 120;
/// A sleeper looks around at least this often, in case a peer died without closing anything that would wake us.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// What to do when nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Sleep until somebody rings.
    Sleep,
}

/// Counts the looks in vain since something last moved.
#[derive(Debug)]
pub(crate) struct Patience {
    looks_before_yield: u32,
    yields_before_sleep: u32,
    in_vain: u32,
    crowd: Crowd,
    /// The wait that is under way does not yield.
    crowded: bool,
}

impl Patience {
    /// For a rank of this host, which has `local_ranks` of the job's `ranks`.
    pub(crate) fn new(local_ranks: usize, ranks: usize) -> Patience {
        let allowed = thread::available_parallelism().map_or(1, usize::from);
        let one_host = local_ranks == ranks;
        let has_core = one_host && have_cores(local_ranks, allowed, online_cores().unwrap_or(allowed));
        Patience {
            looks_before_yield: if has_core { LOOKS_WITH_CORE } else { 0 },
            yields_before_sleep: if one_host { YIELDS } else { YIELDS_BETWEEN_HOSTS },
            in_vain: 0,
            crowd: Crowd::default(),
            crowded: false,
        }
    }

    /// Whether there were so many looks that the thread will let others run before the next.
    pub(crate) fn lets_others_run(&self) -> bool {
        self.in_vain >= self.looks_before_yield
    }

    /// Looks that are worth making without a pause for others.
    pub(crate) fn looks(&self) -> u32 {
        self.looks_before_yield
    }

    /// Something moved.
    pub(crate) fn renew(&mut self) {
        self.in_vain = 0;
    }

    /// Nothing moved: spends a moment and says what to do.
    pub(crate) fn spend(&mut self) -> Next {
        if self.in_vain == 0 {
            self.crowded = self.crowd.begin_wait();
        }
        self.in_vain += 1;
        if self.in_vain <= self.looks_before_yield {
            std::hint::spin_loop();
            Next::Look
        } else if !self.crowded && self.in_vain <= self.looks_before_yield + self.yields_before_sleep {
            self.crowd.yield_now();
            self.crowded = self.crowd.is_there();
            Next::Look
        } else {
            Next::Sleep
        }
    }
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

    #[test]
    fn where_others_compute_a_rank_sleeps_without_yielding() {
        let mut patience = Patience::new(1, 1);
        patience.crowd.find_for_tests();
        let waits = (0..50).map(|_| {
            patience.renew();
            std::iter::repeat_with(|| patience.spend()).take_while(|next| *next == Next::Look).count()
        });
        let waits: Vec<usize> = waits.collect();
        assert!(waits.iter().all(|&waited| waited == patience.looks() as usize), "{waits:?}");
    }

    #[test]
    fn patience_ends_in_sleep_and_is_renewed_by_movement() {
        for (local_ranks, ranks) in [(1, 1), (1, 2), (1000, 1000)] {
            let mut patience = Patience::new(local_ranks, ranks);
            let looks = std::iter::repeat_with(|| patience.spend()).take_while(|next| *next == Next::Look).count();
            assert!(looks <= (patience.looks_before_yield + patience.yields_before_sleep) as usize);
            assert_eq!(patience.spend(), Next::Sleep);
            patience.renew();
            assert_eq!(patience.in_vain, 0);
        }
    }
}
