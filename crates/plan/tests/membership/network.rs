//! Connections of a simulated job, as the endpoint of `farandole-cluster` uses them.
//!
//! A *link* is one connection, with a side at each of two processes; a pair may have several. Messages on a link arrive
//! in order, late, and now and then twice. A process sends over the first of its links to a peer that it knows, in an
//! order of its own. A link that breaks loses what is in flight, and each side notices by itself: one soon, the other
//! perhaps only when it sends. A cut holds messages back, as TCP does, in both directions or in one. The kernel of a
//! process that ends closes its links, after what was sent before; between hosts it may reset them and lose that.

use std::collections::VecDeque;

use farandole_plan::membership::{LossEvidence, MemberMessage, MembershipInput};

use super::mutations::Mutation;
use super::sim::{BEAT, Event, MILLISECOND, MOST_NODES, SILENCE, World, learn, member};

/// One connection.
pub(crate) struct Link {
    pub(crate) ends: [usize; 2],
    sides: [Side; 2],
    /// Nothing gets through any more.
    is_broken: Option<StreamEnd>,
}

/// A link at one of its processes.
#[derive(Clone, Default)]
struct Side {
    is_open: bool,
    /// Whether the other side's hello has arrived.
    has_met: bool,
    /// Nothing overtakes what was sent to this side before.
    last_arrival: u64,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// In order, by a FIN; a middlebox can forge it.
    Closed,
    Reset,
    /// In order, and the pidfd of the process on the same host says that it has ended.
    ProcessEnded,
}

/// All links.
pub(crate) struct Network {
    pub(crate) links: Vec<Link>,
    /// By process and peer, in the order in which the process uses them.
    of_pair: Vec<Vec<usize>>,
    directions: Vec<Direction>,
}

/// What lies over all links from one process to another.
#[derive(Clone, Default)]
struct Direction {
    cuts: u32,
    held: VecDeque<Event>,
}

fn pair(from: usize, to: usize) -> usize {
    from * MOST_NODES + to
}

impl Network {
    pub(crate) fn new() -> Network {
        let count = MOST_NODES * MOST_NODES;
        Network { links: Vec::new(), of_pair: vec![Vec::new(); count], directions: vec![Direction::default(); count] }
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.directions[pair(from, to)].cuts > 0
    }

    /// The link over which a process sends, and its side there.
    fn in_use(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let links = self.of_pair[pair(from, to)].iter();
        links.map(|link| (*link, self.side_of(*link, from))).find(|(link, side)| self.links[*link].sides[*side].has_met)
    }

    fn side_of(&self, link: usize, node: usize) -> usize {
        usize::from(self.links[link].ends[1] == node)
    }
}

impl World {
    pub(crate) fn send(&mut self, from: usize, to: usize, message: MemberMessage) {
        let Some((link, own)) = self.network.in_use(from, to) else { return };
        let side = 1 - own;
        let is_gone = !self.network.links[link].sides[side].is_open;
        if is_gone && !self.nodes[to].is_up() {
            // What it sent before, and its end, are on their way, or nothing answers.
            return;
        }
        if self.network.links[link].is_broken.is_some() || is_gone {
            // The answer is a reset.
            let soon = self.random.below(10 * MILLISECOND);
            self.network.links[link].is_broken.get_or_insert(StreamEnd::Reset);
            return self.at(self.now + soon, Event::Notice { link, side: own });
        }
        let arrival = self.arrival(link, side);
        if self.random.below(256) < self.plan.duplicates {
            let again = arrival + self.random.below(SILENCE);
            self.at(again, Event::Deliver { link, side, message: message.clone() });
        }
        self.at(arrival, Event::Deliver { link, side, message });
    }

    /// When something that is sent to this side now arrives.
    fn arrival(&mut self, link: usize, side: usize) -> u64 {
        let delay = match self.random.below(32) {
            0 => self.random.below(if self.quiet { BEAT } else { self.plan.slowest }),
            1..=4 => self.random.below(20 * MILLISECOND),
            _ => 50 + self.random.below(500),
        };
        let side = &mut self.network.links[link].sides[side];
        side.last_arrival = side.last_arrival.max(self.now + delay);
        side.last_arrival
    }

