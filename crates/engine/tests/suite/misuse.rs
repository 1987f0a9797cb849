//! Bad input gets a message and costs nothing; shutting down is orderly and can be followed by a new start.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::harness::{Transport, config, ranks, ranks_with, reduce, request, result, sum};
use farandole_engine::{Config, Error, Submission, wait_all};
use farandole_plan::request::Batch;
use farandole_plan::{Collective, Dtype, ErrorClass, Exit, GroupId, Rank, ReduceOp};
use farandole_tensor::Region;

#[test]
fn a_name_under_way_is_refused_and_free_again_afterwards() {
    ranks(2, Transport::Memory, |engine| {
        let first = engine.submit(sum("t", vec![1i32])).unwrap();
        // Rank 0 is ahead of rank 1, whose second submission tells it that the first one may end.
        if engine.rank() == Rank(0) {
            let second = engine.submit(sum("t", vec![1i32]));
            // Either it is still under way, or rank 1 was quick and the name is free again.
            if let Err(error) = second {
                assert!(matches!(error, Error::Duplicate { .. }), "{error}");
                first.wait().unwrap();
                engine.run(sum("t", vec![1i32])).unwrap();
            } else {
                first.wait().unwrap();
                second.unwrap().wait().unwrap();
            }
        } else {
            first.wait().unwrap();
            engine.run(sum("t", vec![1i32])).unwrap();
        }
    });
}

#[test]
fn mismatches_are_explained_alike_on_all_ranks_and_the_engine_goes_on() {
    for transport in Transport::ALL {
        let texts = ranks(3, transport, |engine| {
            let me = engine.rank().0;
            let odd_one = me == 2;
            let wrong_shape = engine.run(sum("shape", vec![0f32; if odd_one { 4 } else { 3 }])).unwrap_err();
            let op = if odd_one { ReduceOp::Max } else { ReduceOp::Sum };
            let submission = Submission::new(request("op", reduce(op), Dtype::F32, &[1]), Region::from_vec(vec![0f32]));
            let wrong_op = engine.run(submission).unwrap_err();
            let root = Collective::Broadcast { root: Rank(me % 2) };
            let submission = Submission::new(request("root", root, Dtype::F32, &[1]), Region::from_vec(vec![0f32]));
            let wrong_root = engine.run(submission).unwrap_err();
            assert_eq!(result::<i32>(&engine, sum("fine", vec![1i32])), [3]);
            [wrong_shape, wrong_op, wrong_root].map(|error| {
                assert!(error.is_recoverable() && matches!(error, Error::Refused { .. }), "{error}");
                error.to_string()
            })
        });
        assert!(texts.iter().all(|theirs| *theirs == texts[0]), "{transport:?} {texts:?}");
    }
}

#[test]
fn wrong_groups_are_refused() {
    let all_are_done = std::sync::Barrier::new(3);
    ranks(3, Transport::Memory, move |engine| {
        let unknown = engine.submit(sum("t", vec![1i32]).in_group(GroupId(7))).unwrap_err();
        assert!(matches!(unknown, Error::UnknownGroup(GroupId(7))));
        let group = engine.add_group(&[Rank(2), Rank(0)]).unwrap();
        assert_eq!(*engine.group(group).unwrap(), [Rank(0), Rank(2)]);
        if engine.rank() == Rank(1) {
            let foreign = engine.submit(sum("t", vec![1i32]).in_group(group)).unwrap_err();
            assert!(matches!(foreign, Error::ForeignGroup(_)));
        } else {
            assert_eq!(result::<i32>(&engine, sum("t", vec![1i32]).in_group(group)), [2]);
        }
        assert!(matches!(engine.add_group(&[Rank(0), Rank(2)]), Err(Error::ExistingGroup(_))));
        for nonsense in [&[][..], &[Rank(0), Rank(0)], &[Rank(3)]] {
            assert!(matches!(engine.add_group(nonsense), Err(Error::InvalidGroup(_))));
        }
        // A rank that leaves ends what the others have under way.
        all_are_done.wait();
    });
}

