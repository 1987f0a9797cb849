//! A simulated job: what happens, and when. Everything follows from the seed.

#[path = "strike.rs"]
mod strike;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Instant;

use farandole_cluster::membership::simulated::{BoundaryOutcome, Command, EndpointCore, answer_as_witness};
use farandole_cluster::membership::{Generation, Introduction};
use farandole_plan::membership::LossEvidence;

use super::disk::{DiskState, Publishing, SharedDisk};
use super::faults::{Fault, Plan};
use super::kernel::{self, Delivery, Kernel, MILLISECOND};
use super::node::{Doing, Learned, Node, member};
use super::random::Random;
use super::witness::Witness;

/// The longest silence, in microseconds.
pub(crate) const SILENCE: u64 = 2000 * MILLISECOND;
pub(crate) const BEAT: u64 = SILENCE / 4;
/// How long a member stays at the boundary.
const ELASTIC_TIMEOUT: u64 = 30 * SILENCE;
/// A step of the training takes up to this.
const STEP: u64 = 200 * MILLISECOND;
/// A thread that has something to do gets the processor this late at most.
const SCHEDULING: u64 = 200;
/// More processes than any run has.
const MOST_NODES: usize = 16;

/// The clock of all runs begins here; only differences to it matter.
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What happens at a time.
#[derive(Clone, Debug)]
enum Event {
    Delivery(Delivery),
    Wake {
        node: usize,
    },
    /// It notices that its generation cannot continue, or has agreed with the others to let candidates in.
    Come {
        node: usize,
        generation: u64,
    },
    GiveUp {
        node: usize,
        stay: u32,
    },
    /// It looks whether candidates wait.
    Look {
        node: usize,
    },
    /// A generation makes a step, if all its members are at work.
    Step {
        generation: u64,
    },
    /// A call of a process to the disk may be ready.
    Disk {
        node: usize,
    },
    /// A process is told by its agent what was seen of another one.
    Report {
        node: usize,
        about: usize,
    },
    /// A question arrives at the witness, or an answer at a process.
    Question {
        node: usize,
        question: Vec<u8>,
    },
    Answer {
        node: usize,
        answer: Vec<u8>,
    },
    Fault(Fault),
}

/// The whole job.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) plan: Plan,
    pub(crate) witness: Witness,
    pub(crate) kernel: kernel::Shared,
    random: Random,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    /// Events by number; those that have happened are empty.
    events: Vec<Option<Event>>,
    quiet: bool,
    /// Whether events are printed.
    is_verbose: bool,
    /// The last generation for which steps are scheduled.
    stepping: u64,
    pub(crate) disk: SharedDisk,
    /// Publications in flight, by process.
    publishing: BTreeMap<usize, Publishing>,
    launcher: farandole_plan::membership::Witness,
}

impl World {
    pub(crate) fn new(plan: Plan, mut random: Random, is_verbose: bool) -> World {
        let seed = random.next();
        let kernel = Rc::new(RefCell::new(Kernel::new(plan.weather, Random::new(seed))));
        let nodes = plan.hosts.iter().map(|host| Node::new(&kernel, *host, plan.limits, *BASE)).collect();
        let disk = Rc::new(RefCell::new(DiskState::new(plan.disk, Random::new(random.next()))));
        let mut world = World {
            now: 0,
            nodes,
            witness: Witness::default(),
            kernel,
            random,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            quiet: false,
            is_verbose,
            stepping: 0,
            disk,
            publishing: BTreeMap::new(),
            launcher: farandole_plan::membership::Witness::default(),
            plan,
        };
        world.found();
        for (when, fault) in world.plan.faults.clone() {
            world.at(when, Event::Fault(fault));
        }
        world
    }

    fn found(&mut self) {
        let introduce = |(id, node): (usize, &Node)| Introduction {
            id: member(id),
            contact: node.contact.clone().into(),
            payload: Learned::default().encode().into(),
        };
        let members = self.nodes.iter().enumerate().map(introduce).collect();
        let first = Arc::new(Generation { number: 1, members, left_out: Vec::new(), witness: self.plan.witness });
        for id in 0..self.nodes.len() {
            let (me, generation) = (member(id), Arc::clone(&first));
            self.nodes[id].shared.enter(Arc::clone(&generation));
            self.nodes[id].commands.push(Command::Found { me, generation });
            let soon = self.random.below(5 * MILLISECOND);
            self.wake(id, soon);
            self.schedule_look(id);
        }
        self.schedule_step(1);
    }

    /// Lets the next thing happen; if there is nothing, time passes.
    pub(crate) fn step(&mut self) {
        let Some(Reverse((when, number))) = self.queue.pop() else {
            self.now += BEAT;
            return;
        };
        let event = self.events[number as usize].take().expect("every event happens once");
        self.now = when;
        self.kernel.borrow_mut().now = when;
        self.disk.borrow_mut().now = when;
        self.witness.note(when, number);
        self.happen(event);
        self.collect();
    }

