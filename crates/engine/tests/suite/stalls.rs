//! Stalls as ranks see them: one report for each rank, made of what the missing ranks say about themselves.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::harness::{Transport, config, meetings, result, run_hooked, sum};
use farandole_engine::{Config, Engine, Error, Hooks, Stacks, StallNotice};
use farandole_plan::stall::{Interpreter, ThreadStack};
use farandole_plan::{GroupId, Rank};

/// Reports of each rank.
type Reports = Arc<Mutex<Vec<Vec<StallNotice>>>>;

/// Longer than any report takes, and far shorter than the deadline of a test.
const LONG: Duration = Duration::from_secs(30);

fn impatient() -> Config {
    Config { stall_warning: Duration::from_millis(200), ..config() }
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
    let end = Instant::now() + LONG;
    while reports.lock().unwrap().iter().any(|told| of(told, tensor).is_empty()) {
        assert!(Instant::now() < end, "not all ranks were told: {:?}", reports.lock().unwrap());
        std::thread::sleep(Duration::from_millis(5));
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
                // Long enough for a second one, if there were one.
                std::thread::sleep(Duration::from_millis(400));
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
    assert_eq!(&*reports[1][0].finding.verdict, "rank 0 has not asked for \"w\"; it is in eval.py:7 in evaluate.");
    assert!(text.contains("no collective has been done yet; it has submitted nothing"), "{text}");
    assert!(text.contains("Python, MainThread:\n    eval.py:7 in evaluate"), "{text}");
}

#[test]
fn an_interpreter_that_takes_too_long_holds_nobody_up() {
    let stacks = Stacks::new(|| {
        std::thread::sleep(2 * LONG);
        Interpreter::None
    });
    let began = Instant::now();
    let (_, reports) = stalling(2, Transport::Memory, impatient(), Some(stacks), |engine, reports| {
        if engine.rank() == Rank(1) {
            await_reports_of("w", reports);
        }
        result::<i32>(&engine, sum("w", vec![1i32]))
    });
    assert!(began.elapsed() < LONG, "the report does not wait for it, and neither do collectives");
    let text = &of(&reports[0], "w")[0].finding.text;
    assert!(text.contains("Rank 1 on ") && text.contains("no answer within"), "{text}");
}

#[test]
fn names_that_differ_are_the_verdict() {
    let (errors, reports) = stalling(
        2,
        Transport::Tcp,
        Config { stall_shutdown: Duration::from_secs(1), ..impatient() },
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
        assert!(told.len() == 1 && verdicts.contains(&verdict), "{told:#?}");
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
                let end = Instant::now() + LONG;
                while !both_are_told() {
                    assert!(Instant::now() < end, "{:?}", reports.lock().unwrap());
                    std::thread::sleep(Duration::from_millis(5));
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