#[test]
fn different_groups_at_the_same_time_are_an_error_on_all_ranks() {
    ranks(3, Transport::Memory, |engine| {
        let wanted = [Rank(0), if engine.rank() == Rank(2) { Rank(2) } else { Rank(1) }];
        assert!(matches!(engine.add_group(&wanted), Err(Error::InvalidGroup(_))));
        assert_eq!(result::<i32>(&engine, sum("t", vec![1i32])), [3]);
    });
}

#[test]
fn a_wait_may_time_out_and_be_repeated() {
    let has_timed_out = std::sync::Barrier::new(2);
    ranks(2, Transport::Memory, move |engine| {
        if engine.rank() == Rank(1) {
            has_timed_out.wait();
        }
        let ticket = engine.submit(sum("t", vec![1i32])).unwrap();
        if engine.rank() == Rank(0) {
            assert!(matches!(ticket.wait_for(Duration::from_millis(20)), Err(Error::TimedOut { .. })));
            assert!(!ticket.is_done() && ticket.poll().is_none());
            has_timed_out.wait();
        }
        let outcome = ticket.wait_for(Duration::from_secs(20)).unwrap();
        assert_eq!(outcome.into_result().unwrap().into_vec::<i32>().unwrap(), [2]);
        assert!(matches!(ticket.poll(), Some(Err(Error::Taken))));
    });
}

#[test]
fn tickets_that_wait_for_a_rank_that_left_name_it_and_nothing_can_follow() {
    for transport in Transport::ALL {
        ranks(3, transport, move |engine| {
            engine.run(sum("together", vec![1i32])).unwrap();
            if engine.rank() == Rank(1) {
                engine.leave(Exit { code: Some(0), cause: None });
                return engine.shutdown();
            }
            let words = format!(
                "rank 1 ended (exit code 0) after 1 collective while rank {} waits in collective 2: ranks make different \
                 numbers of collective calls",
                engine.rank()
            );
            for name in ["alone", "later"] {
                let error = engine.submit(sum(name, vec![1i32])).and_then(|ticket| ticket.wait()).unwrap_err();
                assert!(matches!(error, Error::PeerLeft(_)), "{transport:?} {error}");
                assert_eq!((error.to_string(), error.culprit()), (words.clone(), Some(Rank(1))), "{transport:?}");
            }
        });
    }
}

#[test]
fn engines_can_be_started_again_in_the_same_process_without_leaks() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    for transport in Transport::ALL {
        let once = move || {
            ranks(3, transport, |engine| assert_eq!(result::<i32>(&engine, sum("t", vec![1i32])), [3]));
        };
        once();
        let (fds, threads) = (count("fd"), count("task"));
        for _ in 0..5 {
            once();
        }
        // Other tests of this process come and go; five leaking starts would leave more than their noise behind.
        let (fds_after, threads_after) = (count("fd"), count("task"));
        assert!(fds_after <= fds + 60 && threads_after <= threads + 12, "{transport:?} {fds_after} {threads_after}");
    }
}

#[test]
fn a_stall_is_reported_once_and_ends_the_job_if_asked_to() {
    let config =
        Config { stall_warning: Duration::from_millis(100), stall_shutdown: Duration::from_millis(600), ..config() };
    let errors = ranks_with(3, Transport::Memory, config, |engine| {
        if engine.rank() == Rank(2) {
            let limit = Duration::from_secs(60);
            farandole_testing::wait_until("the end of the job", limit, || engine.failure().is_some());
            return engine.submit(sum("t", vec![1i32])).unwrap_err();
        }
        engine.run(sum("t", vec![1i32])).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::Failed(_)), "{error}");
        assert_eq!(error.class(), ErrorClass::Stall, "{error}");
        assert!(error.to_string().contains('t') && error.to_string().contains('2'), "{error}");
    }
}

