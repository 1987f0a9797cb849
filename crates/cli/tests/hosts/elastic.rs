//! Elastic jobs over three hosts: a cut cable, a killed agent, a killed launcher and reset connections end no member
//! elsewhere, and split no job.

use std::time::Duration;

use farandole_testing::lapse;
use rustix::process::Signal;

use crate::host::{Host, Process};
use crate::jobs::{all_gone, of_the_job};
use crate::lab::{Family, Lab, until_within};
use crate::running::Running;

const PATIENCE: Duration = Duration::from_secs(30);

/// The file that ends members of a host, as they see it and as the test does.
const END: &str = "/run/lab/end";

/// An elastic job with a member on each host, which meets the others and waits.
fn job(lab: &Lab, flags: &[&str]) -> Running {
    let member = std::path::Path::new(env!("CARGO_BIN_EXE_farandole")).with_file_name("examples/elastic_member");
    let member = member.display().to_string();
    let mut words = vec!["run", "-H", "h0:1,h1:1,h2:1", "-np", "3", "--min-np", "1", "--heartbeat-timeout", "2"];
    words.extend(flags);
    words.extend([member.as_str(), END]);
    let mut job = lab.host(0).farandole(&words);
    job.wait_for_output(3, " founds 0 1 2");
    job
}

fn end_members(lab: &Lab) {
    lab.hosts().iter().for_each(|host| host.write("end", ""));
}

fn members(host: &Host) -> usize {
    processes(host).len()
}

fn processes(host: &Host) -> Vec<Process> {
    // A process that is about to end has no words any more.
    let is_member = |word: &String| word.ends_with("/elastic_member");
    host.guests().into_iter().filter(|process| process.words.first().is_some_and(is_member)).collect()
}

#[test]
fn a_host_that_is_cut_off_is_lost_and_used_again_when_it_is_back() {
    let lab = Lab::new(3, Family::V4);
    // These members enter no other generation, by which the launcher would know that the host's is left out. So it
    // keeps the slot for it until this is over.
    let mut job = job(&lab, &["--start-timeout", "4", "--elastic-timeout", "5"]);
    lab.cut(2);
    job.wait_for_output(1, "0 has lost 2: member 2 on h2");
    job.wait_for_output(1, "1 has lost 2: member 2 on h2");
    lab.mend(2);
    job.wait_for_output(1, " joins 0 1 2");
    end_members(&lab);
    let ended = job.wait_within(PATIENCE);
    assert_eq!(ended.code(), 0, "{}", ended.said());
    assert!(ended.stderr.iter().any(|line| line.contains("h2 has not been heard of for 2.")), "{}", ended.said());
    all_gone(&lab, PATIENCE);
}

#[test]
fn a_killed_agent_is_started_again_and_the_others_hear_of_its_member() {
    let lab = Lab::new(3, Family::V6);
    let mut job = job(&lab, &[]);
    let agent = of_the_job(lab.host(1)).into_iter().find(|process| process.words[1..] == ["agent"]).unwrap();
    agent.signal(Signal::KILL);
    job.wait_for_output(1, "0 has lost 1: member 1 on h1");
    job.wait_for_output(1, "2 has lost 1: member 1 on h1");
    job.wait_for_output(1, "3 joins 0 1 2");
    end_members(&lab);
    let ended = job.wait_within(PATIENCE);
    assert_eq!(ended.code(), 0, "{}", ended.said());
    assert!(ended.last_line().ends_with("; member 3 was started in its place"), "{}", ended.said());
    all_gone(&lab, PATIENCE);
}

#[test]
fn members_on_all_hosts_outlive_the_launcher() {
    let lab = Lab::new(3, Family::V4);
    let job = job(&lab, &[]);
    job.signal(Signal::KILL);
    // Longer than the silence that is a death.
    lapse("the members, which might end with the launcher", Duration::from_secs(4));
    let left: Vec<usize> = lab.hosts().iter().map(members).collect();
    assert_eq!(left, [1, 1, 1], "somebody was ended with the launcher");
    end_members(&lab);
    until_within(PATIENCE, "members and agents have ended", || {
        lab.hosts().iter().all(|host| members(host) == 0 && of_the_job(host).is_empty())
    });
    drop(job);
}

/// A reset between launcher and agent started a second process in a slot whose process was well.
#[test]
fn reset_connections_to_an_agent_start_no_second_process_in_its_slot() {
    let lab = Lab::new(3, Family::V4);
    let mut job = job(&lab, &[]);
    let agents = || of_the_job(lab.host(1)).iter().filter(|process| process.words[1..] == ["agent"]).count();
    lab.reset(0, 1);
    until_within(PATIENCE, "the host has another agent", || agents() == 2);
    // The first process keeps the slot until it ends.
    let member = processes(lab.host(1)).remove(0);
    for _ in 0..100 {
        assert_eq!(members(lab.host(1)), 1, "two processes use one slot");
        lapse("a second process, which might start", Duration::from_millis(20));
    }
    member.signal(Signal::KILL);
    job.wait_for_output(1, "3 joins 0 1 2");
    end_members(&lab);
    let ended = job.wait_within(PATIENCE);
    assert!(
        ended.stderr.iter().any(|line| line.contains("the agent on h1") && line.contains("is lost")),
        "{}",
        ended.said()
    );
    all_gone(&lab, PATIENCE);
}

/// Resets in a row: enough to hit every stage of connecting several times.
#[cfg(feature = "train")]
const BURST: usize = 100;

#[cfg(feature = "train")]
fn epochs(log: &std::path::Path) -> usize {
    std::fs::read_to_string(log).map_or(0, |text| text.matches("\"event\":\"epoch\"").count())
}

/// Resets between the hosts of two members counted as the ends of both processes, and each went on alone.
#[cfg(feature = "train")]
#[test]
fn reset_connections_between_members_leave_one_history() {
    let lab = Lab::new(3, Family::V4);
    let words = ["train", "-H", "h1:1,h2:1", "-np", "2", "--min-np", "1", "--heartbeat-timeout", "20"];
    let more = ["--model", "lenet", "--batch=8", "--samples", "48", "--test-samples", "16", "--epochs", "1000000"];
    let mut job = lab.host(0).farandole(&[&words[..], &more, &["--log", "/run/lab/log.jsonl"]].concat());
    let log = lab.host(1).path("log.jsonl");
    job.wait_until("no rank trains", |_| epochs(&log) > 0);
    for number in 2..5 {
        lab.reset(1, 2);
        job.wait_for_errors(1, &format!("generation {number} has the members 0 1"));
        // A reset of connections that are being opened would break no generation.
        let trained = epochs(&log);
        job.wait_until("the generation does not train", |_| epochs(&log) > trained);
    }
    // Many in a row, which also break the connections that the next generation is about to open.
    for _ in 0..BURST {
        lab.reset(1, 2);
    }
    let trained = epochs(&log);
    job.wait_until("no rank trains after the resets", |_| epochs(&log) > trained + 1);
    job.signal(Signal::INT);
    let ended = job.wait_within(PATIENCE);
    for words in ["has split", "exit code"] {
        assert!(!ended.said().contains(words), "{}", ended.said());
    }
    all_gone(&lab, PATIENCE);
}
