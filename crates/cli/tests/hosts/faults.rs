//! Jobs over three hosts that are hit by something: each ends in time, with a last line that says what it was, and
//! nothing stays.

use std::time::Duration;

use rustix::process::Signal;

use crate::jobs::{all_gone, dancing, everywhere, of_the_job, ranks};
use crate::lab::{Family, Lab, until_within};
use crate::running::Ended;

/// Silence that counts as death in these tests, shorter than the default to spare time.
const HEARTBEAT: [&str; 2] = ["--heartbeat-timeout", "2"];

/// Only a hang takes longer. How soon a death is noticed is measured by `cargo xtask detect`; here the words say
/// whether it was seen or missed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asserts that these ranks were told a cause with these words in it.
fn assert_told(ended: &Ended, ranks: std::ops::Range<usize>, words: &[&str]) {
    for rank in ranks {
        let prefix = format!("[{rank}]<stderr>:failed: ");
        let told = ended.stderr.iter().find_map(|line| line.strip_prefix(&prefix));
        let told = told.unwrap_or_else(|| panic!("rank {rank} was not told: {}", ended.said()));
        assert!(
            words.iter().all(|word| told.contains(word)),
            "rank {rank} was told `{told}`, not {words:?}: {}",
            ended.said()
        );
    }
}

#[test]
fn the_last_line_names_rank_host_pid_code_and_last_words() {
    let lab = Lab::new(3, Family::V4);
    let ended = everywhere(&lab, &[], &["exit", "4", "3"]).wait();
    assert_eq!(ended.code(), 3, "{}", ended.said());
    let enough = ended.stderr.iter().find_map(|line| line.strip_prefix("[4]<stderr>:enough of pid ")).unwrap();
    let last = ended.last_line();
    for words in ["rank 4 on h2", &format!("(pid {enough})"), "exit code 3", &format!("enough of pid {enough}")] {
        assert!(last.contains(words), "`{words}` is not in the last line: {}", ended.said());
    }
    assert_told(&ended, 0..4, &["rank 4"]);
    all_gone(&lab, PATIENCE);
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let lab = Lab::new(3, Family::V4);
    let job = dancing(&lab, &[]);
    let victim = ranks(lab.host(1)).remove(0);
    victim.signal(Signal::KILL);
    let ended = job.wait_within(PATIENCE);
    assert_eq!(ended.code(), 137, "{}", ended.said());
    let last = ended.last_line();
    assert!(last.contains(" on h1") && last.contains("signal 9 (SIGKILL)"), "{}", ended.said());
    assert!(last.contains(&format!("(pid {})", victim.pid_there)), "{victim:?}: {}", ended.said());
    let (name, _) = last.trim_start_matches("farandole: ").split_once(" on ").unwrap();
    assert_told(&ended, 4..6, &[name]);
    all_gone(&lab, PATIENCE);
}

#[test]
fn a_cut_cable_ends_the_job_everywhere_and_the_host_is_named() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(3, family);
        let job = dancing(&lab, &HEARTBEAT);
        lab.cut(2);
        let ended = job.wait_within(PATIENCE);
        assert_eq!(ended.code(), 1, "{}", ended.said());
        let last = ended.last_line();
        assert!(last.contains("h2 has not been heard of") && last.contains("cut"), "{}", ended.said());
        assert_told(&ended, 0..4, &["h2"]);
        // Nobody can tell the far side, and it ends all the same.
        until_within(PATIENCE, "the host that was cut off is empty", || of_the_job(lab.host(2)).is_empty());
        lab.mend(2);
        for host in &lab.hosts()[..2] {
            assert_eq!(of_the_job(host), []);
        }
    }
}

#[test]
fn a_killed_agent_takes_its_ranks_along_and_is_named() {
    let lab = Lab::new(3, Family::V4);
    for number in [1, 0] {
        let job = dancing(&lab, &[]);
        let agents = of_the_job(lab.host(number)).into_iter().find(|process| process.words[1..] == ["agent"]);
        let agent = agents.expect("every host has an agent");
        agent.signal(Signal::KILL);
        until_within(PATIENCE, "ranks end with their agent", || ranks(lab.host(number)).is_empty());
        let ended = job.wait();
        assert_eq!(ended.code(), 1, "{}", ended.said());
        let named = format!("the agent on h{number} (pid {})", agent.pid_there);
        assert!(ended.last_line().contains(&named), "{}", ended.said());
        all_gone(&lab, PATIENCE);
    }
}

#[test]
fn a_stopped_rank_is_reported_as_stopped() {
    let lab = Lab::new(3, Family::V4);
    let job = dancing(&lab, &HEARTBEAT);
    let victim = ranks(lab.host(2)).remove(1);
    victim.signal(Signal::STOP);
    let ended = job.wait_within(PATIENCE);
    assert_eq!(ended.code(), 1, "{}", ended.said());
    let last = ended.last_line();
    assert!(last.contains(" on h2") && last.contains("stopped") && last.contains("SIGSTOP"), "{}", ended.said());
    assert!(last.contains(&format!("(pid {})", victim.pid_there)), "{victim:?}: {}", ended.said());
    assert_told(&ended, 0..4, &["h2", "stopped"]);
    all_gone(&lab, PATIENCE);
}

#[test]
fn a_killed_launcher_leaves_nothing_on_any_host() {
    let lab = Lab::new(3, Family::V4);
    let job = dancing(&lab, &[]);
    job.signal(Signal::KILL);
    until_within(PATIENCE, "no process of the job is left", || {
        lab.hosts().iter().all(|host| of_the_job(host).is_empty())
    });
    all_gone(&lab, PATIENCE);
    assert_eq!(job.wait().code(), 137);
}

#[test]
fn an_interrupt_ends_everything_with_code_130() {
    let lab = Lab::new(3, Family::V4);
    let job = dancing(&lab, &[]);
    job.signal(Signal::INT);
    let ended = job.wait_within(PATIENCE);
    assert_eq!(ended.code(), 130, "{}", ended.said());
    assert!(ended.last_line().contains("SIGINT"), "{}", ended.said());
    all_gone(&lab, PATIENCE);
}
