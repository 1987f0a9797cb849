//! Stories of elastic jobs, told to the supervision event by event.

use super::story::{Story, offered, process, settings};
use super::*;
use crate::launch::connectivity::Attempt;
use crate::launch::message::{HowEnded, OutputStream, Process};
use crate::rendezvous::FailureKind;

const KILLED: HowEnded = HowEnded::Signalled(9);
const WELL: HowEnded = HowEnded::Exited(0);

#[test]
fn a_job_that_ends_well_says_nothing() {
    let mut story = Story::new(settings(&[2]));
    assert_eq!(story.running, [(0, 0, 0), (1, 0, 1)]);
    story.ended(1, WELL);
    assert!(!story.finished);
    story.ended(0, WELL);
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 0);
    assert!(story.supervision.last_words().is_empty() && story.said.is_empty(), "{:?}", story.said);
}

#[test]
fn a_killed_member_is_replaced_in_its_slot_at_once_and_named_at_the_end() {
    let mut story = Story::new(settings(&[3]));
    story.ended(1, KILLED);
    assert_eq!(story.running, [(0, 0, 0), (2, 0, 2), (3, 0, 1)], "the slot of the dead one");
    assert!(story.has_said("member 1 on h0 (pid 1001) was killed by signal 9 (SIGKILL)"), "{:?}", story.said);
    for member in [0, 2, 3] {
        story.ended(member, WELL);
    }
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 0);
    let words = story.supervision.last_words();
    assert_eq!(words[0], "the job has lost 1 member on its way:");
    assert!(words[1].ends_with("; member 3 was started in its place"), "{words:?}");
}

#[test]
fn members_of_other_hosts_hear_of_an_end_from_the_launcher() {
    let mut story = Story::new(settings(&[1, 1, 1]));
    assert_eq!(story.running, [(0, 0, 0), (1, 1, 0), (2, 2, 0)]);
    story.ended(1, HowEnded::Exited(3));
    let exited = FailureKind::Exited { code: 3 };
    assert_eq!(story.losses_told(), [(0, 1, exited), (2, 1, exited)]);
}

#[test]
fn a_host_that_fails_again_and_again_is_left_alone_for_longer_and_longer() {
    let mut story = Story::new(settings(&[1, 1]));
    let mut waits = Vec::new();
    for _ in 0..5 {
        let victim = story.running.iter().find(|(_, host, _)| *host == 1).unwrap().0;
        story.now += Duration::from_millis(10);
        story.ended(victim, HowEnded::Exited(1));
        let died = story.now;
        while !story.running.iter().any(|(_, host, _)| *host == 1) {
            story.pass(Duration::from_millis(100), &[]);
            assert!(story.now < died + Duration::from_secs(100), "it never comes back");
        }
        waits.push((story.now - died).as_secs());
    }
    assert_eq!(waits, [0, 1, 2, 4, 8]);
    assert!(story.has_said("h1 failed again, and it is left alone for 8 s"), "{:?}", story.said);
    // After two minutes without a failure it begins anew.
    story.pass(Duration::from_secs(130), &[]);
    let victim = story.running.iter().find(|(_, host, _)| *host == 1).unwrap().0;
    story.ended(victim, KILLED);
    assert_eq!(story.running.len(), 2, "it is replaced at once");
}

#[test]
fn a_range_that_the_user_gives_counts_from_the_first_failure() {
    let mut settings = settings(&[2]);
    let (low, high) = (Duration::from_secs(10), Duration::from_secs(15));
    settings.cool_down = CoolDown { low, high, first: FirstStrike::Counts };
    let mut story = Story::new(settings);
    story.ended(0, KILLED);
    story.pass(Duration::from_millis(9900), &[]);
    assert_eq!(story.numbers(), [1]);
    story.pass(Duration::from_millis(200), &[]);
    assert_eq!(story.numbers(), [1, 2]);
    story.ended(2, KILLED);
    story.pass(Duration::from_millis(14_900), &[]);
    assert_eq!(story.numbers(), [1], "twice as long, but no longer than the bound");
    story.pass(Duration::from_millis(200), &[]);
    assert_eq!(story.numbers(), [1, 3]);
}

