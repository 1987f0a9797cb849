//! Ranks as real processes: they work together, and a killed one is named to the others at once.
//!
//! The test starts copies of its own program, which find their role in the environment.

#![allow(clippy::print_stdout, reason = "what a rank says is how it is heard")]

mod file_plane;
#[path = "../../../cluster/tests/host/mod.rs"]
mod host;
mod namespaces;
mod shared_blocks;
#[path = "../variables/mod.rs"]
mod variables;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farandole::plane::Plane;
use farandole::{Algorithm, Error, ReduceOp, Setup, Shelf, Table, World};
use farandole_cluster::{Address, Server};
use farandole_engine::tables::this_machine;
use farandole_plan::table::{Class, Measurement, Way};
use farandole_transport::Key;

use crate::file_plane::{FilePlane, MIN_BYTES};

/// What a copy of this program is to do; unset in the test run itself.
const ROLE: &str = "FARANDOLE_TEST_ROLE";

/// A folder by which ranks of a test exchange something.
const EXCHANGE: &str = "FARANDOLE_TEST_EXCHANGE";

/// The longest that any role may take.
const DEADLINE: Duration = Duration::from_secs(60);

struct Job {
    ranks: Vec<Child>,
    _rendezvous: Server,
}

impl Job {
    fn start(ranks: usize, role: &str) -> Job {
        Job::start_with(ranks, role, |_, _| {})
    }

    /// As [`Job::start`], with something done to the command of each rank.
    fn start_with(ranks: usize, role: &str, also: impl Fn(usize, &mut Command)) -> Job {
        let key = Key::random().expect("the system has randomness");
        let place: Address = format!("unix:@farandole-test-{}-{role}", std::process::id()).parse().expect("an address");
        let server = host::serve(&place, ranks, &key);
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            also(rank, &mut command);
            command
                .args(["--ignored", "--exact", "a_rank_plays_its_role", "--nocapture"])
                .env(ROLE, role)
                .envs(variables::of_rank(rank, ranks, server.address(), &key))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("a rank can be started")
        };
        Job { ranks: (0..ranks).map(start).collect(), _rendezvous: server }
    }

    /// Waits for all ranks; gives back what each has said and when it ended.
    fn finish(self) -> Vec<(Output, Instant)> {
        let waiters: Vec<_> = self
            .ranks
            .into_iter()
            .map(|rank| {
                thread::spawn(move || {
                    let output = rank.wait_with_output().expect("a child can be waited for");
                    (output, Instant::now())
                })
            })
            .collect();
        let have_ended = || waiters.iter().all(thread::JoinHandle::is_finished);
        farandole_testing::wait_until("the end of all ranks", DEADLINE, have_ended);
        waiters.into_iter().map(|waiter| waiter.join().expect("a waiter does not panic")).collect()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn processes_reduce_directly_and_by_name() {
    for (output, _) in Job::start(3, "work").finish() {
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("role done"), "{}", said(&output));
    }
}

mod timings {
    use super::*;

    #[test]
    fn a_killed_process_is_named_to_the_others_at_once() {
        for role in ["die-direct", "die-named"] {
            let mut ends = Job::start(3, role).finish();
            let (victim, died) = ends.remove(1);
            assert!(victim.status.code().is_none(), "rank 1 was killed by a signal");
            for (output, ended) in ends {
                let words = said(&output);
                assert!(output.status.success() && words.contains("rank 1"), "{role}: {words}");
                // A second is promised, a tenth of it is usual.
                assert!(ended.saturating_duration_since(died) < Duration::from_secs(2), "{role}: it took too long");
            }
        }
    }
}

