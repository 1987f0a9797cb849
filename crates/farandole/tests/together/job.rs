//! Copies of the test program as the ranks of a job.

#[path = "../../../cluster/tests/host/mod.rs"]
mod host;
#[path = "../variables/mod.rs"]
mod variables;

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use farandole_cluster::Address;
use farandole_transport::Key;

/// What a copy of this program is to do; unset in the test run itself.
pub(crate) const ROLE: &str = "FARANDOLE_TEST_ROLE";

/// The longest that any role may take, on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(90);

/// Lets so many ranks play a role to its end, and gives back what each has said.
pub(crate) fn play(ranks: usize, role: &str) -> Vec<String> {
    let key = Key::random().expect("the system has randomness");
    let place = format!("unix:@farandole-together-{}-{role}-{ranks}", std::process::id());
    let place: Address = place.parse().expect("an address");
    let server = host::serve(&place, ranks, &key);
    let start = |rank: usize| {
        Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--ignored", "--exact", "a_rank_plays_its_role", "--nocapture"])
            .env(ROLE, role)
            .envs(variables::of_rank(rank, ranks, server.address(), &key))
            .env("RAYON_NUM_THREADS", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank can be started")
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    finish(children, role)
}

fn finish(children: Vec<Child>, role: &str) -> Vec<String> {
    let waiters: Vec<_> = children
        .into_iter()
        .map(|child| thread::spawn(move || child.wait_with_output().expect("a child can be waited for")))
        .collect();
    let have_ended = || waiters.iter().all(thread::JoinHandle::is_finished);
    farandole_testing::wait_until(format!("the end of all ranks in {role}"), DEADLINE, have_ended);
    waiters
        .into_iter()
        .map(|waiter| {
            let output = waiter.join().expect("a waiter does not panic");
            let words = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && words.contains("role done"), "{role}: {words}");
            words
        })
        .collect()
}
