//! Ranks as children: they know who they are, and they live and die together.

use std::process::Command;
use std::time::{Duration, Instant};

use farandole_cluster::{Error, Job};
use farandole_plan::Rank;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn ranks_find_their_environment() {
    let script = r#"test "$FARANDOLE_SIZE" = 3 && test "$FARANDOLE_RANK" -lt 3 &&
        test "${#FARANDOLE_KEY}" = 64 && case "$FARANDOLE_RENDEZVOUS" in unix:@*) ;; *) exit 1;; esac"#;
    Job::spawn(3, |_| shell(script)).unwrap().wait().unwrap();
}

#[test]
fn the_first_failure_is_named_and_ends_the_others() {
    let began = Instant::now();
    let job = Job::spawn(4, |rank| shell(if rank == Rank(2) { "exit 7" } else { "exec sleep 60" })).unwrap();
    let error = job.wait().unwrap_err();
    let Error::RankFailed { rank, status } = error else { panic!("{error}") };
    assert_eq!((rank, status.code()), (Rank(2), Some(7)));
    assert!(began.elapsed() < Duration::from_secs(30), "the others were not waited for");
}

#[test]
fn a_dropped_job_leaves_nobody_behind() {
    let folder = std::env::temp_dir().join(format!("farandole-spawn-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let script = format!("echo $$ > {}/$FARANDOLE_RANK; exec sleep 60", folder.display());
    let job = Job::spawn(2, |_| shell(&script)).unwrap();
    let began = Instant::now();
    let pids: Vec<String> = (0..2)
        .map(|rank| {
            loop {
                let text = std::fs::read_to_string(folder.join(rank.to_string())).unwrap_or_default();
                if text.ends_with('\n') {
                    break text.trim().to_string();
                }
                assert!(began.elapsed() < Duration::from_secs(30), "rank {rank} did not start");
                std::thread::sleep(Duration::from_millis(5));
            }
        })
        .collect();
    drop(job);
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is still there");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_command_that_does_not_exist_is_named() {
    let error = Job::spawn(2, |_| Command::new("/nowhere/at-all")).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at-all"), "{error}");
}