    /// Something is there for a process, if the network lets it through.
    pub(crate) fn receive(&mut self, link: usize, side: usize, event: Event) {
        let ends = self.network.links[link].ends;
        let (from, to) = (ends[1 - side], ends[side]);
        if !self.nodes[to].alive || !self.network.links[link].sides[side].is_open {
            return;
        }
        let direction = &mut self.network.directions[pair(from, to)];
        if direction.cuts > 0 {
            direction.held.push_back(event);
        } else if self.nodes[to].stopped_since.is_some() {
            self.nodes[to].inbox.push_back(event);
        } else {
            self.arrive(link, side, event);
        }
    }

    pub(crate) fn arrive(&mut self, link: usize, side: usize, event: Event) {
        let known = &self.network.links[link];
        let (from, to) = (known.ends[1 - side], known.ends[side]);
        if !known.sides[side].is_open {
            return;
        }
        match event {
            Event::Deliver { message, .. } if known.is_broken.is_none() => {
                // A connection begins with a greeting.
                self.meet(link, side);
                self.drive(to, MembershipInput::Hear { from: member(from), message });
            }
            Event::End { .. } if known.is_broken.is_none() => {
                let is_proof = self.plan.has_pidfds && self.nodes[from].host == self.nodes[to].host;
                self.part(link, side, if is_proof { StreamEnd::ProcessEnded } else { StreamEnd::Closed });
            }
            Event::End { .. } | Event::Notice { .. } => {
                let end = known.is_broken.unwrap_or(StreamEnd::Reset);
                self.part(link, side, end);
            }
            _ => {}
        }
    }

    pub(crate) fn meet(&mut self, link: usize, side: usize) {
        let known = &mut self.network.links[link];
        let (node, peer) = (known.ends[side], known.ends[1 - side]);
        let state = &mut known.sides[side];
        if state.is_open && !state.has_met && known.is_broken.is_some() {
            // The handshake fails.
            return self.at(self.now, Event::Notice { link, side });
        }
        if state.is_open && !state.has_met && self.nodes[node].is_awake() {
            state.has_met = true;
            self.meet_on_what_is_left(node, peer);
        }
    }

    fn meet_on_what_is_left(&mut self, node: usize, peer: usize) {
        if self.mutation == Some(Mutation::VoteIsNotRepeated) {
            self.is_greeting = true;
        }
        self.drive(node, MembershipInput::Meet(member(peer)));
        self.is_greeting = false;
        if self.mutation == Some(Mutation::HelloClosesGap) {
            let generation = self.nodes[node].machine.generation().number;
            let place = farandole_plan::membership::Place::Training;
            let message = MemberMessage::Heartbeat { generation, place };
            self.drive(node, MembershipInput::Hear { from: member(peer), message });
        }
    }

    /// A side of a link has ended: what the endpoint makes of it.
    fn part(&mut self, link: usize, side: usize, end: StreamEnd) {
        let known = &mut self.network.links[link];
        let (node, peer) = (known.ends[side], known.ends[1 - side]);
        let was_known = known.sides[side].has_met;
        (known.sides[side].is_open, known.sides[side].has_met) = (false, false);
        self.network.of_pair[pair(node, peer)].retain(|other| *other != link);
        let another_is_left = self.network.in_use(node, peer).is_some();
        let leaves_no_gap = self.mutation == Some(Mutation::SecondConnectionLeavesNoGap);
        if was_known && !(another_is_left && (end == StreamEnd::ProcessEnded || leaves_no_gap)) {
            self.drive(node, learn(peer, self.evidence_of(node, peer, end)));
            if another_is_left {
                self.meet_on_what_is_left(node, peer);
            }
        }
        self.connect_soon(node.max(peer), node.min(peer));
    }

    fn evidence_of(&self, node: usize, peer: usize, end: StreamEnd) -> LossEvidence {
        let is_near = self.nodes[node].host == self.nodes[peer].host;
        match (end, self.mutation) {
            (StreamEnd::ProcessEnded, _) => LossEvidence::Ended,
            (StreamEnd::Closed, Some(Mutation::CloseIsProof)) if !is_near => LossEvidence::Ended,
            (StreamEnd::Reset, Some(Mutation::ResetIsProof)) if !is_near => LossEvidence::Ended,
            (StreamEnd::Closed | StreamEnd::Reset, _) => LossEvidence::Broken,
        }
    }

    pub(crate) fn connect_soon(&mut self, one: usize, other: usize) {
        let soon = self.random.below(10 * MILLISECOND);
        self.at(self.now + soon, Event::Connect { one, other });
    }

    /// A process dials another one, to which it has no link.
    pub(crate) fn connect(&mut self, one: usize, other: usize) {
        if self.network.of_pair[pair(one, other)].is_empty() {
            self.connect_again(one, other);
        }
    }

