//! Stories of jobs, told to the supervision event by event.

use super::super::connectivity::HostProbe;
use super::super::message::RankSlot;
use super::*;
use crate::rendezvous::FailureKind;
use farandole_transport::{AwakeClock, ProcessId};

/// A job under supervision, with a clock that the story moves.
struct Story {
    supervision: Supervision,
    now: Instant,
    /// What was done since it was last asked.
    done: Vec<Action>,
}

impl Story {
    fn new(hosts: &[usize]) -> Story {
        let mut rank = 0;
        let starts = hosts.iter().map(|&count| {
            let mut slot = |local| {
                rank += 1;
                RankSlot { rank: rank - 1, local_rank: local, local_size: count as u32, ..RankSlot::default() }
            };
            StartRanks { ranks: (0..count as u32).map(&mut slot).collect(), ..StartRanks::default() }
        });
        let settings = Settings {
            starts: starts.collect(),
            hosts: (0..hosts.len()).map(|host| format!("h{host}")).collect(),
            start_timeout: Duration::from_secs(30),
            silence: Duration::from_secs(5),
            grace: Duration::from_secs(5),
        };
        let now = Instant::now();
        Story { supervision: Supervision::new(settings, now), now, done: Vec::new() }
    }

    /// The job with all its ranks at work.
    fn running(hosts: &[usize]) -> Story {
        let mut story = Story::new(hosts);
        for host in 0..hosts.len() {
            let probe_addresses = vec![format!("10.0.0.{}:99", host + 1).parse().unwrap()];
            story.hear(
                host,
                AgentReport::Ready { pid: 100 + host as u32, host_name: format!("h{host}"), probe_addresses },
            );
        }
        if hosts.len() > 1 {
            let probed = story.take_done();
            for action in probed {
                let Action::Send(host, Directive::Probe(probes)) = action else { panic!("{action:?}") };
                let reached = |probe| Attempt { probe, outcome: Ok(1) };
                story.hear(host, AgentReport::Probed(probes.into_iter().map(reached).collect()));
            }
        }
        let started = story.take_done();
        assert_eq!(started.len(), hosts.len());
        let mut rank = 0;
        for (host, &count) in hosts.iter().enumerate() {
            for _ in 0..count {
                story.hear(
                    host,
                    AgentReport::Started { rank, process: ProcessId { pid: 1000 + rank, namespace: 5, start_time: 1 } },
                );
                rank += 1;
            }
        }
        story
    }

    fn hear(&mut self, host: usize, report: AgentReport) {
        self.supervision.report(host, report, self.now);
        self.collect();
    }

    fn ended(&mut self, host: usize, rank: u32, how: HowEnded) {
        self.hear(host, AgentReport::Ended { rank, how, after_us: 1 });
    }

    /// Lets time pass in small steps; hosts other than the silent ones give signs of life.
    fn pass(&mut self, time: Duration, silent: &[usize]) {
        let step = Duration::from_millis(100);
        for _ in 0..time.as_millis() / step.as_millis() {
            self.now += step;
            for host in (0..self.supervision.hosts.len()).filter(|host| !silent.contains(host)) {
                self.supervision.report(host, AgentReport::Alive, self.now);
            }
            self.supervision.tick(self.now);
            self.collect();
        }
    }

    fn collect(&mut self) {
        while let Some(action) = self.supervision.next_action() {
            if !matches!(action, Action::Send(_, Directive::Alive)) {
                self.done.push(action);
            }
        }
    }

    fn take_done(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.done)
    }

    fn is_finished(&self) -> bool {
        self.done.contains(&Action::Finish)
    }

    fn last_line(&self) -> String {
        self.supervision.last_words().pop().unwrap_or_default()
    }

    fn notices(&self) -> Vec<FailureKind> {
        let notice = |action: &Action| match action {
            Action::Send(_, Directive::Pronounce { notice, .. }) => Some(notice.kind),
            _ => None,
        };
        self.done.iter().filter_map(notice).collect()
    }
}

#[test]
fn a_job_that_ends_well_says_nothing() {
    let mut story = Story::running(&[2]);
    story.ended(0, 0, HowEnded::Exited(0));
    story.ended(0, 1, HowEnded::Exited(0));
    assert!(!story.is_finished(), "the host has not said that it is empty");
    story.hear(0, AgentReport::Empty);
    assert!(story.is_finished());
    assert_eq!(story.supervision.exit_code(), 0);
    assert!(story.supervision.last_words().is_empty());
}

