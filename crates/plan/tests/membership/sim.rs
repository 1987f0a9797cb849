//! A job over a simulated network, driven by a seed: what happens, and when.
//!
//! Processes are state machines ([`Membership`]) on several hosts, which train or are at the boundary. `network` has
//! their connections, `agents` what their agents and the launcher say, `weather` the faults, `mutations` broken rules.
//! A stopped process does nothing, its clock stands still, and what arrives meanwhile it finds when it continues.
//!
//! Everything follows from the seed: the same one gives the same log.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::membership::{
    Generation, Introduction, LossEvidence, MemberId, MemberMessage, MembershipEffect, MembershipInput,
    MembershipStart, Witness, WitnessAnswer, WitnessRequest,
};

use super::mutations::Mutation;
use super::network::Network;
use super::node::{Doing, Node};
use super::random::Random;
use super::watch::Watch;
use super::weather::{Fault, Plan};

pub(crate) const MILLISECOND: u64 = 1000;
/// The longest silence, in microseconds. Short, so that a run has few heartbeats.
pub(crate) const SILENCE: u64 = 200 * MILLISECOND;
pub(crate) const BEAT: u64 = SILENCE / 4;
/// How long a member stays at the boundary.
const ELASTIC_TIMEOUT: u64 = 30 * SILENCE;
/// More processes than any run has.
pub(crate) const MOST_NODES: usize = 16;

/// What happens at a time.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A message arrives at a side of a link.
    Deliver {
        link: usize,
        side: usize,
        message: MemberMessage,
    },
    /// A side has read the stream of a process that has ended to its end.
    End {
        link: usize,
        side: usize,
    },
    /// The hello of the other side arrives.
    Meet {
        link: usize,
        side: usize,
    },
    /// A side notices that the connection carries nothing any more.
    Notice {
        link: usize,
        side: usize,
    },
    Connect {
        one: usize,
        other: usize,
    },
    /// The launcher hears a question to its witness.
    Ask {
        node: usize,
        request: WitnessRequest,
    },
    Answer {
        node: usize,
        answer: WitnessAnswer,
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
    pub(crate) watch: Watch,
    pub(crate) network: Network,
    pub(crate) witness: Witness,
    /// The latest base that the witness was asked about.
    pub(crate) witness_base: u64,
    pub(crate) launcher_is_alive: bool,
    /// Set while a machine greets, if greetings are mutated.
    pub(crate) is_greeting: bool,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) random: Random,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    /// Events by number; those that have happened are empty.
    events: Vec<Option<Event>>,
    pub(crate) quiet: bool,
    /// Whether nodes keep what they are told.
    pub(crate) is_recorded: bool,
}

