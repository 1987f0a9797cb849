//! THE loop: [`Driver::turn`]. It takes commands, gives every group its turn, and ends groups that are in error.
//!
//! A turn does what can be done now and never blocks; who calls it, and where the caller sleeps when nothing moves, is
//! decided in `driver_lock`. The driver is the only one who touches groups, meshes and regions under way.
//!
//! All moments that groups are told are awake time (`farandole_transport::awake`), counted from the start of this
//! rank's clock: a rank that was stopped blames nobody for what it did not hear meanwhile.
//!
//! The first error counts. An error of the world's group, a panic of ours or an abort ends every group with the same
//! cause; an error of another group ends that group alone. Whatever goes wrong during an abort counts as its effect
//! (`abort`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_plan::stall::{DirectWait, GroupState};
use farandole_plan::{GroupId, RankDeparture, Request};
use farandole_trace::event::NameId;
use farandole_transport::{AwakeClock, Waiter};

use crate::abort::AbortHandle;
use crate::command_queue::CommandQueue;
use crate::completion::Slot;
use crate::driver_faults::panic_text;
use crate::driver_lock::LONGEST_SLEEP;
use crate::error::Error;
use crate::group::{Group, Look, StallNotice, TurnInput};
use crate::pending::Pending;
use crate::status_reporter::StatusReporter;
use crate::tensor_table::TensorTable;
use crate::transfer::Transfer;

/// What threads ask of the driver. Nearly all orders are submissions, so nothing is gained by making the others' size
/// theirs.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Command {
    /// Carry this out.
    Submit { group: GroupId, request: Request, pending: Pending },
    /// Take this group in.
    AddGroup(Box<Group>),
    /// Send to, or receive from, another rank of a group.
    Transfer { group: GroupId, transfer: Transfer, pending: Pending },
    /// Leave this group, and say when it is done.
    RemoveGroup { group: GroupId, done: Arc<Slot<()>> },
    /// The thread that submits waits for this request.
    Awaits { group: GroupId, name: Arc<str> },
    /// A direct call of this rank waits: look into it.
    Waits(DirectWait),
    /// An optimizer of this rank reduces gradients of these names in every step.
    Reduces { group: GroupId, names: Vec<Arc<str>> },
    /// Leave all groups in good order, for this cause.
    Shutdown(RankDeparture),
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Something moved; turn again.
    Moved,
    /// Nothing can be done now.
    Still,
    /// The engine is shut down; there will be nothing to do any more.
    Over,
}

/// Receives the reports of the stall watch.
pub type OnStall = Arc<dyn Fn(&StallNotice) + Send + Sync>;

/// Everything the engine works on.
pub(crate) struct Driver {
    pub(crate) groups: Vec<Group>,
    /// Groups whose end somebody waits for.
    pub(crate) ending: Vec<(GroupId, Arc<Slot<()>>)>,
    /// The start of this rank's clock.
    pub(crate) start: Instant,
    pub(crate) clock: AwakeClock,
    pub(crate) tensor_table: Arc<TensorTable>,
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) abort: AbortHandle,
    /// Whether the abort handle has rung and been acted on.
    pub(crate) aborted: bool,
    pub(crate) on_stall: OnStall,
    /// Says what this rank does when others wait for it.
    pub(crate) status_reporter: StatusReporter,
    /// Orders of the current turn, the next one last; empty between turns, unless one has panicked.
    pub(crate) orders: Vec<Command>,
    pub(crate) took_something: bool,
    /// When the last turn began.
    pub(crate) turned_at: Duration,
    pub(crate) shutting_down: bool,
    pub(crate) dozing: bool,
}

impl Driver {
    pub(crate) fn new(
        world: Group,
        start: Instant,
        tensor_table: Arc<TensorTable>,
        waiter: Arc<Waiter>,
        abort: AbortHandle,
        on_stall: OnStall,
        status_reporter: StatusReporter,
    ) -> Driver {
        Driver {
            groups: vec![world],
            ending: Vec::new(),
            start,
            clock: AwakeClock::new(start),
            tensor_table,
            waiter,
            abort,
            aborted: false,
            on_stall,
            status_reporter,
            orders: Vec::new(),
            took_something: false,
            turned_at: Duration::ZERO,
            shutting_down: false,
            dozing: false,
        }
    }

