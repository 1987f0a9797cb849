//! Time in which this thread was awake. Limits on others count no time in which this process was stopped.
//!
//! A process can be stopped (SIGSTOP, Ctrl-Z, `scontrol suspend`), frozen with its container or cgroup, or asleep with
//! its machine. The monotonic clock runs on meanwhile, but nothing was heard, sent or tried in that time, so it proves
//! nothing about anybody else. Every limit on somebody else's silence or slowness is therefore measured on an
//! [`AwakeClock`]: it advances as the real clock does, but a look that comes much later than it was meant to counts
//! only for the time that the wait was meant to take.
//!
//! [`AwakeClock`] is pure: time is a parameter. A loop that waits looks at it once per turn, right after the wait, and
//! says how long it meant to wait; the moments that it gets are then compared only with each other, never with
//! [`Instant::now`]. [`Countdown`] is the same for code that blocks step by step until a deadline; it never lets a step
//! be longer than [`Countdown::STEP`].
//!
//! **Invariant:** awake time never goes back and never runs faster than real time, and it goes on: a look that comes
//! late still counts for what the wait was meant to take, so a machine that is always late reaches every deadline.
//!
//! Not here: who is judged and by which limit. Durations that are only recorded or shown are real time.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A look that comes later than it was meant to by less than this is ordinary delay of a busy machine, and counts in
/// full.
const MOST_SLACK: Duration = Duration::from_millis(500);

/// Limits are kept with at least this many slacks in them, so that the delay that counts cannot use up a short limit.
const SLACKS: u32 = 4;

/// A clock that stands still while this process is stopped.
#[derive(Clone, Copy, Debug)]
pub struct AwakeClock {
    looked: Instant,
    slept: Duration,
    slack: Duration,
}

impl AwakeClock {
    /// A clock that starts now.
    pub fn new(now: Instant) -> AwakeClock {
        AwakeClock { looked: now, slept: Duration::ZERO, slack: MOST_SLACK }
    }

    /// The same for somebody who judges by this limit; zero: by none. Delays are taken for sleep sooner where the limit
    /// is short.
    pub fn judging_by(self, limit: Duration) -> AwakeClock {
        let slack = if limit.is_zero() { MOST_SLACK } else { MOST_SLACK.min(limit / SLACKS) };
        AwakeClock { slack, ..self }
    }

    /// Looks at the clock after a wait that was meant to take at most `meant`. The answer is a moment in awake time.
    pub fn look(&mut self, now: Instant, meant: Duration) -> Instant {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = self.looked.max(now);
        if passed > meant.saturating_add(self.slack) {
            self.slept += passed - meant;
        }
        self.last()
    }

    /// The moment of the last look, in awake time.
    pub fn last(&self) -> Instant {
        self.looked.checked_sub(self.slept).unwrap_or(self.looked)
    }

    /// What a look would say, without looking.
    pub fn peek(&self, now: Instant, meant: Duration) -> Instant {
        let mut clock = *self;
        clock.look(now, meant)
    }

    /// How long this process has been found asleep in all.
    pub fn slept(&self) -> Duration {
        self.slept
    }
}

/// Time that is left to code that blocks, counted while this process is awake.
#[derive(Debug)]
pub struct Countdown {
    clock: Cell<AwakeClock>,
    /// In awake time.
    until: Instant,
}

impl Countdown {
    /// The longest single wait under a countdown. Short enough that a stopped process loses little of its time, long
    /// enough to cost nothing.
    pub const STEP: Duration = Duration::from_millis(250);

    /// Counts down from `patience`, beginning now.
    pub fn new(patience: Duration) -> Countdown {
        Countdown::from(Instant::now(), patience)
    }

    /// Counts down to a moment that was fixed when this process was awake.
    pub fn until(deadline: Instant) -> Countdown {
        let now = Instant::now();
        Countdown::from(now, deadline.saturating_duration_since(now))
    }

