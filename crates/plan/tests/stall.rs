//! What a stall comes to: one line for each kind of cause, and a report that holds everything that was found out.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use farandole_plan::stall::{
    DirectCall, DirectWait, GroupState, Interpreter, Lately, MainThread, PATIENCE, Places, RankStatus, RunningBucket,
    Sight, StallFinding, StallLimits, StallProbe, ThreadStack, Waiting, report,
};
use farandole_plan::{GroupId, Rank};

const MINUTE: Duration = Duration::from_secs(61);

fn lately(what: &str, seconds: f64) -> Lately {
    Lately { what: what.into(), ago: Duration::from_secs_f64(seconds) }
}

/// A stall probe about these names, each missing these ranks, after a minute.
fn probe(waiting: &[(&str, &[u32])]) -> StallProbe {
    let waiting = waiting.iter().map(|(name, missing)| Waiting {
        name: (*name).into(),
        since: Duration::ZERO,
        missing: missing.iter().map(|rank| Rank(*rank)).collect(),
        ..Waiting::default()
    });
    StallProbe::open(7, report(waiting.collect(), &StallLimits::default(), &[], MINUTE).unwrap(), MINUTE)
}

fn close(probe: StallProbe, sight: Sight) -> StallFinding {
    let hosts: Vec<String> = (0..4).map(|host| format!("host{host}")).collect();
    probe.close(&Places { world_ranks: &[], hosts: &hosts }, MINUTE + PATIENCE, |_| sight)
}

/// What comes of one missing rank that gives this status.
fn about(rank_status: RankStatus) -> StallFinding {
    let mut probe = probe(&[("w", &[1])]);
    assert!(!probe.is_over(MINUTE) && probe.to_ask() == [Rank(1)]);
    probe.hear(Rank(1), 6, Box::default());
    probe.hear(Rank(2), 7, Box::default());
    assert!(!probe.is_over(MINUTE), "answers to other questions and of other ranks do not count");
    probe.hear(Rank(1), 7, Box::new(rank_status));
    assert!(probe.is_over(MINUTE));
    close(probe, Sight::Nothing)
}

fn recorded() -> RankStatus {
    RankStatus { pid: 77, records: true, ..RankStatus::default() }
}

#[test]
fn a_rank_that_evaluates_alone_is_told_with_all_it_did_last() {
    let frames = vec!["train.py:44 in <module>: main()".into(), "train.py:30 in evaluate: time.sleep(100)".into()];
    let finding = about(RankStatus {
        phase: Some(lately("evaluation", 61.0)),
        epoch: Some(2),
        iteration: Some((310, MINUTE)),
        finished: Some(lately("layer3/weight", 61.0)),
        submitted: Some(lately("layer3/weight", 61.2)),
        main_thread: MainThread::Sleeps,
        interpreter: Interpreter::Answered(vec![ThreadStack { name: "MainThread".into(), frames }]),
        ..recorded()
    });
    assert_eq!(
        &*finding.verdict,
        "rank 1 has been in phase \"evaluation\" for 61 s while others wait for \"w\": let all ranks evaluate, each its share."
    );
    assert!(finding.text.starts_with(&format!("Stall: {}\nOne or more tensors were submitted", finding.verdict)));
    let expected = "Missing ranks:\n1: [w]\nRank 1 on host1 (pid 77):\n  in phase \"evaluation\" for 61 s; epoch 2; iteration 310, begun 61 s \
                    ago\n  last collective: \"layer3/weight\", done 61 s ago; it has submitted nothing since\n  engine: idle, nothing is \
                    asked of it\n  main thread: sleeps\n  Python, MainThread:\n    train.py:44 in <module>: main()\n    train.py:30 in \
                    evaluate: time.sleep(100)";
    assert!(finding.text.ends_with(expected), "{}", finding.text);
    assert_eq!((&*finding.tensor, finding.missing, finding.first), ("w", 1, Rank(1)));
}

