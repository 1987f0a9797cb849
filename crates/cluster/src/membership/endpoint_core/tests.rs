//! One endpoint whose peers are scripted, message by message.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use farandole_plan::membership::{Ballot, Generation, Introduction, Limits, Place, Vote, VoteKind, VoteRecord};
use farandole_transport::{JobId, Key};

use super::super::connection::MemberMedium;
use super::super::network::{MemberCall, PeerWatch};
use super::super::wire::{Answer, Packet, Whereabouts};
use super::links::DIAL_PAUSE;
use super::*;
use crate::channel::{ChannelFault, Flushed};
use crate::strangers::MOST_STRANGERS;

/// A connection as the script sees it.
#[derive(Debug)]
struct Wire {
    medium: MemberMedium,
    arriving: VecDeque<io::Result<Received>>,
    /// Packets that the endpoint has queued, and how many of them the connection has taken.
    queued: Vec<Packet>,
    taken: usize,
    /// Whether the connection takes more.
    has_room: bool,
    is_established: bool,
    is_cut_off: bool,
    process_ended: bool,
}

type SharedWire = Rc<RefCell<Wire>>;

impl PeerWatch for SharedWire {
    fn has_ended(&self) -> bool {
        self.borrow().process_ended
    }
}

impl MemberChannel for SharedWire {
    type Watch = SharedWire;

    fn into_watch(self) -> Option<SharedWire> {
        let is_here = self.borrow().medium == MemberMedium::Unix;
        is_here.then_some(self)
    }

    fn medium(&self) -> MemberMedium {
        self.borrow().medium
    }

    fn is_established(&self) -> bool {
        self.borrow().is_established
    }

    fn receive(&mut self) -> io::Result<Received> {
        self.borrow_mut().arriving.pop_front().unwrap_or(Ok(Received::NothingYet))
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.borrow().is_cut_off { Err(ChannelFault::Truncated.into()) } else { Ok(()) }
    }

    fn queue(&mut self, message: &[u8]) -> io::Result<()> {
        self.borrow_mut().queued.push(Packet::decode(message).unwrap());
        Ok(())
    }

    fn wants_write(&self) -> bool {
        self.borrow().taken < self.borrow().queued.len()
    }

    fn is_mid_message(&self) -> bool {
        false
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        let mut wire = self.borrow_mut();
        if wire.has_room {
            wire.taken = wire.queued.len();
        }
        Ok(if wire.taken == wire.queued.len() { Flushed::All } else { Flushed::Partly })
    }
}

/// Connections that wait to be accepted, and the places that were dialed.
#[derive(Debug, Default)]
struct Script {
    calling: VecDeque<SharedWire>,
    dialed: Vec<String>,
    refuses: bool,
    medium: Option<MemberMedium>,
    wires: Vec<SharedWire>,
}

fn wire(medium: MemberMedium) -> SharedWire {
    let (arriving, queued) = Default::default();
    let wire = Wire {
        medium,
        arriving,
        queued,
        taken: 0,
        has_room: true,
        is_established: true,
        is_cut_off: false,
        process_ended: false,
    };
    Rc::new(RefCell::new(wire))
}

impl MemberNetwork for Script {
    type Channel = SharedWire;

    fn dial(&mut self, call: &MemberCall<'_>) -> io::Result<SharedWire> {
        self.dialed.push(call.place.unix_name.clone());
        if self.refuses {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let wire = wire(self.medium.unwrap_or(MemberMedium::Unix));
        self.wires.push(Rc::clone(&wire));
        Ok(wire)
    }

    fn accept(&mut self) -> io::Result<SharedWire> {
        self.calling.pop_front().ok_or(io::ErrorKind::WouldBlock.into())
    }

    fn open_votes(&mut self, _me: MemberId) {}

    fn record_votes(&mut self, _record: &VoteRecord) {}
}

fn job() -> JobId {
    JobId::named("scripted")
}

fn generation(members: u64) -> Arc<Generation> {
    let introduce = |id: u64| {
        let place = Whereabouts { host: "here".into(), unix_name: id.to_string(), tcp: Vec::new() };
        Introduction { id: MemberId(id), contact: place.encode().into(), payload: Arc::from([]) }
    };
    Arc::new(Generation {
        number: 1,
        members: (0..members).map(introduce).collect(),
        left_out: Vec::new(),
        witness: false,
    })
}

/// An endpoint under test, and its clock.
struct Bench {
    core: EndpointCore<Script>,
    shared: Arc<Shared>,
    now: Instant,
}

const SILENCE: Duration = Duration::from_secs(2);

impl Bench {
    /// Member `me` of the first generation of `members`.
    fn new(me: u64, members: u64, script: Script) -> Bench {
        let limits = Limits { min_members: 1, max_members: 8, silence: Some(SILENCE) };
        let mut options = EndpointOptions::new(Key::random().unwrap(), job(), limits);
        options.host = "here".into();
        let (shared, now) = (Arc::<Shared>::default(), Instant::now());
        let core = EndpointCore::new(options, Vec::new(), script, Arc::clone(&shared), now);
        let mut bench = Bench { core, shared, now };
        bench.tell(vec![Command::Found { me: MemberId(me), generation: generation(members) }]);
        bench
    }

