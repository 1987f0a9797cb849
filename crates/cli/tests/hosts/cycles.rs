//! Jobs that start and stop, again and again, some of them killed on the way: nothing of them stays.
//!
//! A host of the laboratory has nobody else on it, so what is there can be counted exactly.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::time::Duration;

use farandole_testing::{Deadline, lapse};

use crate::host::Host;
use crate::jobs::program;
use crate::lab::{Family, Lab};

/// How many cycles: few in an ordinary run of the tests, many for `cargo xtask cycles`.
const COUNT: &str = "FARANDOLE_TEST_CYCLES";
const FEW: usize = 20;

/// One job in so many is killed at a moment of its own.
const KILLED_EVERY: usize = 4;

/// A job of four ranks. When its launcher is killed, a rank may see another one end before it ends itself, and would
/// leave what it recorded last among temporary files, as ranks that meet an error do. That is wanted, and no leftover.
const JOB: [&str; 5] = ["run", "-np", "4", "env", "FARANDOLE_TRACE_TROUBLE=0"];

/// How soon after the launcher everything else must be gone, when it could not say goodbye.
const SOON: Duration = Duration::from_secs(30);

/// All that could be left on a host, by name.
#[derive(Debug, PartialEq, Eq)]
struct Census {
    processes: Vec<Vec<String>>,
    shared_memory: Vec<String>,
    temporary_files: Vec<String>,
    unix_sockets: Vec<String>,
    memory_files: usize,
}

impl Census {
    fn of(host: &Host) -> Census {
        let first = host.keeper().first.as_raw_nonzero();
        let listing = |folder: &str| {
            let entries = fs::read_dir(format!("/proc/{first}/root{folder}")).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let sockets = fs::read_to_string(format!("/proc/{first}/net/unix")).unwrap();
        // The eighth column, where a socket has one, is its name.
        let names =
            sockets.lines().skip(1).map(|line| line.split_whitespace().nth(7).unwrap_or("(unnamed)").to_owned());
        let mut unix_sockets: Vec<String> = names.collect();
        unix_sockets.sort();
        let guests = host.guests();
        let open =
            guests.iter().filter_map(|guest| fs::read_dir(format!("/proc/{}/fd", guest.pid.as_raw_nonzero())).ok());
        let targets = open.flatten().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        Census {
            memory_files: targets.filter(|target| target.to_string_lossy().starts_with("/memfd:")).count(),
            processes: guests.into_iter().map(|guest| guest.words).collect(),
            shared_memory: listing("/dev/shm"),
            temporary_files: listing("/run/lab/tmp"),
            unix_sockets,
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "whoever asks for many cycles wants to see them pass")]
fn starting_and_stopping_leaves_nothing() {
    let count = std::env::var(COUNT).map_or(FEW, |text| text.parse().expect("a number of cycles"));
    let lab = Lab::new(1, Family::V4);
    let host = lab.host(0);
    let before = Census::of(host);
    assert_counted(host, &before);
    // Jobs take a little longer than that, and much longer on a loaded machine.
    let (mut killed, longest) = (0, Duration::from_millis(40));
    for cycle in 0..count {
        let mut job = host.farandole(&[&JOB[..], &[&program(), "once"]].concat());
        if cycle % KILLED_EVERY == KILLED_EVERY - 1 {
            lapse("a job on its way", longest.mul_f64(fraction(cycle)));
            job.kill_if_running();
            let ended = job.wait();
            killed += usize::from(ended.code() != 0);
            nothing_is_left(host, &before, "everything ends with its launcher");
        } else {
            let ended = job.wait();
            assert_eq!(ended.code(), 0, "cycle {cycle}: {}", ended.said());
            // What the kernel has not yet tidied up of processes that have ended is gone a moment later.
            nothing_is_left(host, &before, "a job that has ended leaves nothing");
        }
        if cycle % 100 == 99 {
            println!("{} cycles, {killed} of them killed; left behind: nothing", cycle + 1);
        }
    }
    assert_eq!(Census::of(host), before);
    assert!(killed > 0, "no job was killed on its way: the moments are wrong");
}

/// Asserts that whatever a job has would be noticed if it stayed.
fn assert_counted(host: &Host, before: &Census) {
    let mut job = host.farandole(&[&JOB[..], &[&program(), "loop"]].concat());
    job.wait_for_output(4, "dancing");
    let during = Census::of(host);
    assert!(during.processes.len() >= 6, "launcher, agent and ranks: {during:?}");
    assert!(during.memory_files > 0 && during.unix_sockets.len() > before.unix_sockets.len(), "{during:?}");
    job.kill_if_running();
    job.wait();
    nothing_is_left(host, before, "everything ends with its launcher");
}

/// Waits until a host has again what it had before.
fn nothing_is_left(host: &Host, before: &Census, what: &str) {
    let deadline = Deadline::after(SOON);
    let mut after = Census::of(host);
    while after != *before {
        deadline.pause(format!("{what}, but there is\n{after:#?}\nand there was\n{before:#?}"));
        after = Census::of(host);
    }
}

/// A number between zero and one, another one each time.
fn fraction(cycle: usize) -> f64 {
    RandomState::new().hash_one(cycle) as f64 / u64::MAX as f64
}