    fn from(now: Instant, patience: Duration) -> Countdown {
        // A year is as good as for ever, and can be added to any moment.
        let patience = patience.min(Duration::from_secs(365 * 86_400));
        let clock = AwakeClock::new(now).judging_by(patience);
        Countdown { clock: Cell::new(clock), until: now + patience }
    }

    /// A countdown that ends with this one or after `patience`, whichever is sooner.
    pub fn at_most(&self, patience: Duration) -> Countdown {
        Countdown::new(self.left().min(patience))
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        self.left_at(Instant::now())
    }

    /// How long to wait now: what is left, but at most one [`Self::STEP`]. Zero when time is up.
    pub fn step(&self) -> Duration {
        self.left().min(Countdown::STEP)
    }

    /// Whether time is up.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    fn left_at(&self, now: Instant) -> Duration {
        let mut clock = self.clock.get();
        let left = self.until.saturating_duration_since(clock.look(now, Countdown::STEP));
        self.clock.set(clock);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_clock_that_is_looked_at_in_time_is_the_real_one() {
        let began = Instant::now();
        let mut clock = AwakeClock::new(began);
        for turn in 1..1000 {
            let now = began + turn * SECOND;
            assert_eq!(clock.look(now, SECOND), now);
        }
        assert_eq!(clock.slept(), Duration::ZERO);
    }

    #[test]
    fn a_sleep_counts_for_what_the_wait_was_meant_to_take() {
        let began = Instant::now();
        let mut clock = AwakeClock::new(began);
        let before = clock.look(began + SECOND, SECOND);
        let after = clock.look(began + 3600 * SECOND, SECOND);
        assert_eq!(after - before, SECOND);
        assert_eq!(clock.slept(), 3598 * SECOND);
        assert_eq!(clock.look(began + 3601 * SECOND, SECOND) - after, SECOND, "after the sleep it goes on as before");
    }

    #[test]
    fn ordinary_delay_counts_in_full_and_less_of_it_where_limits_are_short() {
        let began = Instant::now();
        let late = began + SECOND + Duration::from_millis(400);
        assert_eq!(AwakeClock::new(began).look(late, SECOND), late);
        assert_eq!(AwakeClock::new(began).judging_by(SECOND).look(late, SECOND), began + SECOND);
        assert_eq!(AwakeClock::new(began).judging_by(Duration::ZERO).look(late, SECOND), late);
    }

    /// A machine on which every turn is late must still come to its deadlines.
    #[test]
    fn awake_time_always_goes_on_and_never_back() {
        let began = Instant::now();
        let (mut clock, mut last) = (AwakeClock::new(began), began);
        for turn in 1..100 {
            let now = clock.look(began + turn * 10 * SECOND, SECOND);
            assert_eq!(now - last, SECOND);
            last = now;
        }
        assert_eq!(clock.look(began, SECOND), last, "an older moment changes nothing");
    }

    #[test]
    fn a_countdown_stands_still_while_its_process_does() {
        let began = Instant::now();
        let countdown = Countdown::from(began, 30 * SECOND);
        let mut now = began;
        for _ in 0..40 {
            now += Countdown::STEP;
            countdown.left_at(now);
        }
        assert_eq!(countdown.left_at(now), 20 * SECOND);
        now += 8 * 3600 * SECOND;
        assert_eq!(countdown.left_at(now), 20 * SECOND - Countdown::STEP);
        for _ in 0..80 {
            now += Countdown::STEP;
            countdown.left_at(now);
        }
        assert_eq!(countdown.left_at(now), Duration::ZERO);
    }

    #[test]
    fn a_step_is_no_longer_than_what_is_left() {
        assert_eq!(Countdown::new(60 * SECOND).step(), Countdown::STEP);
        assert!(Countdown::new(Duration::from_millis(20)).step() <= Duration::from_millis(20));
        assert!(Countdown::new(Duration::ZERO).is_over());
        assert!(!Countdown::new(Duration::MAX).is_over());
        assert!(Countdown::new(60 * SECOND).at_most(SECOND).left() <= SECOND);
    }
}