    fn tell(&mut self, commands: Vec<Command>) {
        let ready: Vec<_> = self.core.connections().map(|(id, _)| (id, PeerProcess::Runs)).collect();
        assert_eq!(self.core.turn(self.now, commands, &ready), After::More);
    }

    /// Time passes, turn by turn.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(50);
            self.tell(Vec::new());
        }
    }

    /// Member `id` connects and says who it is.
    fn connect(&mut self, id: u64, medium: MemberMedium) -> SharedWire {
        let wire = wire(medium);
        self.core.network.calling.push_back(Rc::clone(&wire));
        self.tell(Vec::new());
        self.hear(&wire, Packet::Hello { job: job(), member: MemberId(id) });
        wire
    }

    fn hear(&mut self, wire: &SharedWire, packet: Packet) {
        wire.borrow_mut().arriving.push_back(Ok(Received::Message(packet.encode())));
        self.tell(Vec::new());
    }

    fn notices(&self) -> Vec<(u64, Loss)> {
        self.shared.state().notices.iter().map(|notice| (notice.member.0, notice.loss)).collect()
    }
}

#[test]
fn strangers_took_all_descriptors_and_kept_members_out() {
    let mut bench = Bench::new(0, 2, Script::default());
    for _ in 0..3 * MOST_STRANGERS {
        let stranger = wire(MemberMedium::Unix);
        stranger.borrow_mut().is_established = false;
        bench.core.network.calling.push_back(stranger);
        if bench.core.network.calling.len() == 100 {
            bench.tell(Vec::new());
        }
    }
    bench.tell(Vec::new());
    let member = bench.connect(1, MemberMedium::Unix);
    assert!(taken(&member).contains(&heartbeat()), "a member gets in");
    assert!(bench.core.connections().count() <= MOST_STRANGERS + 1);
}

fn heartbeat() -> Packet {
    Packet::Message(MemberMessage::Heartbeat { generation: 1, place: Place::Training })
}

fn taken(wire: &SharedWire) -> Vec<Packet> {
    wire.borrow().queued[..wire.borrow().taken].to_vec()
}

#[test]
fn a_refused_connection_within_a_host_proves_no_death() {
    let mut bench = Bench::new(1, 2, Script { refuses: true, ..Script::default() });
    assert!(!bench.core.network.dialed.is_empty());
    assert_eq!(bench.notices(), []);
    // Silence makes a suspect of it, and it is dialed on.
    bench.pass(SILENCE + SILENCE / 4);
    assert_eq!(bench.notices(), [(0, Loss::Suspected)]);
    assert!(bench.core.network.dialed.len() > 5);
}

#[test]
fn a_broken_second_connection_was_ignored() {
    let mut bench = Bench::new(0, 2, Script::default());
    let (broken, other) = (bench.connect(1, MemberMedium::Tcp), bench.connect(1, MemberMedium::Tcp));
    let before = other.borrow().queued.len();
    broken.borrow_mut().arriving.push_back(Err(ChannelFault::Damaged.into()));
    bench.tell(Vec::new());
    let repeated = other.borrow().queued[before..].to_vec();
    assert_eq!(repeated, [Packet::Again { answer: Answer::Wanted }, heartbeat()]);
    assert_eq!(bench.notices(), [], "the member may be well");
}

#[test]
fn whoever_is_asked_repeats_and_says_where_that_begins() {
    let mut bench = Bench::new(0, 2, Script::default());
    let wire = bench.connect(1, MemberMedium::Tcp);
    let before = wire.borrow().queued.len();
    bench.hear(&wire, Packet::Again { answer: Answer::Wanted });
    bench.hear(&wire, Packet::Again { answer: Answer::Given });
    let repeated = wire.borrow().queued[before..].to_vec();
    assert_eq!(repeated, [Packet::Again { answer: Answer::Given }, heartbeat(), heartbeat()]);
}

/// Member 1 votes for a generation of 0 and 1, so that 2 is left out.
fn vote_without_2(bench: &mut Bench, coordinator: &SharedWire) {
    let base = generation(3);
    let list =
        Arc::new(Generation { number: 2, members: base.members[..2].to_vec(), left_out: Vec::new(), witness: false });
    let voters = [0, 1].map(MemberId).into();
    let vote = Vote {
        ballot: Ballot { round: 1, coordinator: 0 },
        generation: list,
        voters,
        kind: VoteKind::First,
        witness: false,
    };
    bench.hear(coordinator, Packet::Message(MemberMessage::Propose { base: 1, vote }));
}