#[test]
fn a_range_of_nothing_never_leaves_a_host_alone() {
    let mut settings = settings(&[2]);
    settings.cool_down = CoolDown { low: Duration::ZERO, high: Duration::ZERO, first: FirstStrike::Counts };
    let mut story = Story::new(settings);
    for _ in 0..50 {
        story.now += Duration::from_millis(10);
        let victim = story.numbers()[0];
        story.ended(victim, KILLED);
        assert_eq!(story.running.len(), 2);
    }
}

#[test]
fn several_members_that_die_together_are_one_strike() {
    let mut story = Story::new(settings(&[4, 1]));
    for member in [0, 1, 2] {
        story.now += Duration::from_millis(1);
        story.ended(member, KILLED);
    }
    assert_eq!(story.numbers(), [3, 4, 5, 6, 7]);
}

#[test]
fn a_lost_host_loses_its_members_and_comes_back_if_it_can() {
    let mut story = Story::new(settings(&[2, 2]));
    story.dead = vec![1];
    story.pass(Duration::from_millis(100), &[]);
    story.lose_host(1);
    assert_eq!(story.numbers(), [0, 1]);
    assert_eq!(story.losses_told(), [(0, 2, FailureKind::AgentLost), (0, 3, FailureKind::AgentLost)]);
    assert!(story.has_said("the agent on h1 (pid 101) is lost: its connection was closed"), "{:?}", story.said);
    assert!(story.has_said("h1 cannot be used: ssh says no; it is left alone for 1 s"), "{:?}", story.said);
    story.dead.clear();
    story.pass(Duration::from_secs(10), &[]);
    assert_eq!(story.numbers(), [0, 1, 4, 5]);
    assert_eq!(story.running[3], (5, 1, 1));
}

#[test]
fn a_silent_host_is_lost_and_its_members_with_it() {
    let mut story = Story::new(settings(&[1, 1]));
    story.pass(Duration::from_secs(6), &[1]);
    assert!(story.has_said("h1 has not been heard of for 5."), "{:?}", story.said);
    assert_eq!(story.losses_told(), [(0, 1, FailureKind::HostLost)]);
}

/// The launcher's own way to a host was cut, and its members went on with all others: the launcher filled their slots a
/// second time, and ended the job when it had lost the others.
#[test]
fn members_of_a_host_that_only_the_launcher_does_not_hear_keep_their_slots_and_the_state() {
    let mut story = Story::new(settings(&[1, 1]));
    story.agents_are_blind = true;
    story.enter(&[]);
    story.pass(Duration::from_secs(6), &[1]);
    assert!(story.has_said("h1 has not been heard of for 5."), "{:?}", story.said);
    story.generation(0, 2, &[0, 1]);
    // The host is there again, with a new agent, but its slot is taken.
    story.pass(Duration::from_secs(10), &[]);
    assert_eq!(story.numbers(), [0]);
    story.ended(0, KILLED);
    story.pass(Duration::from_secs(3), &[]);
    assert!(!story.finished, "member 1 goes on, as far as anybody knows: {:?}", story.said);
    assert_eq!(story.numbers(), [2]);
    // Somebody whom it has let in tells of it; then it is left out, and its slot is free.
    story.generation(0, 3, &[1, 2]);
    story.generation(0, 4, &[2]);
    story.pass(Duration::from_secs(1), &[]);
    assert_eq!(story.numbers(), [2, 3]);
}

