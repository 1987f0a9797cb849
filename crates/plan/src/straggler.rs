//! Which rank keeps the others waiting, judged by how long each of them waits.
//!
//! Ranks that wait for each other make equally many iterations, so pace says nothing. A rank that takes longer than the
//! others finds them waiting when it comes, and hardly waits itself: the *share* of its time that it spends waiting is
//! smaller than theirs. Where all are equally slow, or the network is, the shares are alike.
//!
//! Time is cut into *windows* in which every rank makes a quarter of the iterations that were asked for. In a window a
//! rank is to blame if it waits least, and the median of the others waits for at least [`LATENESS`] more of its time.
//! It is *slow* when it was to blame in four windows in a row, and in no other case: one window in which nobody or
//! somebody else is to blame begins the count anew (a rank that writes a checkpoint, a host with a busy minute). The
//! first window after a change is never counted, because programs compile and caches fill in it.
//!
//! Not here: where the figures come from, whether a slow rank may be replaced, and doing it.

use std::collections::BTreeMap;

/// How much more of their time the others wait: with less, a job gains little by a replacement, which costs a recovery
/// and may be no faster.
pub const LATENESS: f64 = 0.2;

/// Windows in a row in which a rank must be to blame.
const WINDOWS: u64 = 4;

/// Totals of one rank at a moment, on its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTotals {
    /// The moment.
    pub time_ns: u64,
    /// Iterations that it has begun.
    pub iterations: u64,
    /// Time in which it waited for others.
    pub waited_ns: u64,
}

/// A rank that is slow, and the figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// Which.
    pub member: u64,
    /// The share of its time that it waits, from 0 to 1, in the last window.
    pub waits: f64,
    /// The median of the others'.
    pub others_wait: f64,
    /// For how many iterations at least it was to blame.
    pub iterations: u64,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct StragglerWatch {
    /// Iterations of a window.
    window: u64,
    /// For each rank the beginning of the window and the latest figures.
    ranks: BTreeMap<u64, Option<(WaitTotals, WaitTotals)>>,
    /// Who was to blame in how many windows in a row.
    blamed: Option<(u64, u64)>,
    is_settling: bool,
}

impl StragglerWatch {
    /// Calls a rank slow that is to blame over so many iterations.
    pub fn new(iterations: u64) -> StragglerWatch {
        let window = iterations.div_ceil(WINDOWS).max(1);
        StragglerWatch { window, ranks: BTreeMap::new(), blamed: None, is_settling: true }
    }

    /// From now on these are the ranks; what was seen of others is forgotten.
    pub fn begin(&mut self, members: impl IntoIterator<Item = u64>) {
        self.ranks = members.into_iter().map(|member| (member, None)).collect();
        (self.blamed, self.is_settling) = (None, true);
    }

    /// Takes in the figures of a rank. Says whether one is slow; that rank is not named again before the next change.
    pub fn observe(&mut self, member: u64, now: WaitTotals) -> Option<Straggler> {
        let rank = self.ranks.get_mut(&member)?;
        *rank = match *rank {
            // Figures that fall are those of a process that has begun anew.
            Some((first, _)) if now.iterations >= first.iterations && now.time_ns >= first.time_ns => {
                Some((first, now))
            }
            _ => Some((now, now)),
        };
        let is_over = |rank: &Option<(WaitTotals, WaitTotals)>| {
            rank.is_some_and(|(first, last)| last.iterations - first.iterations >= self.window)
        };
        if !self.ranks.values().all(is_over) {
            return None;
        }
        self.close_window()
    }

    fn close_window(&mut self) -> Option<Straggler> {
        let known = self.ranks.iter().filter_map(|(member, rank)| Some((*member, (*rank)?)));
        let shares: Vec<(u64, f64)> = known.map(|(member, (first, last))| (member, share(first, last))).collect();
        for rank in self.ranks.values_mut().flatten() {
            rank.0 = rank.1;
        }
        if std::mem::take(&mut self.is_settling) {
            return None;
        }
        let Some((member, waits, others_wait)) = to_blame(&shares) else {
            self.blamed = None;
            return None;
        };
        let windows = match self.blamed {
            Some((known, windows)) if known == member => windows + 1,
            _ => 1,
        };
        self.blamed = Some((member, windows));
        let iterations = WINDOWS * self.window;
        (windows == WINDOWS).then_some(Straggler { member, waits, others_wait, iterations })
    }
}

/// The share of the time between two moments in which a rank waited.
fn share(first: WaitTotals, last: WaitTotals) -> f64 {
    let waited_ns = last.waited_ns.saturating_sub(first.waited_ns) as f64;
    (waited_ns / (last.time_ns - first.time_ns).max(1) as f64).min(1.0)
}

