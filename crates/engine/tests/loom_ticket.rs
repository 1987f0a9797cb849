//! Tries every interleaving of the ticket's completion and of the command queue's wake-up on small programs.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p farandole-engine --test loom_ticket --release`.
#![cfg(loom)]
#![allow(dead_code, unreachable_pub)]

#[path = "../src/command_queue.rs"]
mod command_queue;
#[path = "../src/completion.rs"]
mod completion;
#[path = "../src/sync.rs"]
mod sync;

use command_queue::{After, CommandQueue};
use completion::Slot;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

#[test]
fn a_waiting_caller_always_gets_the_value() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let driver = Arc::clone(&slot);
        let fulfilling = thread::spawn(move || driver.fulfil(42));
        assert!(slot.sleep(None));
        assert_eq!(slot.take(), Some(42));
        fulfilling.join().unwrap();
    });
}

#[test]
fn two_waiting_callers_both_wake_and_one_gets_the_value() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let taken = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (slot, taken) = (Arc::clone(&slot), Arc::clone(&taken));
                thread::spawn(move || {
                    assert!(slot.sleep(None));
                    if slot.take().is_some() {
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        slot.fulfil(1);
        for caller in callers {
            caller.join().unwrap();
        }
        assert_eq!(taken.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn of_two_values_exactly_one_arrives() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let failing = Arc::clone(&slot);
        let other = thread::spawn(move || failing.fulfil(2));
        slot.fulfil(1);
        other.join().unwrap();
        assert!(matches!(slot.take(), Some(1 | 2)));
        assert_eq!(slot.take(), None);
    });
}

/// A bell that remembers rings, as the eventfd does.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[test]
fn a_driver_that_sleeps_is_rung_for_every_item_it_would_miss() {
    // Three threads have too many interleavings to try all; three preemptions find every lost wake-up of this size.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let commands = Arc::new(CommandQueue::new());
        let bell = Arc::new(Bell::default());
        let pushers: Vec<_> = (0..2)
            .map(|item| {
                let (commands, bell) = (Arc::clone(&commands), Arc::clone(&bell));
                thread::spawn(move || {
                    if commands.push(item) == After::Ring {
                        bell.ring();
                    }
                })
            })
            .collect();
        // The driver's loop. If a wake-up were lost, the model would end in a deadlock, which loom reports.
        let mut seen = 0;
        while seen < 2 {
            let mut taken = Vec::new();
            commands.take_all(&mut taken);
            seen += taken.len();
            if seen < 2 && commands.fall_asleep() {
                bell.wait();
            }
        }
        for pusher in pushers {
            pusher.join().unwrap();
        }
    });
}
