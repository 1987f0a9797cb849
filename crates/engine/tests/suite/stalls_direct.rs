//! Direct calls that wait for a rank in vain: every rank is told once, by whom and for what, as it is told of named
//! requests.

#![allow(clippy::unwrap_used)]

use crate::harness;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::harness::{Boxed, by_contacts, config, result, sum};
use farandole_engine::{Communicator, Config, DirectSettings, Engine, Hooks, StallNotice};
use farandole_plan::Rank;
use farandole_plan::stall::StallFinding;
use farandole_testing::{Deadline, lapse};

/// Longer than any report takes, and far shorter than the deadline of a test.
const LONG: Duration = Duration::from_secs(40);

/// Reports of each rank.
type Reports = Arc<Mutex<Vec<Vec<StallNotice>>>>;

/// Runs ranks on these hosts, each with a communicator and an engine that looks into its stalls.
fn stalling(
    hosts: &'static [&'static str],
    config: Config,
    body: impl Fn(&mut Communicator, &Engine, &Reports) + Send + Sync + 'static,
) -> Vec<Vec<StallNotice>> {
    let reports: Reports = Arc::new(Mutex::new(vec![Vec::new(); hosts.len()]));
    let meetings = || by_contacts(hosts.len(), |rank| hosts[rank].to_owned());
    let body = Arc::new(body);
    // All begin at once: on a loaded machine some are there long before the others, and would wait for them.
    let all_are_here = Arc::new(Barrier::new(hosts.len()));
    let (done, finished) = std::sync::mpsc::channel();
    for (rank, (mut direct, named)) in meetings().into_iter().zip(meetings()).enumerate() {
        let (reports, body, config, done) = (Arc::clone(&reports), Arc::clone(&body), config.clone(), done.clone());
        let all_are_here = Arc::clone(&all_are_here);
        std::thread::spawn(move || {
            let mut communicator = Communicator::join(&mut *direct, DirectSettings::default(), LONG).unwrap();
            let told = Arc::clone(&reports);
            let on_stall: farandole_engine::OnStall =
                Arc::new(move |notice| told.lock().unwrap()[rank].push(notice.clone()));
            let hooks = Hooks { on_stall: Some(on_stall), ..Hooks::default() };
            let engine = Engine::start_with(Boxed(named), config, hooks).unwrap();
            communicator.record_with(engine.recorder());
            communicator.report_stalls_with(&engine);
            all_are_here.wait();
            body(&mut communicator, &engine, &reports);
            communicator.barrier().unwrap();
            let _ = done.send(());
        });
    }
    drop(done);
    for _ in hosts {
        finished.recv_timeout(harness::HARD_DEADLINE).expect("every rank finishes in time");
    }
    let reports = reports.lock().unwrap();
    reports.clone()
}

fn impatient() -> Config {
    // Long enough for a rank that computes nothing to be given time, on a loaded machine.
    Config { stall_warning: Duration::from_secs(1), ..config() }
}

fn await_reports(reports: &Reports) {
    let deadline = Deadline::after(LONG);
    while reports.lock().unwrap().iter().any(Vec::is_empty) {
        deadline.pause(format!("word to all ranks, after {:?}", reports.lock().unwrap()));
    }
}

/// The one finding that all ranks were told.
fn the_finding(reports: &[Vec<StallNotice>]) -> &StallFinding {
    for (rank, told) in reports.iter().enumerate() {
        assert_eq!(told.len(), 1, "rank {rank} is told once: {told:#?}");
        assert_eq!(told[0].finding, reports[0][0].finding, "all ranks are told the same");
    }
    &reports[0][0].finding
}

#[test]
fn every_rank_is_told_which_rank_a_direct_call_waits_for_and_what_it_does() {
    let placements: [&[&str]; 3] = [&["a", "a", "a"], &["a", "b", "c"], &["a", "a", "b"]];
    for hosts in placements {
        let reports = stalling(hosts, impatient(), |communicator, engine, reports| {
            communicator.barrier().unwrap();
            if communicator.rank() == Rank(2) {
                let _evaluating = engine.recorder().user_phase("validate");
                await_reports(reports);
                lapse("the watch, which might report again", Duration::from_millis(1500));
            }
            let mut data = vec![1f32; 1000];
            communicator.allreduce(&mut data, farandole_plan::ReduceOp::Sum).unwrap();
        });
        let finding = the_finding(&reports);
        let verdict = &finding.verdict;
        assert!(verdict.starts_with("rank 2 has been in phase \"validate\" for "), "{hosts:?}: {verdict}");
        assert!(
            verdict.contains("while others wait in the direct allreduce (Sum) of 1000 float32"),
            "{hosts:?}: {verdict}"
        );
        let text = &finding.text;
        assert!(text.contains("One or more tensors were submitted to be reduced"), "{text}");
        assert!(text.contains("\n2: [direct allreduce (Sum) of 1000 float32 (call 2)]"), "{text}");
        assert!(text.contains("Rank 2 on ") && text.contains("main thread: "), "{text}");
        assert!(!text.contains("Rank 1 on "), "only who is missing explains itself: {text}");
        assert_eq!((finding.missing, finding.first), (1, Rank(2)), "{hosts:?}");
    }
}

#[test]
fn ranks_of_a_host_that_does_not_come_are_told_and_those_of_the_other_host_are_not() {
    let reports = stalling(&["a", "a", "b", "b"], impatient(), |communicator, _, reports| {
        if communicator.rank() >= Rank(2) {
            await_reports(reports);
        }
        communicator.barrier().unwrap();
    });
    let StallFinding { text, missing, first, .. } = the_finding(&reports);
    assert!(text.contains("[direct barrier (call 1)]") && text.contains(" on b (pid "), "{text}");
    assert!(!text.contains(" on a "), "{text}");
    assert!((1..=2).contains(missing) && *first >= Rank(2), "{text}");
}

#[test]
fn a_direct_call_here_and_a_named_request_there_are_one_report_that_names_both() {
    for direct in [0, 1] {
        let reports = stalling(&["a", "a"], impatient(), move |communicator, engine, reports| {
            if communicator.rank() == Rank(direct) {
                communicator.barrier().unwrap();
                assert_eq!(result::<i32>(engine, sum("w", vec![1i32])), [2]);
            } else {
                let ticket = engine.submit(sum("w", vec![1i32])).unwrap();
                await_reports(reports);
                lapse("the watch, which might report again", Duration::from_millis(1500));
                communicator.barrier().unwrap();
                ticket.wait().unwrap();
            }
        });
        let verdict = &the_finding(&reports).verdict;
        assert!(verdict.contains("direct barrier") && verdict.contains("\"w\""), "{verdict}");
        assert!(verdict.contains(": the ranks do not make the same calls. Rank"), "{verdict}");
    }
}

#[test]
fn nothing_is_told_where_the_watch_is_off_and_nothing_of_calls_that_go_on() {
    let off = Config { stall_check_disable: true, ..impatient() };
    for config in [off, Config { stall_warning: Duration::from_secs(20), ..impatient() }] {
        let reports = stalling(&["a", "a"], config, |communicator, _, _| {
            if communicator.rank() == Rank(1) {
                lapse("rank 1, which is late", Duration::from_millis(1500));
            }
            communicator.barrier().unwrap();
        });
        assert!(reports.iter().all(Vec::is_empty), "{reports:#?}");
    }
}
