//! Stalls as ranks see them: one report for each rank, made of what the missing ranks say about themselves.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::harness::{Transport, config, meetings, result, run_hooked, sum};
use farandole_engine::{Config, Engine, Error, Hooks, Stacks, StallNotice};
use farandole_plan::stall::{Interpreter, ThreadStack};
use farandole_plan::{GroupId, Rank};
use farandole_testing::{Deadline, lapse};

/// Reports of each rank.
type Reports = Arc<Mutex<Vec<Vec<StallNotice>>>>;

/// Longer than any report takes, and far shorter than the deadline of a test.
const LONG: Duration = Duration::from_secs(30);

fn impatient() -> Config {
    // Long enough for a rank that computes nothing to be given time, on a loaded machine.
    Config { stall_warning: Duration::from_secs(1), ..config() }
}

/// Runs ranks that collect their reports and have this interpreter.
fn stalling<R: Send + 'static>(
    n: usize,
    transport: Transport,
    config: Config,
    stacks: Option<Stacks>,
    body: impl Fn(Engine, &Reports) -> R + Send + Sync + 'static,
) -> (Vec<R>, Vec<Vec<StallNotice>>) {
    let reports: Reports = Arc::new(Mutex::new(vec![Vec::new(); n]));
    let hooks = |rank: usize| {
        let reports = Arc::clone(&reports);
        Hooks {
            on_stall: Some(Arc::new(move |notice| reports.lock().unwrap()[rank].push(notice.clone()))),
            stacks: stacks.clone(),
            ..Hooks::default()
        }
    };
    let seen = Arc::clone(&reports);
    // All begin at once: on a loaded machine some are there long before the others, and would wait for them.
    let all_are_here = Barrier::new(n);
    let results = run_hooked(meetings(n, transport), config, hooks, move |engine| {
        all_are_here.wait();
        body(engine, &seen)
    });
    let reports = reports.lock().unwrap().clone();
    (results, reports)
}

/// Reports about a tensor. On a loaded machine there may be others, about ranks that were not given time to begin.
fn of<'a>(told: &'a [StallNotice], tensor: &str) -> Vec<&'a StallNotice> {
    told.iter().filter(|notice| &*notice.finding.tensor == tensor).collect()
}

/// Waits until every rank has a report about a tensor.
fn await_reports_of(tensor: &str, reports: &Reports) {
    let deadline = Deadline::after(LONG);
    while reports.lock().unwrap().iter().any(|told| of(told, tensor).is_empty()) {
        deadline.pause(format!("word to all ranks, after {:?}", reports.lock().unwrap()));
    }
}

#[test]
fn every_rank_is_told_once_what_the_missing_rank_does() {
    for transport in Transport::ALL {
        let (_, reports) = stalling(3, transport, impatient(), None, |engine, reports| {
            assert_eq!(result::<i32>(&engine, sum("before", vec![1i32])), [3]);
            if engine.rank() == Rank(1) {
                let _evaluating = engine.recorder().user_phase("validate");
                await_reports_of("w", reports);
                lapse("the watch, which might report again", Duration::from_millis(1500));
            }
            assert_eq!(result::<i32>(&engine, sum("w", vec![1i32])), [3]);
        });
        let finding = &of(&reports[0], "w")[0].finding;
        for (rank, told) in reports.iter().map(|told| of(told, "w")).enumerate() {
            assert_eq!(told.len(), 1, "{transport:?}: rank {rank} is told once: {told:#?}");
            assert_eq!(told[0].finding, *finding, "all ranks are told the same");
        }
        assert!(finding.verdict.contains("rank 1 has been in phase \"validate\" for "), "{}", finding.verdict);
        assert!(finding.text.contains("One or more tensors were submitted to be reduced"), "{}", finding.text);
        assert!(finding.text.contains("\n1: [w]"), "{}", finding.text);
        assert!(finding.text.contains("last collective: \"before\", done "), "{}", finding.text);
        assert!(finding.text.contains("it has submitted nothing since"), "{}", finding.text);
        assert_eq!((&*finding.tensor, finding.missing, finding.first), ("w", 1, Rank(1)));
    }
}

