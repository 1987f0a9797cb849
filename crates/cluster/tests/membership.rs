//! Endpoints of members over real sockets: as threads of this process, and as processes that are killed and stopped.

#![allow(unsafe_code, clippy::unwrap_used, reason = "a test that cannot go on has failed, and forks")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farandole_cluster::Error;
use farandole_cluster::membership::{Endpoint, EndpointOptions, Generation, Limits, Loss, LossNotice, MemberId};
use farandole_testing::{lapse, wait_until};
use farandole_transport::{JobId, Key};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_millis(600);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Nobody is suspected before the test is over.
fn limits() -> Limits {
    Limits { min_members: 1, max_members: 8, silence: Some(PATIENCE) }
}

/// For tests about silence.
fn impatient() -> Limits {
    Limits { silence: Some(SILENCE), ..limits() }
}

/// How endpoints reach each other.
#[derive(Clone, Copy, Debug)]
enum Medium {
    Unix,
    Tcp,
}

/// Options of one of the members, which share a key.
fn options(key: &Key, medium: Medium, id: u64, limits: Limits) -> EndpointOptions {
    let options = EndpointOptions::new(key.clone(), JobId::named("membership test"), limits);
    match medium {
        Medium::Unix => options,
        Medium::Tcp => {
            EndpointOptions { host: format!("host-{id}"), listen_at: vec!["127.0.0.1:0".parse().unwrap()], ..options }
        }
    }
}

/// A member of this process, and what it is told.
struct Member {
    endpoint: Endpoint,
    losses: Mutex<Receiver<LossNotice>>,
}

impl Member {
    fn bind(options: EndpointOptions) -> Member {
        let endpoint = Endpoint::bind(options).unwrap();
        let (teller, losses) = mpsc::channel();
        endpoint.on_loss(move |notice| {
            let _ = teller.send(notice.clone());
        });
        Member { endpoint, losses: Mutex::new(losses) }
    }

    fn loss(&self) -> LossNotice {
        self.losses.lock().unwrap().recv_timeout(PATIENCE).expect("a loss is noticed")
    }

    /// Whether nothing was noticed so far.
    fn misses_nobody(&self) -> bool {
        self.losses.lock().unwrap().try_recv().is_err()
    }
}

fn ids(generation: &Generation) -> Vec<u64> {
    generation.ids().map(|id| id.0).collect()
}

/// The first generation: members of this process, and the contacts of others.
fn found(members: &[(u64, &Endpoint)], others: &[(u64, Vec<u8>)]) {
    let own = members.iter().map(|(id, endpoint)| (*id, endpoint.contact()));
    let mut all: Vec<(u64, Vec<u8>)> = own.chain(others.iter().cloned()).collect();
    all.sort();
    let list: Vec<_> = all.into_iter().map(|(id, contact)| (MemberId(id), vec![id as u8], contact)).collect();
    for (id, endpoint) in members {
        assert_eq!(endpoint.found(MemberId(*id), list.clone()).number, 1);
    }
}

/// Members 0 to `count`, all of this process, in their first generation.
fn start(key: &Key, medium: Medium, count: u64, limits: Limits) -> Vec<Member> {
    let members: Vec<Member> = (0..count).map(|id| Member::bind(options(key, medium, id, limits))).collect();
    found(&members.iter().enumerate().map(|(id, m)| (id as u64, &m.endpoint)).collect::<Vec<_>>(), &[]);
    members
}

