//! Programs that change what they ask for go on at once: no thread waits for the agreement to lose patience.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use farandole_engine::{Config, Ticket};

use crate::harness::{Transport, config, ranks_with, sum};

/// A rank that waits for its patience to end fails by the test's deadline.
fn patient() -> Config {
    Config { patience: Duration::from_secs(3600), deadline: Duration::ZERO, ..config() }
}

#[test]
fn bursts_that_end_within_a_learned_order_do_not_wait_for_patience() {
    const NAMES: usize = 8;
    const BURST: usize = 20;
    for transport in Transport::ALL {
        ranks_with(3, transport, patient(), |engine| {
            for burst in 0..12 {
                let mut tickets: Vec<Ticket> = Vec::new();
                for call in 0..BURST {
                    if call >= NAMES {
                        tickets.remove(0).wait().unwrap();
                    }
                    let name = format!("t{}", (burst * BURST + call) % NAMES);
                    tickets.push(engine.submit(sum(&name, vec![1i32; 40])).unwrap());
                }
                for ticket in tickets {
                    assert_eq!(ticket.wait().unwrap().into_result().unwrap().into_vec::<i32>().unwrap(), vec![3; 40]);
                }
            }
        });
    }
}

#[test]
fn a_thread_that_waits_while_another_one_drives_ends_the_replay_as_well() {
    for transport in [Transport::Memory, Transport::Tcp] {
        ranks_with(2, transport, patient(), |engine| {
            let all = |names: &[&str]| {
                // The last first, as `wait_all` does, and another thread waits for the first meanwhile.
                let mut tickets: Vec<Ticket> =
                    names.iter().map(|name| engine.submit(sum(name, vec![1i32; 4])).unwrap()).collect();
                let first = tickets.remove(0);
                std::thread::scope(|scope| {
                    scope.spawn(move || first.wait().unwrap());
                    tickets.into_iter().rev().for_each(|ticket| drop(ticket.wait().unwrap()));
                });
            };
            for _ in 0..10 {
                for _ in 0..20 {
                    all(&["a", "b", "c", "d"]);
                }
                all(&["a", "c"]);
            }
        });
    }
}
