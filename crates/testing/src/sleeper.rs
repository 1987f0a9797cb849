//! Whether another thread of this process sleeps, so that a test can act when it has begun to wait.
//!
//! Code that waits gives no sign that it has begun. The kernel knows: the thread sleeps. A thread may sleep for a
//! moment for another reason, a lock or an allocation, before it comes to the wait that is meant; then the test acts
//! earlier than it wanted to, and what it asserts must hold all the same. Linux alone.

use std::path::PathBuf;
use std::thread::JoinHandle;

use crate::time::{NEVER, wait_until};

/// A thread of this process.
#[derive(Clone, Debug)]
pub struct Sleeper(PathBuf);

impl Sleeper {
    /// The calling thread.
    pub fn this_thread() -> Sleeper {
        let task = std::fs::read_link("/proc/thread-self").expect("Linux names the thread that asks");
        Sleeper(PathBuf::from("/proc").join(task).join("stat"))
    }

    /// Waits until the thread sleeps, or has ended.
    pub fn wait_until_asleep(&self) {
        wait_until("a thread that waits", NEVER, || {
            // The name stands in parentheses before the state, and may hold anything.
            let stat = std::fs::read_to_string(&self.0).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" S"))
        });
    }

    /// Starts a thread, and returns when it sleeps.
    pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let (teller, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // The receiver lives until it has this.
            let _ = teller.send(Sleeper::this_thread());
            work()
        });
        told.recv().expect("a thread that has been started says which one it is").wait_until_asleep();
        thread
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_thread_that_computes_is_waited_for_until_it_waits() {
        static HAS_COMPUTED: AtomicBool = AtomicBool::new(false);
        static MEETING: Barrier = Barrier::new(2);
        let thread = Sleeper::spawn(|| {
            let end = std::hint::black_box(20_000_000u64);
            HAS_COMPUTED.store((0..end).map(std::hint::black_box).sum::<u64>() > 0, Ordering::Release);
            MEETING.wait();
        });
        assert!(HAS_COMPUTED.load(Ordering::Acquire));
        MEETING.wait();
        thread.join().unwrap();
        Sleeper(PathBuf::from("/proc/self/task/none")).wait_until_asleep();
    }
}
