//! Groups that only their members know: joining, leaving, and what is refused.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::harness::{Transport, config, ranks, ranks_with, result, sum};
use farandole_engine::{Config, Error};
use farandole_plan::Rank;

#[test]
fn members_join_groups_that_the_others_never_hear_of() {
    for transport in Transport::ALL {
        let all_are_done = Arc::new(Barrier::new(3));
        ranks(3, transport, move |engine| {
            let me = engine.rank();
            for (number, members) in [(1, [Rank(0), Rank(1)]), (2, [Rank(2), Rank(1)])] {
                if members.contains(&me) {
                    let group = engine.join_group(number, &members).unwrap();
                    assert_eq!(result::<u32>(&engine, sum("t", vec![me.0]).in_group(group)), [members[0].0 + 1]);
                }
            }
            // Groups of the same ranks are different groups; groups of the whole world are added as ever.
            let twice = [3, 4].map(|number| engine.join_group(number, &[Rank(0), Rank(1), Rank(2)]).unwrap());
            assert_ne!(twice[0], twice[1]);
            let tickets = twice.map(|group| engine.submit(sum("t", vec![1u32]).in_group(group)).unwrap());
            for ticket in tickets {
                assert_eq!(ticket.wait().unwrap().into_result().unwrap().into_vec::<u32>().unwrap(), [3]);
            }
            engine.add_group(&[Rank(0), Rank(1)]).unwrap();
            all_are_done.wait();
        });
    }
}

#[test]
fn a_member_that_leaves_ends_its_group_and_no_other() {
    let all_have_left = Arc::new(Barrier::new(2));
    ranks(2, Transport::Shm, move |engine| {
        let both = [Rank(0), Rank(1)];
        let (ends, stays) = (engine.join_group(1, &both).unwrap(), engine.join_group(2, &both).unwrap());
        engine.leave_group(ends).unwrap();
        assert!(matches!(engine.submit(sum("t", vec![1u32]).in_group(ends)), Err(Error::UnknownGroup(_))));
        assert!(matches!(engine.leave_group(ends), Err(Error::UnknownGroup(_))));
        assert_eq!(result::<u32>(&engine, sum("t", vec![1u32]).in_group(stays)), [2]);
        assert_eq!(result::<u32>(&engine, sum("t", vec![1u32])), [2]);
        all_have_left.wait();
    });
}

#[test]
fn a_group_that_cannot_be_is_refused() {
    ranks(2, Transport::Memory, |engine| {
        let other = Rank(1 - engine.rank().0);
        for (number, members) in [(1, &[][..]), (1, &[other]), (1, &[other, Rank(2)]), (1 << 31, &[Rank(0), Rank(1)])] {
            assert!(matches!(engine.join_group(number, members), Err(Error::InvalidGroup(_))), "{number} {members:?}");
        }
        let added = engine.add_group(&[Rank(0)]).unwrap();
        assert!(matches!(engine.leave_group(added), Err(Error::InvalidGroup(_))));
    });
}

#[test]
fn a_member_that_never_comes_is_missed_at_the_deadline() {
    let config = Config { meet_deadline: Duration::from_millis(300), ..config() };
    ranks_with(2, Transport::Tcp, config, |engine| {
        if engine.rank() == Rank(0) {
            let error = engine.join_group(1, &[Rank(0), Rank(1)]).unwrap_err();
            assert!(matches!(error, Error::InvalidGroup(_)) && error.to_string().contains("did not meet"), "{error}");
        }
        assert_eq!(result::<u32>(&engine, sum("t", vec![1u32])), [2], "the world goes on");
    });
}