#[test]
fn the_coordinator_itself_can_be_the_one_that_is_missing() {
    let threads = vec![ThreadStack { name: "MainThread".into(), frames: vec!["eval.py:7 in evaluate".into()] }];
    let stacks = Stacks::new(move || Interpreter::Answered(threads.clone()));
    let (_, reports) = stalling(2, Transport::Shm, impatient(), Some(stacks), |engine, reports| {
        if engine.rank() == Rank(0) {
            await_reports_of("w", reports);
        }
        result::<i32>(&engine, sum("w", vec![1i32]))
    });
    let text = &reports[1][0].finding.text;
    let verdict = &*reports[1][0].finding.verdict;
    let cause = "rank 0 has not asked for \"w\"; it is in eval.py:7 in evaluate. Rank 1 has waited for \"w\" for ";
    assert!(verdict.starts_with(cause) && verdict.ends_with("; rank 0 has finished no collective yet."), "{verdict}");
    assert!(text.contains("no collective has been done yet; it has submitted nothing"), "{text}");
    assert!(text.contains("Python, MainThread:\n    eval.py:7 in evaluate"), "{text}");
}

#[test]
fn an_interpreter_that_takes_too_long_holds_nobody_up() {
    let gate = Arc::new(Mutex::new(()));
    let stands_still = gate.lock().unwrap();
    let waiting = Arc::clone(&gate);
    let stacks = Stacks::new(move || {
        drop(waiting.lock().unwrap());
        Interpreter::None
    });
    let (_, reports) = stalling(2, Transport::Memory, impatient(), Some(stacks), |engine, reports| {
        if engine.rank() == Rank(1) {
            await_reports_of("w", reports);
        }
        result::<i32>(&engine, sum("w", vec![1i32]))
    });
    // Neither the report nor the collective has waited for it.
    drop(stands_still);
    let text = &of(&reports[0], "w")[0].finding.text;
    assert!(text.contains("Rank 1 on ") && text.contains("no answer within"), "{text}");
}

/// With a warning time of 3 s the first line of a report said "All ranks have asked for it".
#[test]
fn a_bucket_that_a_rank_enters_in_replay_is_not_said_to_be_asked_for_by_all() {
    let (_, reports) = stalling(2, Transport::Shm, impatient(), None, |engine, reports| {
        for _ in 0..20 {
            assert_eq!(result::<i32>(&engine, sum("w", vec![1i32])), [2]);
        }
        if engine.rank() == Rank(1) {
            await_reports_of("w", reports);
        }
        assert_eq!(result::<i32>(&engine, sum("w", vec![1i32])), [2]);
    });
    for told in &reports {
        let finding = &of(told, "w")[0].finding;
        let cause = "rank 1 has not asked for \"w\"; what it asked for last was \"w\", ";
        assert!(finding.verdict.starts_with(cause), "{}", finding.verdict);
        assert!(finding.verdict.contains(" Rank 0 has waited for \"w\" for "), "{}", finding.verdict);
        assert!(!finding.text.contains("All ranks have asked"), "{}", finding.text);
    }
}

/// A parameter frozen on one rank was once told as "names differ. … Is it the same tensor?".
#[test]
fn a_rank_that_begins_the_next_step_without_a_request_is_told_as_such() {
    let (_, reports) = stalling(2, Transport::Tcp, impatient(), None, |engine, reports| {
        let bias = (engine.rank() == Rank(0)).then(|| engine.submit(sum("0.bias", vec![1i32])).unwrap());
        for name in ["0.weight", "2.bias"] {
            assert_eq!(result::<i32>(&engine, sum(name, vec![1i32])), [2]);
        }
        let next = (engine.rank() == Rank(1)).then(|| engine.submit(sum("2.bias", vec![1i32])).unwrap());
        await_reports_of("0.bias", reports);
        let late = match next {
            Some(_) => engine.submit(sum("0.bias", vec![1i32])).unwrap(),
            None => engine.submit(sum("2.bias", vec![1i32])).unwrap(),
        };
        for ticket in [bias, next, Some(late)].into_iter().flatten() {
            ticket.wait().unwrap();
        }
    });
    let finding = &of(&reports[0], "0.bias")[0].finding;
    let cause = "rank 1 has submitted the next \"2.bias\" but not \"0.bias\": if that is a gradient, rank 1 has none";
    assert!(finding.verdict.starts_with(cause), "{}", finding.verdict);
    assert!(!finding.text.contains("Is it the same tensor?"), "{}", finding.text);
}

