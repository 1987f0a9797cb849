//! Hosts that cannot be used: each is named, in time, with the reason in the words of whoever knew it; nothing is left
//! on the others.

use std::time::Duration;

use crate::jobs::{all_gone, program};
use crate::lab::{Family, Lab};
use crate::running::Ended;

/// How long a start may take in these tests.
const START_SECONDS: u64 = 5;

/// A job that must fail to start, and how it said so.
fn refused(lab: &Lab, hosts: &str) -> Ended {
    let timeout = START_SECONDS.to_string();
    let words = ["run", "-np", "3", "--start-timeout", &timeout, "-H", hosts, &program(), "sum"];
    let ended = lab.host(0).farandole(&words).wait();
    assert_ne!(ended.code(), 0, "{}", ended.said());
    assert!(ended.stdout.is_empty(), "no rank has run: {}", ended.said());
    all_gone(lab, Duration::from_secs(30));
    ended
}

#[test]
fn a_host_that_is_not_there_is_named() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(2, family);
        let ended = refused(&lab, "h0:1,h1:1,nowhere:1");
        let last = ended.last_line();
        assert!(last.contains("nowhere cannot be used"), "{family:?}: {}", ended.said());
        assert!(!last.contains("h1 "), "the host that is there is not to blame: {}", ended.said());
    }
}

#[test]
fn a_name_that_does_not_exist_is_named() {
    let lab = Lab::new(2, Family::V4);
    let ended = refused(&lab, "h0:1,h1:1,h77.invalid:1");
    assert!(ended.last_line().contains("h77.invalid"), "{}", ended.said());
}

#[test]
fn a_host_without_sshd_is_named_with_the_words_of_ssh() {
    let lab = Lab::new(3, Family::V4);
    lab.host(1).stop_sshd();
    let ended = refused(&lab, "h0:1,h1:1,h2:1");
    let last = ended.last_line();
    assert!(last.contains("h1 cannot be used") && last.contains("Connection refused"), "{}", ended.said());
}

#[test]
fn a_host_with_another_key_than_is_known_is_refused_with_the_words_of_ssh() {
    let lab = Lab::new(3, Family::V4);
    let known = lab.host(0).read("home/.ssh/known_hosts");
    let forged = known.replace(lab.host(2).read("host_key.pub").trim(), lab.host(0).read("host_key.pub").trim());
    lab.host(0).write("home/.ssh/known_hosts", &forged);
    let ended = refused(&lab, "h0:1,h1:1,h2:1");
    let last = ended.last_line();
    assert!(last.contains("h2 cannot be used") && last.contains("Host key verification failed"), "{}", ended.said());
}

#[test]
fn a_host_that_lets_nobody_in_is_named_with_the_words_of_ssh() {
    let lab = Lab::new(3, Family::V4);
    lab.host(1).write("authorized_keys", "");
    let ended = refused(&lab, "h0:1,h1:1,h2:1");
    let last = ended.last_line();
    assert!(last.contains("h1 cannot be used") && last.contains("Permission denied"), "{}", ended.said());
}

#[test]
fn hosts_that_do_not_reach_each_other_are_shown_in_a_table() {
    let lab = Lab::new(3, Family::V4);
    lab.separate(1, 2);
    let ended = refused(&lab, "h0:1,h1:1,h2:1");
    let last = ended.last_line();
    assert!(last.contains("h1") && last.contains("h2"), "{}", ended.said());
    let rows = ended.stderr.iter().filter(|line| line.contains("10.77.0.")).count();
    assert!(rows > 0, "the table says which addresses were tried: {}", ended.said());
}
