//! A job over a simulated network, driven by a seed: what happens, and when.
//!
//! Processes are state machines ([`Membership`]) that train or are at the boundary. Connections are what the endpoint
//! of `farandole-cluster` makes of them: messages arrive in order while a connection lasts, late, and now and then
//! twice; one that breaks loses what is under way, is noticed on both sides and is made again. A cut holds messages
//! back, as TCP does, in both directions or in one. The kernel of a process that dies closes its connections, after
//! what was sent before; sometimes that end is lost. A stopped process does nothing, its clock stands still, and what
//! arrives meanwhile it finds when it goes on.
//!
//! Everything follows from the seed: the same one gives the same log.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::membership::{
    Generation, Introduction, LossEvidence, MemberId, MemberMessage, MembershipEffect, MembershipInput, MembershipStart,
};

use super::node::{Doing, Node};
use super::random::Random;
use super::weather::{Fault, Plan};
use super::witness::Witness;

pub(crate) const MILLISECOND: u64 = 1000;
/// The longest silence, in microseconds. Short, so that a run has few heartbeats.
pub(crate) const SILENCE: u64 = 200 * MILLISECOND;
pub(crate) const BEAT: u64 = SILENCE / 4;
/// How long a member stays at the boundary.
const ELASTIC_TIMEOUT: u64 = 30 * SILENCE;
/// More processes than any run has.
const MOST_NODES: usize = 16;

/// The connection of a pair, as seen from one side.
#[derive(Clone, Default)]
struct Direction {
    /// Which connection of this pair it is; 0: there was none.
    epoch: u32,
    is_open: bool,
    /// The epoch in which the receiver has met the sender.
    met: u32,
    /// Nothing overtakes what was sent before.
    last_arrival: u64,
    /// Cuts that lie over this direction.
    cuts: u32,
    held: VecDeque<Event>,
}

/// What happens at a time.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Deliver {
        from: usize,
        to: usize,
        epoch: u32,
        message: MemberMessage,
    },
    /// The kernel's word that a process has ended.
    End {
        from: usize,
        to: usize,
        epoch: u32,
    },
    Meet {
        node: usize,
        peer: usize,
        epoch: u32,
    },
    Connect {
        one: usize,
        other: usize,
    },
    Learn {
        node: usize,
        about: usize,
        evidence: LossEvidence,
    },
    Tick {
        node: usize,
    },
    /// It notices that its generation cannot go on, or has agreed with the others to let candidates in.
    Come {
        node: usize,
        generation: u64,
    },
    GiveUp {
        node: usize,
        stay: u32,
    },
    /// It looks whether candidates wait, and now and then asks whether it is still in the job.
    Look {
        node: usize,
    },
    Fault(Fault),
}

/// The whole job.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) plan: Plan,
    pub(crate) witness: Witness,
    random: Random,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    /// Events by number; those that have happened are empty.
    events: Vec<Option<Event>>,
    directions: Vec<Direction>,
    quiet: bool,
    /// Whether nodes keep what they are told.
    pub(crate) is_recorded: bool,
}

impl World {
    pub(crate) fn new(plan: Plan, mut random: Random) -> World {
        let introduce = |id: usize| introduction(id, 0);
        let members: Vec<Introduction> = (0..plan.members).map(introduce).collect();
        let first = Arc::new(Generation { number: 1, members, left_out: Vec::new() });
        let start = |id| MembershipStart::Founder { me: member(id), generation: first.clone(), limits: plan.limits };
        let nodes = (0..plan.members).map(|id| Node::new(start(id), Duration::ZERO, Doing::Training)).collect();
        let seed = random.next();
        let mut world = World {
            now: 0,
            nodes,
            witness: Witness::new(&first),
            random: Random::new(seed),
            queue: BinaryHeap::new(),
            events: Vec::new(),
            directions: vec![Direction::default(); MOST_NODES * MOST_NODES],
            quiet: false,
            is_recorded: false,
            plan,
        };
        for one in 0..world.nodes.len() {
            world.at(0, Event::Tick { node: one });
            world.schedule_look(one);
            for other in 0..one {
                world.connect_soon(one, other);
            }
        }
        for (when, fault) in world.plan.faults.clone() {
            world.at(when, Event::Fault(fault));
        }
        world
    }