#[test]
fn a_gradient_that_a_rank_lacks_is_refused_without_waiting_for_a_stall() {
    let (errors, reports) = stalling(2, Transport::Shm, config(), None, |engine, _| {
        let names = if engine.rank() == Rank(1) { &["w"][..] } else { &["w", "bias"] };
        let tickets: Vec<_> = names.iter().map(|name| engine.submit(sum(name, vec![1i32])).unwrap()).collect();
        engine.reduces(GroupId::WORLD, names.iter().map(|name| (*name).into()).collect());
        let error = tickets.into_iter().find_map(|ticket| ticket.wait().err());
        // The group goes on.
        assert_eq!(result::<i32>(&engine, sum("after", vec![1i32])), [2]);
        error
    });
    assert!(errors[1].is_none() && reports.iter().all(Vec::is_empty), "{errors:?} {reports:?}");
    let error = errors[0].as_ref().unwrap();
    assert!(matches!(error, Error::Refused { name, .. } if &**name == "bias"), "{error}");
    assert!(
        error.to_string().starts_with("\"bias\": rank 1 has no gradient of this name, which rank 0 reduces: "),
        "{error}"
    );
}

#[test]
fn names_that_differ_are_the_verdict() {
    let (errors, reports) = stalling(
        2,
        Transport::Tcp,
        Config { stall_shutdown: Duration::from_secs(3), ..impatient() },
        None,
        |engine, _| {
            let name = if engine.rank() == Rank(0) { "model/w" } else { "model_1/w" };
            engine.run(sum(name, vec![1i32])).unwrap_err()
        },
    );
    let verdicts = [
        "rank 1 never asked for \"model/w\", it asked for \"model_1/w\": names differ.",
        "rank 0 never asked for \"model_1/w\", it asked for \"model/w\": names differ.",
    ];
    for (error, told) in errors.iter().zip(&reports) {
        let verdict = &*told[0].finding.verdict;
        assert!(told.len() == 1 && verdicts.iter().any(|begins| verdict.starts_with(begins)), "{told:#?}");
        assert!(matches!(error, Error::Failed(_)) && error.to_string().contains(verdict), "{error}");
    }
}

#[test]
fn what_a_rank_waits_for_in_another_group_is_told() {
    let inner_waits = Barrier::new(3);
    let (_, reports) = stalling(3, Transport::Shm, impatient(), None, move |engine, reports| {
        let group = engine.add_group(&[Rank(1), Rank(2)]).unwrap();
        assert_eq!(group, GroupId(1));
        let in_group = |name: &str| {
            let mut submission = sum(name, vec![1i32]);
            submission.group = group;
            submission
        };
        match engine.rank().0 {
            // It waits in the group for rank 2, and the world waits for it.
            1 => {
                let inner = engine.submit(in_group("inner")).unwrap();
                inner_waits.wait();
                inner.wait().unwrap();
            }
            2 => {
                inner_waits.wait();
                let pending = engine.submit(sum("outer", vec![1i32])).unwrap();
                let told = |rank: &[StallNotice], group| rank.iter().any(|notice| notice.group == group);
                let both_are_told = || {
                    let reports = reports.lock().unwrap();
                    reports.iter().all(|rank| told(rank, GroupId::WORLD)) && told(&reports[1], group)
                };
                let deadline = Deadline::after(LONG);
                while !both_are_told() {
                    deadline.pause(format!("word of both groups, after {:?}", reports.lock().unwrap()));
                }
                engine.run(in_group("inner")).unwrap();
                pending.wait().unwrap();
                return;
            }
            _ => drop(inner_waits.wait()),
        }
        engine.run(sum("outer", vec![1i32])).unwrap();
    });
    let world = reports[0].iter().find(|notice| notice.group == GroupId::WORLD).unwrap();
    let text = &world.finding.text;
    assert!(
        text.contains("engine (group 1): waits for other ranks to ask for the same; 1 pending: \"inner\""),
        "{text}"
    );
    let inner = reports[1].iter().find(|notice| notice.group == GroupId(1)).unwrap();
    assert_eq!(inner.finding.first, Rank(2), "ranks are told as the world numbers them");
}
