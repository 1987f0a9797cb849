//! The rendezvous of an elastic job: who begins it, who joins it, and what its members hear of each other.
//!
//! Members are threads here; one that dies is reported by whoever watches it, as an agent would.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use farandole_cluster::rendezvous::RendezvousEvent;
use farandole_cluster::{Address, Entry, FailureKind, FailureNotice, Generation, Lifeline, Rendezvous, Server};
use farandole_plan::Rank;
use farandole_transport::{JobId, Key};

const PATIENCE: Duration = Duration::from_secs(20);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The server of one host, with what it tells its owner.
struct Host {
    server: Server,
    events: Receiver<RendezvousEvent>,
    key: Key,
}

impl Host {
    fn new(name: &str) -> Host {
        Host::with_key(name, &Key::random().unwrap())
    }

    fn with_key(name: &str, key: &Key) -> Host {
        let (teller, events) = mpsc::channel();
        let at = Address::UnixAbstract(format!("elastic-{name}-{}", std::process::id()));
        let tell = Box::new(move |event| drop(teller.send(event)));
        Host { server: Server::serve_elastic(&at, key, tell).unwrap(), events, key: key.clone() }
    }

    fn rendezvous(&self) -> Rendezvous {
        Rendezvous::new(self.server.address().clone(), 1, self.key.clone())
    }

    fn event(&self) -> RendezvousEvent {
        self.events.recv_timeout(PATIENCE).expect("the server says what happens")
    }

    /// Lets these members enter and begins the job with them; their lifelines, in order.
    fn begin(&self, members: &[u64]) -> Vec<Lifeline> {
        thread::scope(|scope| {
            let enter = |&member: &u64| {
                let way = self.rendezvous();
                scope.spawn(move || way.enter(member, &[member as u8], soon()).unwrap())
            };
            let entering: Vec<_> = members.iter().map(enter).collect();
            members.iter().for_each(|_| assert!(matches!(self.event(), RendezvousEvent::Entered { .. })));
            self.server.found(generation(1, members));
            let entered = entering.into_iter().map(|member| member.join().unwrap());
            let founding = Entry::Founding(generation(1, members));
            entered
                .map(|(entry, lifeline)| {
                    assert_eq!(entry, founding);
                    lifeline
                })
                .collect()
        })
    }
}

fn generation(number: u64, members: &[u64]) -> Generation {
    Generation { number, members: members.iter().map(|&member| (member, vec![member as u8])).collect() }
}

#[test]
fn founders_meet_and_whoever_comes_later_is_told_whom_to_call() {
    let host = Host::new("founders");
    let members = host.begin(&[0, 2, 5]);
    let (entry, candidate) = host.rendezvous().enter(6, b"six", soon()).unwrap();
    assert_eq!(entry, Entry::Joining { seeds: vec![vec![0], vec![2], vec![5]] });
    // Members enter the next generation; both say so, and the owner hears it once.
    for lifeline in [&members[1], &candidate] {
        lifeline.tell_generation(7, generation(7, &[2, 6]).members);
    }
    assert_eq!(host.event(), RendezvousEvent::Entering(generation(7, &[2, 6])));
    assert_eq!(host.rendezvous().seeds(8, soon()).unwrap(), [vec![2], vec![6]]);
    // What is known is not replaced by something older, of which the owner hears to compare lists.
    members[0].tell_generation(3, generation(3, &[0]).members);
    assert_eq!(host.event(), RendezvousEvent::Entering(generation(3, &[0])));
    host.server.learn(generation(6, &[5]));
    assert_eq!(host.rendezvous().seeds(8, soon()).unwrap(), [vec![2], vec![6]]);
    host.server.learn(generation(9, &[5]));
    assert_eq!(host.rendezvous().seeds(8, soon()).unwrap(), [vec![5]]);
    drop(members);
    let left = (0..3).map(|_| match host.event() {
        RendezvousEvent::Left { rank } => rank.0,
        other => panic!("{other:?}"),
    });
    let mut left: Vec<u32> = left.collect();
    left.sort_unstable();
    assert_eq!(left, [0, 2, 5]);
}

#[test]
fn whoever_enters_while_the_job_begins_is_a_candidate() {
    let host = Host::new("crossing");
    let way = host.rendezvous();
    let late = thread::spawn(move || way.enter(4, b"", soon()).unwrap().0);
    assert_eq!(host.event(), RendezvousEvent::Entered { member: 4, blob: Vec::new() });
    // The owner has decided before it heard of number 4.
    host.server.found(generation(1, &[0, 1]));
    assert_eq!(late.join().unwrap(), Entry::Joining { seeds: vec![vec![0], vec![1]] });
}