/// Of two members on two hosts first one was cut off for a moment, then the other: nobody who could tell had a
/// connection to the launcher, and it kept both slots.
#[test]
fn a_process_that_a_new_agent_does_not_find_leaves_its_slot() {
    let mut story = Story::new(settings(&[1, 1]));
    story.agents_are_blind = true;
    story.enter(&[]);
    story.pass(Duration::from_secs(6), &[0]);
    story.generation(1, 2, &[0, 1]);
    story.pass(Duration::from_secs(2), &[]);
    story.pass(Duration::from_secs(6), &[1]);
    assert_eq!(story.agents_started, [0, 1, 0, 1]);
    story.pass(Duration::from_secs(2), &[]);
    let sought = |host: usize, member: u32| (host, Directive::Seek(vec![(member, Process(process(member)))]));
    assert!(story.told.contains(&sought(0, 0)) && story.told.contains(&sought(1, 1)), "{:?}", story.told);
    // One that runs is not reported, and another host's agent knows nothing of it.
    story.hear(1, AgentReport::NotThere(vec![0, 9]));
    assert_eq!(story.numbers(), [0u32; 0]);
    story.hear(1, AgentReport::NotThere(vec![1]));
    assert_eq!(story.running, [(2, 1, 0)]);
    // What is told late of that generation does not bring it back.
    story.generation(1, 3, &[0, 1, 2]);
    story.pass(Duration::from_secs(2), &[]);
    assert_eq!((story.numbers(), story.finished), (vec![2], false));
}

#[test]
fn members_of_whom_nothing_is_heard_for_too_long_are_given_up() {
    let mut story = Story::new(settings(&[1, 1]));
    story.agents_are_blind = true;
    story.enter(&[]);
    story.pass(Duration::from_secs(6), &[1]);
    story.ended(0, KILLED);
    story.pass(Duration::from_secs(50), &[]);
    assert!(!story.finished);
    story.pass(Duration::from_secs(15), &[]);
    assert!(story.finished);
    assert!(story.last_line().starts_with("no member is left that has the job's state"), "{}", story.last_line());
}

#[test]
fn hosts_that_come_are_used_up_to_the_bound_and_hosts_that_go_are_left() {
    let mut settings = settings(&[2]);
    (settings.on_one_host, settings.max_np) = (false, 5);
    let mut story = Story::new(settings);
    assert_eq!(story.numbers(), [0, 1]);
    story.find(&[2, 2, 2]);
    assert_eq!(story.numbers(), [0, 1, 2, 3, 4]);
    story.find(&[0, 2, 2]);
    assert!(story.has_said("member 0 on h0 (pid 1000) is asked to end: its host is not offered any more"));
    assert_eq!(story.numbers(), [2, 3, 4, 5], "the free slot of the third host is used");
    assert!(story.supervision.losses.is_empty(), "whoever was asked to end is no loss");
    story.find(&[0, 2, 1]);
    assert_eq!(story.numbers(), [2, 3, 4]);
    story.supervision.hosts_changed(Err("the script failed".into()), story.now);
    story.obey();
    assert_eq!(story.numbers(), [2, 3, 4]);
    assert!(story.has_said("the script failed; the hosts stay as they are"));
}

#[test]
fn a_host_that_others_do_not_reach_is_left_out() {
    let mut settings = settings(&[1]);
    (settings.on_one_host, settings.max_np) = (false, 3);
    let mut story = Story::new(settings);
    story.supervision.hosts_changed(Ok(offered(&[1, 1])), story.now);
    // The new agent comes, and the old one does not reach it.
    let mut probes = Vec::new();
    while let Some(action) = story.supervision.next_action() {
        match action {
            Action::StartAgent(host, _) => story.agent_starts(host),
            Action::Send(host, Directive::Probe(list)) => probes.push((host, list)),
            _ => {}
        }
    }
    for (host, list) in probes {
        let outcome = |probe| Attempt { probe, outcome: if host == 0 { Err("refused".into()) } else { Ok(1) } };
        story.supervision.report(host, AgentReport::Probed(list.into_iter().map(outcome).collect()), story.now);
    }
    story.dead = vec![1];
    story.obey();
    assert_eq!(story.numbers(), [0]);
    assert!(story.has_said("h1 cannot be used: h0 cannot reach h1; open the ports between them"), "{:?}", story.said);
}

