//! `farandole train` as an elastic job: ranks are killed and stopped while it trains, and others join. It goes on, uses
//! every sample once in each epoch, and comes to the weights of a run in which nothing happened, but for rounding.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use farandole_testing::Folder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far more than any job here needs on a machine that others use, too; one that hangs is killed and fails.
const PATIENCE: Duration = Duration::from_secs(90);

/// Samples of an epoch.
const SAMPLES: usize = 48;

/// A network without BatchNorm, whose weights do not depend on who has which samples of a batch.
const NETWORK: &[&str] =
    &["--model", "lenet", "--samples", "48", "--batch", "8", "--seed", "7", "--threads", "1", "--decay", "none"];

/// A job of the trainer, in a folder of its own.
struct Job {
    child: Option<Child>,
    folder: Folder,
}

impl Job {
    fn start(words: &[&str]) -> Job {
        let folder = Folder::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        command.arg("train").args(NETWORK).args(words).env_remove("FARANDOLE_TRACE");
        command.args(["--checkpoint", &folder.file("kept"), "--log", &folder.file("log")]);
        command.args(["--heartbeat-timeout", "1"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Job { child: Some(child), folder }
    }

    /// The events of its log so far.
    fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn events(&self, name: &str) -> Vec<Value> {
        self.log().into_iter().filter(|event| event["event"] == name).collect()
    }

    /// Waits until so many epochs are over.
    fn wait_for_epochs(&self, count: usize) {
        self.wait_until(&format!("{count} epochs"), || self.events("epoch").len() >= count);
    }

    fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        farandole_testing::wait_until(what, PATIENCE, condition);
    }

    /// The process of a member.
    fn pid(&self, member: usize) -> Option<Pid> {
        let name = format!("FARANDOLE_ELASTIC_MEMBER={member}");
        self.process(|process| {
            let variables = std::fs::read(process.join("environ")).ok()?;
            Some(String::from_utf8_lossy(&variables).split('\0').any(|variable| variable == name))
        })
    }

    /// The process of rank 0, which alone has the log open. With spares, members that come late wait: rank 0 may be
    /// any member.
    fn rank_0(&self) -> Pid {
        let log = self.folder.join("log");
        let has_log = |process: &Path| {
            let files = std::fs::read_dir(process.join("fd")).ok()?;
            Some(files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).any(|file| file == log))
        };
        farandole_testing::wait_for("the process of rank 0", PATIENCE, || self.process(has_log))
    }

    /// The first rank of this job of which this is true.
    fn process(&self, is_it: impl Fn(&Path) -> Option<bool>) -> Option<Pid> {
        let own = self.folder.display().to_string();
        let is_rank = |process: &Path| -> Option<bool> {
            let words = std::fs::read(process.join("cmdline")).ok()?;
            let words = String::from_utf8_lossy(&words);
            Some(words.split('\0').nth(1) == Some("train-rank") && words.contains(&own))
        };
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
        let mut ranks = processes.filter(|process| is_rank(process) == Some(true));
        let found = ranks.find(|process| is_it(process) == Some(true))?;
        Pid::from_raw(found.file_name()?.to_str()?.parse().ok()?)
    }

    /// The same as soon as it is there. Training is short, so tests know whom to strike before they wait for a moment.
    fn member(&self, member: usize) -> Pid {
        farandole_testing::wait_for("the process of a member", PATIENCE, || self.pid(member))
    }

    /// Waits for its end.
    fn finish(&mut self) -> (Output, String) {
        let output = farandole_testing::finish_child(&mut self.child.take().unwrap(), PATIENCE);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let text = format!("{out}{err}");
        (output, text)
    }

