//! Messages between two ranks, over every transport: small and large, in any order, beside collectives, and in trouble.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::harness::{Transport, ranks, result, sum};
use farandole_engine::{Engine, Error, Ticket};
use farandole_plan::p2p::{BUFFERED_BYTES, EAGER_BYTES, PIECE_BYTES};
use farandole_plan::{ErrorClass, GroupId, Rank};
use farandole_tensor::Region;

const WORLD: GroupId = GroupId::WORLD;

fn send(engine: &Engine, to: u32, tag: u32, values: Vec<u32>) -> Ticket {
    engine.send(WORLD, Rank(to), tag, Region::from_vec(values)).unwrap()
}

fn recv(engine: &Engine, from: u32, tag: u32, count: usize) -> Ticket {
    engine.recv(WORLD, Some(Rank(from)), tag, Region::from_vec(vec![0u32; count])).unwrap()
}

fn values(ticket: Ticket) -> Vec<u32> {
    ticket.wait().unwrap().into_result().unwrap().into_vec().unwrap()
}

fn numbers(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| seed.wrapping_mul(1_000_003).wrapping_add(index)).collect()
}

#[test]
fn messages_of_every_size_arrive_in_the_order_of_their_tag() {
    let sizes =
        [0, 1, EAGER_BYTES / 4, EAGER_BYTES / 4 + 1, PIECE_BYTES / 4, 5 * PIECE_BYTES / 4 + 7].map(|n| n as usize);
    for transport in Transport::EVERY {
        for n in 1..=3 {
            ranks(n, transport, move |engine| {
                let (me, n) = (engine.rank().0, n as u32);
                let (to, from) = ((me + 1) % n, (me + n - 1) % n);
                let mut sends = Vec::new();
                for (seed, &count) in sizes.iter().enumerate() {
                    sends.push(send(&engine, to, seed as u32 % 2, numbers(me * 100 + seed as u32, count)));
                }
                // One tag after the other, and the later tag first.
                for tag in [1, 0] {
                    let of_tag: Vec<usize> = (0..sizes.len()).filter(|seed| seed % 2 == tag).collect();
                    let tickets: Vec<Ticket> =
                        of_tag.iter().map(|&seed| recv(&engine, from, tag as u32, sizes[seed])).collect();
                    for (seed, ticket) in of_tag.into_iter().zip(tickets) {
                        assert_eq!(values(ticket), numbers(from * 100 + seed as u32, sizes[seed]), "{transport:?} {n}");
                    }
                }
                sends.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
                // Nobody leaves before all have received.
                assert_eq!(result::<u32>(&engine, sum("end", vec![1u32])), [n]);
            });
        }
    }
}

#[test]
fn messages_and_collectives_do_not_wait_for_each_other() {
    for transport in Transport::ALL {
        ranks(2, transport, |engine| {
            let other = 1 - engine.rank().0;
            let large = 3 * PIECE_BYTES as usize / 4;
            for step in 0..5 {
                let early = recv(&engine, other, 0, large);
                let reduced = engine.submit(sum("t", vec![step; 1000])).unwrap();
                let sent = send(&engine, other, 0, numbers(other, large));
                assert_eq!(values(reduced), vec![2 * step; 1000]);
                assert_eq!(values(early), numbers(1 - other, large));
                sent.wait().unwrap();
            }
        });
    }
}

#[test]
fn a_receive_from_anybody_says_from_whom() {
    let all_have_received = Arc::new(Barrier::new(3));
    ranks(3, Transport::Shm, move |engine| {
        if engine.rank() == Rank(0) {
            let mut heard: Vec<u32> = (0..2)
                .map(|_| {
                    let memory = Region::from_vec(vec![0u32; 4]);
                    let outcome = engine.recv(WORLD, None, 5, memory).unwrap().wait().unwrap();
                    let source = outcome.source.unwrap();
                    assert_eq!(outcome.into_result().unwrap().into_vec::<u32>().unwrap(), numbers(source.0, 4));
                    source.0
                })
                .collect();
            heard.sort_unstable();
            assert_eq!(heard, [1, 2]);
        } else {
            send(&engine, 0, 5, numbers(engine.rank().0, 4)).wait().unwrap();
        }
        all_have_received.wait();
    });
}

