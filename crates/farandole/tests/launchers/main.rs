//! Launchers of others, the real ones: each starts two ranks that find each other and compute.
//!
//! Every test starts copies of this very program through a launcher; the copies find their role in the environment. A
//! launcher that is not installed fails its test (`cargo xtask ci` installs them all). A test that is killed takes the
//! daemons of Slurm with it.

#![allow(clippy::print_stdout, reason = "what a rank says is how it is heard")]

mod program;
mod slurm;
mod stalls;

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Instant;

use program::{DEADLINE, Job, Run, copy_of_this_program, run_all, start};

/// Both ranks have said that they are, who started them, and that the sum is right.
fn assert_both_are_well(run: &Run, launcher: &str) {
    assert!(run.status.success(), "{}: {}", run.status, run.said);
    for rank in 0..2 {
        let line = format!("rank {rank} of 2 via {launcher}: ok");
        assert!(run.said.contains(&line), "'{line}' is missing from: {}", run.said);
    }
}

/// They have also met again, fifty times.
fn assert_both_met_again(run: &Run, launcher: &str) {
    assert_both_are_well(run, launcher);
    assert_eq!(run.said.matches("met 50 times").count(), 2, "{}", run.said);
}

fn open_mpi() -> std::process::Command {
    let mut mpirun = start("mpirun.openmpi");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-np", "2"]);
    mpirun
}

fn torchrun() -> std::process::Command {
    let torchrun = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/torchrun"));
    let mut command = start(&torchrun);
    command.args(["--nproc-per-node", "2", "--no-python"]).args(copy_of_this_program());
    command
}

#[test]
fn ranks_of_open_mpi_find_each_other() {
    let run = Run::of(open_mpi().args(copy_of_this_program()), "reduce-again");
    assert_both_met_again(&run, "Open MPI's mpirun");
}

#[test]
fn ranks_of_mpich_find_each_other_through_wrappers() {
    // The shells have other numbers than the launcher, and the second command keeps them from becoming the rank.
    let wrapper = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    let run =
        Run::of(start("mpirun.mpich").args(["-np", "2"]).args(wrapper).args(copy_of_this_program()), "reduce-again");
    assert_both_met_again(&run, "MPICH's mpirun");
}

#[test]
fn ranks_of_torchrun_find_each_other() {
    assert_both_met_again(&Run::of(&mut torchrun(), "reduce-again"), "torchrun");
}

#[test]
fn ranks_of_slurm_find_each_other() {
    let cluster = slurm::Cluster::start();
    let run = Run::of(cluster.command("srun").args(["-n", "2"]).args(copy_of_this_program()), "reduce-again");
    assert_both_met_again(&run, "Slurm's srun");
    // A step with fewer tasks than the allocation has: what it says of itself counts.
    let mut alone = cluster.command("salloc");
    alone.args(["-Q", "-n", "2", "srun", "-n", "1"]).args(copy_of_this_program());
    let run = Run::of(&mut alone, "reduce");
    assert!(run.said.contains("rank 0 of 1 via Slurm's srun: ok"), "{}", run.said);
    // What the allocation's own shell starts is no task of a step.
    let run = Run::of(cluster.command("salloc").args(["-Q", "-n", "2"]).args(copy_of_this_program()), "reduce");
    assert!(run.said.contains("rank 0 of 1 via no launcher: ok"), "{}", run.said);
}

#[test]
fn ranks_with_horovods_variables_find_each_other() {
    let ranks = ["0", "1"].map(|rank| {
        let mut command = program::this_program();
        command.envs([("HOROVOD_RANK", rank), ("HOROVOD_SIZE", "2")]);
        command.envs([("HOROVOD_LOCAL_RANK", rank), ("HOROVOD_LOCAL_SIZE", "2"), ("HOROVOD_LOG_LEVEL", "info")]);
        command
    });
    let run = run_all(ranks, "reduce");
    assert_both_are_well(&run, "Horovod's variables");
    let logged =
        "farandole: rank 1 of 2 (1 of 2 on this host), started by Horovod's variables; meets at unix:@farandole-";
    assert!(run.said.contains(logged), "{}", run.said);
}