#[test]
fn below_the_least_number_the_job_waits_and_ends_with_the_cause() {
    let mut settings = settings(&[2]);
    (settings.min_np, settings.timeout) = (2, Duration::from_secs(20));
    (settings.on_one_host, settings.cool_down.first) = (false, FirstStrike::Counts);
    settings.cool_down.low = Duration::from_secs(60);
    let mut story = Story::new(settings);
    story.ended(0, HowEnded::Exited(4));
    assert!(story.has_said("the job has 1 member, fewer than --min-np 2; waiting 20 s"), "{:?}", story.said);
    assert!(story.has_said("h0 has failed and is left alone for 60 s"), "{:?}", story.said);
    story.pass(Duration::from_secs(10), &[]);
    story.find(&[2, 1]);
    assert!(story.has_said("the job has 2 members again"), "{:?}", story.said);
    let newest = *story.numbers().last().unwrap();
    story.ended(newest, HowEnded::Exited(5));
    story.pass(Duration::from_secs(21), &[]);
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 5);
    let last = story.last_line();
    assert!(last.starts_with("the job had 1 member for 20 s (--elastic-timeout), fewer than --min-np 2"), "{last}");
    let pronounced = |(_, directive): &(usize, Directive)| matches!(directive, Directive::Pronounce { .. });
    assert!(story.told.iter().any(pronounced), "members are told why");
}

#[test]
fn a_job_is_reset_so_often_and_no_more() {
    let mut settings = settings(&[2, 1]);
    settings.reset_limit = Some(2);
    let mut story = Story::new(settings);
    for _ in 0..2 {
        let victim = story.running.iter().find(|(_, host, _)| *host == 1).unwrap().0;
        story.ended(victim, HowEnded::Exited(7));
        story.pass(Duration::from_secs(5), &[]);
    }
    assert!(!story.finished);
    let victim = story.running.iter().find(|(_, host, _)| *host == 1).unwrap().0;
    story.hear(
        1,
        AgentReport::Output { rank: victim, stream: OutputStream::Stderr, bytes: b"ValueError: no\n".to_vec() },
    );
    story.ended(victim, HowEnded::Exited(7));
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 7);
    let last = story.last_line();
    assert!(last.starts_with("the job was reset 3 times, more often than --reset-limit 2; at last: member "), "{last}");
    assert!(last.ends_with(": ValueError: no"), "{last}");
    assert!(story.supervision.may_restart());
}

#[test]
fn generations_count_as_resets_and_losses_within_one_do_not_count_again() {
    let mut settings = settings(&[4]);
    settings.reset_limit = Some(1);
    let mut story = Story::new(settings);
    story.enter(&[]);
    story.generation(0, 1, &[0, 1, 2, 3]);
    story.ended(0, KILLED);
    story.ended(1, KILLED);
    story.generation(0, 4, &[2, 3]);
    assert!(!story.finished, "two losses and one change");
    story.generation(0, 5, &[2, 3, 4, 5]);
    assert!(story.finished, "{:?}", story.said);
}

#[test]
fn a_job_that_nobody_carries_any_more_has_failed() {
    let mut story = Story::new(settings(&[2]));
    story.enter(&[]);
    assert_eq!(story.founding().unwrap().members.len(), 2);
    story.ended(0, KILLED);
    story.ended(1, HowEnded::Exited(9));
    // The replacements run, but nobody is left whom they could join.
    story.pass(Duration::from_secs(2), &[]);
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 9);
    assert!(story.last_line().starts_with("no member is left that has the job's state; the last one: member 1"));
}