#[test]
fn the_exit_code_is_that_of_the_rank_that_failed() {
    let mut story = Story::running(&[1, 1]);
    story.hear(
        1,
        AgentReport::Output { rank: 1, stream: OutputStream::Stderr, bytes: b"Traceback\nValueError: no\n".to_vec() },
    );
    story.ended(1, 1, HowEnded::Exited(3));
    assert_eq!(story.notices(), [FailureKind::Exited { code: 3 }, FailureKind::Exited { code: 3 }]);
    story.ended(0, 0, HowEnded::Exited(1));
    story.hear(0, AgentReport::Empty);
    story.hear(1, AgentReport::Empty);
    assert!(story.is_finished());
    assert_eq!(story.supervision.exit_code(), 3);
    assert_eq!(story.last_line(), "rank 1 on h1 (pid 1001) ended with exit code 3 after 0.0 s: ValueError: no");
    assert!(story.supervision.last_words().contains(&"  | Traceback".to_owned()));
}

#[test]
fn a_dead_mps_daemon_is_the_cause_of_what_its_ranks_do_next() {
    let mut story = Story::running(&[1, 2]);
    story.hear(1, AgentReport::Note("there is another".into()));
    assert_eq!(story.take_done(), [Action::Say("h1: there is another".into())], "a note ends nothing");
    let words = Some("Failed to create a context".to_owned());
    story.hear(1, AgentReport::MpsEnded { pid: 7, how: HowEnded::Exited(1), words });
    assert_eq!(story.notices(), [FailureKind::Other; 2]);
    story.ended(1, 2, HowEnded::Exited(3));
    story.pass(Duration::from_secs(2), &[]);
    assert!(story.done.iter().any(|action| matches!(action, Action::Send(0, Directive::End { .. }))));
    assert_eq!(story.supervision.exit_code(), 1);
    let expected = "the job's MPS daemon on h1 (pid 7) ended with exit code 1; its ranks cannot use their GPUs without it: \
                    Failed to create a context";
    assert_eq!(story.last_line(), expected);
}

#[test]
fn fingers_lead_to_the_rank_that_failed_first() {
    let mut story = Story::running(&[3]);
    // Rank 2 failed; its peers were quicker to end, and one of them blames the other.
    story.hear(0, AgentReport::Blamed { by: 0, peer: Some(1), cause: "rank 1 is gone".into() });
    story.ended(0, 0, HowEnded::Exited(1));
    story.hear(0, AgentReport::Blamed { by: 1, peer: Some(2), cause: "rank 2 is gone".into() });
    story.ended(0, 1, HowEnded::Exited(1));
    story.ended(0, 2, HowEnded::Signalled(11));
    story.hear(0, AgentReport::Empty);
    assert!(story.last_line().starts_with("rank 2 on h0 (pid 1002) was killed by signal 11 (SIGSEGV)"));
    assert_eq!(story.supervision.exit_code(), 139);
}

#[test]
fn ranks_are_told_of_the_rank_that_failed_first_though_another_ended_first() {
    let mut story = Story::running(&[1, 1, 1]);
    story.hear(0, AgentReport::Blamed { by: 0, peer: Some(1), cause: "rank 1 is gone".into() });
    story.hear(1, AgentReport::Blamed { by: 1, peer: Some(2), cause: "rank 2 closed the connection".into() });
    story.ended(0, 0, HowEnded::Exited(1));
    let told = story.done.iter().find_map(|action| match action {
        Action::Send(_, Directive::Pronounce { notice, .. }) => Some(notice.clone()),
        _ => None,
    });
    let told = told.expect("all ranks are told of the first failure");
    assert_eq!((told.rank, told.kind), (Some(farandole_plan::Rank(2)), FailureKind::Gone));
    assert_eq!(told.text, "rank 2 on h2 (pid 1002): rank 2 closed the connection");
}

#[test]
fn fingers_in_a_circle_end_somewhere() {
    let mut story = Story::running(&[2]);
    story.hear(0, AgentReport::Blamed { by: 0, peer: Some(1), cause: "cut off".into() });
    story.hear(0, AgentReport::Blamed { by: 1, peer: Some(0), cause: "cut off".into() });
    story.ended(0, 0, HowEnded::Exited(1));
    story.ended(0, 1, HowEnded::Exited(1));
    story.hear(0, AgentReport::Empty);
    assert!(story.last_line().starts_with("rank "), "{}", story.last_line());
}

