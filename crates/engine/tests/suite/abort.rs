//! The abort handle: rung from any thread, it ends whatever is under way within moments, with its cause and not with
//! what breaks next.
#![allow(clippy::unwrap_used)]

use crate::harness;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::harness::{Transport, ranks, result, sum};
use farandole_engine::connector::{Connector, Medium, ThreadWorld};
use farandole_engine::{Communicator, DirectSettings, Engine, Error, Failure};
use farandole_plan::{ErrorClass, GroupId, Rank, ReduceOp};
use farandole_testing::{NEVER, Sleeper, lapse, wait_until};
use farandole_trace::Event;
use farandole_transport::memory::MemoryOptions;
use farandole_transport::{Bell, Waiter};

/// An abort takes microseconds. Only a hang takes longer than this; the deadline of the calls is longer still, and
/// would give another error.
const PATIENCE: Duration = Duration::from_secs(60);

const CAUSE: &str = "rank 2 on host b, pid 77, was stopped (SIGSTOP)";

fn failure(error: &Error) -> &Failure {
    match error {
        Error::Failed(failure) => failure,
        other => panic!("expected a failure, got {other}"),
    }
}

fn check(error: &Error) {
    let failure = failure(error);
    assert!(failure.what.contains(CAUSE), "{failure}");
    assert_eq!(failure.class, ErrorClass::RankLost, "{failure}");
}

/// Whom an abort hits.
#[derive(Clone, Copy, Debug)]
enum Caller {
    /// One that looks around, or has not yet begun to wait.
    Awake,
    /// One that sleeps, as callers do after some hundred microseconds.
    Asleep,
}

const CALLERS: [Caller; 2] = [Caller::Awake, Caller::Asleep];

/// Rings for the calling thread.
fn ring(caller: Caller, abort: farandole_engine::AbortHandle) -> thread::JoinHandle<()> {
    let this = Sleeper::this_thread();
    thread::spawn(move || {
        if matches!(caller, Caller::Asleep) {
            this.wait_until_asleep();
        }
        abort.abort(Some(Rank(2)), ErrorClass::RankLost, CAUSE.to_owned());
    })
}

/// Three ranks, the last of which does nothing but hold its ends open, like a stopped process.
fn direct(medium: Medium, body: impl Fn(&mut Communicator) + Clone + Send + 'static) {
    let thread_world = ThreadWorld::new(3, medium);
    let (done, all_done) = mpsc::channel();
    let stopped = Arc::new(Mutex::new(()));
    let hold = stopped.lock().unwrap();
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let (mut connector, body, done) = (thread_world.enter(Rank::from(rank)), body.clone(), done.clone());
            let stopped = Arc::clone(&stopped);
            thread::spawn(move || {
                let settings = DirectSettings { deadline: NEVER, ..DirectSettings::default() };
                let mut communicator = Communicator::join(&mut connector, settings, Duration::from_secs(10)).unwrap();
                if rank == 2 {
                    drop(stopped.lock());
                } else {
                    body(&mut communicator);
                    done.send(()).unwrap();
                }
            })
        })
        .collect();
    let finished = (0..2).filter(|_| all_done.recv_timeout(Duration::from_secs(60)).is_ok()).count();
    drop(hold);
    for rank in ranks {
        rank.join().unwrap();
    }
    assert_eq!(finished, 2, "a rank hangs");
}

fn media() -> [Medium; 2] {
    [Medium::Pipes(MemoryOptions::default()), Medium::Windows]
}

#[test]
fn a_direct_call_that_blocks_ends_with_the_cause_whatever_its_size_awake_or_asleep() {
    for medium in media() {
        for elems in [1, 100_000] {
            for caller in CALLERS {
                direct(medium, move |communicator| {
                    let ringer = ring(caller, communicator.abort_handle());
                    let error = communicator.allreduce(&mut vec![1f32; elems], ReduceOp::Sum).unwrap_err();
                    check(&error);
                    ringer.join().unwrap();
                    let again = communicator.barrier().unwrap_err();
                    assert_eq!(failure(&again), failure(&error), "later calls fail with the same cause");
                });
            }
        }
    }
}

#[test]
fn a_rank_without_an_abort_of_its_own_is_told_by_the_one_that_has() {
    for medium in media() {
        direct(medium, |communicator| {
            let ringer = (communicator.rank() == Rank(0)).then(|| ring(Caller::Asleep, communicator.abort_handle()));
            let error = communicator.allreduce(&mut vec![1f32; 1000], ReduceOp::Sum).unwrap_err();
            check(&error);
            assert_eq!(failure(&error).rank, Some(Rank(2)), "not the one who told of it");
            if let Some(ringer) = ringer {
                ringer.join().unwrap();
            }
        });
    }
}

