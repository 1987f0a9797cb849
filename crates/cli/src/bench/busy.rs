//! Cores that are kept busy beside the contestants, as a framework's own threads or other jobs keep them.
//!
//! Each [`Busy`] thread computes without a pause until the run ends, for all contestants and sizes alike. The threads
//! belong to the driver, which takes no part in any collective, and the kernel shares the cores between them and the
//! ranks as it pleases.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Threads at work until this is dropped.
pub(crate) struct Busy {
    /// Raised by the driver when the run ends, looked at by every thread; it orders nothing else.
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Steps between two looks at the flag: some microseconds.
const STEPS: u64 = 10_000;

impl Busy {
    /// Starts so many threads.
    pub(crate) fn start(count: usize) -> Busy {
        let over = Arc::new(AtomicBool::new(false));
        let threads = (0..count)
            .map(|_| {
                let over = Arc::clone(&over);
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        black_box((0..STEPS).fold(1_u64, |sum, step| black_box(sum.wrapping_mul(31) ^ step)));
                    }
                })
            })
            .collect();
        Busy { over, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that only computes has nothing to fail with.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_threads_use_processor_time_and_end_with_the_run() {
        let ticks = || {
            let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
            let words: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            words[11].parse::<u64>().unwrap()
        };
        let before = ticks();
        let busy = Busy::start(2);
        farandole_testing::wait_until("threads that compute", farandole_testing::NEVER, || ticks() >= before + 5);
        let threads = busy.threads.len();
        drop(busy);
        assert_eq!(threads, 2);
    }
}
