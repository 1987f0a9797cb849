//! The job's MPS daemon: ranks find it, nothing of it outlives the job however that ends, and what goes wrong with it
//! is named.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use farandole_testing::at_least;
use rustix::process::{Signal, kill_process};

use crate::job::{Host, is_alive};

const MPS: [&str; 3] = ["-np", "2", "--mps"];

/// Waits for a signal, and ends at once when it comes.
const WAIT: &str = "echo rank $$ >> $NOTES; exec sleep 600";

#[test]
fn ranks_find_the_daemon_and_nothing_of_it_outlives_the_job() {
    let host = Host::with_gpus("GPU-a");
    let script = "echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY; stat -c %a $CUDA_MPS_PIPE_DIRECTORY/..; \
                  echo get_server_list | nvidia-cuda-mps-control && echo it answers";
    let ended = host.run(&["-np", "1", "--no-prefix", "--mps"], &[], script);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let folder = ended.stdout[0].split_once("/pipes ").unwrap().0;
    assert!(folder.contains("/farandole-mps-"), "{:?}", ended.stdout);
    assert_eq!(ended.stdout, [format!("{folder}/pipes {folder}/logs"), "700".to_owned(), "it answers".to_owned()]);
    assert_eq!(host.noted("logs"), format!("{folder}/logs"));
    host.wait_until_mps_is_gone();
    assert!(host.note("quit").is_some(), "it was told to quit, and not killed");
    assert_eq!(ended.stderr, "", "a job that goes well has nothing to say");
}

#[test]
fn daemon_and_ranks_agree_on_what_a_number_means() {
    let host = Host::with_gpus("GPU-a,GPU-b,GPU-c");
    let flags = ["--ranks-per-gpu", "2", "--mps", "-x", "CUDA_VISIBLE_DEVICES=2,0"];
    let ended = host.run(&flags, &[], "echo $CUDA_VISIBLE_DEVICES");
    let expected = [(0, 0), (1, 0), (2, 1), (3, 1)].map(|(rank, number)| format!("[{rank}]<stdout>:{number}"));
    assert_eq!(ended.stdout, expected, "{}", ended.stderr);
    assert_eq!(host.noted("sees"), "2,0", "numbers of clients count what the daemon sees");
}

#[test]
fn a_rank_that_fails_an_interrupt_and_a_killed_launcher_end_the_daemon_too() {
    let host = Host::with_gpus("GPU-a");
    let ended = host.run(&MPS, &[], "[ $FARANDOLE_RANK = 1 ] && exit 7; sleep 600");
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    host.wait_until_mps_is_gone();

    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let host = Host::with_gpus("GPU-a");
        let job = host.start(&MPS, &[], WAIT);
        let rank = host.process("rank");
        job.signal(signal);
        let ended = job.end();
        assert_eq!(ended.code, code, "{}", ended.stderr);
        host.wait_until_mps_is_gone();
        assert!(!is_alive(rank));
    }
}

#[test]
fn ranks_may_use_the_daemon_while_they_end() {
    let host = Host::with_gpus("GPU-a");
    // Rank 0 is told to end when rank 1 has failed.
    let script = "trap 'sleep 0.5; echo get_server_list | nvidia-cuda-mps-control && echo still there; exit 0' TERM; \
                  [ $FARANDOLE_RANK = 1 ] && exit 7; while :; do sleep 0.05; done";
    let ended = host.run(&MPS, &[], script);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    assert_eq!(ended.stdout, ["[0]<stdout>:still there"], "{}", ended.stderr);
    host.wait_until_mps_is_gone();
}

#[test]
fn a_killed_agent_takes_the_daemon_with_it() {
    let host = Host::with_gpus("GPU-a");
    let job = host.start(&MPS, &[], WAIT);
    let processes = ["rank", "daemon", "server"].map(|word| host.process(word));
    kill_process(job.agent(), Signal::KILL).unwrap();
    let ended = job.end();
    assert!(ended.last_line().contains("the agent on localhost"), "{}", ended.stderr);
    farandole_testing::wait_for("the end of everything", Duration::from_secs(60), || {
        (!processes.iter().any(|pid| is_alive(*pid))).then_some(())
    });
}

#[test]
fn a_daemon_that_dies_ends_the_job_and_is_named() {
    let host = Host::with_gpus("GPU-a");
    let job = host.start(&MPS, &[], WAIT);
    host.process("rank");
    let daemon = host.process("daemon");
    kill_process(daemon, Signal::KILL).unwrap();
    let ended = job.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let expected = format!(
        "the job's MPS daemon on localhost (pid {}) was killed by signal 9 (SIGKILL); its ranks cannot use their GPUs \
         without it",
        daemon.as_raw_nonzero()
    );
    assert!(ended.last_line().ends_with(&expected), "{}", ended.stderr);
    host.wait_until_mps_is_gone();
}