#[test]
fn survivors_are_told_to_end_after_a_moment_and_left_after_the_grace_period() {
    let mut story = Story::running(&[2]);
    story.ended(0, 1, HowEnded::Signalled(9));
    story.pass(SETTLE / 2, &[]);
    assert!(!story.done.iter().any(|action| matches!(action, Action::Send(_, Directive::End { .. }))));
    story.pass(SETTLE, &[]);
    assert!(story.done.contains(&Action::Send(0, Directive::End { grace_ms: 5000 })));
    // What ends from now on was told to; it is no cause.
    story.ended(0, 0, HowEnded::Signalled(15));
    assert!(story.last_line().starts_with("rank 1 on h0 (pid 1001) was killed by signal 9 (SIGKILL)"));
    story.pass(Duration::from_secs(9), &[]);
    assert!(story.is_finished(), "an agent that never gets empty is left");
    assert!(story.supervision.last_words()[0].starts_with("processes may be left on h0"));
}

#[test]
fn a_silent_host_and_a_killed_agent_are_told_apart() {
    let mut cut = Story::running(&[1, 1]);
    cut.pass(Duration::from_secs(6), &[1]);
    assert_eq!(cut.notices(), [FailureKind::HostLost]);
    assert!(cut.last_line().starts_with("h1 has not been heard of for 5."), "{}", cut.last_line());

    let mut killed = Story::running(&[1, 1]);
    killed.supervision.agent_gone(1, "its connection was closed".into(), killed.now);
    killed.collect();
    assert_eq!(killed.notices(), [FailureKind::AgentLost]);
    assert!(killed.last_line().starts_with("the agent on h1 (pid 101) is gone"), "{}", killed.last_line());
}

#[test]
fn a_stopped_rank_is_reported_as_stopped_if_it_does_not_go_on() {
    let mut story = Story::running(&[2]);
    story.hear(0, AgentReport::Stopped { rank: 1, signal: 19 });
    story.pass(Duration::from_secs(4), &[]);
    story.hear(0, AgentReport::Continued { rank: 1 });
    story.pass(Duration::from_secs(10), &[]);
    assert!(story.notices().is_empty());
    story.hear(0, AgentReport::Stopped { rank: 1, signal: 19 });
    story.pass(Duration::from_secs(6), &[]);
    assert_eq!(story.notices(), [FailureKind::Stopped]);
    assert!(story.last_line().contains("was stopped by signal 19 (SIGSTOP)"), "{}", story.last_line());
}

#[test]
fn one_signal_ends_politely_and_a_second_one_at_once() {
    let mut story = Story::running(&[2]);
    story.supervision.signal(2, story.now);
    story.collect();
    assert!(story.done.contains(&Action::Send(0, Directive::Signal(2))));
    story.take_done();
    story.supervision.signal(2, story.now);
    story.collect();
    assert!(story.done.contains(&Action::Send(0, Directive::End { grace_ms: 0 })));
    story.hear(0, AgentReport::Empty);
    assert!(story.is_finished());
    assert_eq!(story.supervision.exit_code(), 130);
}

#[test]
fn a_host_that_does_not_answer_ends_the_start() {
    let mut story = Story::new(&[1, 1]);
    story.hear(0, AgentReport::Ready { pid: 1, host_name: "h0".into(), probe_addresses: vec![] });
    story.pass(Duration::from_secs(31), &[]);
    story.hear(0, AgentReport::Empty);
    assert!(story.is_finished());
    assert_eq!(story.last_line(), "h1 cannot be used: it has not answered within 30 s (--start-timeout)");
    assert_ne!(story.supervision.exit_code(), 0);
}