#[test]
fn a_replacement_that_has_joined_carries_the_job() {
    let mut story = Story::new(settings(&[2]));
    story.enter(&[]);
    story.ended(0, KILLED);
    story.generation(0, 2, &[1, 2]);
    story.ended(1, KILLED);
    story.pass(Duration::from_secs(3), &[]);
    assert_eq!(story.numbers(), [2, 3]);
    assert!(!story.finished);
}

#[test]
fn programs_that_always_fail_end_the_job_soon() {
    let mut story = Story::new(settings(&[2]));
    let mut ends = 0;
    while !story.finished {
        match story.numbers().first() {
            Some(&member) => story.ended(member, HowEnded::Exited(1)),
            None => story.pass(Duration::from_millis(100), &[]),
        }
        ends += 1;
        assert!(ends < 20, "{:?}", story.said);
    }
    assert_eq!(story.supervision.exit_code(), 1);
}

#[test]
fn founders_are_the_first_to_come_and_spares_wait() {
    let mut settings = settings(&[5]);
    (settings.np, settings.max_np, settings.spares) = (4, 4, 1);
    let mut story = Story::new(settings);
    assert_eq!(story.numbers(), [0, 1, 2, 3, 4]);
    story.enter(&[1]);
    let founders: Vec<u64> = story.founding().unwrap().members.iter().map(|(member, _)| *member).collect();
    assert_eq!(founders, [0, 2, 3, 4], "whoever is late is the spare");
    story.generation(0, 2, &[0, 2, 3, 4]);
    story.ended(2, KILLED);
    assert_eq!(story.numbers(), [0, 1, 3, 4, 5], "there is a spare again");
}

#[test]
fn a_founder_that_dies_before_the_job_begins_is_replaced_by_another() {
    let mut story = Story::new(settings(&[2]));
    story.enter(&[1]);
    assert_eq!(story.founding(), None);
    story.ended(1, HowEnded::Exited(1));
    story.hear(0, AgentReport::Entered { member: 2, blob: vec![2] });
    assert_eq!(story.founding().unwrap().members, [(0, vec![0]), (2, vec![2])]);
}

#[test]
fn whoever_does_not_come_keeps_the_others_for_half_of_their_patience() {
    let mut story = Story::new(settings(&[3]));
    story.enter(&[2]);
    story.pass(Duration::from_millis(14_900), &[]);
    assert_eq!(story.founding(), None);
    story.pass(Duration::from_millis(200), &[]);
    assert_eq!(story.founding().unwrap().members.len(), 2);
}

#[test]
fn a_host_that_comes_later_is_told_whom_its_members_call() {
    let mut settings = settings(&[2]);
    (settings.on_one_host, settings.max_np) = (false, 4);
    let mut story = Story::new(settings);
    story.enter(&[]);
    story.generation(0, 3, &[0, 1]);
    story.told.clear();
    story.find(&[2, 1]);
    let learns: Vec<&(usize, Directive)> =
        story.told.iter().filter(|(_, directive)| matches!(directive, Directive::Learn(_))).collect();
    assert!(matches!(&learns[..], [(1, Directive::Learn(generation))] if generation.number == 3), "{learns:?}");
    story.generation(1, 4, &[0, 1, 2]);
    assert!(matches!(story.told.last(), Some((0, Directive::Learn(generation))) if generation.number == 4));
}

#[test]
fn a_member_that_stays_stopped_is_replaced_unless_all_are_stopped() {
    let mut story = Story::new(settings(&[2]));
    for member in [0, 1] {
        story.hear(0, AgentReport::Stopped { rank: member, signal: 19 });
    }
    story.pass(Duration::from_secs(20), &[]);
    assert_eq!(story.numbers(), [0, 1], "somebody has suspended the job");
    story.hear(0, AgentReport::Continued { rank: 0 });
    story.pass(Duration::from_secs(6), &[]);
    assert_eq!(story.numbers(), [0, 2]);
    let lost = &story.supervision.losses[0];
    assert!(lost.failure.as_member().contains("was stopped by signal 19 (SIGSTOP)"), "{}", lost.failure.as_member());
}

