//! Jobs over three hosts that go well: ranks find each other, their variables and their output come through.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::host::{Host, Process};
use crate::lab::{Family, Lab, until_within};
use crate::running::Running;

/// Two ranks on each of the three hosts: 0 and 1 on `h0`, where the launcher runs, up to 4 and 5 on `h2`.
const EVERYWHERE: [&str; 5] = ["run", "-np", "6", "-H", "h0:2,h1:2,h2:2"];

/// The program of the ranks. It is an example of this package, which cargo builds beside the tests.
pub(crate) fn program() -> String {
    let path = std::path::Path::new(env!("CARGO_BIN_EXE_farandole")).with_file_name("examples").join("obedient_rank");
    assert!(path.exists(), "{} is missing: cargo build --package farandole-cli --examples", path.display());
    path.to_str().unwrap().to_owned()
}

/// Starts six ranks on three hosts from the first: launcher's options, then what the ranks are to do.
pub(crate) fn everywhere(lab: &Lab, options: &[&str], task: &[&str]) -> Running {
    lab.host(0).farandole(&[&EVERYWHERE, options, &[&program()], task].concat())
}

/// Six ranks that dance until something happens.
pub(crate) fn dancing(lab: &Lab, options: &[&str]) -> Running {
    let mut job = everywhere(lab, options, &["loop"]);
    job.wait_for_output(6, "dancing");
    job
}

/// The processes of a job on this host, in the order of their numbers: launcher, agent, ranks, but not ssh and its
/// daemons.
pub(crate) fn of_the_job(host: &Host) -> Vec<Process> {
    let ours = |process: &Process| {
        let program = process.words.first().map_or("", String::as_str);
        program.ends_with("/farandole") || program.ends_with("/obedient_rank")
    };
    let mut processes: Vec<Process> = host.guests().into_iter().filter(ours).collect();
    processes.sort_by_key(|process| process.pid_there);
    processes
}

/// The ranks of a dancing job on this host.
pub(crate) fn ranks(host: &Host) -> Vec<Process> {
    of_the_job(host).into_iter().filter(|process| process.words.last().is_some_and(|word| word == "loop")).collect()
}

/// Waits until no host has anything left of a job, connections included.
pub(crate) fn all_gone(lab: &Lab, patience: Duration) {
    let left = || lab.hosts().iter().flat_map(Host::guests).collect::<Vec<_>>();
    until_within(patience, "no host has a guest", || left().is_empty());
}

#[test]
fn all_ranks_are_told_one_free_port_of_the_first_host_for_torchs_store() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(3, family);
        let shown =
            "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GROUP_RANK, $MASTER_ADDR $MASTER_PORT";
        let job = lab.host(0).farandole(&["run", "--no-prefix", "-H", "h1:2,h2:1", "sh", "-c", shown]).wait();
        assert_eq!(job.code(), 0, "{}", job.said());
        let mut said = job.stdout.clone();
        said.sort();
        let port = said[0].split(' ').next_back().unwrap();
        assert!(port.parse::<u16>().is_ok_and(|port| port > 0), "{}", job.said());
        let at = lab.host(1).address();
        let expected = ["0 of 3, 0 of 2, 0", "1 of 3, 1 of 2, 0", "2 of 3, 0 of 1, 1"];
        assert_eq!(said, expected.map(|place| format!("{place}, {at} {port}")));
    }
}

#[test]
fn six_ranks_on_three_hosts_reduce_over_either_internet_protocol() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(3, family);
        let ended = everywhere(&lab, &[], &["sum"]).wait();
        assert_eq!(ended.code(), 0, "{family:?}: {}", ended.said());
        let mut said = ended.stdout.clone();
        said.sort();
        let expected = (0..6).map(|rank| format!("[{rank}]<stdout>:rank {rank} of 6, {} of 2 here: right", rank % 2));
        assert_eq!(said, expected.collect::<Vec<_>>(), "{family:?}: {}", ended.said());
        assert_eq!(ended.stderr, [""; 0], "a job that goes well has nothing to say");
        all_gone(&lab, Duration::from_secs(2));
    }
}