#[test]
fn ranks_that_protect_data_differently_are_told_so_on_all_of_them() {
    let words = ["encrypt", "encrypt", "off"];
    let differently = |rank: usize, command: &mut Command| {
        command.env("FARANDOLE_WIRE_PROTECTION", words[rank]);
    };
    for (output, _) in Job::start_with(3, "differ", differently).finish() {
        assert!(output.status.success(), "{}", said(&output));
        let expected = "the ranks differ in FARANDOLE_WIRE_PROTECTION: encrypt on rank 0, off on rank 2;";
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
}

#[test]
fn processes_that_find_different_tables_choose_by_that_of_rank_0() {
    let folders = farandole_testing::Folder::new();
    let folder = |rank: usize| folders.join(rank.to_string());
    let class = Class { ranks: 2, hosts: 1, smallest: 2, largest: 2 };
    for (rank, algorithm) in [Algorithm::Halving, Algorithm::Ring].into_iter().enumerate() {
        let mut table = Table::new(class);
        table.insert(Measurement { way: Way::Allreduce(algorithm), bytes: 1024, time_us: 1.0 });
        Shelf::in_folder(folder(rank)).put(&this_machine(), &table).expect("a table can be kept");
    }
    let in_folders = |rank: usize, command: &mut Command| {
        // Horovod's number for "debug".
        command.env("FARANDOLE_TABLES", folder(rank)).env("HOROVOD_LOG_LEVEL", "1");
    };
    let told = |which: &str| -> Vec<String> {
        let ends = Job::start_with(2, which, in_folders).finish();
        ends.iter().map(|(output, _)| said(output)).collect()
    };
    for words in told("measured") {
        assert!(words.contains("chosen by halving") && words.contains("role done"), "{words}");
    }
    let file = Shelf::in_folder(folder(0)).file(&this_machine(), class).expect("a shelf has files");
    std::fs::write(&file, "nothing that was ever measured").expect("a file can be spoilt");
    let words = told("unmeasured");
    let named = format!("the measured table {} is not used: it is not a table", file.display());
    assert!(words[0].contains(&named) && !words[1].contains("measured table"), "{words:?}");
    assert!(words.iter().all(|words| words.contains("role done")), "{words:?}");
    std::fs::remove_file(&file).expect("a file can be removed");
    let words = told("missing");
    assert!(words[0].contains("farandole calibrate") && words[1].contains("role done"), "{words:?}");
}

#[test]
fn a_plane_of_the_program_reduces_named_requests_of_processes() {
    let folder = farandole_testing::Folder::new();
    let exchange = |_: usize, command: &mut Command| {
        command.env(EXCHANGE, folder.as_os_str());
    };
    for (output, _) in Job::start_with(3, "plane", exchange).finish() {
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("role done"), "{}", said(&output));
    }
}

#[test]
fn processes_get_blocks_of_remote_objects_from_each_other() {
    for role in ["blocks", "blocks-stop", "blocks-die"] {
        let folder = farandole_testing::Folder::new();
        let exchange = |_: usize, command: &mut Command| {
            // A rank that is stopped for some seconds is not to be missed.
            command.env(EXCHANGE, folder.as_os_str()).env("FARANDOLE_HEARTBEAT_TIMEOUT", "60");
        };
        for (rank, (output, _)) in Job::start_with(3, role, exchange).finish().into_iter().enumerate() {
            let is_victim = role == "blocks-die" && rank == 1;
            assert!(is_victim || output.status.success(), "{role}: {}", said(&output));
            assert!(is_victim || said(&output).contains("role done"), "{role}: {}", said(&output));
        }
    }
}

