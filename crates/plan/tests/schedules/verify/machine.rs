//! The state of all ranks in a symbolic run, and what each message step does to it.
//!
//! A step either completes, completes a first half (a message is taken but cannot be written yet), or waits. A rank
//! that waits rests until another rank does something that may concern it: sends it a message, takes one of its
//! messages, or does something to the window that it *watches*. Of several ranks that all have to do something, it
//! watches the first. Window and mapped steps are in the sibling `window`.

use std::collections::{HashMap, VecDeque};

use super::contents::{Contents, Contributors, Fragment, Trouble, combine};
use super::flaw::{Cause, Flaw, Spot, Stuck};
use super::order::{Order, Turns};
use super::window::Window;
use super::{Goal, Task};
use farandole_plan::request::Rank;
use farandole_plan::schedule::{Arrival, Buffer, Schedule, Span, Step};
use farandole_plan::topology::Topology;

/// Whom a step may enable to go on.
pub(super) enum Wake {
    Nobody,
    One(usize),
    /// Everybody who waits for this rank's window or mapped buffer.
    Watchers,
}

/// What became of a step.
pub(super) enum Outcome {
    Done(Wake),
    /// Something happened, but the step is not complete.
    Halfway(Wake),
    /// Nothing can happen until these ranks do something.
    Waits(Cause, Vec<usize>),
}

/// A posted send. The elements stay with the sender until the receiver takes them.
struct Message {
    number: u64,
    from: Buffer,
    span: Span,
    /// In a barrier: who the sender knew had come when it posted.
    knows: Contributors,
}

/// A send whose elements the receiver has not taken.
struct InFlight {
    number: u64,
    to: usize,
    span: Span,
}

/// One rank in the run.
pub(super) struct Actor {
    pub(super) next: usize,
    pub(super) work: Contents,
    source: Contents,
    in_flight: Vec<InFlight>,
    /// A message that has been taken but not written.
    held: Option<Vec<Fragment>>,
    knows: Contributors,
    pub(super) window: Window,
    pub(super) exposed: bool,
    pub(super) settled: bool,
}

impl Actor {
    pub(super) fn buffer(&self, which: Buffer) -> &Contents {
        match which {
            Buffer::Work => &self.work,
            Buffer::Source => &self.source,
        }
    }
}