    /// It ends well: every epoch has used every sample once, and the weights are those of a run without losses.
    fn assert_well(&mut self, epochs: usize, expected: &BTreeMap<String, Vec<f32>>) -> String {
        let (output, text) = self.finish();
        assert!(output.status.success(), "{text}");
        let told = self.events("epoch");
        let numbers: Vec<u64> = told.iter().map(|event| event["epoch"].as_u64().unwrap()).collect();
        let mut once = numbers.clone();
        once.dedup();
        assert_eq!(once, (1..=epochs as u64).collect::<Vec<_>>(), "{text}");
        for event in &told {
            assert_eq!(event["samples"], SAMPLES as f64, "{text}");
        }
        assert_eq!(self.events("summary").last().unwrap()["samples"], (SAMPLES * epochs) as f64, "{text}");
        let found = self.weights();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, numbers) in expected {
            for (one, two) in numbers.iter().zip(&found[name]) {
                assert!((one - two).abs() < 1e-3 * (1.0 + one.abs()), "{name}: {one} and {two}\n{text}");
            }
        }
        text
    }

    /// The tensors of its checkpoint.
    fn weights(&self) -> BTreeMap<String, Vec<f32>> {
        let bytes = std::fs::read(self.folder.join("kept/checkpoint.safetensors")).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let data = &bytes[8 + length..];
        let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
        let read = |about: &Value| {
            let offset = |place: usize| about["data_offsets"][place].as_u64().unwrap() as usize;
            let floats = data[offset(0)..offset(1)].chunks_exact(4);
            floats.map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
        };
        tensors.map(|(name, about)| (name.clone(), read(about))).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Members of an elastic job outlive their launcher.
        for pid in (0..9).filter_map(|member| self.pid(member)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The weights of a run in which nothing happens. Epochs have few steps, so rounding has no time to grow.
fn undisturbed(ranks: &str, epochs: &str) -> BTreeMap<String, Vec<f32>> {
    let mut job = Job::start(&["-np", ranks, "--epochs", epochs, "--test-samples", "8", "--lr", "0.001"]);
    let (output, text) = job.finish();
    assert!(output.status.success(), "{text}");
    job.weights()
}

/// Nobody is replaced: a host that has failed is left alone for as long as the test lasts.
const NO_REPLACEMENT: [&str; 3] = ["--blacklist-cooldown-range", "900", "900"];

fn elastic(flags: &[&str], epochs: &str) -> Job {
    Job::start(&[flags, &["--epochs", epochs, "--test-samples", "8", "--lr", "0.001"]].concat())
}

#[test]
fn survivors_of_killed_and_stopped_ranks_come_to_the_same_weights() {
    let expected = undisturbed("3", "30");
    let mut job = elastic(&[&["-np", "3", "--min-np", "1"], &NO_REPLACEMENT[..]].concat(), "30");
    let (first, last) = (job.member(0), job.member(2));
    job.wait_for_epochs(2);
    // Rank 0, which speaks for all.
    kill_process(first, Signal::KILL).unwrap();
    job.wait_until("two ranks to go on", || job.events("change").len() == 1);
    kill_process(last, Signal::STOP).unwrap();
    let text = job.assert_well(30, &expected);
    let changes = job.events("change");
    let counts = |event: &Value| (event["before"].as_u64().unwrap(), event["ranks"].as_u64().unwrap());
    assert_eq!(changes.iter().map(counts).collect::<Vec<_>>(), [(3, 2), (2, 1)], "{text}");
    assert!(text.contains("2 ranks go on after "), "{text}");
    assert!(text.contains("  ranks       2 lost, 0 joined: 3 to 2 after "), "{text}");
}

#[test]
fn a_replacement_joins_and_trains_with_the_others() {
    let expected = undisturbed("2", "30");
    let mut job = elastic(&["-np", "2", "--min-np", "2", "--spares", "1"], "30");
    let first = job.rank_0();
    job.wait_for_epochs(2);
    kill_process(first, Signal::KILL).unwrap();
    job.wait_until("the spare to join", || job.events("change").iter().any(|event| event["joined"] == 1));
    let text = job.assert_well(30, &expected);
    assert_eq!(job.events("summary")[0]["ranks"], 2, "{text}");
    assert!(text.contains("1 lost, 1 joined"), "{text}");
}

#[test]
fn below_the_least_number_of_ranks_it_waits_and_ends_with_the_cause() {
    let flags = ["-np", "2", "--min-np", "2", "--elastic-timeout", "1"];
    let mut job = elastic(&[&flags, &NO_REPLACEMENT[..]].concat(), "100000");
    let second = job.member(1);
    job.wait_for_epochs(1);
    kill_process(second, Signal::KILL).unwrap();
    let (output, text) = job.finish();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("the job has 1 member, fewer than --min-np 2"), "{text}");
}

#[test]
fn a_loss_that_is_not_finite_ends_an_elastic_job_with_its_cause() {
    let mut job = Job::start(&["-np", "2", "--min-np", "1", "--lr", "1e30", "--warmup", "0", "--epochs", "3"]);
    let (output, text) = job.finish();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("farandole: the loss is not finite any more"), "{text}");
}