    pub(crate) fn run_until(&mut self, until: u64) {
        while self.now < until {
            self.step();
        }
    }

    /// Everything that was cut or stopped continues.
    pub(crate) fn calm_down(&mut self) {
        self.quiet = true;
        self.kernel.borrow_mut().calm_down();
        self.kernel.borrow_mut().weather.slowest = BEAT / 2;
        for node in 0..self.nodes.len() {
            self.resume(node);
        }
        self.collect();
    }

    /// Schedules what the kernels have to deliver.
    fn collect(&mut self) {
        let (sent, woken) = {
            let mut kernel = self.kernel.borrow_mut();
            (std::mem::take(&mut kernel.sent), std::mem::take(&mut kernel.woken))
        };
        for (when, delivery) in sent {
            self.at(when.max(self.now), Event::Delivery(delivery));
        }
        let due = std::mem::take(&mut self.disk.borrow_mut().due);
        for (when, node) in due {
            self.at(when.max(self.now), Event::Disk { node });
        }
        for node in woken {
            let soon = self.random.below(SCHEDULING);
            self.wake(node, soon);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Delivery(delivery) => {
                self.say(|| format!("{delivery:?}"));
                self.kernel.borrow_mut().deliver(delivery);
            }
            Event::Wake { node } => {
                if self.nodes[node].wake_at <= self.now && self.nodes[node].is_awake() {
                    self.nodes[node].wake_at = u64::MAX;
                    self.turn(node);
                }
            }
            Event::Come { node, generation } => self.come(node, generation),
            Event::GiveUp { node, stay } => {
                if self.nodes[node].doing == Doing::Waiting(stay) {
                    self.command(node, Command::GiveUp);
                }
            }
            Event::Look { node } => self.look(node),
            Event::Step { generation } => self.train(generation),
            Event::Disk { node } => self.write(node),
            Event::Report { node, about } => {
                let (member, cause) = (member(about), "its agent says so".to_owned());
                let evidence = self.kernel.borrow().votes(about).map_or(LossEvidence::Dead, LossEvidence::Reaped);
                self.command(node, Command::Report { member, evidence, cause });
            }
            Event::Question { node, question } => self.answer(node, &question),
            Event::Answer { node, answer } => self.command(node, Command::Witness(answer)),
            Event::Fault(fault) if !self.quiet => self.strike(fault),
            Event::Fault(_) => {}
        }
    }

    pub(crate) fn command(&mut self, node: usize, command: Command) {
        self.say(|| format!("{node} is told {command:?}"));
        self.nodes[node].commands.push(command);
        self.wake(node, 0);
    }

    fn wake(&mut self, node: usize, later: u64) {
        let when = self.now + later;
        if self.nodes[node].alive && self.nodes[node].doing != Doing::Ended && when < self.nodes[node].wake_at {
            self.nodes[node].wake_at = when;
            self.at(when, Event::Wake { node });
        }
    }

    fn turn(&mut self, node: usize) {
        if self.nodes[node].core.is_none() {
            return;
        }
        let next = self.nodes[node].turn(*BASE, self.now);
        if self.kernel.borrow().has_died_within_a_turn(node) {
            self.say(|| format!("{node} dies within a turn"));
            return self.kill(node);
        }
        self.observe(node);
        self.ask(node);
        match next {
            Some(when) if self.nodes[node].alive => self.wake(node, when.saturating_sub(self.now)),
            _ => self.end(node),
        }
    }

    /// Sends the questions of a process to the witness, which is on host 0. A cut loses them.
    fn ask(&mut self, node: usize) {
        let questions = std::mem::take(&mut *self.nodes[node].questions.lock().unwrap());
        for question in questions {
            if self.reaches_witness(node) {
                let later = self.random.below(20 * MILLISECOND);
                self.at(self.now + later, Event::Question { node, question });
            }
        }
    }

    fn answer(&mut self, node: usize, question: &[u8]) {
        let answer = answer_as_witness(&mut self.launcher, question).expect("a question has a form");
        if self.reaches_witness(node) {
            let later = self.random.below(20 * MILLISECOND);
            self.at(self.now + later, Event::Answer { node, answer });
        }
    }

    fn reaches_witness(&self, node: usize) -> bool {
        let kernel = self.kernel.borrow();
        let host = kernel.host(node);
        !kernel.is_cut(host, 0) && !kernel.is_cut(0, host)
    }