#[test]
fn hosts_that_cannot_reach_each_other_are_shown_as_a_table() {
    let mut story = Story::new(&[1, 1]);
    for host in 0..2 {
        let probe_addresses = vec![format!("10.0.0.{}:99", host + 1).parse().unwrap()];
        story.hear(host, AgentReport::Ready { pid: 1, host_name: "h".into(), probe_addresses });
    }
    let probe = |host: u32| HostProbe { host, address: format!("10.0.0.{}:99", host + 1).parse().unwrap() };
    story.hear(0, AgentReport::Probed(vec![Attempt { probe: probe(1), outcome: Ok(300) }]));
    story.hear(1, AgentReport::Probed(vec![Attempt { probe: probe(0), outcome: Err("timed out".into()) }]));
    assert!(!story.done.iter().any(|action| matches!(action, Action::Send(_, Directive::Start(_)))));
    let words = story.supervision.last_words().join("\n");
    assert!(words.contains("  h0 -> h1: reached at 10.0.0.2\n  h1 -> h0: not at 10.0.0.1: timed out"), "{words}");
    assert!(story.last_line().starts_with("h1 cannot reach h0"));
}

#[test]
fn everybody_gets_what_everybody_brought() {
    let mut story = Story::running(&[1, 2]);
    for epoch in 0..2 {
        story.hear(1, AgentReport::Gathered { epoch, messages: vec![(1, vec![11]), (2, vec![12])] });
        assert!(story.take_done().is_empty());
        story.hear(0, AgentReport::Gathered { epoch, messages: vec![(0, vec![10])] });
        let all = Directive::Everybody(vec![vec![10], vec![11], vec![12]]);
        assert_eq!(story.take_done(), [Action::Send(0, all.clone()), Action::Send(1, all)]);
    }
}

#[test]
fn ranks_that_were_told_of_one_who_has_just_given_up_hear_of_that_and_may_meet_again() {
    let mut story = Story::running(&[1, 1]);
    story.hear(0, AgentReport::Gathered { epoch: 0, messages: vec![(0, vec![])] });
    story.hear(1, AgentReport::Gathered { epoch: 0, messages: vec![(1, vec![])] });
    story.take_done();
    story.hear(0, AgentReport::Withdrawn { epoch: 0, rank: 0 });
    for (host, action) in story.take_done().into_iter().enumerate() {
        let Action::Send(to, Directive::Pronounce { notice, epoch: Some(0) }) = action else { panic!("{action:?}") };
        assert_eq!((to, notice.rank), (host, Some(farandole_plan::Rank(0))));
    }
    assert_eq!(story.supervision.phase, Phase::Running);
    story.hear(0, AgentReport::Gathered { epoch: 1, messages: vec![(0, vec![])] });
    story.hear(1, AgentReport::Gathered { epoch: 1, messages: vec![(1, vec![])] });
    assert_eq!(story.take_done().len(), 2);
}

#[test]
fn what_ranks_blamed_each_other_for_before_they_met_anew_is_forgotten() {
    let mut story = Story::running(&[3]);
    story.hear(0, AgentReport::Blamed { by: 1, peer: Some(0), cause: "long ago".into() });
    let messages = vec![(0, vec![]), (1, vec![]), (2, vec![])];
    story.hear(0, AgentReport::Gathered { epoch: 0, messages });
    story.ended(0, 1, HowEnded::Exited(3));
    story.ended(0, 0, HowEnded::Exited(4));
    assert!(story.last_line().starts_with("rank 1"), "{}", story.last_line());
}

#[test]
fn silence_is_no_death_while_nobody_listens() {
    let mut story = Story::running(&[1]);
    for _ in 0..100 {
        story.now += Duration::from_millis(200);
        story.supervision.excuse_silence(story.now);
        story.supervision.tick(story.now);
    }
    story.collect();
    assert!(story.notices().is_empty());
}

/// Turns the launcher's loop as its driver does: the supervision is told awake time, and a turn is late by as much as
/// the launcher sleeps.
fn turn_late(story: &mut Story, clock: &mut AwakeClock, real: &mut Instant, asleep: Duration) {
    let at_most = story.supervision.tick(story.now).saturating_duration_since(story.now);
    *real += at_most + asleep;
    story.now = clock.look(*real, at_most);
    story.collect();
}