#[test]
fn an_abort_between_two_direct_calls_ends_the_second_and_one_before_the_end_is_passed_on() {
    for medium in media() {
        direct(medium, |communicator| {
            if communicator.rank() == Rank(0) {
                communicator.abort_handle().abort(Some(Rank(2)), ErrorClass::RankLost, CAUSE.to_owned());
                // Makes no further call: its peer learns of it when it leaves.
                return;
            }
            let error = communicator.barrier().unwrap_err();
            check(&error);
        });
        direct(medium, |communicator| {
            communicator.abort_handle().abort(Some(Rank(2)), ErrorClass::RankLost, CAUSE.to_owned());
            check(&communicator.barrier().unwrap_err());
            check(&communicator.allreduce(&mut [1f32], ReduceOp::Sum).unwrap_err());
        });
    }
}

/// Three engines of which the last submits nothing; the others may sleep or look around.
fn named(transport: Transport, body: impl Fn(&Engine) + Send + Sync + 'static) {
    let stopped = Arc::new(std::sync::Barrier::new(3));
    ranks(3, transport, move |engine| {
        if engine.rank() != Rank(2) {
            body(&engine);
        }
        // The last rank says nothing until the others have made their checks.
        stopped.wait();
        drop(engine);
    });
}

#[test]
fn pending_tickets_end_with_the_cause_whether_somebody_waits_for_them_or_not() {
    for transport in Transport::ALL {
        for caller in CALLERS {
            named(transport, move |engine| {
                let ringer = ring(caller, engine.abort_handle());
                let left_alone = engine.submit(sum("left alone", vec![1f32; 10]));
                let error = engine.run(sum("waited for", vec![1f32; 100_000])).unwrap_err();
                check(&error);
                ringer.join().unwrap();
                check(&left_alone.and_then(|ticket| ticket.wait()).unwrap_err());
                check(&engine.submit(sum("later", vec![1f32])).unwrap_err());
                check(&engine.failure().unwrap());
            });
        }
    }
}

#[test]
fn a_ticket_that_nobody_waits_for_is_done_soon_after_the_abort() {
    for transport in Transport::ALL {
        let both_have_submitted = std::sync::Barrier::new(2);
        named(transport, move |engine| {
            let ticket = engine.submit(sum("polled", vec![1f32; 10])).unwrap();
            both_have_submitted.wait();
            ring(Caller::Awake, engine.abort_handle()).join().unwrap();
            wait_until("the worker to hear the abort", PATIENCE, || ticket.is_done());
            check(&ticket.poll().unwrap().unwrap_err());
        });
    }
}

#[test]
fn an_idle_engine_hears_the_abort_and_tells_the_others() {
    for transport in Transport::ALL {
        named(transport, move |engine| {
            // Rank 1 has no abort handle of its own.
            if engine.rank() == Rank(0) {
                engine.abort_handle().abort(Some(Rank(2)), ErrorClass::RankLost, CAUSE.to_owned());
            }
            let told = format!("{transport:?}: rank {} to hear of it", engine.rank());
            wait_until(told, PATIENCE, || engine.failure().is_some());
            let error = engine.submit(sum("later", vec![1f32])).unwrap_err();
            check(&error);
            assert_eq!(failure(&error).rank, Some(Rank(2)), "not the one who told of it");
        });
    }
}

#[test]
fn a_bucket_that_runs_ends_with_the_cause() {
    // The first frame is held up until long after all ranks have been told.
    use farandole_transport::fault::{At, Fault, FaultAction, Faults};
    let at = At::Operation { operation: 0, event: 0 };
    let faults = Faults::new([Fault { rank: Rank(0), at, action: FaultAction::Delay(Duration::from_secs(10)) }]);
    let plan = faults.clone();
    let wrap = Arc::new(move |_group, mesh, bell: &Bell| plan.wrap(mesh, bell));
    let thread_world = ThreadWorld::new(3, Medium::Pipes(MemoryOptions::default())).with_wrap(wrap);
    let meetings = (0..3).map(|rank| Box::new(thread_world.enter(Rank(rank))) as Box<dyn Connector>);
    let held_up = faults.clone();
    let runs_everywhere = Arc::new(std::sync::Barrier::new(3));
    harness::run(meetings.collect(), harness::config(), move |engine| {
        let (abort, held_up, recorder) = (engine.abort_handle(), held_up.clone(), Arc::clone(engine.recorder()));
        let (rank, runs_everywhere) = (engine.rank(), Arc::clone(&runs_everywhere));
        let ringer = thread::spawn(move || {
            wait_until("the bucket to be held up on rank 0", PATIENCE, || held_up.has_struck());
            let is_start = |record: &farandole_trace::Record| matches!(record.event, Event::Started { .. });
            let runs = || recorder.snapshot("test").records.iter().any(is_start);
            wait_until("the bucket to run here", PATIENCE, runs);
            runs_everywhere.wait();
            if rank != Rank(2) {
                abort.abort(Some(Rank(2)), ErrorClass::RankLost, CAUSE.to_owned());
            }
        });
        let error = engine.run(sum("gradient", vec![1f32; 100_000])).unwrap_err();
        check(&error);
        ringer.join().unwrap();
        assert!(failure(&error).what.contains("gradient"), "what was under way is named: {error}");
    });
    assert!(faults.has_struck());
}