    /// Does what can be done now.
    pub(crate) fn turn(&mut self, commands: &CommandQueue<Command>, look: Look) -> Turn {
        match catch_unwind(AssertUnwindSafe(|| self.turn_or_panic(commands, look))) {
            Ok(turn) => turn,
            Err(panic) => {
                self.survive(&format!("the engine has a bug: {}", panic_text(&*panic)));
                Turn::Moved
            }
        }
    }

    fn turn_or_panic(&mut self, commands: &CommandQueue<Command>, look: Look) -> Turn {
        let now = self.look_at_clock();
        self.turned_at = now;
        let aborted = self.check_abort();
        self.took_something = self.take_commands(commands, now);
        let mut moved = self.took_something || aborted;
        if let (true, Some(world)) = (self.took_something, self.groups.first_mut()) {
            world.note_cycle(now);
        }
        for index in 0..self.groups.len() {
            let turn = TurnInput { now, tensor_table: &self.tensor_table, on_stall: &*self.on_stall };
            match self.groups[index].turn(look, &turn) {
                Ok(group_moved) => moved |= group_moved,
                Err(group_error) => {
                    self.fail(index, group_error);
                    moved = true;
                }
            }
        }
        self.be_asked(now);
        self.retire(now);
        match moved {
            _ if self.shutting_down && self.groups.is_empty() => Turn::Over,
            true => Turn::Moved,
            false => Turn::Still,
        }
    }

    /// The time at the beginning of a turn.
    pub(crate) fn look_at_clock(&mut self) -> Duration {
        let before = self.clock.slept();
        let now = self.clock.look(Instant::now(), LONGEST_SLEEP);
        if self.clock.slept() != before {
            let slept = self.clock.slept();
            self.groups.iter_mut().for_each(|group| group.slept(slept));
        }
        now.saturating_duration_since(self.start)
    }

    /// The time within a turn.
    pub(crate) fn now(&self) -> Duration {
        self.clock.peek(Instant::now(), LONGEST_SLEEP).saturating_duration_since(self.start)
    }

    /// Others wait for this rank and want to know why. What its groups are at is told of all of them: the one that
    /// holds it up may be another.
    fn be_asked(&mut self, now: Duration) {
        if !self.groups.iter().any(Group::is_asked) {
            return;
        }
        let states: Vec<GroupState> = self.groups.iter().filter_map(|group| group.state(now)).collect();
        for group in self.groups.iter_mut().filter(|group| group.is_asked()) {
            group.begin_answer(&self.status_reporter, states.clone());
        }
    }

    fn take_commands(&mut self, commands: &CommandQueue<Command>, now: Duration) -> bool {
        // A panic may have left some. They come before whatever has been pushed since.
        if self.orders.is_empty() {
            commands.take_all(&mut self.orders);
            self.orders.reverse();
        }
        let took_something = !self.orders.is_empty();
        while let Some(order) = self.orders.pop() {
            self.take_command(order, now);
        }
        took_something
    }

