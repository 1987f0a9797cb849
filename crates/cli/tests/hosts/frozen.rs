//! Jobs over three hosts that are stopped for a while, as a whole or in part, and go on.
//!
//! One host alone is the business of `tests/freeze`; here launcher and agents are joined by a network, over which a
//! stopped process looks like one that is cut off, unless somebody looks closer.

use std::time::Duration;

use rustix::process::Signal;

use crate::host::Process;
use crate::jobs::{all_gone, everywhere, of_the_job};
use crate::lab::{Family, Lab};

/// Silence that counts as death here, and a time that is longer by far.
const HEARTBEAT: [&str; 2] = ["--heartbeat-timeout", "2"];
const BEYOND: Duration = Duration::from_secs(6);

/// Stops those processes of a job that `part` wants, lets them go on, and wants the job to end well.
fn goes_on(what: &str, part: impl Fn(&Process) -> bool) {
    let lab = Lab::new(3, Family::V4);
    let mut job = everywhere(&lab, &HEARTBEAT, &["work", "3000"]);
    job.wait_for_output(6, "working");
    let stopped: Vec<Process> = lab.hosts().iter().flat_map(of_the_job).filter(part).collect();
    assert!(!stopped.is_empty(), "{what}: nothing to stop");
    stopped.iter().for_each(|process| process.signal(Signal::STOP));
    farandole_testing::lapse("the processes that are stopped", BEYOND);
    stopped.iter().for_each(|process| process.signal(Signal::CONT));
    job.go_on();
    let ended = job.wait();
    assert_eq!(ended.code(), 0, "{what}: {}", ended.said());
    let right = ended.stdout.iter().filter(|line| line.ends_with("worked, and all was right")).count();
    assert_eq!(right, 6, "{what}: {}", ended.said());
    all_gone(&lab, Duration::from_secs(2));
}

fn is_launcher(process: &Process) -> bool {
    process.words.get(1).is_some_and(|word| word == "run")
}

fn is_agent(process: &Process) -> bool {
    process.words.get(1).is_some_and(|word| word == "agent")
}

#[test]
fn a_job_over_hosts_that_was_stopped_as_a_whole_goes_on() {
    goes_on("all", |_| true);
}

#[test]
fn a_job_over_hosts_whose_launcher_was_stopped_goes_on() {
    goes_on("the launcher", is_launcher);
}

#[test]
fn a_job_over_hosts_whose_launcher_and_agents_were_stopped_goes_on() {
    goes_on("launcher and agents", |process| is_launcher(process) || is_agent(process));
}
