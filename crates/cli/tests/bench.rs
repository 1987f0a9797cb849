//! The command as a user runs it: real processes, real collectives, right results.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use farandole_testing::{Deadline, finish};

/// Far more than any run here needs; a run that hangs is killed and fails.
const PATIENCE: Duration = Duration::from_secs(120);

fn bench(words: &[&str]) -> Output {
    finish(Command::new(env!("CARGO_BIN_EXE_farandole")).arg("bench").args(words), PATIENCE)
}

fn quick(words: &[&str]) -> Output {
    bench(&[words, &["--rounds", "1", "--iters", "3"]].concat())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn json_comes_alone_on_standard_output() {
    let output = bench(&["allreduce", "-np", "2", "--sizes", "4,1K", "--rounds", "2", "--iters", "5", "--json", "-"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ranks"], 2);
    let sizes = report["sizes"].as_array().unwrap();
    assert_eq!(sizes.iter().map(|size| size["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 1024]);
    for size in sizes {
        assert_eq!(size["farandole"]["wrong"], 0);
        assert_eq!(size["farandole"]["iterations"], 10);
        assert!(size["farandole"]["median_us"].as_f64().unwrap() > 0.0);
    }
    assert!(stderr(&output).contains("busbw"), "the table goes to standard error");
}

#[test]
fn every_collective_gives_right_results_by_every_door_and_transport() {
    for collective in ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"] {
        for how in [
            &["-np", "1"][..],
            &["-np", "3"],
            &["-np", "3", "--through", "engine"],
            &["-np", "3", "--transport", "unix", "--pace", "back-to-back"],
            &["-np", "3", "--transport", "tcp", "--dtype", "bfloat16"],
            &["-np", "4", "--hosts", "2", "--dtype", "int8"],
        ] {
            let output = quick(&[&[collective, "--sizes", "4,10000"], how].concat());
            assert!(output.status.success(), "{collective} {how:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn mapped_buffers_many_tensors_and_the_bound_are_measured() {
    for how in [
        &["--memory", "mapped", "--limit", "--op", "average"][..],
        &["--limit", "--pin"],
        &["--through", "engine", "--tensors", "50"],
        &["--algorithm", "ring", "--transport", "tcp"],
    ] {
        let output = quick(&[&["allreduce", "-np", "2", "--sizes", "4096"], how].concat());
        assert!(output.status.success(), "{how:?}: {}", stderr(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(table.contains("limit = all ranks"), how.contains(&"--limit"), "{table}");
    }
}

#[test]
fn inside_a_job_its_ranks_are_measured() {
    let farandole = env!("CARGO_BIN_EXE_farandole");
    let quick = ["--rounds", "1", "--iters", "3", "--json", "-"];
    let run = |command: &mut Command, words: &[&str]| {
        let output = finish(command.args(words).args(quick), PATIENCE);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["hosts"], 1);
        assert!(report["sizes"].as_array().unwrap().iter().all(|size| size["farandole"]["wrong"] == 0), "{report}");
        report["ranks"].as_u64()
    };
    let in_job = ["run", "--no-prefix", "-np", "3", farandole, "bench"];
    for how in [&["allreduce", "--sizes", "4,1M", "--recorder-off"][..], &["alltoall", "--sizes", "9K", "--pin"]] {
        assert_eq!(run(&mut Command::new(farandole), &[&in_job, how].concat()), Some(3));
    }
    // A job of its own on named hosts, of which this is one.
    let named = ["bench", "allgather", "-H", "localhost:2", "--sizes", "4K", "--through", "engine"];
    assert_eq!(run(&mut Command::new(farandole), &named), Some(2));
    // Inside a job, -np still asks for a job of its own.
    let nested = ["run", "--no-prefix", "-np", "1", farandole, "bench", "broadcast", "-np", "2", "--sizes", "4"];
    assert_eq!(run(&mut Command::new(farandole), &nested), Some(2));
}

#[test]
fn what_does_not_fit_together_is_refused_before_anything_starts() {
    for (words, explanation) in [
        (&["allreduce", "-np", "0"][..], "give 1 to 1024 ranks"),
        (&["allreduce", "-np", "two"], "invalid digit"),
        (&["allreduce"], "how many ranks? Give -np 2"),
        (
            &["allreduce", "-H", "h1:2", "--against", "gloo"],
            "--against: works only where the benchmark starts all ranks",
        ),
        (&["allreduce", "-H", "h1:2", "--limit"], "--limit: works only where"),
        (&["allreduce", "-H", "h1:x"], "h1:x"),
        (&["sum", "-np", "2"], "possible values"),
        (&["allreduce", "-np", "2", "--sizes", "8..4"], "goes from 8 B down to 4 B"),
        (&["allreduce", "-np", "2", "--dtype", "float31"], "there is: bool"),
        (&["allreduce", "-np", "2", "--op", "xor"], "there is: sum"),
        (&["allreduce", "-np", "2", "--op", "adasum"], "cannot be checked exactly"),
        (&["allreduce", "-np", "2", "--tensors", "9"], "add --through engine"),
        (&["broadcast", "-np", "2", "--memory", "mapped"], "only allreduce works on mapped buffers"),
        (&["broadcast", "-np", "2", "--limit"], "not for broadcast"),
        (&["allreduce", "-np", "2", "--hosts", "3"], "1 to 2 hosts"),
        (&["allreduce", "-np", "2", "--algorithm", "guess"], "there is: ring"),
        (&["allreduce", "-np", "2", "--against", "nccl"], "possible values"),
        (&["allreduce", "-np", "2", "--peers-only"], "--against"),
        (&["allreduce", "-np", "2", "--plane", "own"], "add --device cuda"),
        (&["allreduce", "-np", "2", "--device", "cuda", "--plane", "staged"], "possible values"),
        (&["broadcast", "-np", "2", "--device", "cuda"], "only allreduce works in device memory"),
        (&["allreduce", "-np", "2", "--iters", "0"], "nothing would be measured"),
    ] {
        let output = bench(words);
        assert!(!output.status.success(), "{words:?}");
        assert!(stderr(&output).contains(explanation), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn a_peer_that_is_not_installed_is_named_with_the_way_to_install_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_farandole"))
        .args(["bench", "allreduce", "-np", "2", "--sizes", "4", "--against", "openmpi", "--peers-only"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("mpirun.openmpi is not installed") && text.contains("cargo xtask peers"), "{text}");
}

/// The launcher, its agent and the ranks below this process.
fn descendants(pid: u32) -> Vec<String> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = list.split_whitespace();
    children.flat_map(|child| [vec![child.to_owned()], descendants(child.parse().unwrap())].concat()).collect()
}

#[test]
fn ranks_end_with_their_driver() {
    let mut driver = Command::new(env!("CARGO_BIN_EXE_farandole"))
        .args(["bench", "allreduce", "-np", "2", "--sizes", "1M", "--iters", "2000", "--rounds", "1000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Deadline::after(PATIENCE);
    let ranks = loop {
        let pids = descendants(driver.id());
        let is_rank = |pid: &&String| {
            let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split('\0').nth(1) == Some("bench-rank")
        };
        if pids.iter().filter(is_rank).count() == 2 {
            break pids;
        }
        deadline.pause("the start of the ranks");
    };
    // Killed without warning, the driver cannot clean up.
    driver.kill().unwrap();
    driver.wait().unwrap();
    let alive = |pid: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    };
    while ranks.iter().any(|pid| alive(pid)) {
        deadline.pause(format!("the end of {ranks:?}, which outlive their driver"));
    }
}