#[test]
fn a_daemon_that_does_not_start_is_named_with_its_words() {
    let host = Host::with_gpus("GPU-a");
    let ended = host.run(&MPS, &[("STAND_IN", "broken")], "echo never");
    assert_eq!((ended.code, ended.stdout.len()), (Some(1), 0), "{}", ended.stderr);
    assert!(ended.last_line().contains("no rank could be started on localhost: --mps: "), "{}", ended.stderr);
    assert!(ended.last_line().contains("(exit status: 1): Failed to start: no permission"), "{}", ended.stderr);
    assert!(!is_alive(host.process("daemon")) && host.mps_folders().is_empty());

    let host = Host::with_gpus("GPU-a");
    let ended = at_least(Duration::from_secs(9), || host.run(&MPS, &[("STAND_IN", "mute")], "echo never"));
    assert!(ended.last_line().contains("the MPS daemon does not answer within 10s"), "{}", ended.stderr);
    assert!(!is_alive(host.process("daemon")));
    assert!(host.mps_folders().is_empty());
}

#[test]
fn a_missing_control_program_is_named() {
    let host = Host::with_gpus("GPU-a");
    fs::create_dir(host.folder.join("empty")).unwrap();
    let path = format!("PATH={}", host.folder.join("empty").display());
    let ended = host.run(&["-np", "1", "--mps", "-x", &path], &[], "echo never");
    assert_eq!((ended.code, ended.stdout.len()), (Some(1), 0), "{}", ended.stderr);
    assert!(ended.last_line().contains("there is no nvidia-cuda-mps-control on the PATH"), "{}", ended.stderr);
    // A file that is no program is none.
    fs::set_permissions(host.folder.join("bin/nvidia-cuda-mps-control"), PermissionsExt::from_mode(0o644)).unwrap();
    let path = format!("PATH={}", host.folder.join("bin").display());
    let ended = host.run(&["-np", "1", "--mps", "-x", &path], &[], "echo never");
    assert!(ended.last_line().contains("there is no nvidia-cuda-mps-control on the PATH"), "{}", ended.stderr);
}

#[test]
fn a_daemon_that_does_not_quit_is_killed() {
    let host = Host::with_gpus("GPU-a");
    let ended = host.run(&MPS, &[("STAND_IN", "deaf")], "true");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    host.wait_until_mps_is_gone();
    assert!(host.note("quit").is_none());
}

#[test]
fn a_daemon_of_the_users_is_told_of_and_left_alone() {
    let host = Host::with_gpus("GPU-a");
    let pipes = host.folder.join("users");
    fs::create_dir(&pipes).unwrap();
    let mut command = host.command("nvidia-cuda-mps-control");
    command.arg("-d").env("CUDA_MPS_PIPE_DIRECTORY", &pipes).env("NOTES", host.folder.join("users.notes"));
    assert!(farandole_testing::finish(&mut command, Duration::from_secs(60)).status.success());
    let up = pipes.join("nvidia-cuda-mps-control.pid");
    let pid = farandole_testing::wait_for("the user's daemon", Duration::from_secs(60), || {
        rustix::process::Pid::from_raw(fs::read_to_string(&up).ok()?.trim().parse().ok()?)
    });

    let variables = [("CUDA_MPS_PIPE_DIRECTORY", pipes.to_str().unwrap())];
    let ended = host.run(&["-np", "1", "--mps"], &variables, "echo $CUDA_MPS_PIPE_DIRECTORY");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout[0].contains("/farandole-mps-"), "{:?}", ended.stdout);
    let note = format!("localhost: an MPS daemon that is not the job's answers at {}", pipes.display());
    assert!(ended.stderr.contains(&note) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    host.wait_until_mps_is_gone();
    assert!(is_alive(pid), "the user's daemon serves on");

    let ended = host.run(&["-np", "1"], &variables, "echo $CUDA_MPS_PIPE_DIRECTORY");
    assert_eq!(ended.stdout, [format!("[0]<stdout>:{}", pipes.display())], "without --mps nothing is changed");

    let mut command = host.command("sh");
    command.args(["-c", "echo quit | nvidia-cuda-mps-control"]).env("CUDA_MPS_PIPE_DIRECTORY", &pipes);
    farandole_testing::finish(&mut command, Duration::from_secs(60));
    farandole_testing::wait_for("its end", Duration::from_secs(60), || (!is_alive(pid)).then_some(()));
}
