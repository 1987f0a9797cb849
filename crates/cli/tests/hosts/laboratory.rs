//! Tests of the laboratory itself: hosts are what they claim to be, and nothing of them stays.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::lab::{Family, Lab, must, until_within};
use crate::running::Running;

/// Set for the copy of this program that is to be killed.
const VICTIM: &str = "FARANDOLE_TEST_LAB_VICTIM";

/// Asks a host for its name through ssh, impatiently.
fn ask_name(lab: &Lab, from: usize, to: &str) -> Running {
    let words = ["-o", "ConnectTimeout=3", "-o", "ServerAliveInterval=1", to, "hostname"];
    Running::start(lab.host(from).command("ssh").args(words))
}

/// Every network namespace in which a process lives.
fn inhabited_networks() -> BTreeSet<PathBuf> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| fs::read_link(entry.unwrap().path().join("ns/net")).ok()).collect()
}

#[test]
fn every_host_is_reached_by_ssh_under_its_own_name() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(3, family);
        for (number, host) in lab.hosts().iter().enumerate() {
            let ended = ask_name(&lab, 0, host.name()).wait();
            assert_eq!(ended.stdout, [format!("h{number}")], "{family:?}: {}", ended.said());
            let by_address = ask_name(&lab, 2, host.address()).wait();
            assert_eq!(by_address.stdout, [host.name()], "{family:?}: {}", by_address.said());
        }
    }
}

#[test]
fn a_cut_host_is_out_of_reach_until_it_is_mended() {
    let lab = Lab::new(2, Family::V4);
    let mut open = Running::start(lab.host(0).command("ssh").args(["h1", "echo in; cat; sleep 50"]));
    open.wait_for_output(1, "in");
    lab.cut(1);
    let ended = ask_name(&lab, 0, "h1").wait();
    assert!(ended.code() == 255 && ended.last_line().contains("h1"), "{}", ended.said());
    lab.mend(1);
    let ended = ask_name(&lab, 0, "h1").wait();
    assert_eq!(ended.stdout, ["h1"], "{}", ended.said());
}

#[test]
fn an_unknown_host_key_and_a_missing_sshd_are_refused() {
    let lab = Lab::new(2, Family::V4);
    let known = lab.host(0).read("home/.ssh/known_hosts");
    let forged = known.replace(lab.host(1).read("host_key.pub").trim(), lab.host(0).read("host_key.pub").trim());
    lab.host(0).write("home/.ssh/known_hosts", &forged);
    let ended = ask_name(&lab, 0, "h1").wait();
    assert!(ended.code() == 255 && ended.said().contains("Host key verification failed"), "{}", ended.said());
    lab.host(0).write("home/.ssh/known_hosts", &known);
    lab.host(1).stop_sshd();
    let ended = ask_name(&lab, 0, "h1").wait();
    assert!(ended.code() == 255 && ended.said().contains("Connection refused"), "{}", ended.said());
    let ended = ask_name(&lab, 0, "nowhere").wait();
    assert_eq!(ended.code(), 255, "{}", ended.said());
}

#[test]
fn hosts_share_neither_processes_nor_names_nor_shared_memory() {
    let lab = Lab::new(2, Family::V4);
    must(lab.host(0).command("touch").arg("/dev/shm/of_h0"));
    assert_eq!(must(lab.host(1).command("ls").arg("/dev/shm")), "");
    assert_eq!(lab.host(1).farandole(&["--version"]).wait().code(), 0, "the command can be started there");
    assert_eq!(must(&mut lab.host(1).command("hostname")), "h1\n");
    let sleeper = Running::start(lab.host(0).command("sleep").arg("77"));
    let pid = sleeper.pid();
    until_within(Duration::from_secs(5), "the sleeper is a guest", || {
        lab.host(0).guests().iter().any(|guest| guest.pid == pid && guest.says(&["sleep", "77"]))
    });
    assert_eq!(lab.host(1).guests(), []);
    sleeper.signal(Signal::TERM);
    assert_eq!(sleeper.wait().code(), 128 + Signal::TERM.as_raw(), "the end of a command is seen from outside");
    until_within(Duration::from_secs(5), "the sleeper has gone", || lab.host(0).guests().is_empty());
}

#[test]
fn nothing_of_a_laboratory_stays_however_its_test_ends() {
    let devices = || must(Command::new("ip").args(["-o", "link"])).lines().count();
    let before = devices();
    let networks = std::panic::catch_unwind(|| {
        let lab = Lab::new(2, Family::V4);
        // Left running on purpose: a daemon that nobody waits for.
        must(lab.host(1).command("sh").args(["-c", "setsid sleep 600 >/dev/null 2>&1 &"]));
        std::panic::panic_any(lab.networks());
    });
    let networks = networks.unwrap_err().downcast::<Vec<PathBuf>>().expect("only the last line panics");
    let left: Vec<&PathBuf> = networks.iter().filter(|network| inhabited_networks().contains(*network)).collect();
    assert!(networks.len() == 3 && left.is_empty(), "{left:?} of {networks:?}");
    assert_eq!(devices(), before);
    // Its files lie where nobody else sees them and go away with its hosts.
    assert!(!Path::new("/run/lab").exists());
}

#[test]
fn a_killed_test_takes_its_laboratory_along() {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "laboratory::a_laboratory_waits_to_be_killed", "--nocapture"])
        .env(VICTIM, "yes")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let networks: Vec<PathBuf> = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("networks: ")?.1.split_whitespace().map(PathBuf::from).collect()))
        .expect("the victim makes its laboratory");
    assert!(networks.len() == 3 && networks.iter().all(|network| inhabited_networks().contains(network)));
    victim.kill().unwrap();
    victim.wait().unwrap();
    until_within(Duration::from_secs(5), "the hosts of a killed test are gone", || {
        networks.iter().all(|network| !inhabited_networks().contains(network))
    });
}

/// The program of the victim.
#[test]
#[ignore = "role program: other tests start it"]
#[allow(clippy::print_stdout, reason = "it is how the victim is heard")]
fn a_laboratory_waits_to_be_killed() {
    assert!(std::env::var(VICTIM).is_ok(), "a test starts this");
    let lab = Lab::new(2, Family::V4);
    let networks: Vec<String> = lab.networks().iter().map(|network| network.display().to_string()).collect();
    println!("networks: {}", networks.join(" "));
    farandole_testing::lapse("a laboratory that waits to be killed", Duration::from_secs(60));
}