#[test]
fn the_end_of_a_member_is_told_to_all_others_and_is_not_the_end_of_the_job() {
    let host = Host::new("ends");
    let members = host.begin(&[0, 1, 2]);
    let (teller, told) = mpsc::channel();
    let hear = |lifeline: &Lifeline, of: u64| {
        let teller = teller.clone();
        lifeline.on_loss(move |member, notice, _| teller.send((of, member, notice.kind)).unwrap());
    };
    hear(&members[0], 0);
    let notice = FailureNotice::new(FailureKind::Signalled { signal: 9 });
    host.server.lost(2, &notice, None);
    host.server.lost(2, &notice, None);
    let killed = FailureKind::Signalled { signal: 9 };
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (0, 2, killed));
    host.server.lost(1, &FailureNotice::new(FailureKind::Gone), None);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (0, 1, FailureKind::Gone));
    // Whoever asks late hears of those before; nobody hears of its own end.
    hear(&members[1], 1);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (1, 2, killed));
    assert_eq!(members[0].notice(), None);
    // The server's end is nobody's.
    drop(host);
    farandole_testing::lapse("a lifeline that might mourn the server", Duration::from_millis(50));
    assert!(members.iter().all(|lifeline| lifeline.notice().is_none()));
    assert!(told.try_recv().is_err());
}

#[test]
fn the_vote_record_of_a_dead_member_arrives_although_its_loss_was_told_before() {
    let host = Host::new("records");
    let members = host.begin(&[0, 1]);
    let (teller, told) = mpsc::channel();
    members[0].on_loss(move |member, _, votes| teller.send((member, votes.map(<[u8]>::to_vec))).unwrap());
    let notice = |kind| FailureNotice::new(kind);
    host.server.lost(1, &notice(FailureKind::AgentLost), None);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (1, None));
    for _ in 0..2 {
        host.server.lost(1, &notice(FailureKind::Signalled { signal: 9 }), Some(vec![7]));
    }
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (1, Some(vec![7])));
    host.server.lost(2, &notice(FailureKind::Gone), None);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (2, None), "a record is told once");
}

#[test]
fn a_question_to_the_witness_is_answered_to_the_member_that_asked() {
    let host = Host::new("witness");
    let members = host.begin(&[0, 1]);
    let (teller, told) = mpsc::channel();
    for (number, lifeline) in members.iter().enumerate() {
        let teller = teller.clone();
        lifeline.on_witness_answer(move |answer| teller.send((number, answer)).unwrap());
    }
    members[1].witness_line()(vec![5, 6]);
    assert_eq!(host.event(), RendezvousEvent::WitnessAsked { member: 1, question: vec![5, 6] });
    host.server.answer_as_witness(1, vec![7]);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (1, vec![7]));
}

/// A second list with a number that was known went nowhere.
#[test]
fn every_list_of_a_generation_is_told_to_the_owner_once() {
    let host = Host::new("lists");
    let members = host.begin(&[0, 1]);
    let list = |numbers: &[u64]| numbers.iter().map(|&number| (number, vec![number as u8])).collect::<Vec<_>>();
    let entering = |number, numbers: &[u64]| RendezvousEvent::Entering(generation(number, numbers));
    members[0].tell_generation(3, list(&[0]));
    assert_eq!(host.event(), entering(3, &[0]));
    // Another host's members are in 4; both are told here all the same.
    host.server.learn(generation(4, &[0]));
    members[0].tell_generation(3, list(&[0]));
    members[1].tell_generation(3, list(&[1]));
    assert_eq!(host.event(), entering(3, &[1]));
}

#[test]
fn whoever_does_not_wait_is_withdrawn_and_told_why() {
    let host = Host::new("impatient");
    let error = host.rendezvous().enter(3, b"", Instant::now() + Duration::from_millis(200)).unwrap_err().to_string();
    assert!(error.contains("the job has not begun"), "{error}");
    assert!(matches!(host.event(), RendezvousEvent::Entered { member: 3, .. }));
    assert_eq!(host.event(), RendezvousEvent::EntryWithdrawn { member: 3 });
    let error = host.rendezvous().seeds(3, Instant::now() + Duration::from_millis(100)).unwrap_err().to_string();
    assert!(error.contains("the job has not begun"), "{error}");
    let way = host.rendezvous();
    let waiting = thread::spawn(move || way.enter(4, b"", soon()).unwrap_err().to_string());
    assert!(matches!(host.event(), RendezvousEvent::Entered { member: 4, .. }));
    host.server.pronounce(&FailureNotice::new(FailureKind::Other).saying("below --min-np"));
    assert!(waiting.join().unwrap().contains("below --min-np"));
}

#[test]
fn strangers_and_ranks_of_fixed_jobs_are_turned_away() {
    let host = Host::new("strangers");
    let error = host.rendezvous().join(Rank(0), b"", soon()).unwrap_err().to_string();
    assert!(error.contains("this job is elastic"), "{error}");
    let error = host.rendezvous().of_job(JobId::named("another")).enter(1, b"", soon()).unwrap_err().to_string();
    assert!(error.contains("belongs to job 'another'"), "{error}");
    let other = Host::with_key("strangers-too", &Key::random().unwrap());
    let way = Rendezvous::new(host.server.address().clone(), 1, other.key.clone());
    assert!(way.enter(1, b"", Instant::now() + Duration::from_secs(2)).is_err());
    assert!(host.events.try_recv().is_err(), "the owner has heard of none of them");
}

#[test]
fn a_job_as_a_whole_can_fail() {
    let host = Host::new("whole");
    let members = host.begin(&[0, 1]);
    let (teller, told) = mpsc::channel();
    members[1].on_failure(move |notice| teller.send(notice.to_string()).unwrap());
    host.server.pronounce(&FailureNotice::new(FailureKind::Other).saying("reset too often"));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "the job failed: reset too often");
}