pub(super) struct Machine<'a> {
    schedules: &'a [Schedule],
    topology: &'a Topology,
    task: &'a Task,
    pub(super) actors: Vec<Actor>,
    mail: HashMap<(usize, usize), VecDeque<Message>>,
    posted: u64,
    /// For each rank, those who watch its window.
    watchers: Vec<Vec<usize>>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(schedules: &'a [Schedule], topology: &'a Topology, task: &'a Task) -> Result<Machine<'a>, Flaw> {
        let mut actors = Vec::with_capacity(schedules.len());
        let watchers = vec![Vec::new(); schedules.len()];
        for (rank, schedule) in schedules.iter().enumerate() {
            let expected = schedules[topology.ranks_on(topology.host_of(Rank::from(rank)))[0].index()].slots;
            if schedule.slots != expected {
                return Err(Flaw::SlotsDiffer { rank: Rank::from(rank), slots: schedule.slots, expected });
            }
            actors.push(Actor {
                next: 0,
                work: task.work[rank].clone(),
                source: task.source[rank].clone(),
                in_flight: Vec::new(),
                held: None,
                knows: Contributors::only(rank),
                window: Window::new(schedule.slots),
                exposed: false,
                settled: false,
            });
        }
        Ok(Machine { schedules, topology, task, actors, mail: HashMap::new(), posted: 0, watchers })
    }

    /// Takes all steps of all ranks in this order and checks what comes out.
    pub(super) fn run(mut self, order: Order) -> Result<(), Flaw> {
        let mut turns = Turns::new(order, self.actors.len());
        while let Some(rank) = turns.next() {
            let Some(step) = self.schedules[rank].steps.get(self.actors[rank].next) else {
                turns.rest(rank);
                continue;
            };
            let (wake, completed) = match self.take(rank, step)? {
                Outcome::Done(wake) => (wake, 1),
                Outcome::Halfway(wake) => (wake, 0),
                Outcome::Waits(_, on) => {
                    self.watchers[on[0]].push(rank);
                    turns.rest(rank);
                    continue;
                }
            };
            self.actors[rank].next += completed;
            match wake {
                Wake::Nobody => {}
                Wake::One(other) => turns.wake(other),
                Wake::Watchers => self.watchers[rank].drain(..).for_each(|watcher| turns.wake(watcher)),
            }
        }
        self.check_end()
    }

    fn take(&mut self, rank: usize, step: &Step) -> Result<Outcome, Flaw> {
        match *step {
            Step::Send { to, from, span } => self.send(rank, to, from, span),
            Step::Recv { from, span, arrival } => self.recv(rank, from, span, arrival),
            Step::Copy { source, work } => self.copy(rank, source, work),
            _ => self.take_window_step(rank, step),
        }
    }

    fn send(&mut self, rank: usize, to: Rank, from: Buffer, span: Span) -> Result<Outcome, Flaw> {
        let to = self.peer(rank, to)?;
        let actor = &self.actors[rank];
        let buffer = actor.buffer(from);
        self.check_bounds(rank, span, buffer.elems)?;
        self.check_length(rank, span)?;
        // Sends are checked when they are posted; what they carry cannot change until it is taken.
        buffer.read(span).map_err(|trouble| self.flaw(rank, rank, span.start, trouble))?;
        let number = self.posted;
        self.posted += 1;
        let knows = actor.knows.clone();
        self.mail.entry((rank, to)).or_default().push_back(Message { number, from, span, knows });
        if from == Buffer::Work {
            self.actors[rank].in_flight.push(InFlight { number, to, span });
        }
        Ok(Outcome::Done(Wake::One(to)))
    }

    fn recv(&mut self, rank: usize, from: Rank, span: Span, arrival: Arrival) -> Result<Outcome, Flaw> {
        let sender = self.peer(rank, from)?;
        self.check_bounds(rank, span, self.actors[rank].work.elems)?;
        self.check_length(rank, span)?;
        let Some(arrived) = self.actors[rank].held.take() else {
            let Some(message) = self.mail.get_mut(&(sender, rank)).and_then(VecDeque::pop_front) else {
                return Ok(Outcome::Waits(Cause::Message, vec![sender]));
            };
            if message.span.len != span.len {
                let (sent, expected) = (message.span.len, span.len);
                return Err(Flaw::LengthMismatch { spot: self.spot(rank), from, sent, expected });
            }
            self.accept(rank, sender, &message);
            return Ok(Outcome::Halfway(Wake::One(sender)));
        };
        let overlapping = self.actors[rank].in_flight.iter().filter(|send| send.span.overlaps(span));
        let takers: Vec<usize> = overlapping.map(|send| send.to).collect();
        if !takers.is_empty() {
            self.actors[rank].held = Some(arrived);
            return Ok(Outcome::Waits(Cause::SendToLeave, takers));
        }
        let result = match arrival {
            Arrival::Place => arrived,
            Arrival::Fold => {
                let present = self.actors[rank].work.look(span);
                combine(&present, &arrived).map_err(|trouble| self.flaw(rank, rank, span.start, trouble))?
            }
        };
        self.actors[rank].work.place(span.start, result);
        Ok(Outcome::Done(Wake::Nobody))
    }

    /// Moves a message from its sender into the receiver's hand.
    fn accept(&mut self, rank: usize, sender: usize, message: &Message) {
        let actor = &mut self.actors[sender];
        let buffer = actor.buffer(message.from);
        let elements = buffer.look(message.span);
        actor.in_flight.retain(|send| send.number != message.number);
        self.actors[rank].held = Some(elements);
        if self.task.barrier {
            self.actors[rank].knows = self.actors[rank].knows.union(&message.knows).0;
        }
    }

    fn copy(&mut self, rank: usize, source: Span, work: Span) -> Result<Outcome, Flaw> {
        self.check_bounds(rank, source, self.actors[rank].source.elems)?;
        self.check_bounds(rank, work, self.actors[rank].work.elems)?;
        if source.len != work.len {
            let (sent, expected) = (source.len, work.len);
            return Err(Flaw::LengthMismatch { spot: self.spot(rank), from: Rank::from(rank), sent, expected });
        }
        let elements = self.actors[rank].source.read(source);
        let elements = elements.map_err(|trouble| self.flaw(rank, rank, source.start, trouble))?;
        self.write(rank, rank, work, elements)?;
        Ok(Outcome::Done(Wake::Nobody))
    }

    /// Writes into the work buffer of `owner` in a step that does not wait for posted sends.
    pub(super) fn write(&mut self, rank: usize, owner: usize, span: Span, elements: Vec<Fragment>) -> Result<(), Flaw> {
        if let Some(send) = self.actors[owner].in_flight.iter().find(|send| send.span.overlaps(span)) {
            return Err(Flaw::OverwrittenSend { spot: self.spot(rank), sender: Rank::from(owner), span: send.span });
        }
        self.actors[owner].work.place(span.start, elements);
        Ok(())
    }

    pub(super) fn spot(&self, rank: usize) -> Spot {
        Spot { rank: Rank::from(rank), step: self.actors[rank].next }
    }

    /// The other ranks of the host.
    pub(super) fn locals(&self, rank: usize) -> impl Iterator<Item = usize> + use<'a> {
        let locals = self.topology.ranks_on(self.topology.host_of(Rank::from(rank)));
        locals.iter().map(|local| local.index()).filter(move |&local| local != rank)
    }

    pub(super) fn flaw(&self, rank: usize, owner: usize, start: u64, trouble: Trouble) -> Flaw {
        let spot = self.spot(rank);
        match trouble {
            Trouble::Unwritten { offset } => {
                Flaw::ReadBeforeWrite { spot, owner: Rank::from(owner), element: start + offset }
            }
            Trouble::Double { offset, contributor } => {
                Flaw::DoubleContribution { spot, element: start + offset, contributor: Rank(contributor) }
            }
            Trouble::Misplaced { offset, origin } => Flaw::Misplaced { spot, element: start + offset, origin },
        }
    }

    pub(super) fn check_bounds(&self, rank: usize, span: Span, elems: u64) -> Result<(), Flaw> {
        if span.end() <= elems { Ok(()) } else { Err(Flaw::OutOfBounds { spot: self.spot(rank), span, elems }) }
    }

    fn check_length(&self, rank: usize, span: Span) -> Result<(), Flaw> {
        if span.is_empty() && !self.task.barrier {
            return Err(Flaw::EmptyMessage { spot: self.spot(rank) });
        }
        Ok(())
    }

    fn peer(&self, rank: usize, peer: Rank) -> Result<usize, Flaw> {
        if peer.index() < self.actors.len() && peer.index() != rank {
            return Ok(peer.index());
        }
        Err(Flaw::NoSuchPeer { spot: self.spot(rank), peer })
    }

    fn check_end(&mut self) -> Result<(), Flaw> {
        let mut stuck = Vec::new();
        for rank in 0..self.actors.len() {
            if let Some(step) = self.schedules[rank].steps.get(self.actors[rank].next) {
                let spot = self.spot(rank);
                if let Outcome::Waits(cause, on) = self.take(rank, step)? {
                    stuck.push(Stuck { spot, cause, on: on.into_iter().map(Rank::from).collect() });
                }
            }
        }
        if !stuck.is_empty() {
            return Err(Flaw::Deadlock { stuck });
        }
        let left_over = self.mail.iter().filter_map(|(&pair, queue)| queue.front().map(|message| (pair, message.span)));
        if let Some(((from, to), span)) = left_over.min_by_key(|&(pair, _)| pair) {
            return Err(Flaw::MessageLeftOver { from: Rank::from(from), to: Rank::from(to), span });
        }
        self.task.goals.iter().try_for_each(|goal| self.check_goal(goal))?;
        if self.task.barrier {
            self.check_knowledge()?;
        }
        Ok(())
    }

    fn check_goal(&self, goal: &Goal) -> Result<(), Flaw> {
        let rank = Rank::from(goal.rank);
        let mut offset = 0;
        for fragment in self.actors[goal.rank].work.look(goal.span) {
            let element = goal.span.start + offset;
            let Some(value) = fragment.value else {
                return Err(Flaw::MissingContribution { rank, element, contributor: Rank(goal.who.first()) });
            };
            if let Some(missing) = goal.who.first_outside(&value.who) {
                return Err(Flaw::MissingContribution { rank, element, contributor: Rank(missing) });
            }
            if let Some(unwanted) = value.who.first_outside(&goal.who) {
                return Err(Flaw::UnwantedContribution { rank, element, contributor: Rank(unwanted) });
            }
            if value.origin != goal.origin + offset {
                return Err(Flaw::Misplaced { spot: self.spot(goal.rank), element, origin: value.origin });
            }
            offset += fragment.len;
        }
        Ok(())
    }

    fn check_knowledge(&self) -> Result<(), Flaw> {
        let everybody = Contributors::all(self.actors.len());
        for (rank, actor) in self.actors.iter().enumerate() {
            if let Some(absent) = everybody.first_outside(&actor.knows) {
                return Err(Flaw::LeavesEarly { rank: Rank::from(rank), absent: Rank(absent) });
            }
        }
        Ok(())
    }
}