#[test]
fn rank_0_says_once_which_variables_have_no_effect_where_no_launcher_of_ours_has() {
    let ranks = ["0", "1"].map(|rank| {
        let mut command = program::this_program();
        command.envs([("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "2")]);
        command.envs([("OMPI_COMM_WORLD_LOCAL_RANK", rank), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
        command.envs([("PMIX_NAMESPACE", "settings"), ("HOROVOD_CYCLE_TIME", "5"), ("HOROVOD_FUSION_TRESHOLD", "1")]);
        command
    });
    let run = run_all(ranks, "reduce-again");
    assert_both_met_again(&run, "Open MPI's mpirun");
    for line in [
        "farandole: note: HOROVOD_CYCLE_TIME has no effect: there is no cycle: requests start when they are ready",
        "farandole: note: HOROVOD_FUSION_TRESHOLD is set, but there is no such setting; did you mean HOROVOD_FUSION_THRESHOLD?",
    ] {
        assert_eq!(run.said.matches(line).count(), 1, "{line}\n{}", run.said);
    }
}

#[test]
fn ranks_of_one_host_come_together_again_and_again() {
    let ranks = ["0", "1"].map(|rank| {
        let mut command = program::this_program();
        command.envs([("FARANDOLE_RANK", rank), ("FARANDOLE_SIZE", "2")]);
        command.envs([("FARANDOLE_LOCAL_RANK", rank), ("FARANDOLE_LOCAL_SIZE", "2")]);
        command
    });
    assert_both_met_again(&run_all(ranks, "reduce-again"), "farandole's variables");
}

#[test]
fn a_rank_that_does_not_come_again_is_named_also_if_it_was_the_host_of_the_meeting() {
    let on_one_host = || {
        ["0", "1"].map(|rank| {
            let mut command = program::this_program();
            command.envs([("FARANDOLE_RANK", rank), ("FARANDOLE_SIZE", "2")]);
            command.envs([("FARANDOLE_LOCAL_RANK", rank), ("FARANDOLE_LOCAL_SIZE", "2")]);
            command
        })
    };
    let store = master_port();
    let port = store.local_addr().expect("it has an address").port();
    let on_two_hosts = || {
        two_hosts(port).map(|mut rank| {
            rank.env("FARANDOLE_KEY", "5a".repeat(32));
            rank
        })
    };
    for (role, words) in [
        ("without-1", "rank 0 was told: rank 1 did not come to the rendezvous within"),
        ("without-0", ", which rank 0 opens: "),
    ] {
        for ranks in [on_one_host(), on_two_hosts()] {
            let run = run_all(ranks, role);
            assert!(run.status.success() && run.said.contains(words), "{role}: {}", run.said);
        }
    }
}

/// Two hosts as torchrun would describe them. They are one, so the ranks have to be told to take themselves for apart.
fn two_hosts(port: u16) -> [std::process::Command; 2] {
    [("0", "one"), ("1", "other")].map(|(rank, host)| {
        let mut command = program::this_program();
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string())]);
        command.envs([("TORCHELASTIC_RUN_ID", "x"), ("FARANDOLE_HOST", host), ("HOME", "/no/such/home")]);
        command
    })
}

/// Holds a port, as PyTorch's store does, whose successor is free.
fn master_port() -> TcpListener {
    loop {
        let store = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = store.local_addr().expect("it has an address").port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return store;
        }
    }
}

#[test]
fn ranks_of_two_hosts_meet_in_rank_zero_if_they_hold_a_key() {
    let store = master_port();
    let port = store.local_addr().expect("it has an address").port();
    let ranks = two_hosts(port).map(|mut rank| {
        rank.env("FARANDOLE_KEY", "5a".repeat(32));
        rank
    });
    assert_both_met_again(&run_all(ranks, "reduce-again"), "torchrun");
}

#[test]
fn a_rank_of_another_job_with_the_same_key_and_address_is_refused_and_takes_no_seat() {
    let store = master_port();
    let port = store.local_addr().expect("it has an address").port();
    let ranks = || {
        two_hosts(port).map(|mut rank| {
            rank.env("FARANDOLE_KEY", "5a".repeat(32)).env("FARANDOLE_START_TIMEOUT", "100");
            rank
        })
    };
    let ([mut zero, mut one], [_, mut stranger]) = (ranks(), ranks());
    let zero = Job::start(&mut zero, "reduce");
    let refused = Run::of(stranger.env("TORCHELASTIC_RUN_ID", "y"), "reduce");
    assert!(!refused.status.success(), "{}", refused.said);
    let words =
        format!("this is job 'torchrun run x, port {port}', and rank 1 belongs to job 'torchrun run y, port {port}'");
    assert!(refused.said.contains(&words), "{}", refused.said);
    let one = Run::of(&mut one, "reduce");
    let zero = zero.finish(Instant::now() + DEADLINE);
    assert_both_are_well(&Run { status: zero.status, said: zero.said + &one.said }, "torchrun");
}

/// This host may know itself by a loopback address. Rank 0 listens where others would find it, and its neighbour goes
/// there.
#[test]
fn ranks_meet_at_this_hosts_own_name() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    let port = TcpListener::bind("0.0.0.0:0").and_then(|free| free.local_addr()).expect("a port is free").port();
    let ranks = two_hosts(29_500).map(|mut rank| {
        rank.env("FARANDOLE_RENDEZVOUS", format!("tcp:{}:{port}", name.trim())).env("FARANDOLE_KEY", "5a".repeat(32));
        rank
    });
    assert_both_are_well(&run_all(ranks, "reduce"), "torchrun");
}

#[test]
fn ranks_of_two_hosts_without_a_key_are_told_how_to_give_one() {
    let run = run_all(two_hosts(29_500), "reduce");
    assert!(!run.status.success());
    for part in [
        "FARANDOLE_KEY: is not set",
        "farandole key > ~/.config/farandole/key",
        "export FARANDOLE_KEY=$(farandole key)",
    ] {
        assert_eq!(run.said.matches(part).count(), 2, "{part}: {}", run.said);
    }
}

#[test]
fn a_rank_that_crashes_under_mpirun_is_named_to_the_others() {
    // mpirun ends the others as soon as it sees the crash. The one that is to speak must not hear it.
    let deaf = ["sh", "-c", "trap '' TERM; exec \"$@\"", "sh"];
    let run = Run::of(open_mpi().args(deaf).args(copy_of_this_program()), "crash");
    assert!(!run.status.success(), "{}", run.said);
    let told = run.said.lines().find_map(|line| line.split_once("rank 0 was told: ")).map(|(_, what)| what);
    assert!(told.is_some_and(|what| what.contains("rank 1")), "{}", run.said);
}

/// The program of a rank.
#[test]
#[ignore = "role program: other tests start it"]
fn a_rank_plays_its_role() {
    program::play_role();
}
