//! Completions of many requests through one queue: each comes once, with its memory, whatever becomes of the engine.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc;
use std::time::Duration;

use crate::harness::{Transport, ranks, sum};
use farandole_engine::{Completion, CompletionQueue, Error};
use farandole_plan::Rank;

/// A thread that takes completions until the queue is closed, and passes them on.
fn collect(queue: CompletionQueue) -> (mpsc::Receiver<Completion>, std::thread::JoinHandle<()>) {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut taken = Vec::new();
        while queue.wait(&mut taken).unwrap() {
            taken.drain(..).for_each(|completion| send.send(completion).unwrap());
        }
    });
    (receive, thread)
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn every_request_leaves_one_completion_in_whatever_order_ranks_ask() {
    const REQUESTS: u64 = 300;
    for transport in [Transport::Memory, Transport::Shm, Transport::Tcp] {
        ranks(2, transport, |engine| {
            let queue = engine.completion_queue();
            let (completions, thread) = collect(queue.clone());
            for round in 0..3u64 {
                let mut keys: Vec<u64> = (0..REQUESTS).collect();
                if engine.rank() == Rank(1) {
                    keys.reverse();
                }
                for &key in &keys {
                    let submission = sum(&format!("t{key}"), vec![(key + round) as i64; 4]);
                    assert!(engine.submit_to(&queue, key, [submission].into_iter()).is_empty());
                }
                let mut sums = vec![None; REQUESTS as usize];
                for _ in 0..REQUESTS {
                    let Completion { key, result } = completions.recv_timeout(SOON).unwrap();
                    let values = result.unwrap().into_result().unwrap().into_vec::<i64>().unwrap();
                    assert!(sums[key as usize].replace(values).is_none(), "request {key} is done twice");
                }
                for (key, values) in (0u64..).zip(sums) {
                    assert_eq!(values.unwrap(), [2 * (key + round) as i64; 4]);
                }
            }
            queue.close();
            thread.join().unwrap();
        });
    }
}

/// One request after the other, each after the thread has gone to sleep: its wake-up must not get lost.
#[test]
fn a_single_request_wakes_the_thread_that_sleeps() {
    ranks(2, Transport::Shm, |engine| {
        let queue = engine.completion_queue();
        let (completions, thread) = collect(queue.clone());
        for round in 0..500u64 {
            assert!(engine.submit_to(&queue, round, [sum("again", vec![1f32])].into_iter()).is_empty());
            assert_eq!(completions.recv_timeout(SOON).unwrap().key, round);
            // Some rounds follow closely, as in a burst, and some do not.
            if round / 50 % 2 == 0 {
                farandole_testing::lapse("a program that computes", Duration::from_micros(600));
            }
        }
        queue.close();
        thread.join().unwrap();
    });
}

#[test]
fn tickets_and_queues_live_side_by_side() {
    ranks(2, Transport::Shm, |engine| {
        let queue = engine.completion_queue();
        let (completions, thread) = collect(queue.clone());
        for round in 0..200u64 {
            assert!(engine.submit_to(&queue, round, [sum("queued", vec![1f32])].into_iter()).is_empty());
            engine.run(sum("waited for", vec![1f32])).unwrap();
            let quiet = engine.submit_quietly([sum("quiet a", vec![1f32]), sum("quiet b", vec![1f32])]);
            assert!(quiet.wait_returning().iter().all(Result::is_ok));
            assert_eq!(completions.recv_timeout(SOON).unwrap().key, round);
        }
        queue.close();
        thread.join().unwrap();
    });
}

#[test]
fn what_is_refused_at_once_leaves_nothing_in_the_queue() {
    ranks(1, Transport::Memory, |engine| {
        let queue = engine.completion_queue();
        let mut wrong = sum("short", vec![1f32]);
        wrong.request.shape = vec![2];
        let refused = engine.submit_to(&queue, 7, [sum("right", vec![1f32]), wrong].into_iter());
        let [(1, returned)] = &refused[..] else { panic!("the second alone is refused: {refused:?}") };
        assert!(matches!(returned.error, Error::WrongMemory { .. }), "{}", returned.error);
        assert!(returned.input.is_some(), "the memory comes back");
        let mut taken = Vec::new();
        assert!(queue.wait(&mut taken).unwrap() && taken.len() == 1 && taken[0].key == 7 && taken[0].result.is_ok());
        queue.close();
        assert!(!queue.wait(&mut Vec::new()).unwrap());
        let mut wrong = sum("short", vec![1f32]);
        wrong.request.shape = vec![2];
        let answers = engine.submit_quietly([sum("fine", vec![1f32]), wrong]).wait_returning();
        assert!(answers[0].is_ok() && answers[1].is_err());
    });
}

/// Rank 1 leaves without asking for what rank 0 waits for.
#[test]
fn requests_that_are_under_way_when_the_engine_ends_leave_their_completions() {
    ranks(2, Transport::Shm, |engine| {
        if engine.rank() == Rank(1) {
            return;
        }
        let queue = engine.completion_queue();
        let (completions, thread) = collect(queue.clone());
        let mut accepted = 0;
        for key in 0..20u64 {
            // The other rank may have left already.
            let submission = sum(&format!("t{key}"), vec![1f32]);
            accepted += u32::from(engine.submit_to(&queue, key, [submission].into_iter()).is_empty());
        }
        drop(engine);
        queue.close();
        for _ in 0..accepted {
            let error = completions.recv_timeout(SOON).unwrap().result.unwrap_err().error;
            assert!(matches!(error, Error::ShutDown | Error::PeerLeft(_)), "{error}");
        }
        thread.join().unwrap();
        assert!(completions.recv().is_err(), "nothing comes twice");
    });
}