/// Joins the world and dies at once: all connections end without a word.
fn die(mut connector: Box<dyn Connector>, group: GroupId) {
    let waiter = Waiter::new().unwrap();
    let world: Vec<Rank> = (0..connector.hosts().len()).map(Rank::from).collect();
    drop(connector.mesh(group, &world, &waiter, Duration::from_secs(10)).unwrap());
}

#[test]
fn the_abort_is_the_first_cause_if_the_connection_ends_right_after_it() {
    for transport in Transport::ALL {
        for _ in 0..20 {
            let mut meetings = harness::meetings(3, transport);
            let dying = meetings.pop().unwrap();
            let death = thread::spawn(move || die(dying, GroupId::WORLD));
            harness::run(meetings, harness::config(), move |engine| {
                engine.abort_handle().abort(Some(Rank(2)), ErrorClass::RankLost, CAUSE.to_owned());
                let error = engine.run(sum("gradient", vec![1f32; 1000])).unwrap_err();
                // Whoever was quicker than both aborts has the end of the connection for a cause, and keeps it.
                assert!(failure(&error).what.contains(CAUSE) || failure(&error).what.contains("rank 2"), "{error}");
                assert_eq!(failure(&engine.failure().unwrap()), failure(&error));
            });
            death.join().unwrap();
        }
    }
}

#[test]
fn an_abort_that_has_come_goes_before_a_connection_that_has_ended() {
    for medium in media() {
        for _ in 0..20 {
            let thread_world = ThreadWorld::new(2, medium);
            let dying = thread_world.enter(Rank(1));
            let death = thread::spawn(move || die(Box::new(dying), GroupId(u32::MAX)));
            let settings = DirectSettings::default();
            let mut communicator =
                Communicator::join(&mut thread_world.enter(Rank(0)), settings, Duration::from_secs(10)).unwrap();
            death.join().unwrap();
            let abort = communicator.abort_handle();
            abort.abort(Some(Rank(1)), ErrorClass::RankLost, CAUSE.to_owned());
            let error = communicator.allreduce(&mut [1f32], ReduceOp::Sum).unwrap_err();
            check(&error);
            assert_eq!(failure(&error).rank, Some(Rank(1)));
        }
    }
}

#[test]
fn an_earlier_cause_stays_when_an_abort_comes_after_it() {
    for transport in Transport::ALL {
        let died = Arc::new(std::sync::Barrier::new(2));
        ranks(3, transport, move |engine| {
            if engine.rank() == Rank(2) {
                let abort = engine.abort_handle();
                abort.abort(Some(Rank(2)), ErrorClass::RankLost, "this rank gives up".to_owned());
                died.wait();
                return;
            }
            let first = engine.run(sum("gradient", vec![1f32; 1000])).unwrap_err();
            if engine.rank() == Rank(0) {
                died.wait();
            }
            assert!(failure(&first).what.contains("this rank gives up"), "{first}");
            engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "a later cause".to_owned());
            let later = engine.run(sum("later", vec![1f32])).unwrap_err();
            assert_eq!(failure(&later), failure(&first));
            lapse("the later cause, which might take its place", Duration::from_millis(5));
            assert_eq!(failure(&engine.failure().unwrap()), failure(&first));
        });
    }
}

#[test]
fn groups_end_with_the_world_and_an_abort_that_outlives_its_engine_does_nothing() {
    for transport in Transport::ALL {
        let both_have_their_result = std::sync::Barrier::new(2);
        ranks(3, transport, move |engine| {
            let group = engine.add_group(&[Rank(0), Rank(1)]).unwrap();
            let abort = engine.abort_handle();
            if engine.rank() == Rank(2) {
                // Serves the others until they have been told, which reaches it through the world.
                let error = engine.run(sum("alone", vec![1f32])).unwrap_err();
                check(&error);
            } else {
                assert_eq!(result::<i32>(&engine, sum("t", vec![1i32]).in_group(group)), [2]);
                both_have_their_result.wait();
                abort.abort(Some(Rank(2)), ErrorClass::RankLost, CAUSE.to_owned());
                check(&engine.run(sum("t", vec![1i32]).in_group(group)).unwrap_err());
            }
            drop(engine);
            abort.abort(None, ErrorClass::Other, "too late".to_owned());
        });
    }
}

#[test]
fn errors_call_hosts_by_the_names_that_users_know() {
    for (other, names) in
        [("db/boot-1/net:[4026531833]", ["vm", "db"]), ("vm/boot-1/net:[4026531833]", ["vm#1", "vm#2"])]
    {
        let hosts = ["vm/boot-0/net:[4026531833]", other];
        let meetings = harness::by_contacts(2, |rank| hosts[rank].to_owned());
        let said = harness::run(meetings, harness::config(), |engine| {
            engine.abort_handle().abort(None, ErrorClass::Other, CAUSE.to_owned());
            failure(&engine.run(sum("struck", vec![1f32; 8])).unwrap_err()).what.clone()
        });
        for says in said {
            let noticed =
                names.iter().enumerate().any(|(rank, name)| says.ends_with(&format!("rank {rank} on {name}")));
            assert!(noticed && !says.contains("net:["), "{says}");
        }
    }
}