    /// Lets the next thing happen; if nothing ever will, time passes.
    pub(crate) fn step(&mut self) {
        let Some(Reverse((when, number))) = self.queue.pop() else {
            self.now += BEAT;
            return;
        };
        let event = self.events[number as usize].take().expect("every event happens once");
        self.now = when;
        self.witness.note(when, number);
        self.happen(event);
    }

    /// Everything that was cut or stopped goes on.
    pub(crate) fn calm_down(&mut self) {
        self.quiet = true;
        for node in 0..self.nodes.len() {
            self.go_on(node);
        }
        for direction in 0..self.directions.len() {
            self.directions[direction].cuts = 0;
            self.release(direction);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, epoch, .. } | Event::End { from, to, epoch } => {
                let direction = &mut self.directions[from * MOST_NODES + to];
                if direction.epoch != epoch || !self.nodes[to].alive {
                    return;
                }
                if direction.cuts > 0 {
                    return direction.held.push_back(event);
                }
                if self.nodes[to].stopped_since.is_some() {
                    return self.nodes[to].inbox.push_back(event);
                }
                self.arrive(event);
            }
            Event::Meet { node, .. } if self.nodes[node].stopped_since.is_some() => {
                self.nodes[node].inbox.push_back(event);
            }
            Event::Meet { node, peer, epoch } => self.meet(node, peer, epoch),
            Event::Connect { one, other } => self.connect(one, other),
            Event::Learn { node, about, evidence } => {
                self.drive(node, learn(about, evidence));
            }
            Event::Tick { node } => {
                self.nodes[node].tick_at = u64::MAX;
                let due = self.nodes[node].machine.due().map(|due| due.as_micros() as u64 + self.nodes[node].slept);
                if due.is_some_and(|due| due <= self.now) {
                    self.drive(node, MembershipInput::Tick);
                } else {
                    self.schedule_tick(node);
                }
            }
            Event::Come { node, generation } => self.come(node, generation),
            Event::GiveUp { node, stay } => self.give_up(node, stay),
            Event::Look { node } => self.look(node),
            Event::Fault(fault) if !self.quiet => self.strike(fault),
            Event::Fault(_) => {}
        }
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(node) => self.kill(node),
            Fault::Stop(node) if self.nodes[node].alive => {
                self.nodes[node].stopped_since.get_or_insert(self.now);
            }
            Fault::Stop(_) => {}
            Fault::Continue(node) => self.go_on(node),
            Fault::Leave(node) => {
                if self.nodes[node].is_awake() && self.nodes[node].doing == Doing::Training {
                    self.drive(node, MembershipInput::Leave);
                    self.end(node);
                }
            }
            Fault::Join => self.join(),
            Fault::Cut(directions) => {
                for (from, to) in directions {
                    self.directions[from * MOST_NODES + to].cuts += 1;
                }
            }
            Fault::Heal(directions) => {
                for (from, to) in directions {
                    let direction = &mut self.directions[from * MOST_NODES + to];
                    direction.cuts = direction.cuts.saturating_sub(1);
                    self.release(from * MOST_NODES + to);
                }
            }
            Fault::Break(one, other) => self.break_connection(one, other),
            Fault::Doubt { node, about } => {
                self.drive(node, learn(about, LossEvidence::Doubted));
            }
        }
    }

    fn arrive(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, epoch, message } => {
                // A connection begins with a greeting.
                self.meet(to, from, epoch);
                self.drive(to, MembershipInput::Hear { from: member(from), message });
            }
            Event::End { from, to, epoch } => {
                self.directions[to * MOST_NODES + from].is_open = false;
                let direction = &mut self.directions[from * MOST_NODES + to];
                direction.is_open = false;
                // Whoever never knew who was there has seen nobody end.
                if direction.met == epoch {
                    self.drive(to, learn(from, LossEvidence::Ended));
                }
            }
            _ => unreachable!("only these arrive"),
        }
    }

    /// Lets a process do something and does what it says.
    fn drive(&mut self, node: usize, input: MembershipInput) {
        if !self.nodes[node].is_awake() || self.nodes[node].doing == Doing::Ended {
            return;
        }
        let now = Duration::from_micros(self.now - self.nodes[node].slept);
        let machine = &mut self.nodes[node].machine;
        let before = machine.generation().number;
        let told = self.is_recorded.then(|| input.clone());
        let effects = machine.take(input, now);
        if let Some(input) = told {
            self.nodes[node].told.push((now, input, effects.clone()));
        }
        let machine = &self.nodes[node].machine;
        let is_member = machine.generation().contains(member(node));
        if machine.generation().number != before && is_member {
            self.witness.entered(node, machine.generation());
        }
        for effect in effects {
            self.carry_out(node, effect);
        }
        self.schedule_tick(node);
    }

    fn carry_out(&mut self, node: usize, effect: MembershipEffect) {
        match effect {
            MembershipEffect::Send { to, message } => self.send(node, to.0 as usize, message),
            MembershipEffect::Lost { .. } | MembershipEffect::Called { .. } => {
                let generation = self.nodes[node].machine.generation().number;
                let soon = self.random.below(20 * MILLISECOND);
                self.at(self.now + soon, Event::Come { node, generation });
            }
            MembershipEffect::Installed(generation) => {
                self.nodes[node].doing = Doing::Training;
                self.witness.installed(node, &generation, &self.nodes);
                self.schedule_look(node);
            }
            MembershipEffect::Evicted { .. } => {
                self.witness.evicted(node);
                self.end(node);
            }
            MembershipEffect::Waiting(_) | MembershipEffect::Confirmed { outcome: Err(_), .. } => {}
            MembershipEffect::Confirmed { nonce, outcome: Ok(generation) } => {
                self.witness.confirmed(node, nonce, generation);
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: MemberMessage) {
        let direction = &self.directions[from * MOST_NODES + to];
        // Whoever has not met somebody has no connection to send over.
        let has_met = self.directions[to * MOST_NODES + from].met == direction.epoch;
        if !direction.is_open || !has_met {
            return;
        }
        let epoch = direction.epoch;
        let arrival = self.arrival(from, to);
        if self.random.below(256) < self.plan.duplicates {
            let again = arrival + self.random.below(SILENCE);
            self.at(again, Event::Deliver { from, to, epoch, message: message.clone() });
        }
        self.at(arrival, Event::Deliver { from, to, epoch, message });
    }

    /// When something that is sent now is there.
    fn arrival(&mut self, from: usize, to: usize) -> u64 {
        let delay = match self.random.below(32) {
            0 => self.random.below(if self.quiet { BEAT } else { self.plan.slowest }),
            1..=4 => self.random.below(20 * MILLISECOND),
            _ => 50 + self.random.below(500),
        };
        let direction = &mut self.directions[from * MOST_NODES + to];
        direction.last_arrival = direction.last_arrival.max(self.now + delay);
        direction.last_arrival
    }

    fn meet(&mut self, node: usize, peer: usize, epoch: u32) {
        let direction = &mut self.directions[peer * MOST_NODES + node];
        if direction.epoch == epoch && direction.met != epoch && self.nodes[node].is_awake() {
            direction.met = epoch;
            self.drive(node, MembershipInput::Meet(member(peer)));
        }
    }

    fn connect_soon(&mut self, one: usize, other: usize) {
        let soon = self.random.below(10 * MILLISECOND);
        self.at(self.now + soon, Event::Connect { one, other });
    }

    fn connect(&mut self, one: usize, other: usize) {
        let (there, back) = (one * MOST_NODES + other, other * MOST_NODES + one);
        if self.directions[there].is_open || !self.nodes[one].is_up() || !self.nodes[other].is_up() {
            return;
        }
        let is_cut = self.directions[there].cuts + self.directions[back].cuts > 0;
        if is_cut || !self.nodes[one].is_awake() || !self.nodes[other].is_awake() {
            return self.at(self.now + BEAT / 2, Event::Connect { one, other });
        }
        let epoch = self.directions[there].epoch + 1;
        for direction in [there, back] {
            let direction = &mut self.directions[direction];
            (direction.epoch, direction.is_open) = (epoch, true);
        }
        for (node, peer) in [(one, other), (other, one)] {
            let soon = 50 + self.random.below(2 * MILLISECOND);
            self.at(self.now + soon, Event::Meet { node, peer, epoch });
        }
    }

    /// What is under way is lost, and both sides notice.
    fn break_connection(&mut self, one: usize, other: usize) {
        if one == other || !self.directions[one * MOST_NODES + other].is_open {
            return;
        }
        for (from, to) in [(one, other), (other, one)] {
            let direction = &mut self.directions[from * MOST_NODES + to];
            direction.is_open = false;
            direction.epoch += 1;
            direction.held.clear();
            let soon = self.random.below(MILLISECOND);
            self.at(self.now + soon, Event::Learn { node: to, about: from, evidence: LossEvidence::Broken });
        }
        self.at(self.now + BEAT / 4, Event::Connect { one, other });
    }

    fn release(&mut self, direction: usize) {
        if self.directions[direction].cuts == 0 {
            let held = std::mem::take(&mut self.directions[direction].held);
            held.into_iter().for_each(|event| self.happen(event));
        }
    }

    fn kill(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        self.nodes[node].alive = false;
        self.witness.killed(node);
        self.close_all(node);
    }

    /// The kernel closes the connections of a process that has ended. Sometimes the end is lost with what was sent
    /// last, and at most somebody who saw the process end can say so.
    fn close_all(&mut self, from: usize) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            let direction = &self.directions[from * MOST_NODES + to];
            if !direction.is_open {
                continue;
            }
            if self.random.below(256) < self.plan.lost_ends {
                self.break_connection(from, to);
                if self.random.below(2) == 0 {
                    let later = self.random.below(SILENCE);
                    self.at(self.now + later, Event::Learn { node: to, about: from, evidence: LossEvidence::Dead });
                }
            } else {
                let epoch = direction.epoch;
                let arrival = self.arrival(from, to);
                self.at(arrival, Event::End { from, to, epoch });
            }
        }
        self.break_engines(from);
    }

    fn go_on(&mut self, node: usize) {
        let Some(since) = self.nodes[node].stopped_since.take() else { return };
        self.nodes[node].slept += self.now - since;
        let inbox = std::mem::take(&mut self.nodes[node].inbox);
        for event in inbox {
            match event {
                // It was there before whatever cuts the network now.
                Event::Deliver { from, epoch, .. } | Event::End { from, epoch, .. } => {
                    if self.directions[from * MOST_NODES + node].epoch == epoch {
                        self.arrive(event);
                    }
                }
                other => self.happen(other),
            }
        }
        self.schedule_tick(node);
        if self.nodes[node].doing == Doing::Training {
            self.schedule_look(node);
        }
    }

    fn join(&mut self) {
        if self.nodes.len() == MOST_NODES {
            return;
        }
        let (id, now) = (self.nodes.len(), Duration::from_micros(self.now));
        let contact = introduction(id, 0).contact;
        let start = MembershipStart::Candidate { me: member(id), contact, limits: self.plan.limits };
        self.nodes.push(Node::new(start, now, Doing::Waiting(0)));
        self.drive(id, MembershipInput::Come(introduction(id, 0).payload));
        for other in 0..id {
            self.connect_soon(id, other);
        }
        self.at(self.now + ELASTIC_TIMEOUT, Event::GiveUp { node: id, stay: 0 });
    }

    /// Training has failed, or was interrupted, in this generation.
    fn come(&mut self, node: usize, generation: u64) {
        let process = &mut self.nodes[node];
        let is_current = process.machine.generation().number == generation && process.doing == Doing::Training;
        if !is_current || !process.alive {
            return;
        }
        if process.stopped_since.is_some() {
            return process.inbox.push_back(Event::Come { node, generation });
        }
        process.stays += 1;
        let stay = process.stays;
        process.doing = Doing::Waiting(stay);
        self.at(self.now + ELASTIC_TIMEOUT, Event::GiveUp { node, stay });
        self.drive(node, MembershipInput::Come(introduction(node, generation).payload));
        self.break_engines(node);
    }

    /// Whoever leaves its generation closes its links, and the others' collectives fail.
    fn break_engines(&mut self, node: usize) {
        let generation = Arc::clone(self.nodes[node].machine.generation());
        let others: Vec<usize> = generation.ids().map(|id| id.0 as usize).filter(|other| *other != node).collect();
        for other in others {
            let is_cut = self.directions[node * MOST_NODES + other].cuts > 0;
            let delay = if is_cut { 3 * SILENCE } else { self.random.below(20 * MILLISECOND) };
            self.at(self.now + delay, Event::Come { node: other, generation: generation.number });
        }
    }

    fn give_up(&mut self, node: usize, stay: u32) {
        if self.nodes[node].doing != Doing::Waiting(stay) || !self.nodes[node].alive {
            return;
        }
        if self.nodes[node].stopped_since.is_some() {
            return self.nodes[node].inbox.push_back(Event::GiveUp { node, stay });
        }
        assert!(self.nodes[node].machine.waiting().is_some(), "whoever gives up can say why");
        self.witness.gave_up(node);
        self.drive(node, MembershipInput::Leave);
        self.end(node);
    }

    /// A process ends by itself.
    fn end(&mut self, node: usize) {
        if self.nodes[node].doing != Doing::Ended {
            self.nodes[node].doing = Doing::Ended;
            self.close_all(node);
        }
    }

    /// A member that trains looks for candidates; by the next step all members have agreed to let them in.
    fn look(&mut self, node: usize) {
        if self.nodes[node].doing != Doing::Training || !self.nodes[node].is_awake() {
            return;
        }
        if self.random.below(4) == 0 {
            let nonce = self.witness.asks();
            self.drive(node, MembershipInput::Confirm(nonce));
        }
        let generation = Arc::clone(self.nodes[node].machine.generation());
        if self.nodes[node].machine.candidates() == 0 {
            return self.schedule_look(node);
        }
        for id in generation.ids() {
            let soon = self.random.below(5 * MILLISECOND);
            self.at(self.now + soon, Event::Come { node: id.0 as usize, generation: generation.number });
        }
    }

    fn schedule_look(&mut self, node: usize) {
        let later = BEAT / 2 + self.random.below(BEAT);
        self.at(self.now + later, Event::Look { node });
    }

    fn schedule_tick(&mut self, node: usize) {
        let Some(due) = self.nodes[node].machine.due() else { return };
        let due = (due.as_micros() as u64 + self.nodes[node].slept).max(self.now);
        if self.nodes[node].is_awake() && due < self.nodes[node].tick_at {
            self.nodes[node].tick_at = due;
            self.at(due, Event::Tick { node });
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.queue.push(Reverse((when, self.events.len() as u64)));
        self.events.push(Some(event));
    }
}

fn learn(about: usize, evidence: LossEvidence) -> MembershipInput {
    MembershipInput::Learn { member: member(about), evidence, cause: "".into() }
}

pub(crate) fn member(node: usize) -> MemberId {
    MemberId(node as u64)
}

/// What a node says of itself; the payload is of the generation that it comes from.
fn introduction(node: usize, generation: u64) -> Introduction {
    let payload = Arc::from([node as u8, generation as u8]);
    Introduction { id: member(node), contact: Arc::from([node as u8]), payload }
}