    fn take_command(&mut self, order: Command, now: Duration) {
        match order {
            Command::Submit { group, request, pending } => {
                let turn = TurnInput { now, tensor_table: &self.tensor_table, on_stall: &*self.on_stall };
                match self.groups.iter_mut().find(|candidate| candidate.id() == group) {
                    Some(group) => group.submit(request, pending, &turn),
                    None => {
                        let error = self.tensor_table.ended(group).unwrap_or(Error::UnknownGroup(group));
                        pending.fail(error);
                    }
                }
            }
            Command::Transfer { group, transfer, pending } => {
                match self.groups.iter_mut().find(|candidate| candidate.id() == group) {
                    Some(found) => found.begin_transfer(transfer, pending, &self.tensor_table),
                    None => pending.fail(self.tensor_table.ended(group).unwrap_or(Error::UnknownGroup(group))),
                }
            }
            Command::AddGroup(mut group) => {
                // The world may have ended since the members met; a group does not outlive it.
                if let Some(error) = self.tensor_table.ended(GroupId::WORLD) {
                    let turn = TurnInput { now, tensor_table: &self.tensor_table, on_stall: &*self.on_stall };
                    group.fail(&error, &turn);
                }
                group.slept(self.clock.slept());
                self.groups.push(*group);
            }
            Command::RemoveGroup { group, done } => {
                match self.groups.iter_mut().find(|candidate| candidate.id() == group) {
                    Some(found) => {
                        self.ending.push((group, done));
                        found.close(None, now);
                    }
                    None => done.fulfil(()),
                }
            }
            Command::Awaits { group, name } => self.awaits(group, &name),
            Command::Waits(wait) => self.tell_of_direct_call(wait, now),
            Command::Reduces { group, names } => {
                if let Some(found) = self.groups.iter_mut().find(|candidate| candidate.id() == group) {
                    found.reduces(names);
                }
            }
            Command::Shutdown(departure) => {
                self.shutting_down = true;
                self.tensor_table.end_all(&Error::ShutDown);
                for group in &mut self.groups {
                    group.close(Some(departure.clone()), now);
                }
            }
        }
    }

    /// Drops groups that are over.
    pub(crate) fn retire(&mut self, now: Duration) {
        if !self.groups.iter().any(|group| group.is_over(now)) {
            return;
        }
        self.groups.retain(|group| !group.is_over(now));
        let groups = &self.groups;
        self.ending.retain(|(ended, done)| {
            let is_there = groups.iter().any(|group| group.id() == *ended);
            if !is_there {
                done.fulfil(());
            }
            is_there
        });
    }

    /// Whether the last turn took orders in.
    pub(crate) fn took_something(&self) -> bool {
        self.took_something
    }

    /// When the last turn began.
    pub(crate) fn turned_at(&self) -> Duration {
        self.turned_at
    }

    /// A moment as it is recorded.
    pub(crate) fn time_ns(&self, moment: Duration) -> u64 {
        self.groups.first().map_or(0, |world| world.time_ns(moment))
    }

    /// The thread that drives has waited for a request since then, and goes on now.
    pub(crate) fn note_wait(&mut self, name: NameId, since: Duration) {
        if let Some(world) = self.groups.first_mut() {
            world.note_wait(name, since, self.turned_at);
        }
    }

    /// The thread that submits waits for this request, and submits nothing more before it is done.
    pub(crate) fn awaits(&mut self, group: GroupId, name: &str) {
        if let Some(group) = self.groups.iter_mut().find(|candidate| candidate.id() == group) {
            group.awaits(name);
        }
    }

    /// Whether somebody waits for this rank to go on.
    pub(crate) fn has_work(&self) -> bool {
        self.shutting_down || self.groups.iter().any(Group::has_work)
    }

    /// How long the driver may sleep if nothing happens.
    pub(crate) fn next_timeout(&self) -> Duration {
        let due = self.groups.iter().map(Group::next_timeout).min().unwrap_or(Duration::MAX);
        due.saturating_sub(self.now())
    }

    /// The driver is about to sleep: from now on, peers on this host ring. Turn once more before sleeping.
    pub(crate) fn before_sleep(&mut self) {
        self.dozing = true;
        self.groups.iter_mut().for_each(Group::fall_asleep);
    }

    /// Another thread has the driver lock.
    pub(crate) fn pick_up(&mut self) {
        self.groups.iter_mut().for_each(Group::pick_up);
    }

    /// The driver is awake: peers need not ring.
    pub(crate) fn after_sleep(&mut self) {
        if std::mem::take(&mut self.dozing) {
            self.groups.iter().for_each(Group::wake_up);
        }
    }
}