#[test]
fn the_memory_of_a_request_that_fails_comes_back() {
    for transport in Transport::ALL {
        let submitted = std::sync::Barrier::new(2);
        ranks(2, transport, move |engine| {
            let me = engine.rank().0 as f32;
            // Refused by all ranks: untouched.
            let elems = 3 + engine.rank().index();
            let ticket = engine.submit(sum("shape", vec![me; elems])).unwrap();
            let returned = ticket.wait_returning().unwrap_err();
            assert!(matches!(returned.error, Error::Refused { .. }), "{}", returned.error);
            assert_eq!(returned.input.unwrap().into_vec::<f32>().unwrap(), vec![me; elems]);
            // Refused at the door: untouched, output too.
            let output = Region::from_vec(vec![7f32; 1]);
            let wrong =
                Submission::new(request("t", reduce(ReduceOp::Sum), Dtype::F32, &[2]), Region::from_vec(vec![me; 2]));
            let returned = engine.submit_returning(wrong.with_output(output)).unwrap_err();
            assert!(matches!(returned.error, Error::WrongMemory { .. }), "{}", returned.error);
            assert_eq!(returned.input.unwrap().into_vec::<f32>().unwrap(), [me; 2]);
            assert_eq!(returned.output.unwrap().into_vec::<f32>().unwrap(), [7.0]);
            // A job that fails: the memory is there, so that a program can go on with fewer ranks.
            let pending = engine.submit(sum(&format!("only here {me}"), vec![me; 10])).unwrap();
            // Both have submitted before either ends the job.
            submitted.wait();
            engine.abort_handle().abort(None, ErrorClass::Other, "the test ends the job".to_owned());
            let returned = pending.wait_returning().unwrap_err();
            assert!(matches!(returned.error, Error::Failed(_)), "{}", returned.error);
            assert_eq!(returned.input.unwrap().into_vec::<f32>().unwrap(), [me; 10]);
            let returned = engine.submit_returning(sum("later", vec![me; 4])).unwrap_err();
            assert_eq!(returned.input.unwrap().into_vec::<f32>().unwrap(), [me; 4]);
        });
    }
}

#[test]
fn a_cycle_is_replayed_again_after_a_batch_was_refused() {
    let batch = |name: &str, elems: usize| {
        let mut submission = sum(name, vec![1i32; elems]);
        submission.request.batch = Some(Batch { name: "batch".into(), members: 2 });
        submission
    };
    for transport in Transport::ALL {
        ranks(3, transport, move |engine| {
            let iteration = |odd: usize| {
                let tickets: Vec<_> = [batch("a", 5), batch("b", 6 + odd), sum("c", vec![1i32; 7])]
                    .into_iter()
                    .map(|submission| engine.submit(submission).unwrap())
                    .collect();
                wait_all(tickets).into_iter().map(|outcome| outcome.map(|outcome| outcome.into_result().unwrap()))
            };
            let all_fine = |rounds: usize| {
                for _ in 0..rounds {
                    for (outcome, elems) in iteration(0).zip([5, 6, 7]) {
                        assert_eq!(outcome.unwrap().into_vec::<i32>().unwrap(), vec![3; elems]);
                    }
                }
            };
            // Long enough to be learned and replayed; then one rank asks for another size, of one member of the batch.
            all_fine(20);
            let outcomes: Vec<_> = iteration(usize::from(engine.rank() == Rank(2))).collect();
            for outcome in &outcomes[..2] {
                assert!(matches!(outcome, Err(Error::Refused { .. })), "{transport:?} {outcome:?}");
            }
            assert!(outcomes[2].is_ok(), "what is not in the batch runs: {:?}", outcomes[2]);
            // Nothing of the refused batch is left behind: the cycle is learned and replayed once more.
            all_fine(20);
        });
    }
}