#[test]
fn a_rank_that_does_not_answer_is_itself_the_finding() {
    let verdict = |sight| close(probe(&[("w", &[1])]), sight).verdict;
    assert_eq!(
        &*verdict(Sight::Stopped(77)),
        "rank 1 on host1 (pid 77) is stopped (SIGSTOP, Ctrl-Z or a debugger); `kill -CONT 77` there lets it go on."
    );
    assert_eq!(&*verdict(Sight::Gone(77)), "rank 1 on host1 (pid 77) is gone.");
    assert!(verdict(Sight::Alive(77)).contains("does not answer although its process is there"));
    assert!(verdict(Sight::Nothing).contains("its host is down, or the network between is cut"));
    let text = close(probe(&[("w", &[1])]), Sight::Stopped(77)).text;
    assert!(text.ends_with("Rank 1 on host1: no answer within 3.0 s; its process is stopped."), "{text}");
}

/// A parameter frozen on one rank was once told as "names differ. … Is it the same tensor?".
#[test]
fn a_rank_without_a_gradient_is_told_as_such_and_not_as_one_with_other_names() {
    let wait = |name: &str, since_s, seen, asked: u32, has_run| Waiting {
        name: name.into(),
        since: Duration::from_secs(since_s),
        missing: vec![Rank(1 - asked)],
        asked: vec![Rank(asked)],
        has_run,
        seen,
    };
    // Rank 1 has begun the next step, in which rank 0 cannot join it.
    let next = [wait("0.weight", 1, 4, 1, true), wait("2.bias", 1, 4, 1, true)];
    let waiting = [wait("0.bias", 0, 1, 0, false)].into_iter().chain(next).collect();
    let report = report(waiting, &StallLimits::default(), &[], MINUTE).unwrap();
    assert!(!report.text.contains("Is it the same tensor?"), "{}", report.text);
    let mut probe = StallProbe::open(7, report, MINUTE);
    assert_eq!(probe.to_ask(), [Rank(1)]);
    let finished = Some(lately("0.weight", 60.0));
    probe.hear(
        Rank(1),
        7,
        Box::new(RankStatus { finished, phase: Some(lately("optimizer step", 60.0)), ..recorded() }),
    );
    assert_eq!(
        &*close(probe, Sight::Nothing).verdict,
        "rank 1 has submitted the next \"0.weight\" but not \"0.bias\": if that is a gradient, rank 1 has none (its parameter \
         is frozen or unused there). Rank 0 has waited for \"0.bias\" for 64 s; rank 1 last finished \"0.weight\", 60 s ago."
    );
}

#[test]
fn names_that_differ_go_before_where_programs_wait() {
    let mut probe = probe(&[("model/w", &[1]), ("model_1/w", &[0])]);
    for rank in [Rank(0), Rank(1)] {
        probe.hear(rank, 7, Box::new(RankStatus { phase: Some(lately("backward", 61.0)), ..recorded() }));
    }
    let finding = close(probe, Sight::Nothing);
    assert_eq!(&*finding.verdict, "rank 1 never asked for \"model/w\", it asked for \"model_1/w\": names differ.");
}

#[test]
fn ranks_that_wait_for_each_other_are_both_named() {
    let finding = close(probe(&[("alpha", &[1]), ("omega", &[0])]), Sight::Nothing);
    assert!(finding.verdict.contains("does not answer"), "who cannot do anything goes first: {}", finding.verdict);
    let mut probe = probe(&[("alpha", &[1]), ("omega", &[0])]);
    for (rank, name) in [(Rank(0), "alpha"), (Rank(1), "omega")] {
        let groups = vec![GroupState { group: GroupId::WORLD, pending: 1, names: vec![name.into()], running: None }];
        probe.hear(rank, 7, Box::new(RankStatus { groups, ..recorded() }));
    }
    let finding = close(probe, Sight::Nothing);
    assert_eq!(
        &*finding.verdict,
        "rank 0 asked for \"alpha\", which rank 1 has not asked for, and rank 1 for \"omega\", which rank 0 has not asked for: they \
         ask for different tensors, or wait for them in different orders."
    );
    assert!(finding.text.contains("engine: waits for other ranks to ask for the same; 1 pending: \"omega\""));
}

