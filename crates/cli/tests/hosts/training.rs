//! `farandole train` with ranks on two hosts that share no folder: rank 0's host has the checkpoint and the log, and
//! each host its own data.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::host::Host;
use crate::jobs::{all_gone, of_the_job};
use crate::lab::{Family, Lab, until, until_within};
use crate::running::Running;

/// Rank 0 on `h0`, where the launcher runs, rank 1 on `h1`; a network and a data set so small that starting the
/// processes takes most of the time.
const TWO_HOSTS: [&str; 6] = ["train", "-H", "h0:1,h1:1", "--model", "lenet", "--batch=8"];
/// Of a generated data set.
const SAMPLES: [&str; 4] = ["--samples", "48", "--test-samples", "16"];

const KEPT: &str = "/run/lab/kept";
const LOG: &str = "/run/lab/log.jsonl";

/// How long a job may take to end once there is a reason to.
const AFTERMATH: Duration = Duration::from_secs(20);

fn train(lab: &Lab, words: &[&str]) -> Running {
    let samples: &[&str] = if words.contains(&"--data") { &[] } else { &SAMPLES };
    lab.host(0).farandole(&[&TWO_HOSTS[..], samples, &["--checkpoint", KEPT, "--log", LOG], words].concat())
}

fn log(host: &Host) -> Vec<Value> {
    host.read("log.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Training that goes on until something happens, and has come to the end of an epoch.
fn endless(lab: &Lab, words: &[&str]) -> Running {
    let job = train(lab, &[&["--epochs", "1000000"], words].concat());
    let file = lab.host(0).path("log.jsonl");
    until("an epoch is complete", || fs::read_to_string(&file).is_ok_and(|text| text.contains("\"checkpoint\"")));
    job
}

#[test]
fn ranks_of_two_hosts_train_and_what_they_learned_is_kept_on_the_first() {
    let lab = Lab::new(2, Family::V4);
    let ended = train(&lab, &["--epochs", "1"]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    let said = ended.stdout.join("\n");
    assert!(said.contains("epoch 1/1") && said.contains("rank 1") && said.contains("not judged"), "{}", ended.said());
    assert!(!lab.host(1).path("kept").exists() && !lab.host(1).path("log.jsonl").exists());
    // The other rank needs nothing of its host to go on.
    let ended = train(&lab, &["--epochs", "2", "--resume"]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    assert!(ended.stdout.iter().any(|line| line.ends_with("resumed after epoch 1")), "{}", ended.said());
    let lines = log(lab.host(0));
    let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    let once = ["start", "epoch", "checkpoint", "summary"];
    assert_eq!(events, [once, once].concat());
    assert!(
        lines
            .iter()
            .filter(|line| line["event"] != "epoch" && line["event"] != "checkpoint")
            .all(|line| line["hosts"] == 2)
    );
    all_gone(&lab, AFTERMATH);
}

#[test]
fn data_that_a_host_lacks_or_has_otherwise_is_said_with_the_host() {
    let lab = Lab::new(2, Family::V4);
    let jpeg = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../data/tests/images/ramp.jpg")).unwrap();
    let put = |host: &Host, file: &str| {
        let path = host.path(&format!("photos/{file}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &jpeg).unwrap();
    };
    for file in ["a/1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg"] {
        put(lab.host(0), file);
    }
    let refused = |explanation: &str| {
        let ended = train(&lab, &["--data", "/run/lab/photos", "--epochs", "1"]).wait();
        assert_eq!(ended.code(), 1, "{}", ended.said());
        let of_rank_1 = ended.stderr.iter().filter(|line| line.starts_with("farandole: rank 1: ")).count();
        assert!(of_rank_1 == 1 && ended.said().contains(explanation), "{explanation}: {}", ended.said());
        assert!(ended.last_line().contains("rank 1 on h1"), "{}", ended.said());
    };
    refused("/run/lab/photos: there is no such folder");
    for file in ["a/1.jpg", "a/2.jpg", "b/3.jpg"] {
        put(lab.host(1), file);
    }
    refused("other data than rank 0's: here /run/lab/photos: 2 + 1 images");
    put(lab.host(1), "b/5.jpg");
    refused("as many files, but with other names or labels");
    fs::rename(lab.host(1).path("photos/b/5.jpg"), lab.host(1).path("photos/b/4.jpg")).unwrap();
    let ended = train(&lab, &["--data", "/run/lab/photos", "--epochs", "1"]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
}

#[test]
fn who_asks_two_hosts_to_stop_gets_a_checkpoint_and_can_go_on() {
    let lab = Lab::new(2, Family::V4);
    let job = endless(&lab, &[]);
    job.signal(Signal::INT);
    let ended = job.wait_within(AFTERMATH);
    assert_eq!(ended.code(), 128 + 2, "{}", ended.said());
    assert!(ended.stdout.iter().any(|line| line.starts_with("asked to stop after ")), "{}", ended.said());
    let last = log(lab.host(0)).pop().unwrap();
    assert_eq!((&last["event"], &last["stopped"]), (&"summary".into(), &true.into()));
    let next = (last["epochs"].as_u64().unwrap() + 1).to_string();
    let ended = train(&lab, &["--epochs", &next, "--resume"]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    all_gone(&lab, AFTERMATH);
}

#[test]
fn a_host_that_is_cut_off_ends_training_and_the_last_checkpoint_is_whole() {
    let lab = Lab::new(2, Family::V4);
    let job = endless(&lab, &["--heartbeat-timeout", "2"]);
    lab.cut(1);
    let ended = job.wait_within(AFTERMATH);
    assert_eq!(ended.code(), 1, "{}", ended.said());
    assert!(ended.last_line().contains("h1 has not been heard of"), "{}", ended.said());
    until_within(AFTERMATH, "the host that was cut off is empty", || of_the_job(lab.host(1)).is_empty());
    let done = log(lab.host(0)).iter().filter_map(|line| line["epoch"].as_u64()).max().unwrap();
    let ended = lab.host(0).farandole(
        &[
            &["train", "-np", "1", "--model", "lenet", "--samples", "48", "--test-samples", "16", "--batch=16"],
            &["--checkpoint", KEPT, "--resume", "--epochs", &(done + 1).to_string()][..],
        ]
        .concat(),
    );
    let ended = ended.wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    assert!(ended.stdout.iter().any(|line| line.contains("resumed after epoch")), "{}", ended.said());
}
