//! A rank that others wait for is told of under every launcher: by the ranks themselves, over their own connections.
//!
//! Nobody waits for a time here. The rank that is late goes on when it has been told, and one that is stopped is woken
//! by whoever is told.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use farandole::stall::{OnStall, StallNotice};
use farandole::{ReduceOp, Setup, World};
use farandole_cluster::Environment;
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::program::{Run, copy_of_this_program, run_all, start, this_program};

/// Longer than any report takes, and shorter than the deadline of a job.
const LONG: Duration = Duration::from_secs(60);

/// Says what it is told and passes it on.
fn listening(mut heard: impl FnMut(&StallNotice) + Send + 'static) -> World {
    let rank = Environment::from_process().unwrap_or_else(|error| panic!("{error}")).rank;
    let heard = std::sync::Mutex::new(move |notice: &StallNotice| {
        println!("rank {rank} was told: {}", notice.finding.verdict);
        heard(notice);
    });
    let on_stall: OnStall = Arc::new(move |notice| heard.lock().expect("nothing panics here")(notice));
    let setup = Setup::new().on_stall(on_stall);
    setup.init().unwrap_or_else(|error| panic!("{error}"))
}

/// Rank 1 comes to a named request, and then to a direct call, when it has been told that rank 0 waits there.
pub(crate) fn be_late() {
    let (teller, told) = mpsc::channel();
    let mut world = listening(move |_| {
        let _ = teller.send(());
    });
    let is_late = world.rank() == 1;
    if is_late {
        told.recv_timeout(LONG).expect("rank 1 is told that it is missed");
    }
    let sum = world.named("w").allreduce(vec![1f32; 8], ReduceOp::Sum).and_then(farandole::Pending::wait);
    assert_eq!(sum.expect("ranks reduce"), [2f32; 8]);
    if is_late {
        told.recv_timeout(LONG).expect("rank 1 is told that it is missed again");
    }
    world.barrier().expect("ranks meet");
    println!("rank {} is done", world.rank());
}

/// How late rank 1 comes, like a rank 0 that writes a checkpoint to slow storage.
const LATE: Duration = Duration::from_secs(5);

/// Rank 1 comes late to a direct call; whoever waits says how that ended.
pub(crate) fn come_late() {
    let mut world = listening(|_| {});
    if world.rank() == 1 {
        farandole_testing::lapse("rank 1, which is late", LATE);
    }
    match world.barrier() {
        Ok(()) => println!("rank {} is done", world.rank()),
        Err(error) => println!("rank {} failed: {error}", world.rank()),
    }
}