#[test]
fn what_an_interpreter_or_a_recorder_says_is_used_as_far_as_it_goes() {
    let thread = |frame: &str| vec![ThreadStack { name: "MainThread".into(), frames: vec![frame.into()] }];
    let answered = Interpreter::Answered(thread("a.py:3 in f"));
    let verdict = |rank_status| about(rank_status).verdict.to_string();
    assert_eq!(
        verdict(RankStatus { interpreter: answered, ..recorded() }),
        "rank 1 has not asked for \"w\"; it is in a.py:3 in f."
    );
    let silent = Interpreter::Silent(Duration::from_secs(1), thread("a.py:5 in g"));
    let finding = about(RankStatus { interpreter: silent, ..recorded() });
    assert!(
        finding.verdict.contains("did not answer within 1.0 s, so it is inside native code"),
        "{}",
        finding.verdict
    );
    assert!(finding.verdict.ends_with("last seen in a.py:5 in g."));
    assert!(finding.text.contains("its interpreter did not answer within 1.0 s: it is inside native code or holds"));
    assert_eq!(verdict(recorded()), "rank 1 has not asked for anything yet, while others wait for \"w\".");
    let asked = RankStatus { submitted: Some(lately("v", 3.0)), ..recorded() };
    assert_eq!(verdict(asked), "rank 1 has not asked for \"w\"; what it asked for last was \"v\", 3.0 s ago.");
    assert!(verdict(RankStatus::default()).contains("it records nothing"));
}

#[test]
fn a_rank_in_another_call_is_told_with_whom_it_waits_for() {
    let direct = DirectCall { call: lately("allreduce", 61.0), operation: 5, peer: Some(Rank(3)) };
    let running = RunningBucket {
        tensor: lately("v", 61.0),
        operation: 12,
        place: "step 3 of 8 of an allreduce".into(),
        still: MINUTE,
        peer: Some(Rank(2)),
    };
    let groups = vec![GroupState { group: GroupId(3), pending: 2, names: vec!["v".into()], running: Some(running) }];
    let finding = about(RankStatus { direct: Some(direct), groups, ..recorded() });
    assert!(finding.verdict.starts_with("rank 1 has been in a direct allreduce for 61 s and waits for rank 3, while"));
    let line = "engine (group 3): bucket 12 (\"v\") under way for 61 s, step 3 of 8 of an allreduce, still for 61 s, waiting for \
                rank 2; 2 pending: \"v\", ...";
    assert!(finding.text.contains(line), "{}", finding.text);
}

fn direct_wait(missing: &[u32]) -> DirectWait {
    let missing = missing.iter().map(|rank| Rank(*rank)).collect();
    DirectWait { operation: 5, call: "barrier".into(), waited: MINUTE, limit: Duration::from_secs(60), missing }
}

/// The status of a rank that is in this direct call, for that rank.
fn in_call(operation: u64, peer: u32) -> Box<RankStatus> {
    let direct = DirectCall { call: lately("barrier", 61.0), operation, peer: Some(Rank(peer)) };
    Box::new(RankStatus { direct: Some(direct), ..recorded() })
}

#[test]
fn whoever_is_waited_for_in_a_direct_call_and_waits_itself_is_not_missing() {
    let mut probe = StallProbe::open_direct(7, Rank(0), direct_wait(&[1]), MINUTE);
    assert_eq!(probe.to_ask(), [Rank(1)]);
    probe.hear(Rank(1), 7, in_call(5, 2));
    assert_eq!(probe.to_ask(), [Rank(2)], "whoever it waits for is asked next");
    assert!(probe.also_waits(Rank(3), &direct_wait(&[2, 0])));
    assert_eq!(probe.to_ask(), [], "rank 2 was asked, and rank 0 is there");
    assert!(!probe.also_waits(Rank(3), &DirectWait { operation: 6, ..direct_wait(&[2]) }), "that is another call");
    probe.hear(Rank(2), 7, Box::new(RankStatus { phase: Some(lately("validate", 61.0)), ..recorded() }));
    assert!(!probe.is_over(MINUTE) && probe.due() < MINUTE + PATIENCE, "others may still say that they wait");
    assert_eq!(probe.direct_call(), Some(5));
    let finding = close(probe, Sight::Nothing);
    assert_eq!(
        &*finding.verdict,
        "rank 2 has been in phase \"validate\" for 61 s while others wait in the direct barrier. Ranks 0, 1 and 3 have \
         waited in the direct barrier for 64 s; rank 2 has finished no collective yet."
    );
    assert_eq!((&*finding.tensor, finding.missing, finding.first), ("direct barrier (call 5)", 1, Rank(2)));
    assert!(finding.text.contains("Missing ranks:\n2: [direct barrier (call 5)]"), "{}", finding.text);
    assert!(!finding.text.contains("Rank 1 on "), "{}", finding.text);
}