#[test]
fn ranks_of_three_hosts_meet_again_and_again() {
    let lab = Lab::new(3, Family::V4);
    let ended = everywhere(&lab, &[], &["again", "50"]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    assert_eq!(ended.stdout.iter().filter(|line| line.ends_with("met 50 times")).count(), 6, "{}", ended.said());
    all_gone(&lab, Duration::from_secs(2));
}

#[test]
fn a_rank_that_has_left_and_does_not_come_again_is_named_on_every_host() {
    let lab = Lab::new(3, Family::V4);
    let ended = everywhere(&lab, &[], &["without", "3"]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    let missing = |line: &&String| line.contains("3 did not come to the rendezvous within") && line.contains(":rank");
    assert_eq!(ended.stdout.iter().filter(missing).count(), 5, "{}", ended.said());
}

#[test]
fn hosts_may_be_addresses_and_need_not_include_the_launchers() {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new(3, family);
        let wrapped = |number: usize| match family {
            Family::V4 => lab.host(number).address().to_owned(),
            Family::V6 => format!("[{}]", lab.host(number).address()),
        };
        let hosts = format!("{}:1,{}:2", wrapped(1), wrapped(2));
        let ended = lab.host(0).farandole(&["run", "-np", "3", "-H", &hosts, &program(), "sum"]).wait();
        assert_eq!(ended.code(), 0, "{family:?}: {}", ended.said());
        assert_eq!(ended.stdout.iter().filter(|line| line.ends_with("right")).count(), 3, "{}", ended.said());
    }
}

#[test]
fn ranks_share_the_gpus_of_each_host_through_a_daemon_of_its_own() {
    let lab = Lab::new(2, Family::V4);
    let folder = farandole_testing::Folder::new();
    let program_of_mps = folder.join("nvidia-cuda-mps-control");
    fs::write(&program_of_mps, include_str!("../gpus/control.sh")).unwrap();
    fs::set_permissions(&program_of_mps, PermissionsExt::from_mode(0o755)).unwrap();
    let start = |hosts: &str, gpus: &str| {
        let mut command = lab.host(0).command(env!("CARGO_BIN_EXE_farandole"));
        command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        command.env("FARANDOLE_TEST_GPUS", gpus).env("NOTES", folder.join("notes"));
        command.args(["run", "-H", hosts, "--ranks-per-gpu", "2", "--mps", "-x", "NOTES"]).arg(program());
        Running::start(command.args(["show", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"])).wait()
    };
    let ended = start("h0:4,h1:2", "GPU-a,GPU-b");
    assert_eq!(ended.code(), 0, "{}", ended.said());
    for (rank, gpu) in ["GPU-a", "GPU-a", "GPU-b", "GPU-b", "GPU-a", "GPU-a"].iter().enumerate() {
        let line = format!("[{rank}]<stdout>:CUDA_VISIBLE_DEVICES={gpu}");
        assert!(ended.stdout.contains(&line), "{rank}: {}", ended.said());
    }
    let daemons: BTreeSet<&str> =
        ended.stdout.iter().filter_map(|line| line.split_once("CUDA_MPS_PIPE_DIRECTORY=")).map(|(_, it)| it).collect();
    assert!(daemons.len() == 2 && daemons.iter().all(|pipes| !Path::new(pipes).exists()), "{daemons:?}");
    all_gone(&lab, Duration::from_secs(5));

    let ended = start("h0:2,h1:4", "GPU-a");
    assert_eq!(ended.code(), 1, "{}", ended.said());
    let why = "no rank could be started on h1: --ranks-per-gpu 2: 4 ranks, and room for 2 on 1 GPU";
    assert!(ended.last_line().ends_with(why), "{}", ended.said());
    all_gone(&lab, Duration::from_secs(5));
}

#[test]
fn variables_travel_if_they_are_known_or_named_and_by_no_command_line() {
    let lab = Lab::new(3, Family::V4);
    let mut command = lab.host(0).command(env!("CARGO_BIN_EXE_farandole"));
    command.env("OMP_NUM_THREADS", "7").env("MY_OWN", "sesame-named").env("MY_OTHER", "sesame-left");
    command.env("HF_TOKEN", "sesame-secret").args(EVERYWHERE).args(["-x", "MY_OWN"]).arg(program());
    command.args(["show", "OMP_NUM_THREADS", "MY_OWN", "MY_OTHER", "HF_TOKEN", "FARANDOLE_RANK", "FARANDOLE_SIZE"]);
    let ended = Running::start(&mut command).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    let says = |rank: usize, what: &str| ended.stdout.contains(&format!("[{rank}]<stdout>:{what}"));
    for rank in 0..6 {
        assert!(says(rank, "OMP_NUM_THREADS=7") && says(rank, "MY_OWN=sesame-named"), "{rank}: {}", ended.said());
        assert!(says(rank, &format!("FARANDOLE_RANK={rank}")) && says(rank, "FARANDOLE_SIZE=6"), "{}", ended.said());
    }
    for rank in 2..6 {
        assert!(says(rank, "MY_OTHER=(unset)") && says(rank, "HF_TOKEN=(unset)"), "{rank}: {}", ended.said());
    }
}

#[test]
fn no_command_line_of_any_host_has_a_key_or_a_value_on_it() {
    let lab = Lab::new(3, Family::V4);
    let mut command = lab.host(0).command(env!("CARGO_BIN_EXE_farandole"));
    command.env("MY_OWN", "sesame-named").env("OMP_NUM_THREADS", "sesame-known").args(EVERYWHERE);
    let mut job = Running::start(command.args(["-x", "MY_OWN"]).arg(program()).arg("loop"));
    let long_number = |word: &str| word.split(|c: char| !c.is_ascii_hexdigit()).any(|digits| digits.len() >= 32);
    let mut seen = 0;
    let dancing = |job: &Running| job.output_so_far().iter().filter(|line| line.contains("dancing")).count() == 6;
    // From the first moment on: what appears only while hosts are being reached counts, too.
    until_within(Duration::from_secs(60), "all dance", || {
        for process in lab.hosts().iter().flat_map(Host::guests) {
            seen += 1;
            let suspect = process.words.iter().any(|word| word.contains("sesame") || long_number(word));
            assert!(!suspect, "{process:?}");
        }
        dancing(&job)
    });
    assert!(seen > 20, "only {seen} command lines were looked at");
    job.wait_for_output(6, "dancing");
}

#[test]
fn lines_of_remote_ranks_come_whole_and_none_is_lost() {
    let lab = Lab::new(3, Family::V4);
    let lines = 300;
    let ended = everywhere(&lab, &[], &["speak", &lines.to_string()]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.said());
    for (stream, said, word) in [("stdout", &ended.stdout, "out"), ("stderr", &ended.stderr, "err")] {
        assert_eq!(said.len(), 6 * lines, "{stream}");
        for rank in 0..6 {
            let prefix = format!("[{rank}]<{stream}>:");
            let of_rank: Vec<&str> = said.iter().filter_map(|line| line.strip_prefix(&prefix)).collect();
            let expected = |line| format!("{word} {line} {}", word[..1].repeat(200));
            assert!(of_rank.iter().copied().eq((0..lines).map(expected)), "{prefix} {of_rank:?}");
        }
    }
}