    /// Looks at what a process was told in a turn.
    fn observe(&mut self, node: usize) {
        let has_withheld = self.nodes[node].core.as_ref().is_some_and(EndpointCore::has_withheld);
        let generation = self.nodes[node].generation().filter(|_| !has_withheld).map(Arc::clone);
        if let Some(generation) = generation
            && generation.number != self.nodes[node].entered
            && generation.contains(member(node))
        {
            self.say(|| format!("{node} enters generation {}", list(&generation)));
            self.nodes[node].entered = generation.number;
            self.witness.entered(node, &generation);
        }
        let (outcome, is_troubled) = {
            let state = self.nodes[node].shared.state();
            let number = state.generation.as_ref().map(|generation| generation.number);
            let is_called = state.called.is_some_and(|(generation, _)| Some(generation) == number);
            (state.outcome.clone(), is_called || !state.notices.is_empty())
        };
        match (outcome, self.nodes[node].doing) {
            (Some(BoundaryOutcome::Installed(generation)), Doing::Waiting(_)) => self.begin_training(node, &generation),
            (Some(BoundaryOutcome::Evicted { generation, cause }), Doing::Training | Doing::Waiting(_)) => {
                self.say(|| format!("{node} is evicted from generation {generation}: {cause}"));
                self.witness.evicted(node);
                self.leave(node);
            }
            (Some(BoundaryOutcome::GaveUp), Doing::Waiting(_)) => self.leave(node),
            (_, Doing::Training) if is_troubled => {
                let generation = self.nodes[node].number();
                if self.nodes[node].failed < generation {
                    self.nodes[node].failed = generation;
                    let soon = self.random.below(20 * MILLISECOND);
                    self.at(self.now + soon, Event::Come { node, generation });
                }
            }
            _ => {}
        }
    }

    fn begin_training(&mut self, node: usize, generation: &Arc<Generation>) {
        self.nodes[node].doing = Doing::Training;
        self.nodes[node].learned = Witness::state_of(generation);
        self.say(|| format!("{node} works in generation {}", generation.number));
        self.witness.installed(generation, &self.nodes);
        self.schedule_look(node);
        if generation.number > self.stepping {
            self.schedule_step(generation.number);
        }
    }

    /// The process drops its endpoint.
    fn leave(&mut self, node: usize) {
        self.command(node, Command::Leave);
    }

    fn kill(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        self.nodes[node].alive = false;
        self.witness.note(node as u64, 1);
        self.kernel.borrow_mut().leave_to_heirs(node);
        self.report_death(node);
        self.close(node);
    }

    /// A process ends by itself.
    fn end(&mut self, node: usize) {
        if self.nodes[node].doing != Doing::Ended {
            self.say(|| format!("{node} ends"));
            self.nodes[node].doing = Doing::Ended;
            self.report_death(node);
            self.close(node);
        }
    }

    fn close(&mut self, node: usize) {
        self.break_engines(node);
        drop(self.nodes[node].core.take());
        self.publishing.remove(&node);
        self.kernel.borrow_mut().end(node);
        self.collect();
    }

    /// The agent of the host reaps the process, and says so.
    fn report_death(&mut self, about: usize) {
        if self.random.below(256) >= self.plan.reported {
            return;
        }
        for node in (0..self.nodes.len()).filter(|node| *node != about) {
            let later = self.random.below(self.plan.report_delay);
            self.at(self.now + later, Event::Report { node, about });
        }
    }

    fn resume(&mut self, node: usize) {
        if std::mem::take(&mut self.nodes[node].stopped) {
            self.nodes[node].wake_at = u64::MAX;
            self.wake(node, 0);
            self.write(node);
            if self.nodes[node].doing == Doing::Training {
                self.schedule_look(node);
            }
        }
    }

    /// Continues the publication of a process.
    fn write(&mut self, node: usize) {
        let Some(publishing) = self.publishing.get_mut(&node).filter(|_| self.nodes[node].is_awake()) else { return };
        let process = &self.nodes[node];
        let works = process.doing == Doing::Training && process.number() == publishing.token.generation;
        publishing.may_publish.set(works);
        if publishing.poll() {
            let token = publishing.token;
            self.publishing.remove(&node);
            self.say(|| format!("{node} has published {token}, or failed"));
        }
    }

    /// The first rank publishes its state now and then.
    fn publish(&mut self, node: usize, generation: &Generation) {
        let is_first = generation.ids().next() == Some(member(node));
        if is_first && !self.publishing.contains_key(&node) && self.random.below(3) == 0 {
            let publishing = Publishing::begin(&self.disk, node, generation.number, self.nodes[node].learned);
            self.publishing.insert(node, publishing);
            self.write(node);
        }
    }

    /// All processes are killed, and the disk loses what was not synced.
    pub(crate) fn cut_power(&mut self) {
        self.publishing.clear();
        self.disk.borrow_mut().cut_power();
    }