    /// A process dials another one.
    pub(crate) fn connect_again(&mut self, one: usize, other: usize) {
        if one == other || !self.nodes[one].is_up() || !self.nodes[other].is_up() {
            return;
        }
        let is_cut = self.network.is_cut(one, other) || self.network.is_cut(other, one);
        if is_cut || !self.nodes[one].is_awake() || !self.nodes[other].is_awake() {
            return self.at(self.now + BEAT / 2, Event::Connect { one, other });
        }
        let link = self.network.links.len();
        let open = Side { is_open: true, ..Side::default() };
        self.network.links.push(Link { ends: [one, other], sides: [open.clone(), open], is_broken: None });
        for (node, peer) in [(one, other), (other, one)] {
            // Which one a process uses first need not be the same on both sides.
            let links = &mut self.network.of_pair[pair(node, peer)];
            match self.random.below(4) {
                0 => links.insert(0, link),
                _ => links.push(link),
            }
        }
        for side in [0, 1] {
            let soon = 50 + self.random.below(2 * MILLISECOND);
            self.at(self.now + soon, Event::Meet { link, side });
        }
    }

    /// All links of a pair break. What is in flight is lost.
    pub(crate) fn break_connections(&mut self, one: usize, other: usize, end: StreamEnd) {
        for (node, peer) in [(one, other), (other, one)] {
            for link in self.network.of_pair[pair(node, peer)].clone() {
                self.break_link(link, node, end);
            }
        }
    }

    /// The first link of a pair breaks.
    pub(crate) fn break_one(&mut self, one: usize, other: usize, end: StreamEnd) {
        if let Some(link) = self.network.of_pair[pair(one, other)].first().copied() {
            self.break_link(link, one, end);
            self.break_link(link, other, end);
        }
    }

    fn break_link(&mut self, link: usize, node: usize, end: StreamEnd) {
        self.network.links[link].is_broken.get_or_insert(end);
        // A side that sends notices then; without that, probes of its kernel (keepalive) fail some time.
        let later = match self.random.below(4) {
            0 => SILENCE + self.random.below(4 * SILENCE),
            _ => self.random.below(MILLISECOND),
        };
        let side = self.network.side_of(link, node);
        self.at(self.now + later, Event::Notice { link, side });
    }

    pub(crate) fn cut(&mut self, directions: &[(usize, usize)]) {
        for (from, to) in directions {
            self.network.directions[pair(*from, *to)].cuts += 1;
        }
    }

    pub(crate) fn heal(&mut self, directions: &[(usize, usize)]) {
        for (from, to) in directions {
            let direction = &mut self.network.directions[pair(*from, *to)];
            direction.cuts = direction.cuts.saturating_sub(1);
            self.release(pair(*from, *to));
        }
    }

    pub(crate) fn heal_everything(&mut self) {
        for direction in 0..self.network.directions.len() {
            self.network.directions[direction].cuts = 0;
            self.release(direction);
        }
    }

    fn release(&mut self, direction: usize) {
        if self.network.directions[direction].cuts == 0 {
            let held = std::mem::take(&mut self.network.directions[direction].held);
            held.into_iter().for_each(|event| self.happen(event));
        }
    }

    /// The kernel closes the links of a process that has ended. Of a host that is lost nothing arrives at all.
    pub(crate) fn close_all(&mut self, from: usize) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            for link in std::mem::take(&mut self.network.of_pair[pair(from, to)]) {
                let own = self.network.side_of(link, from);
                self.network.links[link].sides[own].is_open = false;
                self.close(link, 1 - own, self.nodes[from].host == self.nodes[to].host);
            }
        }
        self.break_engines(from);
    }

    fn close(&mut self, link: usize, side: usize, is_near: bool) {
        if self.network.links[link].is_broken.is_some() {
            return;
        }
        if !is_near && self.random.below(256) < self.plan.lost_ends {
            return;
        }
        // A socket that is closed with something unread is reset. A process that leaves in order reads what is there.
        let may_reset = !is_near && !self.nodes[self.network.links[link].ends[1 - side]].alive;
        if may_reset && self.random.below(4) == 0 {
            self.network.links[link].is_broken = Some(StreamEnd::Reset);
            let soon = self.random.below(MILLISECOND);
            return self.at(self.now + soon, Event::Notice { link, side });
        }
        let arrival = self.arrival(link, side);
        self.at(arrival, Event::End { link, side });
    }
}
