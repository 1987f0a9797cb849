//! Point-to-point messages among ranks whose notes travel at random times, in order for each pair.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};

use farandole_plan::p2p::{
    BUFFERED_BYTES, EAGER_BYTES, Form, Note, PIECE_BYTES, PointToPoint, TransferEffect, TransferId, Use,
};
use farandole_plan::{Dtype, Rank};

/// A reproducible source of choices.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Debug, PartialEq)]
enum End {
    Done(Rank),
    Refused(String),
}

/// One rank with the memory of its transfers.
struct Node {
    me: Rank,
    state: PointToPoint,
    memory: HashMap<TransferId, Vec<u8>>,
    kept: HashMap<(Rank, u64), Vec<u8>>,
    ends: HashMap<TransferId, End>,
}

/// All ranks and the lines between them: `lines[from][to]`.
struct Net {
    nodes: Vec<Node>,
    lines: Vec<Vec<VecDeque<Vec<u8>>>>,
}

fn bytes(count: u64) -> Form {
    Form { dtype: Dtype::U8, bytes: count }
}

impl Net {
    fn new(size: usize) -> Net {
        let ranks: Vec<Rank> = (0..size).map(Rank::from).collect();
        let node = |&me: &Rank| Node {
            me,
            state: PointToPoint::new(me, &ranks),
            memory: HashMap::new(),
            kept: HashMap::new(),
            ends: HashMap::new(),
        };
        let lines = (0..size).map(|_| (0..size).map(|_| VecDeque::new()).collect()).collect();
        Net { nodes: ranks.iter().map(node).collect(), lines }
    }

    fn send(&mut self, from: usize, to: usize, tag: u32, data: Vec<u8>) -> TransferId {
        let node = &mut self.nodes[from];
        let id = node.state.send(Rank::from(to), tag, bytes(data.len() as u64));
        node.memory.insert(id, data);
        self.act(from);
        id
    }

    fn recv(&mut self, at: usize, from: Option<usize>, tag: u32, len: usize) -> TransferId {
        let node = &mut self.nodes[at];
        let id = node.state.recv(from.map(Rank::from), tag, bytes(len as u64));
        node.memory.insert(id, vec![0; len]);
        self.act(at);
        id
    }

    /// Carries out what the state of a rank asks for.
    fn act(&mut self, at: usize) {
        let Node { state, memory, kept, ends, .. } = &mut self.nodes[at];
        while let Some(effect) = state.poll() {
            match effect {
                TransferEffect::Tell { to, note, with } => {
                    let mut message = Vec::new();
                    note.encode(&mut message);
                    message.extend(with.map(|id| memory[&id].clone()).unwrap_or_default());
                    self.lines[at][to.index()].push_back(message);
                }
                TransferEffect::PlaceKept { id, from, number } => {
                    *memory.get_mut(&id).unwrap() = kept.remove(&(from, number)).unwrap()
                }
                TransferEffect::DropKept { from, number } => drop(kept.remove(&(from, number)).unwrap()),
                TransferEffect::Done { id, peer } => assert_eq!(ends.insert(id, End::Done(peer)), None, "done twice"),
                TransferEffect::Refused { id, reason } => {
                    assert_eq!(ends.insert(id, End::Refused(reason.to_string())), None, "ended twice");
                }
            }
        }
    }

    /// Delivers one message of a line, or sends one piece into it. Says whether there was any.
    fn step(&mut self, from: usize, to: usize) -> bool {
        if let Some(message) = self.lines[from][to].pop_front() {
            let (note, body) = Note::decode(&message).unwrap();
            let node = &mut self.nodes[to];
            match node.state.receive(Rank::from(from), note, body.len() as u64).unwrap() {
                Use::None => assert!(body.is_empty() || matches!(note, Note::Offer { .. })),
                Use::Place { id, offset } => {
                    assert!(!node.ends.contains_key(&id), "memory of a receive that is done is not written");
                    node.memory.get_mut(&id).unwrap()[offset as usize..][..body.len()].copy_from_slice(body);
                }
                Use::Keep { number } => drop(node.kept.insert((Rank::from(from), number), body.to_vec())),
            }
            self.act(to);
            return true;
        }
        let node = &mut self.nodes[from];
        let Some(piece) = node.state.next_piece(Rank::from(to)) else { return false };
        let mut message = Vec::new();
        piece.note.encode(&mut message);
        message.extend_from_slice(&node.memory[&piece.id][piece.span.start as usize..piece.span.end as usize]);
        self.lines[from][to].push_back(message);
        self.act(from);
        true
    }