/// The rank that waits least, its share and the median of the others', if that is much more.
fn to_blame(shares: &[(u64, f64)]) -> Option<(u64, f64, f64)> {
    let (member, waits) = shares.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1))?;
    let mut others: Vec<f64> = shares.iter().filter(|(other, _)| *other != member).map(|(_, share)| *share).collect();
    others.sort_by(f64::total_cmp);
    let median = *others.get(others.len() / 2)?;
    (median - waits >= LATENESS).then_some((member, waits, median))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Ranks that make ten iterations in a second, and wait for these shares of it.
    struct Job {
        watch: StragglerWatch,
        totals: BTreeMap<u64, WaitTotals>,
    }

    impl Job {
        fn new(iterations: u64, members: &[u64]) -> Job {
            let mut watch = StragglerWatch::new(iterations);
            watch.begin(members.iter().copied());
            Job { watch, totals: BTreeMap::new() }
        }

        /// So many seconds; says who is called slow, and after how many of them.
        fn run(&mut self, seconds: u64, shares: &[(u64, f64)]) -> Vec<(u64, u64)> {
            let mut slow = Vec::new();
            for second in 1..=seconds {
                for (member, share) in shares {
                    let totals = self.totals.entry(*member).or_default();
                    totals.time_ns += SECOND_NS;
                    totals.iterations += 10;
                    totals.waited_ns += (share * SECOND_NS as f64) as u64;
                    slow.extend(self.watch.observe(*member, *totals).map(|straggler| (straggler.member, second)));
                }
            }
            slow
        }
    }

    #[test]
    fn a_rank_that_keeps_the_others_waiting_is_slow() {
        let mut job = Job::new(40, &[0, 1, 2, 3]);
        // A first look, one window that does not count, and four of ten iterations each.
        let slow = job.run(30, &[(0, 0.5), (1, 0.48), (2, 0.01), (3, 0.52)]);
        assert_eq!(slow, [(2, 6)], "it is named once");
    }

    #[test]
    fn of_two_ranks_the_one_that_does_not_wait_is_slow() {
        assert_eq!(Job::new(10, &[4, 7]).run(20, &[(4, 0.4), (7, 0.05)]), [(7, 6)]);
        assert_eq!(Job::new(10, &[4]).run(20, &[(4, 0.0)]), [], "there is nobody to compare it with");
    }

    #[test]
    fn where_all_are_equally_slow_nobody_is() {
        assert_eq!(Job::new(10, &[0, 1, 2]).run(50, &[(0, 0.0), (1, 0.02), (2, 0.0)]), []);
        assert_eq!(Job::new(10, &[0, 1, 2]).run(50, &[(0, 0.7), (1, 0.6), (2, 0.65)]), [], "the network is");
    }

    #[test]
    fn of_several_slow_ranks_one_is_named_at_a_time() {
        let mut job = Job::new(10, &[0, 1, 2, 3, 4]);
        assert_eq!(job.run(20, &[(0, 0.0), (1, 0.01), (2, 0.5), (3, 0.5), (4, 0.5)]), [(0, 6)]);
        job.watch.begin([1, 2, 3, 4, 5]);
        assert_eq!(job.run(20, &[(1, 0.01), (2, 0.5), (3, 0.5), (4, 0.5), (5, 0.5)]), [(1, 6)]);
    }

    #[test]
    fn a_busy_minute_is_forgiven() {
        let mut job = Job::new(40, &[0, 1, 2]);
        let (busy, calm) = ([(0, 0.5), (1, 0.0), (2, 0.5)], [(0, 0.1), (1, 0.1), (2, 0.1)]);
        let other = [(0, 0.0), (1, 0.5), (2, 0.5)];
        for _ in 0..10 {
            assert_eq!(job.run(3, &busy), []);
            assert_eq!(job.run(1, &calm), []);
            assert_eq!(job.run(3, &busy), []);
            assert_eq!(job.run(3, &other), []);
        }
    }

    #[test]
    fn a_change_begins_anew_and_so_does_a_process() {
        let shares = [(0, 0.5), (1, 0.0)];
        let mut job = Job::new(10, &[0, 1]);
        assert_eq!(job.run(5, &shares), []);
        job.watch.begin([0, 1]);
        assert_eq!(job.run(5, &shares), []);
        job.totals.clear();
        assert_eq!(job.run(1, &shares), [], "totals have fallen");
        assert_eq!(job.watch.observe(9, WaitTotals::default()), None, "nobody has this number");
    }

    #[test]
    fn iterations_that_nobody_marks_decide_nothing() {
        let mut watch = StragglerWatch::new(1);
        watch.begin([0, 1]);
        for second in 0..100 {
            for (member, share) in [(0, 0), (1, 9)] {
                let (time_ns, waited_ns) = (second * SECOND_NS, second * SECOND_NS * share / 10);
                assert_eq!(watch.observe(member, WaitTotals { time_ns, iterations: 0, waited_ns }), None);
            }
        }
    }
}