#[test]
fn a_hanging_member_is_replaced_and_its_end_is_certain() {
    let mut story = Story::new(settings(&[1, 1]));
    story.hear(1, AgentReport::Silent { rank: 1 });
    assert_eq!(story.numbers(), [0, 2]);
    assert_eq!(story.losses_told(), [(0, 1, FailureKind::Signalled { signal: 15 })], "not only silent");
    assert!(story.has_said("has not given a sign of life"), "{:?}", story.said);
}

#[test]
fn when_the_last_generation_has_ended_well_waiting_candidates_are_ended() {
    let mut settings = settings(&[3]);
    (settings.np, settings.max_np, settings.spares) = (2, 2, 1);
    let mut story = Story::new(settings);
    story.enter(&[]);
    story.ended(0, WELL);
    assert!(!story.finished);
    story.ended(1, WELL);
    assert!(story.finished && story.numbers().is_empty());
    assert_eq!(story.supervision.exit_code(), 0);
    assert!(story.supervision.losses.is_empty());
}

#[test]
fn a_loss_while_the_job_ends_is_its_failure() {
    let mut story = Story::new(settings(&[2]));
    story.ended(0, WELL);
    story.ended(1, HowEnded::Signalled(11));
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 139);
    assert!(story.last_line().starts_with("the job had begun to end, and nobody takes a place any more: member 1"));
}

#[test]
fn a_loss_while_the_job_ends_is_none_if_the_others_have_gone_on_without_it() {
    for news_come_late in [false, true] {
        let mut story = Story::new(settings(&[3]));
        story.enter(&[]);
        let tell = |story: &mut Story| story.generation(0, 2, &[0, 1]);
        if !news_come_late {
            tell(&mut story);
        }
        story.ended(0, WELL);
        story.ended(2, HowEnded::Signalled(9));
        story.ended(1, WELL);
        assert_eq!(story.finished, !news_come_late);
        if news_come_late {
            tell(&mut story);
        }
        assert!(story.finished);
        assert_eq!(story.supervision.exit_code(), 0);
    }
}

#[test]
fn a_loss_while_the_job_ends_is_its_failure_if_nobody_goes_on_without_it() {
    let mut story = Story::new(settings(&[3]));
    story.enter(&[]);
    story.ended(0, WELL);
    story.ended(2, HowEnded::Signalled(9));
    assert!(!story.finished);
    story.pass(Duration::from_secs(2), &[]);
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 137);
}

#[test]
fn a_signal_ends_the_job_in_order_and_a_second_one_at_once() {
    let mut story = Story::new(settings(&[2]));
    story.supervision.signal(2, story.now);
    story.obey();
    assert!(story.told.contains(&(0, Directive::Signal(2))));
    assert_eq!(story.numbers(), [0, 1]);
    story.supervision.signal(2, story.now);
    story.obey();
    assert!(story.finished);
    assert_eq!(story.supervision.exit_code(), 130);
    assert!(!story.supervision.may_restart());
    assert_eq!(story.last_line(), "ended by signal 2 (SIGINT), and all members with it");
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let mut story = Story::new(settings(&[1]));
    story.running.clear();
    story.hear(0, AgentReport::NotStarted { rank: Some(0), why: "too many open files".into() });
    let words = "member 0 on h0 (pid 1000) could not be started: too many open files";
    assert!(story.has_said(words), "{:?}", story.said);
    assert_eq!(story.numbers(), [1]);
}

#[test]
fn hosts_that_never_come_are_tried_again_and_the_job_waits() {
    let mut settings = settings(&[1, 1]);
    settings.min_np = 2;
    let now = Instant::now();
    let mut supervision = ElasticSupervision::new(settings, now);
    let started = |supervision: &mut ElasticSupervision| {
        std::iter::from_fn(|| supervision.next_action())
            .filter(|action| matches!(action, Action::StartAgent(..)))
            .count()
    };
    assert_eq!(started(&mut supervision), 2);
    supervision.tick(now + Duration::from_secs(31));
    assert_eq!(started(&mut supervision), 0);
    supervision.tick(now + Duration::from_secs(33));
    assert_eq!(started(&mut supervision), 2);
    assert!(supervision.short.is_some());
}