impl World {
    pub(crate) fn new(plan: Plan, mut random: Random) -> World {
        let introduce = |id: usize| introduction(id, 0);
        let members: Vec<Introduction> = (0..plan.members).map(introduce).collect();
        let first = Arc::new(Generation { number: 1, members, left_out: Vec::new(), witness: plan.has_agents });
        let start = |id| MembershipStart::Founder { me: member(id), generation: first.clone(), limits: plan.limits };
        let node = |id| Node::new(start(id), plan.hosts[id], Duration::ZERO, Doing::Training);
        let nodes = (0..plan.members).map(node).collect();
        let seed = random.next();
        let mut world = World {
            now: 0,
            nodes,
            watch: Watch::new(&first),
            network: Network::new(),
            witness: Witness::default(),
            witness_base: 0,
            launcher_is_alive: true,
            is_greeting: false,
            mutation: None,
            random: Random::new(seed),
            queue: BinaryHeap::new(),
            events: Vec::new(),
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
        self.watch.note(when, number);
        self.happen(event);
    }

    /// The same, in a job of which all rules are kept.
    pub(crate) fn step_well(&mut self) {
        self.step();
        if let Some(violation) = &self.watch.violation {
            panic!("{violation}");
        }
    }

    /// Everything that was cut or stopped continues.
    pub(crate) fn calm_down(&mut self) {
        self.quiet = true;
        for node in 0..self.nodes.len() {
            self.go_on(node);
        }
        self.heal_everything();
    }

    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { link, side, .. } | Event::End { link, side } | Event::Notice { link, side } => {
                self.receive(link, side, event);
            }
            Event::Meet { link, side } => {
                let node = self.network.links[link].ends[side];
                match self.nodes[node].stopped_since {
                    Some(_) => self.nodes[node].inbox.push_back(event),
                    None => self.meet(link, side),
                }
            }
            Event::Connect { one, other } => self.connect(one, other),
            Event::Learn { node, .. } | Event::Answer { node, .. } if self.nodes[node].stopped_since.is_some() => {
                self.nodes[node].inbox.push_back(event);
            }
            Event::Ask { node, request } => self.ask_launcher(node, request),
            Event::Answer { node, answer } => self.drive(node, MembershipInput::HearWitness(answer)),
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
                if self.nodes[node].is_awake() && self.nodes[node].doing != Doing::Ended {
                    self.drive(node, MembershipInput::Leave);
                    self.end(node, true);
                }
            }
            Fault::Join => self.join(),
            Fault::Cut(directions) => self.cut(&directions),
            Fault::Heal(directions) => self.heal(&directions),
            Fault::Break { one, other, end } => self.break_connections(one, other, end),
            Fault::BreakOne { one, other, end } => self.break_one(one, other, end),
            Fault::Double(one, other) => self.connect_again(one, other),
            Fault::KillMidway(node) => self.nodes[node].dies_midway = true,
            Fault::LoseRecord(node) => self.nodes[node].record = None,
            Fault::LoseAgent(host) => {
                let of_host = self.nodes.iter_mut().filter(|node| node.host == host);
                of_host.for_each(|node| node.is_linked = false);
            }
            Fault::KillLauncher => self.launcher_is_alive = false,
            Fault::Doubt { node, about } => {
                self.drive(node, learn(about, LossEvidence::Doubted));
            }
        }
    }

    /// Lets a process do something and does what it says.
    pub(crate) fn drive(&mut self, node: usize, input: MembershipInput) {
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
        let effects = self.mutate(effects);
        let is_vote = |effect: &MembershipEffect| match effect {
            MembershipEffect::Record(_) => true,
            MembershipEffect::Send { message, .. } => matches!(message, MemberMessage::Accepted { .. }),
            _ => false,
        };
        let most = match self.nodes[node].dies_midway && effects.iter().any(is_vote) {
            true => self.random.below(effects.len() as u64) as usize,
            false => effects.len(),
        };
        let dies = most < effects.len();
        // One that dies before it says so has entered nothing.
        let is_said = |effect: &MembershipEffect| match effect {
            MembershipEffect::Installed(_) => true,
            MembershipEffect::Send { message, .. } => matches!(message, MemberMessage::Decided { .. }),
            _ => false,
        };
        let says_so = !dies || effects[..most].iter().any(is_said);
        let machine = &self.nodes[node].machine;
        let is_member = machine.generation().contains(member(node));
        if machine.generation().number != before && is_member && says_so {
            self.watch.entered(node, machine.generation());
        }
        for effect in effects.into_iter().take(most) {
            self.carry_out(node, effect);
        }
        if dies {
            return self.kill(node);
        }
        self.schedule_tick(node);
    }

    /// Breaks rules about what a machine has said.
    fn mutate(&self, mut effects: Vec<MembershipEffect>) -> Vec<MembershipEffect> {
        match self.mutation {
            Some(Mutation::RecordFollowsVote) => {
                effects.sort_by_key(|effect| matches!(effect, MembershipEffect::Record(_)));
            }
            Some(Mutation::VoteIsNotRepeated) if !self.is_greeting => {}
            Some(Mutation::VoteIsNotSaid | Mutation::VoteIsNotRepeated) => effects.retain(|effect| {
                !matches!(effect, MembershipEffect::Send { message: MemberMessage::LeftOut { .. }, .. })
            }),
            Some(Mutation::LeaveHidesVotes) => {
                for effect in &mut effects {
                    if let MembershipEffect::Send { message: MemberMessage::Leave(record), .. } = effect {
                        *record = Default::default();
                    }
                }
            }
            _ => {}
        }
        effects
    }

    fn carry_out(&mut self, node: usize, effect: MembershipEffect) {
        match effect {
            MembershipEffect::Send { to, message } => self.send(node, to.0 as usize, message),
            MembershipEffect::Record(record) => {
                self.nodes[node].record.iter_mut().for_each(|known| *known = record.clone());
            }
            MembershipEffect::AskWitness(request) => self.ask_witness(node, request),
            MembershipEffect::Lost { .. } | MembershipEffect::Called { .. } => {
                let generation = self.nodes[node].machine.generation().number;
                let soon = self.random.below(20 * MILLISECOND);
                self.at(self.now + soon, Event::Come { node, generation });
            }
            MembershipEffect::Installed(generation) => {
                self.nodes[node].doing = Doing::Training;
                self.watch.installed(node, &generation, &self.nodes);
                self.schedule_look(node);
            }
            MembershipEffect::Evicted { .. } => {
                self.watch.evicted(node);
                self.end(node, false);
            }
            MembershipEffect::Waiting(_) | MembershipEffect::Confirmed { outcome: Err(_), .. } => {}
            MembershipEffect::Confirmed { nonce, outcome: Ok(generation) } => {
                self.watch.confirmed(node, nonce, generation);
            }
        }
    }

    fn kill(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        self.nodes[node].alive = false;
        self.watch.killed(node);
        self.close_all(node);
        self.reap(node);
    }

    fn go_on(&mut self, node: usize) {
        let Some(since) = self.nodes[node].stopped_since.take() else { return };
        self.nodes[node].slept += self.now - since;
        let inbox = std::mem::take(&mut self.nodes[node].inbox);
        for event in inbox {
            match event {
                // It had arrived before the network was cut.
                Event::Deliver { link, side, .. } | Event::End { link, side } | Event::Notice { link, side } => {
                    self.arrive(link, side, event);
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
        self.nodes.push(Node::new(start, self.plan.hosts[id], now, Doing::Waiting(0)));
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
    pub(crate) fn break_engines(&mut self, node: usize) {
        let generation = Arc::clone(self.nodes[node].machine.generation());
        let others: Vec<usize> = generation.ids().map(|id| id.0 as usize).filter(|other| *other != node).collect();
        for other in others {
            let is_cut = self.network.is_cut(node, other);
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
        self.watch.gave_up(node);
        self.drive(node, MembershipInput::Leave);
        self.end(node, false);
    }

    /// A process ends by itself.
    fn end(&mut self, node: usize, has_left: bool) {
        if self.nodes[node].doing != Doing::Ended {
            self.nodes[node].doing = Doing::Ended;
            self.close_all(node);
            // One that has left in order is not reported.
            if !has_left {
                self.reap(node);
            }
        }
    }

    /// A member that trains looks for candidates; by the next step all members have agreed to let them in.
    fn look(&mut self, node: usize) {
        if self.nodes[node].doing != Doing::Training || !self.nodes[node].is_awake() {
            return;
        }
        if self.random.below(4) == 0 {
            let nonce = self.watch.asks();
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

    pub(crate) fn at(&mut self, when: u64, event: Event) {
        self.queue.push(Reverse((when, self.events.len() as u64)));
        self.events.push(Some(event));
    }
}

pub(crate) fn learn(about: usize, evidence: LossEvidence) -> MembershipInput {
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