fn is_accepted(packet: &Packet) -> bool {
    matches!(packet, Packet::Message(MemberMessage::Accepted { .. }))
}

#[test]
fn a_vote_left_before_the_word_to_a_stopped_member() {
    let mut bench = Bench::new(1, 3, Script::default());
    let (coordinator, stopped) = (bench.connect(0, MemberMedium::Unix), bench.connect(2, MemberMedium::Unix));
    stopped.borrow_mut().has_room = false;
    vote_without_2(&mut bench, &coordinator);
    let left_out = Packet::Message(MemberMessage::LeftOut { base: 1 });
    assert!(!taken(&stopped).contains(&left_out));
    assert!(!taken(&coordinator).iter().any(is_accepted), "if this process ended now, 2 would not know of the vote");
    stopped.borrow_mut().has_room = true;
    bench.tell(Vec::new());
    assert!(taken(&stopped).contains(&left_out));
    assert!(taken(&coordinator).iter().any(is_accepted));
}

#[test]
fn a_vote_does_not_wait_for_a_connection_that_breaks() {
    let mut bench = Bench::new(1, 3, Script::default());
    let (coordinator, stopped) = (bench.connect(0, MemberMedium::Unix), bench.connect(2, MemberMedium::Unix));
    stopped.borrow_mut().has_room = false;
    vote_without_2(&mut bench, &coordinator);
    stopped.borrow_mut().arriving.push_back(Err(ChannelFault::Damaged.into()));
    bench.tell(Vec::new());
    assert!(taken(&coordinator).iter().any(is_accepted));
}

#[test]
fn messages_to_a_member_that_does_not_answer_leave_room_for_one_that_must_arrive() {
    let mut bench = Bench::new(0, 2, Script::default());
    let silent = bench.connect(1, MemberMedium::Unix);
    let before = silent.borrow().queued.len();
    let large = Arc::new(Generation { members: generation(400).members.clone(), ..(*generation(2)).clone() });
    for _ in 0..64 {
        bench.core.send(MemberId(1), MemberMessage::Decided { generation: Arc::clone(&large) });
    }
    bench.core.send(MemberId(1), MemberMessage::LeftOut { base: 1 });
    let queued = silent.borrow().queued[before..].to_vec();
    let bytes: usize = queued.iter().map(|packet| packet.encode().len()).sum();
    assert!(bytes < 100_000, "{bytes} bytes");
    assert_eq!(queued.last(), Some(&Packet::Message(MemberMessage::LeftOut { base: 1 })));
}

#[test]
fn the_end_of_a_process_hid_that_its_last_message_was_cut_off() {
    let continues_alone = |is_cut_off: bool| {
        // The second of two continues without the first only if nothing that the first has sent is missing.
        let mut bench = Bench::new(1, 2, Script::default());
        let wire = bench.connect(0, MemberMedium::Unix);
        bench.hear(&wire, heartbeat());
        wire.borrow_mut().is_cut_off = is_cut_off;
        let ended: Vec<_> = bench.core.connections().map(|(id, _)| (id, PeerProcess::HasEnded)).collect();
        bench.core.network.refuses = true;
        bench.core.turn(bench.now, Vec::new(), &ended);
        bench.tell(vec![Command::Come(Vec::new())]);
        bench.core.machine().unwrap().generation().number == 2
    };
    assert!(continues_alone(false));
    assert!(!continues_alone(true));
}

#[test]
fn a_connection_between_hosts_that_is_gone_at_the_other_side_was_kept_for_ever() {
    let mut bench = Bench::new(1, 2, Script { medium: Some(MemberMedium::Tcp), ..Script::default() });
    let gone = Rc::clone(&bench.core.network.wires[0]);
    bench.hear(&gone, Packet::Hello { job: job(), member: MemberId(0) });
    bench.pass(SILENCE + SILENCE / 4);
    assert_eq!(bench.notices(), [(0, Loss::Suspected)]);
    assert!(bench.core.network.dialed.len() > 1, "a suspect is dialed although it is connected");
}

#[test]
fn a_connection_between_hosts_whose_hello_is_lost_was_kept_for_ever() {
    let mut bench = Bench::new(1, 2, Script { medium: Some(MemberMedium::Tcp), ..Script::default() });
    bench.pass(HANDSHAKE_TIMEOUT + DIAL_PAUSE);
    assert!(bench.core.network.dialed.len() > 1);
    assert_eq!(bench.core.connections().count(), 1);
}

#[test]
fn a_member_without_a_majority_dials_members_that_would_dial_it() {
    let mut bench = Bench::new(0, 3, Script::default());
    bench.tell(vec![Command::Come(Vec::new())]);
    bench.pass(SILENCE / 2);
    assert!(bench.core.network.dialed.is_empty(), "the others connect to this one");
    bench.pass(SILENCE);
    assert!(bench.core.network.dialed.contains(&"2".to_owned()), "they may have continued without it");
}
