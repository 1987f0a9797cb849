//! Reading ahead: blocks are fetched before they are asked for, by threads of the cache's own.
//!
//! [`Streams`] remembers where the last read of each object ended. A read that begins there, or a little behind it,
//! goes on in order, and the block behind it will be wanted. [`Ahead`] has the threads. Requests that find its queue
//! full are dropped: whoever needs the block fetches it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Two reads in order may leave out this much: lengths and checksums between records, headers of an archive.
const GAP_BYTES: u64 = 64 << 10;

/// Objects that are remembered. A rank reads from some shards at a time; beyond this many, all are forgotten.
const MAX_STREAMS: usize = 4096;

/// Threads that fetch ahead: enough for a few streams, few beside those that read.
const THREADS: usize = 4;

/// Blocks that wait for them. What waits longer is asked for by its reader first.
const QUEUE: usize = 32;

/// Where reads of objects ended. Readers of all threads note it.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<u128, u64>>);

impl Streams {
    /// Notes a read, and returns whether it goes on where the one before ended. The first read of an object's begin
    /// does as well.
    pub(super) fn goes_on(&self, object: u128, begin: u64, end: u64) -> bool {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() >= MAX_STREAMS && !ends.contains_key(&object) {
            ends.clear();
        }
        let before = ends.insert(object, end).unwrap_or(0);
        before <= begin && begin - before <= GAP_BYTES
    }
}

/// The threads.
#[derive(Debug)]
pub(super) struct Ahead<T: Send + 'static> {
    queue: Option<SyncSender<T>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Ahead<T> {
    /// Starts them; each does `work` with what is asked for. Where none can be started, nothing is read ahead.
    pub(super) fn start(work: impl Fn(T) + Send + Clone + 'static) -> Ahead<T> {
        let (queue, asked) = sync_channel(QUEUE);
        let asked = Arc::new(Mutex::new(asked));
        let start = |_| {
            let (work, asked) = (work.clone(), Arc::clone(&asked));
            let thread = std::thread::Builder::new().name("farandole-ahead".to_owned());
            thread
                .spawn(move || {
                    while let Some(wanted) = take(&asked) {
                        work(wanted)
                    }
                })
                .ok()
        };
        let threads = (0..THREADS).filter_map(start).collect();
        Ahead { queue: Some(queue), threads }
    }

    /// Has something done, unless there is too much to do.
    pub(super) fn ask(&self, wanted: T) {
        if let Some(queue) = &self.queue {
            let _ = queue.try_send(wanted);
        }
    }
}

fn take<T>(asked: &Mutex<Receiver<T>>) -> Option<T> {
    asked.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

impl<T: Send + 'static> Drop for Ahead<T> {
    /// Ends the threads: each when what it fetches is there.
    fn drop(&mut self) {
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            // A panic has been told already, and nobody waits for its block.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_order_go_on_and_others_do_not() {
        let streams = Streams::default();
        assert!(streams.goes_on(1, 0, 100));
        assert!(streams.goes_on(1, 100, 200));
        assert!(streams.goes_on(1, 300, 400));
        assert!(!streams.goes_on(1, 300, 400));
        assert!(!streams.goes_on(1, 400 + GAP_BYTES + 1, 1 << 20));
        assert!(!streams.goes_on(2, 1 << 30, (1 << 30) + 5));
        assert!(streams.goes_on(2, (1 << 30) + 5, (1 << 30) + 6));
    }

    #[test]
    fn what_is_asked_for_is_done_before_the_end() {
        let done = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&done);
        let ahead = Ahead::start(move |number: u32| noted.lock().unwrap().push(number));
        ahead.ask(1);
        ahead.ask(2);
        drop(ahead);
        let mut done = done.lock().unwrap().clone();
        done.sort_unstable();
        assert_eq!(done, [1, 2]);
    }
}