#[test]
fn a_launcher_that_was_stopped_judges_nobody() {
    let mut story = Story::running(&[2, 2]);
    let mut real = story.now;
    let mut clock = AwakeClock::new(real).judging_by(Duration::from_secs(5));
    for _ in 0..3 {
        // Nothing is read while the launcher is stopped, nor in the first turn after: the agents were stopped as well.
        turn_late(&mut story, &mut clock, &mut real, Duration::from_secs(8));
        turn_late(&mut story, &mut clock, &mut real, Duration::ZERO);
        for host in [0, 1] {
            story.hear(host, AgentReport::Alive);
        }
    }
    assert!(!story.take_done().iter().any(|action| matches!(action, Action::Send(_, Directive::Pronounce { .. }))));
    assert_eq!(story.supervision.phase, Phase::Running);
    // Awake, it notices a silent host as ever.
    let mut turns = 0;
    while story.supervision.phase == Phase::Running {
        turn_late(&mut story, &mut clock, &mut real, Duration::ZERO);
        story.hear(0, AgentReport::Alive);
        turns += 1;
        assert!(turns < 20, "the silent host is not missed");
    }
    assert!(story.supervision.failures[0].host == 1 && story.supervision.failures.len() == 1);
}

#[test]
fn a_launcher_that_was_stopped_at_the_start_waits_for_its_agents_all_the_same() {
    let mut story = Story::new(&[1]);
    let mut real = story.now;
    let mut clock = AwakeClock::new(real).judging_by(Duration::from_secs(5));
    turn_late(&mut story, &mut clock, &mut real, Duration::from_secs(8 * 3600));
    turn_late(&mut story, &mut clock, &mut real, Duration::ZERO);
    story.hear(0, AgentReport::Ready { pid: 100, host_name: "h0".into(), probe_addresses: Vec::new() });
    assert_eq!(story.supervision.phase, Phase::Running);
}

#[test]
fn an_agent_that_is_seen_to_be_stopped_is_not_lost_and_the_user_is_told_once() {
    let mut story = Story::running(&[2]);
    let mut said = Vec::new();
    for _ in 0..200 {
        story.now += Duration::from_millis(100);
        for (host, pid) in story.supervision.quiet_agents(story.now) {
            assert_eq!((host, pid), (0, 100));
            story.supervision.agent_stopped(host, story.now);
        }
        story.supervision.tick(story.now);
        story.collect();
        said.extend(story.take_done().into_iter().filter(|action| matches!(action, Action::Say(_))));
    }
    assert_eq!(story.supervision.phase, Phase::Running);
    let [Action::Say(words)] = &said[..] else { panic!("{said:?}") };
    assert!(words.starts_with("the agent on h0 (pid 100) is stopped"), "{words}");
    // Continued, and stopped again.
    story.hear(0, AgentReport::Alive);
    story.now += Duration::from_secs(3);
    story.supervision.agent_stopped(0, story.now);
    story.collect();
    assert!(story.take_done().iter().any(|action| matches!(action, Action::Say(_))));
}

const LEFT: &str = "rank 1 ended (exit code 0) after 39 steps while rank 0 waits in step 40: ranks have different numbers of \
                    batches";

/// The order in which processes end is that in which they find time to.
#[test]
fn a_rank_that_left_with_exit_code_0_is_the_cause_in_any_order_of_ends() {
    for first in [0, 1] {
        let mut story = Story::running(&[1, 1]);
        story.hear(0, AgentReport::Blamed { by: 0, peer: Some(1), cause: LEFT.into() });
        for rank in [first, 1 - first] {
            story.ended(rank, rank as u32, HowEnded::Exited(1 - rank as i32));
        }
        story.hear(0, AgentReport::Empty);
        story.hear(1, AgentReport::Empty);
        assert!(story.is_finished());
        let words = LEFT.replacen("rank 1", "rank 1 on h1 (pid 1001)", 1);
        assert_eq!((story.last_line(), story.supervision.exit_code()), (words, 1));
        assert_eq!(story.supervision.failed_rank(), Some(1));
    }
}

/// A program in Rust leaves when its world is dropped, or calls `exit` without leaving.
#[test]
fn the_launcher_adds_the_exit_code_that_a_rank_did_not_know_when_it_left() {
    for (cause, words) in [
        (LEFT.replacen("ended (exit code 0)", "left the job", 1), LEFT.replacen("rank 1 ", "", 1)),
        (
            "rank 1 on h1 is gone (it closed the connection)".to_owned(),
            "ended (exit code 0) while other ranks needed it: rank 1 on h1 is gone (it closed the connection)"
                .to_owned(),
        ),
    ] {
        for first in [0, 1] {
            let mut story = Story::running(&[1, 1]);
            story.hear(0, AgentReport::Blamed { by: 0, peer: Some(1), cause: cause.clone() });
            for rank in [first, 1 - first] {
                story.ended(rank, rank as u32, HowEnded::Exited(1 - rank as i32));
            }
            story.hear(0, AgentReport::Empty);
            story.hear(1, AgentReport::Empty);
            assert_eq!(story.last_line(), format!("rank 1 on h1 (pid 1001) {words}"));
            assert_eq!(story.supervision.exit_code(), 1);
        }
    }
}