#[test]
fn what_is_known_of_a_rank_that_misses_a_direct_call_is_said() {
    let verdict = |rank_status: RankStatus| {
        let mut probe = StallProbe::open_direct(7, Rank(0), direct_wait(&[1]), MINUTE);
        assert_eq!(probe.to_ask(), [Rank(1)]);
        probe.hear(Rank(1), 7, Box::new(rank_status));
        for held_up_by in probe.to_ask() {
            probe.hear(held_up_by, 7, Box::new(recorded()));
        }
        close(probe, Sight::Nothing).verdict.to_string()
    };
    let groups = vec![GroupState { group: GroupId::WORLD, pending: 1, names: vec!["w".into()], running: None }];
    let since = " Rank 0 has waited in the direct barrier for 64 s; rank 1 has finished no collective yet.";
    assert_eq!(
        verdict(RankStatus { groups, ..recorded() }),
        "rank 1 has asked for \"w\", which waits for others, and not come to the direct barrier, in which others wait: the ranks do \
         not make the same calls."
            .to_owned()
            + since
    );
    let direct_done = Some(lately("allreduce", 61.0));
    assert_eq!(
        verdict(RankStatus { direct_done, ..recorded() }),
        "rank 1 has not come to the direct barrier; the last such call on its record is a direct allreduce, 61 s ago."
            .to_owned()
            + since
    );
    assert_eq!(
        verdict(*in_call(4, 3)),
        "rank 1 has been in a direct barrier for 61 s and waits for rank 3, while others wait in the direct barrier: it is not the \
         same call."
            .to_owned()
            + since
    );
    let stopped = close(StallProbe::open_direct(7, Rank(0), direct_wait(&[1]), MINUTE), Sight::Stopped(77));
    assert!(stopped.verdict.starts_with("rank 1 on host1 (pid 77) is stopped"), "{}", stopped.verdict);
    let mut probe = StallProbe::open_direct(7, Rank(0), direct_wait(&[1]), MINUTE);
    probe.hear(Rank(1), 7, in_call(5, 0));
    let all_there = close(probe, Sight::Nothing);
    assert!(
        all_there.verdict.starts_with("all ranks that were asked are in the direct barrier"),
        "{}",
        all_there.verdict
    );
    assert_eq!(all_there.missing, 0);
}

#[test]
fn a_coordinator_that_does_not_look_into_a_direct_call_is_the_finding() {
    let probe = StallProbe::without_coordinator(Rank(2), Rank(0), direct_wait(&[1]), MINUTE);
    assert!(!probe.is_over(MINUTE + PATIENCE) && probe.is_over(MINUTE + 2 * PATIENCE));
    let finding = close(probe, Sight::Stopped(77));
    assert!(finding.verdict.starts_with("rank 0 on host0 (pid 77) is stopped"), "{}", finding.verdict);
    assert!(finding.text.contains("1: [direct barrier (call 5)]"), "{}", finding.text);
}

#[test]
fn of_many_missing_ranks_some_are_asked_and_the_rest_is_counted() {
    let missing: Vec<u32> = (1..100).collect();
    let mut probe = probe(&[("w", &missing), ("v", &[50])]);
    let asked = probe.to_ask();
    assert_eq!(asked, [50, 1, 2, 3, 4, 5, 6, 7].map(Rank), "those that are missed most go first");
    for rank in asked {
        probe.hear(rank, 7, Box::new(recorded()));
    }
    let finding = close(probe, Sight::Nothing);
    assert!(finding.text.ends_with("91 more ranks are missing and were not asked."), "{}", finding.text);
    assert!(finding.verdict.ends_with("(99 ranks are missing; this is about one.)"), "{}", finding.verdict);
}