    /// Lets everything travel.
    fn settle(&mut self) {
        let size = self.nodes.len();
        while (0..size * size).any(|pair| self.step(pair / size, pair % size)) {}
    }

    fn end(&self, at: usize, id: TransferId) -> &End {
        self.nodes[at].ends.get(&id).unwrap_or_else(|| panic!("rank {} is not done with {id:?}", self.nodes[at].me))
    }
}

fn data(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|index| (seed.wrapping_mul(31).wrapping_add(index * 7) >> 1) as u8).collect()
}

#[test]
fn every_message_arrives_whatever_the_order_of_calls_and_notes() {
    for seed in 0..300 {
        let chance = &mut Chance(seed);
        let size = 1 + chance.below(4) as usize;
        let mut net = Net::new(size);
        let mut calls = Vec::new();
        for number in 0..chance.below(25) {
            let (from, to, tag) =
                (chance.below(size as u64) as usize, chance.below(size as u64) as usize, chance.below(2) as u32);
            let sizes = [0, 1, EAGER_BYTES, EAGER_BYTES + 1, PIECE_BYTES, PIECE_BYTES * 2 + 3];
            let message = data(seed * 1000 + number, sizes[chance.below(6) as usize]);
            calls.push((from, to, tag, message));
        }
        // As many receives as sends, of the right sizes and in the same order, among the sends at random.
        let (mut sends, mut receives) = (VecDeque::from(calls.clone()), VecDeque::from(calls));
        let (mut sending, mut expected) = (Vec::new(), Vec::new());
        while !sends.is_empty() || !receives.is_empty() {
            match chance.below(3) {
                0 => {
                    if let Some((from, to, tag, message)) = sends.pop_front() {
                        sending.push((from, net.send(from, to, tag, message)));
                    }
                }
                1 => {
                    if let Some((from, to, tag, message)) = receives.pop_front() {
                        let id = net.recv(to, Some(from), tag, message.len());
                        expected.push((to, id, from, message));
                    }
                }
                _ => {
                    let pair = chance.below((size * size) as u64) as usize;
                    net.step(pair / size, pair % size);
                }
            }
        }
        net.settle();
        for (at, id, from, message) in expected {
            assert_eq!(*net.end(at, id), End::Done(Rank::from(from)), "seed {seed}");
            assert!(net.nodes[at].memory[&id] == message, "seed {seed}: other bytes");
        }
        for (at, id) in sending {
            assert!(matches!(net.end(at, id), End::Done(_)), "seed {seed}");
        }
        for node in &net.nodes {
            assert!(node.state.all_received() && node.kept.is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn a_receive_from_anybody_takes_the_oldest_offer_of_its_tag() {
    let mut net = Net::new(3);
    net.send(2, 0, 7, vec![2]);
    net.send(1, 0, 8, vec![1]);
    net.settle();
    let (first, second) = (net.recv(0, None, 8, 1), net.recv(0, None, 7, 1));
    net.settle();
    assert_eq!((net.end(0, first), net.end(0, second)), (&End::Done(Rank(1)), &End::Done(Rank(2))));
    assert_eq!(net.nodes[0].memory[&first], [1]);
}

#[test]
fn sides_that_disagree_are_both_refused_and_the_next_message_passes() {
    for len in [EAGER_BYTES, EAGER_BYTES + 1] {
        for receives_first in [true, false] {
            let mut net = Net::new(2);
            // So much is under way that a further send is not done at once.
            let filled: Vec<_> =
                (0..BUFFERED_BYTES / EAGER_BYTES).map(|_| net.send(0, 1, 1, data(1, EAGER_BYTES))).collect();
            let early = receives_first.then(|| net.recv(1, Some(0), 0, 5));
            let send = net.send(0, 1, 0, data(2, len));
            net.settle();
            let recv = early.unwrap_or_else(|| net.recv(1, Some(0), 0, 5));
            net.settle();
            let reason = format!("rank 0 sends {len} bytes of uint8, but rank 1 receives 5 bytes of uint8");
            assert_eq!((net.end(0, send), net.end(1, recv)), (&End::Refused(reason.clone()), &End::Refused(reason)));
            let (send, recv) = (net.send(0, 1, 0, data(3, len)), net.recv(1, Some(0), 0, len as usize));
            let rest: Vec<_> = filled.iter().map(|_| net.recv(1, Some(0), 1, EAGER_BYTES as usize)).collect();
            net.settle();
            assert_eq!((net.end(0, send), net.end(1, recv)), (&End::Done(Rank(1)), &End::Done(Rank(0))));
            assert!(rest.iter().all(|&id| matches!(net.end(1, id), End::Done(_))));
            assert!(net.nodes[0].state.all_received());
        }
    }
}

#[test]
fn small_sends_are_done_at_once_until_too_much_is_under_way() {
    let mut net = Net::new(2);
    let many = BUFFERED_BYTES / EAGER_BYTES + 1;
    let ids: Vec<_> = (0..many).map(|seed| net.send(0, 1, 0, data(seed, EAGER_BYTES))).collect();
    let (last, buffered) = ids.split_last().unwrap();
    assert!(buffered.iter().all(|&id| *net.end(0, id) == End::Done(Rank(1))));
    assert!(!net.nodes[0].ends.contains_key(last) && !net.nodes[0].state.all_received());
    for _ in 0..many {
        net.recv(1, Some(0), 0, EAGER_BYTES as usize);
    }
    net.settle();
    assert_eq!(*net.end(0, *last), End::Done(Rank(1)));
    assert!(net.nodes[0].state.all_received());
}

#[test]
fn notes_that_cannot_be_are_violations() {
    let offer = |number, len| Note::Offer { number, tag: 0, form: bytes(len) };
    let large = EAGER_BYTES + 1;
    for (note, body) in [
        (offer(1, 1), 1),
        (offer(0, 2), 1),
        (offer(0, large), 1),
        (Note::Accept { number: 0 }, 0),
        (Note::Refuse { number: 0, form: bytes(1) }, 0),
        (Note::Piece { number: 0 }, 1),
    ] {
        let mut state = PointToPoint::new(Rank(0), &[Rank(0), Rank(1)]);
        assert!(state.receive(Rank(1), note, body).is_err(), "{note:?}");
    }
    let mut state = PointToPoint::new(Rank(0), &[Rank(0), Rank(1)]);
    state.recv(Some(Rank(1)), 0, bytes(large));
    state.receive(Rank(1), offer(0, large), 0).unwrap();
    for wrong in [0, large + 1] {
        assert!(state.receive(Rank(1), Note::Piece { number: 0 }, wrong).is_err());
    }
}

#[test]
fn decoding_takes_back_what_encoding_wrote_and_nothing_else() {
    let form = Form { dtype: Dtype::BF16, bytes: u64::MAX };
    let notes = [
        Note::Offer { number: u64::MAX, tag: u32::MAX, form },
        Note::Accept { number: 1 },
        Note::Piece { number: 300 },
        Note::Refuse { number: 0, form },
    ];
    for note in notes {
        let mut encoded = Vec::new();
        note.encode(&mut encoded);
        let len = encoded.len();
        encoded.extend_from_slice(b"body");
        assert_eq!(Note::decode(&encoded).unwrap(), (note, &b"body"[..]));
        for short in 0..len {
            assert!(Note::decode(&encoded[..short]).is_err(), "{note:?} cut to {short} bytes");
        }
    }
    assert!(Note::decode(&[4, 0]).is_err() && Note::decode(&[0, 0, 0, 13, 0]).is_err());
}