#[test]
fn small_messages_need_no_receiver_to_be_sent_and_survive_the_sender() {
    for transport in Transport::ALL {
        ranks(2, transport, |engine| {
            let count = (EAGER_BYTES / 4) as usize;
            let messages = (BUFFERED_BYTES / EAGER_BYTES) as u32;
            if engine.rank() == Rank(0) {
                // Waited for one by one, although nobody receives yet; then this rank leaves.
                (0..messages).for_each(|seed| drop(send(&engine, 1, 0, numbers(seed, count)).wait().unwrap()));
            } else {
                farandole_testing::lapse("the receiver, which is late", Duration::from_millis(100));
                (0..messages).for_each(|seed| assert_eq!(values(recv(&engine, 0, 0, count)), numbers(seed, count)));
            }
        });
    }
}

#[test]
fn a_group_numbers_its_own_ranks() {
    let all_are_done = Arc::new(Barrier::new(3));
    ranks(3, Transport::Tcp, move |engine| {
        let group = engine.add_group(&[Rank(0), Rank(2)]).unwrap();
        if let Some(me) = engine.rank_in(group).unwrap() {
            let other = Rank(1 - me.0);
            let sent = engine.send(group, other, 0, Region::from_vec(vec![me.0])).unwrap();
            assert_eq!(values(engine.recv(group, Some(other), 0, Region::from_vec(vec![7u32])).unwrap()), [other.0]);
            sent.wait().unwrap();
        } else {
            let foreign = engine.send(group, Rank(0), 0, Region::from_vec(vec![1u32]));
            assert!(matches!(foreign, Err(Error::ForeignGroup(_))));
        }
        assert!(engine.send(WORLD, Rank(3), 0, Region::from_vec(vec![1u32])).is_err());
        all_are_done.wait();
    });
}

#[test]
fn sides_that_disagree_are_refused_and_the_group_goes_on() {
    ranks(2, Transport::Tcp, |engine| {
        let large = PIECE_BYTES as usize;
        let error = if engine.rank() == Rank(0) {
            send(&engine, 1, 0, numbers(1, large)).wait().unwrap_err()
        } else {
            engine.recv(WORLD, Some(Rank(0)), 0, Region::from_vec(vec![0.0f32; large])).unwrap().wait().unwrap_err()
        };
        let words = "rank 0 sends 1048576 bytes of uint32, but rank 1 receives 1048576 bytes of float32";
        assert!(error.is_recoverable() && error.to_string().contains(words), "{error}");
        assert_eq!(result::<u32>(&engine, sum("t", vec![1u32])), [2]);
    });
}

#[test]
fn what_is_under_way_ends_with_the_first_cause() {
    for transport in Transport::ALL {
        let rank_0_waits = Arc::new(Barrier::new(2));
        ranks(2, transport, move |engine| {
            if engine.rank() == Rank(0) {
                let waits = recv(&engine, 1, 0, 1);
                let flows = send(&engine, 1, 0, numbers(0, 10 * PIECE_BYTES as usize));
                rank_0_waits.wait();
                for ticket in [waits, flows] {
                    let error = ticket.wait().unwrap_err().to_string();
                    assert!(error.contains("for the test"), "{transport:?}: {error}");
                }
            } else {
                rank_0_waits.wait();
                engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "aborted for the test".to_owned());
                let error = recv_or_refused(&engine);
                assert!(error.contains("for the test"), "{transport:?}: {error}");
            }
        });
    }
}

/// Why a receive cannot be, whether it is found at once or later.
fn recv_or_refused(engine: &Engine) -> String {
    match engine.recv(WORLD, Some(Rank(0)), 9, Region::from_vec(vec![0u32])) {
        Ok(ticket) => ticket.wait().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}