/// One rank stops itself, and the other one, which waits in a direct call, wakes it when it is told.
pub(crate) fn stop(stopped: usize) {
    let (teller, told) = mpsc::channel();
    let mut world = listening(move |_| {
        let _ = teller.send(());
    });
    let mut pids = [0; 2];
    pids[world.rank()] = getpid().as_raw_nonzero().get();
    world.allreduce(&mut pids, ReduceOp::Sum).expect("ranks reduce");
    let pid = pids[stopped];
    let may_go_on = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stopped-{pid}"));
    if world.rank() == stopped {
        kill_process(getpid(), Signal::STOP).expect("a process can stop itself");
        // The signal stops all threads, but this one may get a little further first.
        await_that(|| may_go_on.exists());
        std::fs::remove_file(may_go_on).expect("the file is there");
    } else {
        await_that(|| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T ")));
        std::thread::spawn(move || {
            told.recv_timeout(LONG).expect("the one that waits is told");
            std::fs::write(may_go_on, "").expect("a file can be made");
            kill_process(Pid::from_raw(pid).expect("a process has a number"), Signal::CONT).expect("it can be woken");
        });
    }
    world.barrier().expect("ranks meet");
    println!("rank {} is done", world.rank());
}

fn await_that(holds: impl Fn() -> bool) {
    farandole_testing::wait_until("it", LONG, holds);
}

/// Every rank was told of both waits, once of each.
fn assert_both_were_told_of_rank_1(run: &Run) {
    assert!(run.status.success(), "{}: {}", run.status, run.said);
    for rank in 0..2 {
        for wait in [
            "rank 1 has not asked for anything yet, while others wait for \"w\"",
            "rank 1 has not come to the direct barrier",
        ] {
            let line = format!("rank {rank} was told: {wait}");
            assert_eq!(run.said.matches(&line).count(), 1, "'{line}': {}", run.said);
        }
        assert!(run.said.contains(&format!("rank {rank} is done")), "{}", run.said);
    }
}

/// A second, and no heartbeats: a rank may be stopped for a while.
const IMPATIENCE: [(&str, &str); 3] =
    [("HOROVOD_STALL_CHECK_TIME_SECONDS", "1"), ("FARANDOLE_HEARTBEAT_TIMEOUT", "0"), ("FARANDOLE_TRACE_TROUBLE", "0")];

#[test]
fn ranks_of_open_mpi_are_told_of_one_that_does_not_come() {
    let mut mpirun = super::open_mpi();
    assert_both_were_told_of_rank_1(&Run::of(mpirun.args(copy_of_this_program()).envs(IMPATIENCE), "be-late"));
}

#[test]
fn ranks_of_mpich_are_told_of_one_that_does_not_come() {
    let mut mpirun = start("mpirun.mpich");
    mpirun.args(["-np", "2"]).args(copy_of_this_program()).envs(IMPATIENCE);
    assert_both_were_told_of_rank_1(&Run::of(&mut mpirun, "be-late"));
}

#[test]
fn ranks_of_torchrun_are_told_of_one_that_does_not_come() {
    assert_both_were_told_of_rank_1(&Run::of(super::torchrun().envs(IMPATIENCE), "be-late"));
}

#[test]
fn ranks_of_slurm_are_told_of_one_that_does_not_come() {
    let cluster = super::slurm::Cluster::start();
    let mut srun = cluster.command("srun");
    srun.args(["-n", "2"]).args(copy_of_this_program()).envs(IMPATIENCE);
    assert_both_were_told_of_rank_1(&Run::of(&mut srun, "be-late"));
}

/// Two ranks without a launcher, of which one comes late, with this limit.
fn coming_late(limit: Option<(&str, &str)>) -> String {
    let ranks = ["0", "1"].map(|rank| {
        let mut command = this_program();
        command.envs([("FARANDOLE_RANK", rank), ("FARANDOLE_SIZE", "2")]).envs(IMPATIENCE).envs(limit);
        command.envs([("FARANDOLE_LOCAL_RANK", rank), ("FARANDOLE_LOCAL_SIZE", "2")]);
        command
    });
    run_all(ranks, "come-late").said
}

/// Direct calls once ignored the setting and had a limit of their own.
#[test]
fn a_limit_of_the_environment_ends_a_direct_call_and_without_one_a_late_rank_is_waited_for() {
    let limits = [
        ("FARANDOLE_TIMEOUT_SECONDS", "FARANDOLE_TIMEOUT_SECONDS"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS"),
    ];
    for (variable, named) in limits {
        let said = coming_late(Some((variable, "2.5")));
        let line = said.lines().find(|line| line.contains("rank 0 failed: ")).unwrap_or_else(|| panic!("{said}"));
        for words in ["for rank 1", "waited ", named, "allows, 2.5 s"] {
            assert!(line.contains(words), "{variable}: '{words}' is not in '{line}'");
        }
    }
    let said = coming_late(None);
    assert!(said.contains("rank 0 is done") && said.contains("rank 1 is done"), "{said}");
    assert!(said.contains("was told: rank 1 has not come to the direct barrier"), "a late rank is a stall: {said}");
}

#[test]
fn a_stopped_rank_is_told_as_stopped_to_the_one_that_waits_in_a_direct_call_also_if_it_coordinates() {
    for stopped in [1, 0] {
        let ranks = ["0", "1"].map(|rank| {
            let mut command = this_program();
            command.envs([("FARANDOLE_RANK", rank), ("FARANDOLE_SIZE", "2")]).envs(IMPATIENCE);
            command.envs([("FARANDOLE_LOCAL_RANK", rank), ("FARANDOLE_LOCAL_SIZE", "2")]);
            command
        });
        let run = run_all(ranks, &format!("stop-{stopped}"));
        assert!(run.status.success(), "{}: {}", run.status, run.said);
        let (waiting, words) = (1 - stopped, "is stopped (SIGSTOP, Ctrl-Z or a debugger)");
        let told = run.said.lines().find(|line| line.contains(&format!("rank {waiting} was told: rank {stopped} on ")));
        assert!(told.is_some_and(|line| line.contains(words)), "{}", run.said);
    }
}
