//! Jobs that have an illness by construction: the report names it, and taking it away brings what was predicted.
//!
//! The ranks are `crates/cli/examples/rehearsal.rs`, which takes as long for everything as it is told. The link that is
//! too slow joins two network namespaces, as in `network.rs`: this needs root and iproute2, and fails with a line that
//! says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use farandole_insight::history::TimeWindow;
use farandole_insight::report::wording::wording;
use farandole_insight::verdict::Verdict;
use farandole_testing::{Folder, finish};
use serde_json::Value;

#[path = "../../insight/tests/jobs/mod.rs"]
mod jobs;
#[path = "../../insight/tests/schema/mod.rs"]
mod schema;

/// Far more than any job here needs; one that hangs is killed and fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// How far a prediction may be from what was measured, in points of percent of the time.
const POINTS: f64 = 10.0;

/// The program of the ranks. It is an example of this package, which cargo builds beside the tests.
fn rehearsal() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_farandole")).with_file_name("examples").join("rehearsal");
    assert!(path.exists(), "{} is missing: cargo build --package farandole-cli --examples", path.display());
    path
}

fn farandole(words: &[&str]) -> Output {
    finish(Command::new(env!("CARGO_BIN_EXE_farandole")).args(words), PATIENCE)
}

/// Runs four ranks and leaves their traces in a folder.
fn rehearse(traces: &Path, words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.args(["run", "-np", "4"]).arg(rehearsal()).args(words).env("FARANDOLE_TRACE", traces);
    let output = finish(&mut command, PATIENCE);
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// What the report says about a folder of traces, from the first iteration to the last: starting and ending a job are
/// not what these tests are about.
fn report(traces: &Path) -> Value {
    let output = farandole(&["report", traces.to_str().unwrap(), "--json", "--window", "iterations=0..1000000"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The illness is the first finding, and without it the job takes as long as was said.
fn cured(ill: &Value, cause: &str, healthy: &Value) {
    let first = &ill["findings"][0];
    assert_eq!(first["cause"], cause, "{}", ill["headline"]);
    let predicted = first["without"]["time_saved_percent"].as_f64().unwrap();
    let measured = 100.0 * (1.0 - healthy["ns"].as_f64().unwrap() / ill["ns"].as_f64().unwrap());
    let difference = (predicted - measured).abs();
    assert!(difference < POINTS, "{cause}: {predicted:.1} % were predicted, {measured:.1} % measured");
}

/// Makes two hosts with a link between them, limited if so told, and starts a rank on each. 77: there are no namespaces
/// to be had.
const TWO_HOSTS: &str = r#"
limit=$1; folder=$2; farandole=$3; shift 3
lab() {
    mkdir -p /run/netns && mount -t tmpfs names /run/netns &&
    ip netns add lab0 && ip netns add lab1 &&
    ip link add veth0 netns lab0 type veth peer name veth1 netns lab1 &&
    for host in 0 1; do
        ip -n lab$host address add 10.78.0.$((host + 1))/24 dev veth$host &&
        ip -n lab$host link set lo up && ip -n lab$host link set veth$host up || return 1
        if [ "$limit" != none ]; then
            tc -n lab$host qdisc add dev veth$host root tbf rate $limit burst 64kb latency 200ms || return 1
        fi
    done
}
lab || exit 77
key=$($farandole key) || exit 1
start() {
    ip netns exec lab$1 env RANK=$1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.78.0.1 MASTER_PORT=29533 \
        FARANDOLE_KEY=$key FARANDOLE_TRACE=$folder "${@:2}"
}
start 1 "$@" & other=$!
start 0 "$@" || exit 1
wait $other
"#;

/// Runs a rank on each of two hosts.
fn rehearse_on_two_hosts(traces: &Path, limit: &str, words: &[&str]) {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", TWO_HOSTS, "lab", limit]);
    command.arg(traces).arg(env!("CARGO_BIN_EXE_farandole")).arg(rehearsal()).args(words);
    let output = finish(&mut command, PATIENCE);
    assert!(
        output.status.code() != Some(77),
        "no network namespaces with a limited link here: run this as root, with iproute2 installed: {output:?}"
    );
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// They compare what they measure with what was predicted. An illness takes at least as long as all the rest, so that
/// the few milliseconds by which a busy machine delays a phase change neither the order of findings nor shares of the
/// time by much.
mod timings {
    use super::*;

    #[test]
    fn each_illness_is_the_first_finding_and_its_cure_brings_what_was_predicted() {
        for (cause, ill, healthy) in [
            ("input", &["work-ms=50", "input-ms=100"][..], &["work-ms=50"][..]),
            ("late", &["work-ms=50", "late-rank=2", "late-ms=100"], &["work-ms=50"]),
            ("checkpoint", &["work-ms=50", "checkpoint-ms=600"], &["work-ms=50"]),
            // Evaluation is not taken away but shared: 800 ms on one rank become 200 ms on each.
            ("sequential", &["work-ms=50", "evaluation-ms=800"], &["work-ms=50", "evaluation-ms=800", "shared=1"]),
        ] {
            let folder = Folder::new();
            let run = |name: &str, words: &[&str]| {
                rehearse(&folder.join(name), words);
                report(&folder.join(name))
            };
            let (ill, cure) = (run("ill", ill), run("healthy", healthy));
            cured(&ill, cause, &cure);
            let rank = &ill["findings"][0]["rank"];
            assert!(cause != "late" || *rank == 2, "rank 2 is late, and not {rank}");
        }
    }

    #[test]
    fn a_link_that_is_too_slow_is_the_first_finding_and_a_faster_one_brings_what_was_predicted() {
        let folder = Folder::new();
        // 2 MB each way at 100 Mbit/s are some 168 ms, beside 20 ms of work.
        let words = ["iterations=20", "tensors=4", "bytes=524288"];
        rehearse_on_two_hosts(&folder.join("slow"), "100mbit", &words);
        rehearse_on_two_hosts(&folder.join("fast"), "none", &words);
        let slow = report(&folder.join("slow"));
        assert_eq!(slow["hosts"], 2);
        cured(&slow, "transfer", &report(&folder.join("fast")));
        // The profile sees it as well: the same messages, in far less time.
        let (slow, fast) = (folder.join("slow"), folder.join("fast"));
        let (slow, fast) = (slow.to_str().unwrap(), fast.to_str().unwrap());
        let output = farandole(&["profile", slow, fast, "--collective", "allreduce"]);
        let table = String::from_utf8(output.stdout).unwrap();
        let total = table.lines().last().unwrap();
        let improvement: f64 = total.trim_end_matches(" %").rsplit(' ').next().unwrap().parse().unwrap();
        assert!(improvement > 50.0, "{table}");
    }
}

#[test]
fn the_exit_code_says_whether_it_is_good_enough_and_the_page_is_written() {
    let folder = Folder::new();
    let traces = folder.join("traces");
    rehearse(&traces, &["iterations=10", "input-ms=60"]);
    schema::fits_report(&report(&traces), "a real run");
    let (traces, page) = (traces.to_str().unwrap(), folder.join("report.html"));
    let output =
        farandole(&["report", traces, "--html", page.to_str().unwrap(), "--fail-below", "parallel-efficiency=0.01"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("input wait"), "{output:?}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("<section id=\"losses\">"));
    let output =
        farandole(&["report", traces, "--fail-below", "parallel-efficiency=0.8", "--fail-below", "load-balance=0.01"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaint.starts_with("farandole: parallel-efficiency is 0.") && complaint.lines().count() == 1,
        "{complaint}"
    );
}

#[test]
fn what_cannot_be_reported_is_said() {
    let folder = Folder::new();
    let traces = folder.join("traces");
    let said = |words: &[&str]| {
        let output = farandole(words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said(&["report", "/nowhere/at/all"]).contains("/nowhere/at/all"));
    rehearse(&traces, &["iterations=2", "work-ms=1"]);
    let path = traces.to_str().unwrap();
    assert!(
        said(&["report", path, "--window", "iterations=7..9"])
            .contains("nothing was recorded in the window iterations=7..9")
    );
    for rank in 0..4 {
        std::fs::write(traces.join(format!("rank-{rank:05}.trace")), "no trace").unwrap();
    }
    assert!(said(&["profile", path]).contains("rank-00000.trace: this is not a trace of farandole"));
    assert!(said(&["timeline", path]).contains("rank-00000.trace: this is not a trace of farandole"));
}

#[test]
fn a_report_is_made_of_what_is_there_and_says_what_is_not() {
    let folder = Folder::new();
    let traces = folder.join("traces");
    rehearse(&traces, &["iterations=10", "input-ms=30"]);
    let whole = report(&traces);
    assert_eq!(whole["complete"], true);
    // One rank has left nothing, another something that is no trace, and the disk of a third was full after half of the
    // run.
    std::fs::remove_file(traces.join("rank-00001.trace")).unwrap();
    std::fs::write(traces.join("rank-00002.trace"), "no trace").unwrap();
    let cut = traces.join("rank-00003.trace");
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let page = folder.join("report.html");
    let words = ["report", traces.to_str().unwrap(), "--html", page.to_str().unwrap()];
    let output = farandole(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // Lines are broken wherever they are full.
    let text = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("INCOMPLETE: this is what the traces of 2 of 4 ranks tell."), "{text}");
    assert!(text.contains("Rank 1 is left out: there is no trace of it here."), "{text}");
    assert!(text.contains("rank-00002.trace: this is not a trace of farandole"), "{text}");
    assert!(text.contains("The trace of rank 3 ends") && text.contains("a full disk?"), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the recording is incomplete"));
    assert!(std::fs::read_to_string(&page).unwrap().contains("role=\"alert\""));
    let partial = report(&traces);
    schema::fits_report(&partial, "what is left of a run");
    assert_eq!(
        (&partial["complete"], &partial["ranks_recorded"], &partial["ranks"]),
        (&false.into(), &2.into(), &4.into())
    );
    assert_eq!(partial["findings"][0]["cause"], "input", "{}", partial["headline"]);
    // What is left is judged, profiled and shown.
    let output = farandole(&[&words[..2], &["--fail-below", "parallel-efficiency=0.99"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for command in ["profile", "timeline"] {
        let mut words = vec![command, words[1]];
        words.extend((command == "timeline").then_some("-o-"));
        assert_eq!(farandole(&words).status.code(), Some(0), "{command}");
    }
}

/// The flags that advice names exist, and so does what it takes from the front end for PyTorch.
#[test]
fn advice_names_nothing_that_does_not_exist() {
    let front_end = concat!(
        include_str!("../../../bindings/python/farandole/torch/__init__.py"),
        include_str!("../../../bindings/python/farandole/torch/mpi_ops.py"),
        include_str!("../../../bindings/python/farandole/torch/reduce.py"),
        include_str!("../../../bindings/python/farandole/torch/handles.py"),
        include_str!("../../../bindings/python/farandole/exports.py")
    );
    let mut checked = 0;
    for (name, history) in jobs::all() {
        let verdict = Verdict::of(&history, &TimeWindow::Whole, None);
        let lines = verdict
            .findings
            .iter()
            .flat_map(|finding| &finding.advice)
            .flat_map(|advice| wording(&advice.recommendation).how);
        for line in lines {
            let words: Vec<&str> = line.split([' ', ';', '…']).collect();
            let commands = words.iter().enumerate().filter(|(_, word)| **word == "farandole");
            for (place, _) in commands {
                // `data` has commands of its own.
                let command = &words[place + 1..place + if words[place + 1] == "data" { 3 } else { 2 }];
                let help = farandole(&[command, &["--help"]].concat());
                assert!(help.status.success(), "{name}: {line}");
                let help = String::from_utf8(help.stdout).unwrap();
                let own = words[place + 2..].iter().take_while(|word| !["farandole", "sh", "python"].contains(word));
                for flag in own.filter(|word| word.starts_with('-')) {
                    let known = flag.starts_with("-np")
                        || help.contains(&format!("{flag} <"))
                        || help.contains(&format!("{flag}, "));
                    assert!(known, "{name}: {line}: {flag}");
                    checked += 1;
                }
            }
            for call in line.split("hvd.").skip(1) {
                let called: String = call.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                assert!(front_end.contains(&called), "{name}: {line}: hvd.{called}");
                checked += 1;
            }
        }
    }
    assert!(checked > 10, "{checked}");
}