/// Samples of members of the first host after so many seconds, in which each waits for a share of its time.
fn samples(seconds: u64, shares: &[(u32, u64)]) -> AgentReport {
    let sample = |(member, percent): &(u32, u64)| {
        let counts = farandole_trace::live::Counts {
            time_ns: seconds * 1_000_000_000,
            iterations: seconds * 10,
            waited_ns: seconds * 10_000_000 * percent,
            ..Default::default()
        };
        (*member, farandole_trace::live::LiveSample { counts, ..Default::default() }.encode())
    };
    AgentReport::Samples(shares.iter().map(sample).collect())
}

/// A job of three members in one generation, in which slow ones are replaced.
fn slow_story(min_np: usize) -> Story {
    let mut settings = settings(&[3]);
    (settings.min_np, settings.replace_slow) = (min_np, Some(40));
    let mut story = Story::new(settings);
    story.enter(&[]);
    assert!(story.founding().is_some());
    story.told.clear();
    story
}

#[test]
fn a_slow_member_is_replaced_and_the_others_hear_why_first() {
    let mut story = slow_story(2);
    (0..20).for_each(|second| story.hear(0, samples(second, &[(0, 50), (1, 1), (2, 55)])));
    assert_eq!(story.numbers(), [0, 2, 3], "one is replaced, once");
    let told: Vec<&Directive> = story.told.iter().map(|(_, directive)| directive).collect();
    let lost = told.iter().position(|told| matches!(told, Directive::MemberLost { member: 1, .. })).unwrap();
    let ended = told.iter().position(|told| matches!(told, Directive::EndMember { member: 1, .. })).unwrap();
    assert!(lost < ended, "{told:?}");
    let Directive::MemberLost { notice, .. } = told[lost] else { unreachable!() };
    assert_eq!(
        notice.text,
        "member 1 on h0 (pid 1001) was slow: as rank 1 of generation 1 it waited for 1 % of its time over 40 iterations, \
         and the others for 55 % of theirs"
    );
    assert!(story.has_said("member 1 on h0 (pid 1001) was slow: as rank 1"), "{:?}", story.said);
    assert!(story.has_said("(--replace-slow), and was ended"), "{:?}", story.said);
    // The others go on, and nobody is slow in the next generation.
    story.generation(0, 2, &[0, 2, 3]);
    (0..20).for_each(|second| story.hear(0, samples(second, &[(0, 10), (2, 5), (3, 12)])));
    assert_eq!(story.numbers(), [0, 2, 3]);
}

#[test]
fn a_slow_member_stays_where_too_few_would_be_left_or_the_job_ends() {
    let mut story = slow_story(3);
    (0..20).for_each(|second| story.hear(0, samples(second, &[(0, 50), (1, 1), (2, 55)])));
    assert_eq!(story.numbers(), [0, 1, 2]);
    assert!(story.has_said("member 1 on h0 (pid 1001) is slow"), "{:?}", story.said);
    assert!(story.has_said("it stays, because --min-np 3 would be missed"), "{:?}", story.said);
    let mut story = slow_story(1);
    story.ended(0, WELL);
    (0..20).for_each(|second| story.hear(0, samples(second, &[(0, 50), (1, 1), (2, 55)])));
    assert_eq!(story.numbers(), [1, 2], "nobody takes a place any more");
}

#[test]
fn slow_members_are_left_alone_by_default() {
    let mut story = Story::new(settings(&[3]));
    story.enter(&[]);
    (0..20).for_each(|second| story.hear(0, samples(second, &[(0, 50), (1, 1), (2, 55)])));
    assert_eq!(story.numbers(), [0, 1, 2]);
}
