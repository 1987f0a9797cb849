//! Ranks as real processes that are killed, stopped, or lose whoever hosts their rendezvous: the others learn who it
//! was.
//!
//! The test starts copies of its own program, which find their role in the environment. A role is `what-how`: what the
//! ranks do (`direct`: direct collectives only, `named`: named requests only), and what rank 1 does meanwhile
//! (`collective`, `computing`, `idle`).

#![allow(clippy::print_stdout, reason = "what a rank says is how it is heard")]

#[path = "../../cluster/tests/host/mod.rs"]
mod host;
mod variables;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farandole::{Config, Error, ReduceOp, World};
use farandole_cluster::environment;
use farandole_cluster::rendezvous::HEARTBEAT_TIMEOUT;
use farandole_cluster::{Address, Environment};
use farandole_testing::{Deadline, lapse, wait_until};
use farandole_transport::Key;
use farandole_transport::listen::Listener;
use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "FARANDOLE_TEST_ROLE";

/// The longest that anything may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// Silence after which a rank is missed: short, so that tests are.
const SILENCE: Duration = Duration::from_millis(1500);

/// A copy of this program.
struct Process {
    child: Child,
    out: Option<BufReader<ChildStdout>>,
}

impl Process {
    fn start(role: &str, variables: &[(&str, String)]) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--ignored", "--exact", "a_process_plays_its_role", "--nocapture"])
            .env(ROLE, role)
            .env(HEARTBEAT_TIMEOUT, SILENCE.as_secs_f64().to_string())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let out = child.stdout.take().map(BufReader::new);
        Process { child, out }
    }

    /// Waits until it says that it is ready.
    fn await_ready(&mut self) {
        let mut out = self.out.take().expect("nobody else listens");
        let (teller, told) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            while !line.contains("ready") {
                line.clear();
                if !matches!(out.read_line(&mut line), Ok(1..)) {
                    return;
                }
            }
            let _ = teller.send(out);
        });
        self.out = Some(told.recv_timeout(DEADLINE).expect("a rank gets ready"));
    }

    fn signal(&self, signal: Signal) -> Instant {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal can be sent");
        Instant::now()
    }

    /// Waits for its end; what it has said since it was ready, and when it ended.
    fn finish(mut self) -> (String, Instant) {
        let mut out = self.out.take().expect("nobody else listens");
        let reader = thread::spawn(move || {
            let mut words = String::new();
            let _ = out.read_to_string(&mut words);
            (words, Instant::now())
        });
        wait_until("the end of a rank", DEADLINE, || reader.is_finished());
        reader.join().expect("a reader does not panic")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts ranks that meet at `at`, and waits until they have done their first collective.
fn start_ranks(ranks: usize, role: &str, at: &Address, key: &Key) -> Vec<Process> {
    let mut processes: Vec<Process> =
        (0..ranks).map(|rank| Process::start(role, &variables::of_rank(rank, ranks, at, key))).collect();
    processes.iter_mut().for_each(Process::await_ready);
    processes
}

fn place(name: &str) -> Address {
    Address::UnixAbstract(format!("farandole-lifeline-{name}-{}", std::process::id()))
}

fn new_key() -> Key {
    Key::random().expect("the system has randomness")
}

/// Does something to rank 1 of three; checks that the others are told `words`. Gives back the victim, when it was
/// struck, and when the others had ended.
fn strike(role: &str, signal: Signal, words: &str) -> (Process, Instant, Vec<Instant>) {
    let key = new_key();
    let server = host::serve(&place(role), 3, &key);
    let mut ranks = start_ranks(3, role, server.address(), &key);
    let victim = ranks.remove(1);
    let struck = victim.signal(signal);
    let mut ends = Vec::new();
    for rank in ranks {
        let (said, ended) = rank.finish();
        let pid = format!("(pid {})", victim.child.id());
        assert!(said.contains("told: ") && said.contains(words) && said.contains("rank 1"), "{role}: {said}");
        assert!(signal == Signal::KILL || said.contains(&pid), "{role}: {said}");
        ends.push(ended);
    }
    (victim, struck, ends)
}

/// What is promised to users: one second, of which a tenth is usual.
mod timings {
    use super::*;

    #[test]
    fn a_killed_rank_is_named_at_once() {
        for role in ["direct-collective", "named-collective", "direct-idle", "named-computing"] {
            let (_, struck, ends) = strike(role, Signal::KILL, "rank 1");
            let took = ends.into_iter().max().expect("two ranks").saturating_duration_since(struck);
            assert!(took < Duration::from_secs(3), "{role}: it took {took:?}");
        }
    }

    #[test]
    fn a_stopped_rank_is_named_soon_after_the_allowed_silence() {
        for role in ["direct-collective", "named-collective", "direct-idle", "named-computing"] {
            let (victim, struck, ends) = strike(role, Signal::STOP, "is stopped");
            let took = ends.into_iter().max().expect("two ranks").saturating_duration_since(struck);
            assert!(took < SILENCE + Duration::from_secs(5), "{role}: it took {took:?}");
            victim.signal(Signal::CONT);
        }
    }
}

#[test]
fn a_rank_that_is_stopped_in_a_direct_collective_is_named_as_stopped() {
    stop("direct-collective");
}

#[test]
fn a_rank_that_is_stopped_in_a_named_request_is_named_as_stopped() {
    stop("named-collective");
}

#[test]
fn a_rank_that_is_stopped_while_it_computes_is_named_as_stopped() {
    stop("direct-computing");
    stop("named-computing");
}

#[test]
fn a_rank_that_is_stopped_while_it_sleeps_is_named_as_stopped() {
    stop("direct-idle");
}

/// Stops rank 1 until the others have been told, and lets it go on: it learns the same and ends by itself.
fn stop(role: &str) {
    let (victim, ..) = strike(role, Signal::STOP, "is stopped");
    victim.signal(Signal::CONT);
    let (said, _) = victim.finish();
    assert!(said.contains("told: "), "{role}: {said}");
}

/// Starts a process that hosts the rendezvous and is no rank, like an agent, and two ranks that meet there.
fn hosted() -> (Process, Vec<Process>) {
    let (key, at) = (new_key(), place("host"));
    let variables = [(environment::RENDEZVOUS, at.to_string()), (environment::KEY, key.to_hex())];
    let mut host = Process::start("host", &variables);
    host.await_ready();
    let ranks = start_ranks(2, "direct-collective", &at, &key);
    (host, ranks)
}

/// All ranks learn that the host is lost.
fn lost_when_killed(host: &Process, ranks: Vec<Process>) {
    let struck = host.signal(Signal::KILL);
    for rank in ranks {
        let (said, ended) = rank.finish();
        assert!(said.contains("is lost") && said.contains(&format!("(pid {})", host.child.id())), "{said}");
        assert!(ended >= struck, "nobody ended before");
    }
}

#[test]
fn a_host_of_the_rendezvous_that_is_killed_is_named() {
    let (host, ranks) = hosted();
    lost_when_killed(&host, ranks);
}

/// An agent that somebody has suspended is not lost: collectives do without it.
#[test]
fn a_host_of_the_rendezvous_that_is_stopped_for_a_while_is_waited_for() {
    let (host, ranks) = hosted();
    host.signal(Signal::STOP);
    lapse("the host, which is stopped", 3 * SILENCE);
    host.signal(Signal::CONT);
    lapse("the ranks, which might take it for lost", SILENCE);
    lost_when_killed(&host, ranks);
}

#[test]
fn a_rank_that_hosts_the_rendezvous_and_is_stopped_is_named_by_its_number() {
    let key = new_key();
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let mut ranks = start_ranks(3, "direct-collective", &Address::Tcp(free.to_string()), &key);
    let host = ranks.remove(0);
    host.signal(Signal::STOP);
    for rank in ranks {
        let (said, _) = rank.finish();
        assert!(said.contains("rank 0") && said.contains("is stopped"), "{said}");
    }
}

#[test]
fn a_rank_that_is_lost_before_the_others_have_reached_it_is_not_waited_for() {
    for (signal, words) in [(Signal::KILL, "is gone"), (Signal::STOP, "is stopped")] {
        let key = new_key();
        let server = host::serve(&place("early"), 3, &key);
        let mut ranks: Vec<Process> = ["direct-early", "lost-early", "direct-early"]
            .into_iter()
            .enumerate()
            .map(|(rank, role)| Process::start(role, &variables::of_rank(rank, 3, server.address(), &key)))
            .collect();
        let mut victim = ranks.remove(1);
        victim.await_ready();
        victim.signal(signal);
        for rank in ranks {
            let (said, _) = rank.finish();
            assert!(said.contains("not started: ") && said.contains("rank 1") && said.contains(words), "{said}");
        }
    }
}

#[test]
fn ranks_that_finish_at_different_times_harm_nobody() {
    let key = new_key();
    let server = host::serve(&place("finish"), 3, &key);
    for rank in start_ranks(3, "direct-finish", server.address(), &key) {
        let (said, _) = rank.finish();
        assert!(said.contains("all is well"), "{said}");
    }
}

/// The program of a process.
#[test]
#[ignore = "role program: other tests start it"]
fn a_process_plays_its_role() {
    let role = std::env::var(ROLE).expect("a test starts this, with a role");
    if role == "host" {
        return host();
    }
    match role.as_str() {
        "lost-early" => return meet_and_be_lost(),
        "direct-early" => {
            let error = farandole::init().expect_err("one rank is missing");
            return println!("not started: {error}");
        }
        _ => {}
    }
    let (what, how) = role.split_once('-').expect("a role has two parts");
    let mut world = farandole::init().expect("ranks find each other");
    step(&mut world, what).expect("the first collective");
    // It may be stopped as soon as it has said this.
    let before = Instant::now();
    println!("ready");
    if how == "finish" {
        lapse("ranks that end one after the other", Duration::from_millis(500) * world.rank() as u32);
        assert!(world.lifeline().is_some_and(|lifeline| lifeline.notice().is_none()));
        return println!("all is well");
    }
    if world.rank() == 1 && how != "collective" {
        await_a_gap(how, before);
    }
    let deadline = Deadline::after(DEADLINE);
    let error = loop {
        deadline.check("word of the loss");
        if let Err(error) = step(&mut world, what) {
            break error;
        }
    };
    println!("told: {error}");
}

/// A rank that comes to the rendezvous, and no further.
fn meet_and_be_lost() {
    let environment = Environment::from_process().expect("the test has set everything");
    let deadline = Instant::now() + DEADLINE;
    let access = environment.open(deadline).expect("there is a rendezvous");
    let listener = Listener::bind_for(access.job, access.listen_at.clone(), &access.key).expect("a free port");
    let way = access.rendezvous.as_ref().expect("a rendezvous").clone().with_silence(Some(SILENCE));
    let introduction = introduce(&listener.contact(environment.host.clone()).encode());
    let _lifeline = way.join(environment.rank, &introduction, deadline).expect("all come");
    println!("ready");
    lapse("a process that waits to be killed", DEADLINE);
}

/// What a rank with default settings says at the rendezvous (`introduction.rs`).
fn introduce(contact: &[u8]) -> Vec<u8> {
    let shown: HashMap<String, String> = Config::default().shown().into_iter().collect();
    let settings = ["wire_protection", "hierarchical_allreduce", "disable_group_fusion", "plane", "check_parameters"];
    // Format 5, no devices, no NCCL and no word why.
    let mut bytes = vec![5, 0, 0, 0, 0, 0, 0, 0, settings.len() as u8];
    for setting in settings {
        for text in [format!("FARANDOLE_{}", setting.to_uppercase()), shown[setting].clone()] {
            bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    // Its state is streamed nowhere, and it gives no blocks.
    bytes.extend_from_slice(&[0, 0, 0, 0]);
    bytes.extend_from_slice(contact);
    bytes
}

fn host() {
    let variable = |name| std::env::var(name).expect("the test has set it");
    let key: Key = variable(environment::KEY).parse().expect("a key");
    let at = variable(environment::RENDEZVOUS).parse().expect("an address");
    let _server = host::serve(&at, 2, &key);
    println!("ready");
    lapse("a process that waits to be killed", DEADLINE);
}

fn step(world: &mut World, what: &str) -> Result<(), Error> {
    match what {
        "direct" => world.allreduce(&mut [1.0f32; 1000], ReduceOp::Sum),
        "named" => {
            let ticket = world.named("gradient").allreduce(vec![1.0f32; 1000], ReduceOp::Sum)?;
            ticket.wait().map(drop)
        }
        other => panic!("there is no way {other}"),
    }
}

/// Computes or sleeps until this process has been stopped for a while since `began`.
fn await_a_gap(how: &str, began: Instant) {
    let mut last = began;
    loop {
        let now = Instant::now();
        if now - last > SILENCE / 2 {
            return;
        }
        assert!(now - began < DEADLINE, "nobody has stopped this rank");
        last = now;
        if how == "idle" {
            lapse("a rank that is idle", Duration::from_millis(10));
        }
    }
}
