//! Time in tests: deadlines, waits for a condition, and time that passes as a test's input.
//!
//! No test asserts how long something takes, because a machine may be busy: a test waits for a condition, and its
//! deadline only ends a hang. `cargo xtask tidy` refuses clocks and sleeps in tests outside of this module and of the
//! tests called `timings`, so all of them are here, each with what it is for:
//!
//! - [`wait_for`] and [`wait_until`] poll a condition; [`Deadline`] ends a loop that a test writes itself.
//! - [`NEVER`] is the limit for a wait of the code under test that must end for another reason than its limit.
//! - [`lapse`] lets time pass where time is the input: a rank is late, a process is stopped for longer than a limit, or
//!   nothing may happen for a while.
//! - [`at_least`] checks a lower bound, which no busy machine can break.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How often conditions are looked at. Short against everything that tests wait for.
pub(crate) const INTERVAL: Duration = Duration::from_millis(5);

/// A limit that no test lives to see: the runner ends a test after minutes. Code under test that gets it and returns
/// has returned for another reason.
pub const NEVER: Duration = Duration::from_secs(3600);

/// The end of a wait. Passing it is a hang, and panics; how much earlier the wait ended is nobody's business.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// The deadline after `limit`, from now.
    pub fn after(limit: Duration) -> Deadline {
        Deadline { at: Instant::now() + limit, limit }
    }

    /// The moment itself, for code under test that takes one.
    pub fn instant(&self) -> Instant {
        self.at
    }

    /// Whether it has passed. For loops that do something else than panic, such as killing a child.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Panics with `what` was waited for if the deadline has passed.
    #[track_caller]
    pub fn check(&self, what: impl Display) {
        assert!(!self.is_over(), "{what}: not within {:?}", self.limit);
    }

    /// The same, and then a moment for others. One turn of a loop that waits.
    #[track_caller]
    pub fn pause(&self, what: impl Display) {
        self.check(what);
        self.rest();
    }

    /// A moment for others, in a loop that does something else than panic when the deadline has passed.
    pub fn rest(&self) {
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until `condition` gives something, and returns it. Panics after `limit`, with `what` was waited for.
#[track_caller]
pub fn wait_for<T>(what: impl Display, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after(limit);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        deadline.pause(&what);
    }
}

/// Waits until `condition` holds. Panics after `limit`, with `what` was waited for.
#[track_caller]
pub fn wait_until(what: impl Display, limit: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, limit, || condition().then_some(()));
}

/// Lets time pass because it is the test's input: `what` names who is late, silent or stopped, or who might do what it
/// must not. The test must hold however much longer it takes. Nothing may have to happen meanwhile: for that, wait for
/// a condition.
pub fn lapse(what: &str, time: Duration) {
    assert!(!what.is_empty(), "say whose time passes");
    std::thread::sleep(time);
}

/// Runs `work`, which must not be over before `time` has passed. On a busy machine it takes longer, and never less.
#[track_caller]
pub fn at_least<T>(time: Duration, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    let took = began.elapsed();
    assert!(took >= time, "over after {took:?}, expected at least {time:?}");
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_holds_later_is_waited_for() {
        let mut looks = 0;
        wait_until("the third look", NEVER, || {
            looks += 1;
            looks == 3
        });
        assert_eq!(wait_for("a value", NEVER, || Some(7)), 7);
    }

    #[test]
    #[should_panic(expected = "something that never comes: not within 20ms")]
    fn a_condition_that_never_holds_is_named() {
        wait_until("something that never comes", Duration::from_millis(20), || false);
    }

    #[test]
    #[should_panic(expected = "expected at least")]
    fn what_is_over_too_soon_is_noticed() {
        at_least(NEVER, || at_least(Duration::from_millis(1), || lapse("this test", Duration::from_millis(2))));
    }
}