/// The program of a rank.
#[test]
#[ignore = "role program: other tests start it"]
fn a_rank_plays_its_role() {
    let role = std::env::var(ROLE).expect("a test starts this, with a role");
    if role == "differ" {
        println!("{}", farandole::init().expect_err("the ranks have different settings"));
        return;
    }
    if role == "plane" {
        reduce_on_a_plane();
        println!("role done");
        return;
    }
    if role == "namespaces" {
        namespaces::reduce_everywhere();
        println!("role done");
        return;
    }
    let mut world = farandole::init().expect("ranks find each other");
    match role.as_str() {
        "work" => work(&mut world),
        "die-direct" => die(&mut world, |world| world.allreduce(&mut vec![1.0f32; 1 << 20], ReduceOp::Sum)),
        "die-named" => die(&mut world, |world| {
            let ticket = world.named("gradient").allreduce(vec![1.0f32; 1 << 16], ReduceOp::Sum)?;
            ticket.wait().map(drop)
        }),
        "measured" => {
            work(&mut world);
            println!("chosen by {}", world.communicator().algorithm_for(1024));
            assert_eq!(world.table(), world.engine().table().map(AsRef::as_ref));
        }
        "unmeasured" | "missing" => {
            assert_eq!(world.table(), None);
            work(&mut world);
        }
        "blocks" => shared_blocks::read_together(&mut world, &exchange()),
        "blocks-die" => shared_blocks::read_while_one_dies(&mut world, &exchange()),
        "blocks-stop" => shared_blocks::read_while_one_is_stopped(&mut world, &exchange()),
        other => panic!("there is no role {other}"),
    }
    println!("role done");
}

/// The folder that all ranks of a test have.
fn exchange() -> PathBuf {
    std::env::var_os(EXCHANGE).expect("the test has set it").into()
}

fn work(world: &mut World) {
    let (rank, size) = (world.rank() as f32, world.size() as f32);
    for elems in [1usize, 1000, 300_000] {
        let mut data = vec![rank + 1.0; elems];
        world.allreduce(&mut data, ReduceOp::Sum).expect("direct");
        assert!(data.iter().all(|&x| x == size * (size + 1.0) / 2.0));
        for iteration in 0..20 {
            let tickets: Vec<_> = (0..10)
                .map(|i| {
                    // Every rank submits in an order of its own.
                    let i = (i + world.rank() * 3) % 10;
                    let data = vec![rank + iteration as f32 + i as f32; elems];
                    (i, world.named(&format!("t{i}")).allreduce(data, ReduceOp::Average).expect("submit"))
                })
                .collect();
            for (i, ticket) in tickets {
                let mean: Vec<f32> = ticket.wait().expect("named");
                assert!(mean.iter().all(|&x| x == (size - 1.0) / 2.0 + iteration as f32 + i as f32));
            }
        }
    }
}

/// Allreduces of f32 from a size on take the plane that the program adds, all others a built-in one.
fn reduce_on_a_plane() {
    let files = Arc::new(FilePlane::new(exchange()));
    let planes: Vec<Arc<dyn Plane>> = vec![Arc::clone(&files) as Arc<dyn Plane>];
    let world = Setup::new().planes(planes).init().expect("ranks find each other");
    let expected = (1..=world.size()).sum::<usize>() as f32;
    let mut reduced = 0;
    for round in 0..5 {
        for (bytes, carries) in [(MIN_BYTES, 1), (MIN_BYTES - 4, 0), (400_000, 1)] {
            let data = vec![world.rank() as f32 + 1.0; bytes as usize / size_of::<f32>()];
            let sum = world.named(&format!("{bytes} bytes")).allreduce(data, ReduceOp::Sum).expect("submit");
            let sum: Vec<f32> = sum.wait().expect("named");
            assert!(sum.iter().all(|&x| x == expected), "{bytes} bytes in round {round}");
            reduced += carries;
            assert_eq!(files.reduced(), reduced, "{bytes} bytes in round {round}");
        }
        let data = vec![world.rank() as f64; 1000];
        world.named("doubles").allreduce(data, ReduceOp::Sum).expect("submit").wait().expect("named");
        assert_eq!(files.reduced(), reduced, "the plane has offered to carry f32 only");
    }
}

/// Rank 1 is killed in the middle of things; the others go on until they are told.
fn die(world: &mut World, mut step: impl FnMut(&mut World) -> Result<(), Error>) {
    for round in 0.. {
        if world.rank() == 1 && round == 20 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("kill");
        }
        if let Err(error) = step(world) {
            println!("told: {error}");
            assert!(error.to_string().contains("rank 1"), "{error}");
            return;
        }
    }
}