/// All come to the boundary at once; what each of them gets.
fn next(members: &[&Endpoint]) -> Vec<Result<Arc<Generation>, Error>> {
    thread::scope(|scope| {
        let come = |endpoint: &Endpoint| {
            let payload = endpoint.contact()[..4].to_vec();
            endpoint.next_generation(payload, soon())
        };
        let waiting: Vec<_> = members.iter().map(|endpoint| scope.spawn(move || come(endpoint))).collect();
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// All come, and all get this generation.
fn next_is(members: &[&Endpoint], number: u64, wanted: &[u64]) {
    for generation in next(members) {
        let generation = generation.unwrap();
        assert_eq!((generation.number, ids(&generation)), (number, wanted.to_vec()));
    }
}

#[test]
fn members_come_to_the_next_generation_together() {
    for medium in [Medium::Unix, Medium::Tcp] {
        let key = Key::random().unwrap();
        let members = start(&key, medium, 4, limits());
        let all: Vec<&Endpoint> = members.iter().map(|member| &member.endpoint).collect();
        for number in 2..20 {
            next_is(&all, number, &[0, 1, 2, 3]);
        }
        assert!(members.iter().all(Member::misses_nobody), "{medium:?}: nobody is missed");
    }
}

#[test]
fn whoever_leaves_is_not_in_the_next_generation() {
    let key = Key::random().unwrap();
    let mut members = start(&key, Medium::Tcp, 3, limits());
    next_is(&members.iter().map(|member| &member.endpoint).collect::<Vec<_>>(), 2, &[0, 1, 2]);
    drop(members.remove(0));
    next_is(&members.iter().map(|member| &member.endpoint).collect::<Vec<_>>(), 3, &[1, 2]);
    assert!(members.iter().all(Member::misses_nobody), "leaving in order is no loss");
    let left_out = members[0].endpoint.generation().unwrap().left_out.clone();
    assert_eq!(left_out, [(MemberId(0), "it has left".into())]);
}

#[test]
fn candidates_are_let_in_when_there_is_room() {
    let key = Key::random().unwrap();
    for medium in [Medium::Unix, Medium::Tcp] {
        let limits = Limits { max_members: 3, ..limits() };
        let members = start(&key, medium, 2, limits);
        let seeds = vec![members[1].endpoint.contact()];
        let joiner = |id: u64| {
            let endpoint = Endpoint::bind(options(&key, medium, id, limits)).unwrap();
            endpoint.join(MemberId(id), seeds.clone());
            thread::spawn(move || (endpoint.next_generation(vec![id as u8], soon()).unwrap(), endpoint))
        };
        let third = joiner(7);
        let first = &members[0].endpoint;
        wait_until("a candidate", PATIENCE, || first.candidates() == 1);
        assert_eq!(members[1].endpoint.candidates(), 0, "only the coordinator lets anybody in");
        next_is(&[&members[0].endpoint, &members[1].endpoint], 2, &[0, 1, 7]);
        let (generation, third) = third.join().unwrap();
        assert_eq!((ids(&generation), &*generation.members[2].payload), (vec![0, 1, 7], &[7][..]));
        // The next one is a spare: it gets in when somebody leaves.
        let spare = joiner(5);
        lapse("the spare, which might get in", SILENCE);
        assert_eq!(members[0].endpoint.candidates(), 0, "there is no room");
        members[1].endpoint.leave();
        next_is(&[&members[0].endpoint, &third], 3, &[0, 7, 5]);
        assert_eq!(ids(&spare.join().unwrap().0), [0, 7, 5]);
    }
}

#[test]
fn whoever_waits_alone_ends_at_its_deadline_and_says_for_whom() {
    let key = Key::random().unwrap();
    let members = start(&key, Medium::Unix, 2, limits());
    let short = || Instant::now() + SILENCE;
    let error = members[0].endpoint.next_generation(vec![], short()).unwrap_err().to_string();
    assert!(error.contains("member 1 did not come to the boundary"), "{error}");
    // It has left by that, and the other one goes on.
    next_is(&[&members[1].endpoint], 2, &[1]);
}

#[test]
fn below_the_least_number_of_members_there_is_a_clear_line() {
    let key = Key::random().unwrap();
    let members = start(&key, Medium::Unix, 2, Limits { min_members: 2, ..limits() });
    next_is(&[&members[0].endpoint, &members[1].endpoint], 2, &[0, 1]);
    members[0].endpoint.leave();
    let error = members[1].endpoint.next_generation(vec![], Instant::now() + SILENCE).unwrap_err().to_string();
    assert!(error.contains("1 members are left and the job needs 2 (min-np)"), "{error}");
}

#[test]
fn a_stranger_without_the_key_changes_nothing() {
    let members = start(&Key::random().unwrap(), Medium::Tcp, 2, limits());
    let stranger = Endpoint::bind(options(&Key::random().unwrap(), Medium::Tcp, 9, limits())).unwrap();
    stranger.join(MemberId(9), members.iter().map(|member| member.endpoint.contact()).collect());
    let error = stranger.next_generation(vec![], Instant::now() + SILENCE).unwrap_err().to_string();
    let words = "no member of the job has let this process join: the other side does not hold this job's key";
    assert!(error.contains(words), "{error}");
    assert_eq!(members[0].endpoint.candidates(), 0);
    next_is(&[&members[0].endpoint, &members[1].endpoint], 2, &[0, 1]);
}

#[test]
fn a_member_is_confirmed_until_the_others_go_on_without_it() {
    for medium in [Medium::Unix, Medium::Tcp] {
        let members = start(&Key::random().unwrap(), medium, 3, limits());
        let confirmed = |place: usize| members[place].endpoint.confirm();
        assert!((0..3).all(|place| confirmed(place).unwrap() == 1), "{medium:?}");
        members[2].endpoint.leave();
        let words = confirmed(2).unwrap_err().to_string();
        assert!(words.contains("not in a generation"), "{words}");
        next_is(&[&members[0].endpoint, &members[1].endpoint], 2, &[0, 1]);
        assert_eq!(confirmed(1).unwrap(), 2);
    }
    let unbound = Member::bind(options(&Key::random().unwrap(), Medium::Unix, 0, limits()));
    assert!(unbound.endpoint.confirm().is_err());
}

/// A rank that was stopped wrote its checkpoint when it continued, although the others had gone on without it.
#[test]
fn a_process_that_was_stopped_is_not_confirmed_when_it_goes_on() {
    let key = Key::random().unwrap();
    let (members, processes) = start_with_processes(&key, Medium::Tcp, impatient(), &[0, 2], &[1]);
    processes[0].signal(Signal::STOP);
    recover(&members, Loss::Suspected);
    processes[0].signal(Signal::CONT);
    let words = processes[0].line("confirmed ");
    assert_eq!(words, "this rank is no longer in the job: generation 2 went on without it");
}

/// Copies of this program play members that die or are stopped.
const ROLE: &str = "MEMBERSHIP_TEST_MEMBER";

/// Says its contact, hears the others', and comes to the boundary whenever it is told a loss or a line.
#[test]
#[ignore = "role program: other tests start it"]
fn a_member_in_a_process_of_its_own() {
    let words = std::env::var(ROLE).expect("a test starts this, with a role");
    let [id, medium, silence_ms, key] = words.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let id: u64 = id.parse().unwrap();
    let limits = Limits { silence: Some(Duration::from_millis(silence_ms.parse().unwrap())), ..limits() };
    let medium = if medium == "Unix" { Medium::Unix } else { Medium::Tcp };
    let member = Member::bind(options(&key.parse().unwrap(), medium, id, limits));
    // Whatever the test harness has printed is before the marker.
    println!("\ncontact {}", hex(&member.endpoint.contact()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let others: Vec<(u64, Vec<u8>)> = line
        .split_whitespace()
        .map(|word| word.split_once('=').unwrap())
        .map(|(id, contact)| (id.parse().unwrap(), unhex(contact)))
        .collect();
    found(&[(id, &member.endpoint)], &others);
    if std::env::var(FORKS).is_ok() {
        // Connected by now or not: a copy of this process holds all that is connected when it is made.
        lapse("the parent", SILENCE / 2);
        outlive_the_parent();
    }
    println!("\nfounded");
    loop {
        member.loss();
        match member.endpoint.next_generation(vec![id as u8], soon()) {
            Ok(generation) => println!("\ninstalled {} {:?}", generation.number, ids(&generation)),
            Err(error) => {
                println!("\nended {error}");
                println!("confirmed {}", member.endpoint.confirm().unwrap_err());
                return;
            }
        }
        // Other losses of the former generation.
        while !member.misses_nobody() {}
    }
}

/// Set for a member that has a child with copies of its connections, as data loaders are.
const FORKS: &str = "MEMBERSHIP_TEST_FORKS";

/// Forks a child that ends long after its parent.
fn outlive_the_parent() {
    // SAFETY: the child is a copy of this thread alone. It calls nothing but system calls, and leaves by `_exit`.
    unsafe {
        let parent = libc::getpid();
        if libc::fork() == 0 {
            while libc::getppid() == parent {
                lapse("the parent", Duration::from_millis(10));
            }
            lapse("the child, which outlives it", 5 * SILENCE);
            libc::_exit(0);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// A member that is a process; killed at the end, whatever happens.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    contact: Vec<u8>,
}

impl Process {
    fn start(id: u64, medium: Medium, key: &Key, limits: Limits) -> Process {
        Process::start_with(id, medium, key, limits, None)
    }

    fn start_with(id: u64, medium: Medium, key: &Key, limits: Limits, variable: Option<&str>) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "a_member_in_a_process_of_its_own"]);
        let silence_ms = limits.silence.unwrap().as_millis();
        command.env(ROLE, format!("{id} {medium:?} {silence_ms} {}", key.to_hex()));
        command.envs(variable.map(|variable| (variable, "1")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (teller, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| teller.send(line)));
        let input = child.stdin.take().unwrap();
        let mut process = Process { child, input, lines, contact: Vec::new() };
        process.contact = unhex(&process.line("contact "));
        process
    }

    /// The rest of the next line that begins so.
    fn line(&self, begin: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("a line that begins with {begin}"));
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.to_string();
            }
        }
    }

    fn introduce(&mut self, others: &[(u64, Vec<u8>)]) {
        let words: Vec<String> = others.iter().map(|(id, contact)| format!("{id}={}", hex(contact))).collect();
        writeln!(self.input, "{}", words.join(" ")).unwrap();
        self.line("founded");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Members of this process and others that are processes, in their first generation and connected.
fn start_with_processes(
    key: &Key,
    medium: Medium,
    limits: Limits,
    own: &[u64],
    foreign: &[u64],
) -> (Vec<Member>, Vec<Process>) {
    let members: Vec<Member> = own.iter().map(|id| Member::bind(options(key, medium, *id, limits))).collect();
    let mut processes: Vec<Process> = foreign.iter().map(|id| Process::start(*id, medium, key, limits)).collect();
    let mut contacts: Vec<(u64, Vec<u8>)> =
        own.iter().zip(&members).map(|(id, member)| (*id, member.endpoint.contact())).collect();
    contacts.extend(foreign.iter().zip(&processes).map(|(id, process)| (*id, process.contact.clone())));
    for (process, id) in processes.iter_mut().zip(foreign) {
        let others: Vec<_> = contacts.iter().filter(|(other, _)| other != id).cloned().collect();
        process.introduce(&others);
    }
    let listed: Vec<(u64, &Endpoint)> = own.iter().copied().zip(members.iter().map(|m| &m.endpoint)).collect();
    let others: Vec<_> = contacts.iter().filter(|(id, _)| foreign.contains(id)).cloned().collect();
    found(&listed, &others);
    // Whoever dies before it is connected is missed by its silence.
    wait_until("connections with all others", PATIENCE, || {
        members.iter().all(|member| member.endpoint.connected() + 1 == members.len() + processes.len())
    });
    (members, processes)
}

/// The survivors come to the boundary when they hear of a loss, which must be of this kind.
fn recover(members: &[Member], wanted: Loss) -> Vec<Arc<Generation>> {
    thread::scope(|scope| {
        let come = |member: &Member| {
            assert_eq!(member.loss().loss, wanted, "silence makes suspects, and the kernel's word makes certain");
            member.endpoint.next_generation(vec![1], soon()).unwrap()
        };
        let waiting: Vec<_> = members.iter().map(|member| scope.spawn(move || come(member))).collect();
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The record of a member that has voted without no other.
const NO_VOTES: [u8; 12] = [0; 12];

/// What agents do: they reap the process and tell all other members.
fn reap(process: &mut Process, id: u64, members: &[Member]) {
    process.child.wait().unwrap();
    members.iter().for_each(|member| member.endpoint.report_reaped(MemberId(id), &NO_VOTES, "it was reaped"));
}

#[test]
fn survivors_of_a_killed_process_are_in_the_next_generation_at_once() {
    for medium in [Medium::Unix, Medium::Tcp] {
        for victim in [0, 1, 3] {
            let key = Key::random().unwrap();
            let own: Vec<u64> = (0..4).filter(|id| *id != victim).collect();
            let (members, mut processes) = start_with_processes(&key, medium, limits(), &own, &[victim]);
            processes[0].signal(Signal::KILL);
            if matches!(medium, Medium::Tcp) {
                reap(&mut processes[0], victim, &members);
            }
            let generations = recover(&members, Loss::Certain);
            assert!(generations.iter().all(|generation| generation.number == 2 && ids(generation) == own));
        }
    }
}

/// The end of a stream between hosts counted as the end of the process.
#[test]
fn between_hosts_a_closed_connection_makes_a_suspect_and_a_majority_continues() {
    let key = Key::random().unwrap();
    let (members, processes) = start_with_processes(&key, Medium::Tcp, impatient(), &[0, 1], &[2]);
    processes[0].signal(Signal::KILL);
    let generations = recover(&members, Loss::Suspected);
    assert!(generations.iter().all(|generation| ids(generation) == [0, 1]));
}

#[test]
fn a_killed_process_whose_children_hold_its_connections_is_lost_at_once() {
    let key = Key::random().unwrap();
    let member = Member::bind(options(&key, Medium::Unix, 1, impatient()));
    let mut process = Process::start_with(0, Medium::Unix, &key, impatient(), Some(FORKS));
    let contacts = [(0, process.contact.clone()), (1, member.endpoint.contact())];
    let connecting = thread::scope(|scope| {
        let ready = scope.spawn(|| process.introduce(&contacts[1..]));
        found(&[(1, &member.endpoint)], &contacts[..1]);
        ready.join()
    });
    connecting.unwrap();
    process.signal(Signal::KILL);
    let notice = member.loss();
    // By silence it would be a suspect, long before the children end.
    assert_eq!((notice.member, notice.loss), (MemberId(0), Loss::Certain));
    assert_eq!(ids(&member.endpoint.next_generation(vec![], soon()).unwrap()), [1]);
}

#[test]
fn the_last_of_four_goes_on_when_all_others_are_killed() {
    for medium in [Medium::Unix, Medium::Tcp] {
        let key = Key::random().unwrap();
        let (members, mut processes) = start_with_processes(&key, medium, limits(), &[3], &[0, 1, 2]);
        for process in &processes {
            process.signal(Signal::KILL);
        }
        if matches!(medium, Medium::Tcp) {
            processes.iter_mut().zip(0..).for_each(|(process, id)| reap(process, id, &members));
        }
        let mut generation = recover(&members, Loss::Certain).remove(0);
        while generation.members.len() > 1 {
            // It may have gone on before it heard of all.
            generation = recover(&members, Loss::Certain).remove(0);
        }
        assert_eq!(ids(&generation), [3]);
    }
}

#[test]
fn a_stopped_process_is_left_out_and_learns_it_when_it_goes_on() {
    for medium in [Medium::Unix, Medium::Tcp] {
        let key = Key::random().unwrap();
        let (members, processes) = start_with_processes(&key, medium, impatient(), &[0, 2], &[1]);
        processes[0].signal(Signal::STOP);
        let generations = recover(&members, Loss::Suspected);
        assert!(generations.iter().all(|generation| generation.number == 2 && ids(generation) == [0, 2]));
        processes[0].signal(Signal::CONT);
        let words = processes[0].line("ended ");
        assert!(words.contains("evicted from generation 2: nothing was heard of it for 0.6 s"), "{words}");
    }
}

#[test]
fn the_second_of_two_waits_for_a_stopped_first_and_goes_on_when_that_is_killed() {
    let key = Key::random().unwrap();
    let (members, processes) = start_with_processes(&key, Medium::Unix, impatient(), &[1], &[0]);
    processes[0].signal(Signal::STOP);
    let notice = members[0].loss();
    assert_eq!((notice.member, notice.loss), (MemberId(0), Loss::Suspected));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| members[0].endpoint.next_generation(vec![], soon()));
        wait_until("the reason", PATIENCE, || {
            members[0].endpoint.waiting().is_some_and(|words| words.contains("too few to go on without them"))
        });
        processes[0].signal(Signal::KILL);
        assert_eq!(ids(&waiting.join().unwrap().unwrap()), [1]);
    });
}

#[test]
fn a_coordinator_that_dies_during_the_change_is_succeeded() {
    let key = Key::random().unwrap();
    // Both die, and the second one perhaps while it coordinates.
    let (members, processes) = start_with_processes(&key, Medium::Unix, limits(), &[2, 3], &[0, 1]);
    processes[0].signal(Signal::KILL);
    lapse("the coordinator, which may have begun", Duration::from_micros(500));
    processes[1].signal(Signal::KILL);
    let mut generations = recover(&members, Loss::Certain);
    while generations[0].members.len() > 2 {
        generations = recover(&members, Loss::Certain);
    }
    assert!(generations.iter().all(|generation| ids(generation) == [2, 3] && *generation == generations[0]));
}