    fn join(&mut self) {
        if self.nodes.len() == MOST_NODES {
            return;
        }
        let id = self.nodes.len();
        let hosts = self.plan.hosts.iter().max().map_or(1, |host| host + 1);
        let host = self.random.below(hosts as u64) as usize;
        let seeds = self.nodes.iter().map(|node| node.contact.clone()).collect();
        let mut node = Node::new(&self.kernel, host, self.plan.limits, *BASE);
        node.commands.push(Command::Join { me: member(id), seeds });
        node.stays = 1;
        node.doing = Doing::Waiting(1);
        node.come();
        self.nodes.push(node);
        self.wake(id, 0);
        self.at(self.now + ELASTIC_TIMEOUT, Event::GiveUp { node: id, stay: 1 });
    }

    /// Training has failed, or was interrupted, in this generation.
    fn come(&mut self, node: usize, generation: u64) {
        let process = &mut self.nodes[node];
        let is_current = process.number() == generation && process.doing == Doing::Training;
        if !is_current || !process.alive {
            return;
        }
        if process.stopped {
            return self.at(self.now + BEAT / 4, Event::Come { node, generation });
        }
        process.stays += 1;
        let stay = process.stays;
        process.doing = Doing::Waiting(stay);
        process.come();
        self.say(|| format!("{node} comes to the boundary of generation {generation}"));
        self.at(self.now + ELASTIC_TIMEOUT, Event::GiveUp { node, stay });
        self.wake(node, 0);
        self.break_engines(node);
    }

    /// A process that leaves its generation closes its links, and the others' collectives fail.
    fn break_engines(&mut self, node: usize) {
        let Some(generation) = self.nodes[node].generation().map(Arc::clone) else { return };
        let others: Vec<usize> = generation.ids().map(|id| id.0 as usize).filter(|other| *other != node).collect();
        for other in others {
            let is_cut = {
                let kernel = self.kernel.borrow();
                kernel.is_cut(kernel.host(node), kernel.host(other))
            };
            let delay = if is_cut { 3 * SILENCE } else { self.random.below(20 * MILLISECOND) };
            self.at(self.now + delay, Event::Come { node: other, generation: generation.number });
        }
    }

    /// A member that trains looks for candidates; by the next step all members have agreed to let them in.
    fn look(&mut self, node: usize) {
        if self.nodes[node].doing != Doing::Training || !self.nodes[node].is_awake() {
            return;
        }
        let Some(machine) = self.nodes[node].machine() else { return };
        let (generation, candidates) = (Arc::clone(machine.generation()), machine.candidates());
        if candidates == 0 {
            return self.schedule_look(node);
        }
        for id in generation.ids() {
            let soon = self.random.below(5 * MILLISECOND);
            self.at(self.now + soon, Event::Come { node: id.0 as usize, generation: generation.number });
        }
    }

    /// A collective of all members. When one of them fails meanwhile, some have completed it and others have not.
    fn train(&mut self, number: u64) {
        if number < self.stepping {
            return;
        }
        let Some(generation) = self.witness.history.generations().get(&number).map(Arc::clone) else {
            return self.schedule_step(number);
        };
        let members: Vec<usize> = generation.ids().map(|id| id.0 as usize).collect();
        let works = |id: &usize| {
            let node = &self.nodes[*id];
            node.is_awake() && node.doing == Doing::Training && node.number() == number
        };
        if !members.iter().all(works) {
            return self.schedule_step(number);
        }
        let is_whole = self.random.below(16) != 0;
        let before = self.nodes[members[0]].learned;
        for id in members {
            assert_eq!(self.nodes[id].learned, before, "members of generation {number} differ at one step");
            if is_whole || self.random.below(2) == 0 {
                self.nodes[id].learned = before.step(&generation);
                self.witness.learned(id, before, &generation, &self.nodes);
                self.disk.borrow_mut().reach(number, self.nodes[id].learned);
                self.publish(id, &generation);
            }
            if !is_whole {
                let soon = self.random.below(20 * MILLISECOND);
                self.at(self.now + soon, Event::Come { node: id, generation: number });
            }
        }
        if is_whole {
            self.schedule_step(number);
        }
    }

    fn schedule_step(&mut self, generation: u64) {
        self.stepping = generation;
        let later = STEP / 2 + self.random.below(STEP / 2);
        self.at(self.now + later, Event::Step { generation });
    }

    fn schedule_look(&mut self, node: usize) {
        let later = BEAT / 2 + self.random.below(BEAT);
        self.at(self.now + later, Event::Look { node });
    }

    fn at(&mut self, when: u64, event: Event) {
        self.queue.push(Reverse((when, self.events.len() as u64)));
        self.events.push(Some(event));
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.is_verbose {
            eprintln!("{:>12.3} ms  {}", self.now as f64 / 1e3, what());
        }
    }
}

/// A generation in the log.
pub(crate) fn list(generation: &Generation) -> String {
    let ids: Vec<String> = generation.ids().map(|id| id.to_string()).collect();
    format!("{} [{}]", generation.number, ids.join(" "))
}