/// A rank that looks for the others at a wrong address gives up at the same moment as those that wait for it.
#[test]
fn a_rank_that_never_came_is_the_cause_if_it_failed() {
    for (how, words) in [
        (HowEnded::Exited(1), "rank 1 on h0 (pid 1001) ended with exit code 1 after 0.0 s: 127.0.0.9 has not answered"),
        (HowEnded::Signalled(15), "rank 1 on h0 (pid 1001) did not come to the rendezvous: 127.0.0.9 has not answered"),
        (
            HowEnded::Exited(0),
            "rank 1 on h0 (pid 1001) ended (exit code 0) while other ranks needed it: rank 1 did not come to the \
             rendezvous",
        ),
    ] {
        let mut story = Story::running(&[2]);
        story.hear(0, AgentReport::Overdue { epoch: 0, missing: vec![1] });
        let bytes = b"127.0.0.9 has not answered\n".to_vec();
        story.hear(0, AgentReport::Output { rank: 1, stream: OutputStream::Stderr, bytes });
        story.ended(0, 0, HowEnded::Exited(1));
        if matches!(how, HowEnded::Signalled(_)) {
            // It is slower to end than the others, and told to.
            story.pass(SETTLE * 2, &[]);
        }
        story.ended(0, 1, how);
        assert_eq!(story.last_line(), words);
    }
}

#[test]
fn a_rank_that_raised_is_the_cause_though_it_ends_when_all_were_told_to() {
    for how in [None, Some(HowEnded::Exited(3)), Some(HowEnded::Signalled(15))] {
        let mut story = Story::running(&[2]);
        let cause = "rank 1 raised ValueError: a bad batch (after 39 steps)";
        story.hear(0, AgentReport::Blamed { by: 1, peer: Some(1), cause: cause.into() });
        story.hear(0, AgentReport::Blamed { by: 0, peer: Some(1), cause: cause.into() });
        story.ended(0, 0, HowEnded::Exited(1));
        story.pass(SETTLE * 2, &[]);
        assert!(story.done.contains(&Action::Send(0, Directive::End { grace_ms: 5000 })));
        how.into_iter().for_each(|how| story.ended(0, 1, how));
        let (words, code) = match how {
            Some(HowEnded::Exited(_)) => {
                (" ended with exit code 3 after 2.0 s: ValueError: a bad batch (after 39 steps)", 3)
            }
            _ => (" raised ValueError: a bad batch (after 39 steps)", 1),
        };
        assert_eq!(story.last_line(), format!("rank 1 on h0 (pid 1001){words}"));
        assert_eq!(story.supervision.exit_code(), code);
    }
}

#[test]
fn an_exception_that_was_caught_and_logged_is_in_the_last_line() {
    let mut story = Story::running(&[2]);
    let cause = "rank 1 raised KeyError: 'loss' (after 1 step)";
    story.hear(0, AgentReport::Blamed { by: 1, peer: Some(1), cause: cause.into() });
    let bytes = b"ERROR training failed\nbye\n".to_vec();
    story.hear(0, AgentReport::Output { rank: 1, stream: OutputStream::Stderr, bytes });
    story.ended(0, 1, HowEnded::Exited(1));
    let words = "rank 1 on h0 (pid 1001) ended with exit code 1 after 0.0 s: KeyError: 'loss' (after 1 step)";
    assert_eq!(story.last_line(), words);
}

#[test]
fn a_rank_that_only_lets_others_wait_is_no_departure() {
    let mut story = Story::running(&[2]);
    let cause = "waited 9.0 s for rank 1 on h0: it has not come";
    story.hear(0, AgentReport::Blamed { by: 0, peer: Some(1), cause: cause.into() });
    story.ended(0, 0, HowEnded::Exited(1));
    assert!(story.last_line().starts_with("rank 0 on h0 (pid 1000) ended with exit code 1"), "{}", story.last_line());
}
