//! The engine itself: starting, submitting, groups, shutting down.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use farandole_plan::table::Table;
use farandole_plan::{GroupId, Rank};
use farandole_trace::Recorder;
use farandole_trace::event::{NameId, ThreadId};

use crate::abort::AbortHandle;
use crate::command_queue::After;
use crate::completion::Slot;
use crate::completion_queue::{CompletionQueue, Sleeper};
use crate::config::Config;
use crate::connector::Connector;
use crate::driver::{Command, OnStall};
use crate::driver_lock::Push;
use crate::error::{Error, Result};
use crate::pending::{Pending, Promise, Recipient};
use crate::plane::Plane;
use crate::record::group::{Mark, Start};
use crate::shared::Shared;
use crate::start::wait_limits;
use crate::status_reporter::Stacks;
use crate::submission::{Outcome, Returned, Submission};
use crate::ticket::{QuietTickets, Ticket};
use crate::wait_limits::WaitLimits;

/// One rank's engine. See the crate's text.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) worker: Option<JoinHandle<()>>,
    pub(crate) abort: AbortHandle,
    pub(crate) rank: Rank,
    pub(crate) hosts: Arc<[String]>,
    /// The same for messages.
    pub(crate) host_names: Arc<[String]>,
    pub(crate) config: Config,
    pub(crate) table: Option<Arc<Table>>,
    pub(crate) planes: Vec<Arc<dyn Plane>>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) start: Start,
    pub(crate) forming: Mutex<Forming>,
}

/// What adding groups needs. The lock keeps two threads of this rank from adding groups in two orders.
pub(crate) struct Forming {
    pub(crate) connector: Box<dyn Connector>,
    /// Groups added or tried so far, on all ranks alike. Connections and records are told apart by it, because numbers
    /// of groups are used again.
    pub(crate) rounds: u32,
}

/// What a new engine is told besides its settings.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Receives the reports of the stall watch; without it they go to standard error.
    pub on_stall: Option<OnStall>,
    /// The measured table by which ways are chosen; built-in limits without one. Must be the same on all ranks
    /// ([`crate::Communicator::agree_on_table`] sees to that): ranks with different ones fail at their first request.
    pub table: Option<Arc<Table>>,
    /// Where this rank records what it does; a recorder of the engine's own without one.
    pub recorder: Option<Arc<Recorder>>,
    /// What the program's interpreter is asked by, where it has one, when others wait for this rank.
    pub stacks: Option<Stacks>,
    /// Planes besides those over links and windows; the first that carries a bucket takes it. Must be the same on all
    /// ranks, in the same order.
    pub planes: Vec<Arc<dyn Plane>>,
}

impl Engine {
    /// After how long waiting is reported, unless nobody wants to know.
    pub(crate) fn stall_warning(&self) -> Option<Duration> {
        (!self.config.stall_check_disable).then_some(self.config.stall_warning)
    }

    /// The time limits that the user has set.
    pub(crate) fn wait_limits(&self) -> WaitLimits {
        wait_limits(&self.config)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks in the world.
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// The host of every rank, in order.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The measured table by which ways are chosen in groups of its class; everywhere else, built-in limits count.
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.table.as_ref()
    }

    /// Where this rank records what it does.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// World ranks of a group's members, in order.
    pub fn group(&self, group: GroupId) -> Result<Arc<[Rank]>> {
        self.shared.tensor_table.members(group).map(|(ranks, _)| ranks)
    }

    /// Every group there is, by number, with the world ranks of its members.
    pub fn groups(&self) -> Vec<(GroupId, Arc<[Rank]>)> {
        self.shared.tensor_table.all()
    }

    /// Whether this process is a fork of the one that started the engine, so that nothing here may be used.
    pub fn is_forked(&self) -> bool {
        self.shared.check_fork().is_err()
    }

    /// This rank's number in a group, if it is a member.
    pub fn rank_in(&self, group: GroupId) -> Result<Option<Rank>> {
        self.shared.tensor_table.members(group).map(|(_, me)| me)
    }

    /// The first cause that ended the world, if it has ended.
    pub fn failure(&self) -> Option<Error> {
        self.shared.tensor_table.ended(GroupId::WORLD)
    }

    /// What ends all collectives of this engine from any thread, with a cause. Does not interrupt [`Engine::add_group`]
    /// while the members of a new group look for each other, which ends at its own deadline.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Hands a request in. Returns at once; the ticket tells how it went.
    ///
    /// # Errors
    /// Wrong use is found here and costs nothing: memory that does not fit, a name that is still under way, an unknown
    /// or foreign group, an engine that is shut down. The submission's memory is dropped then;
    /// [`Engine::submit_returning`] gives it back.
    pub fn submit(&self, submission: Submission) -> Result<Ticket> {
        Ok(self.submit_returning(submission)?)
    }

    /// As [`Engine::submit`], but whoever is refused gets the submission's memory back, untouched.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_returning(&self, submission: Submission) -> std::result::Result<Ticket, Box<Returned>> {
        self.push(submission, Push::Ringing).map(|(ticket, _)| ticket)
    }

    /// Hands a request in and waits for it. Cheaper than submitting and waiting: nobody is woken for it.
    ///
    /// # Errors
    /// As [`Engine::submit`], and whatever goes wrong with the request.
    pub fn run(&self, submission: Submission) -> Result<Outcome> {
        let (ticket, after) = self.push(submission, Push::Quiet)?;
        ticket.wait_after(after)
    }

    /// Hands requests in that the caller waits for at once: nobody is woken for them. Whatever is refused is answered
    /// when they are waited for, in its place.
    pub fn submit_quietly(&self, submissions: impl IntoIterator<Item = Submission>) -> QuietTickets {
        let mut all = After::Nothing;
        let tickets = submissions.into_iter().map(|submission| {
            let (ticket, after) = self.push(submission, Push::Quiet)?;
            all = if after == After::Ring { after } else { all };
            Ok(ticket)
        });
        let tickets = tickets.collect();
        QuietTickets::new(tickets, all)
    }

    /// A queue for the completions of many requests, for a thread that learns of each as it is done.
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue::new(Arc::clone(&self.shared))
    }

    /// Hands requests in whose outcomes come out of a queue of this engine: the first with this key, the others with
    /// those that follow it. Whoever drives is woken once, after the last. Returns those that were refused, by their
    /// place; nothing comes out of the queue for them.
    pub fn submit_to(
        &self,
        queue: &CompletionQueue,
        first_key: u64,
        submissions: impl ExactSizeIterator<Item = Submission>,
    ) -> Vec<(usize, Box<Returned>)> {
        let mut refused = Vec::new();
        let mut all = After::Nothing;
        // Before the first push: a driver may be quicker than we are.
        let sleeper = queue.queue().owe(submissions.len());
        for (place, submission) in submissions.enumerate() {
            let name_id = match self.enter(&submission) {
                Ok(name_id) => name_id,
                Err(error) => {
                    refused.push((place, Returned::of(submission, error)));
                    continue;
                }
            };
            let recipient = Recipient::Queue(Arc::clone(queue.queue()), first_key + place as u64);
            let after = self.hand_over(submission, name_id, recipient, Push::Later);
            all = if after == After::Ring { after } else { all };
        }
        queue.queue().take_back(refused.len());
        match sleeper {
            Sleeper::Drives => queue.queue().wake(all),
            Sleeper::None => self.shared.driver_lock.make_up_for(all),
        }
        refused
    }

    fn push(&self, submission: Submission, push: Push) -> std::result::Result<(Ticket, After), Box<Returned>> {
        let name_id = match self.enter(&submission) {
            Ok(name_id) => name_id,
            Err(error) => return Err(Returned::of(submission, error)),
        };
        let name = Arc::clone(&submission.request.name);
        let slot = Arc::new(Slot::new());
        let after = self.hand_over(submission, name_id, Recipient::Ticket(Arc::clone(&slot)), push);
        Ok((Ticket { name, name_id, slot, shared: Arc::clone(&self.shared) }, after))
    }

    /// Finds wrong use, and enters the request's name among those under way.
    fn enter(&self, submission: &Submission) -> Result<NameId> {
        self.shared.check_fork()?;
        submission.check()?;
        self.shared.tensor_table.enter(submission.group, &submission.request, &self.recorder)
    }

    fn hand_over(&self, submission: Submission, name_id: NameId, recipient: Recipient, push: Push) -> After {
        let Submission { group, request, input, output } = submission;
        let mark = Mark { name: name_id, thread: ThreadId::current(), time_ns: None };
        let name = Arc::clone(&request.name);
        let mut pending = Pending { name, mark, promise: Promise::new(recipient), input, output };
        // Whoever pushes quietly drives at once, and the driver looks at the clock anyway.
        if push != Push::Quiet && self.recorder.is_on() {
            let stamped = |time_ns| {
                pending.mark.time_ns = Some(time_ns);
                Command::Submit { group, request, pending }
            };
            return self.shared.driver_lock.push_stamped(stamped, push);
        }
        self.shared.driver_lock.push(Command::Submit { group, request, pending }, push)
    }

    /// Shuts the engine down on all ranks: what all ranks have agreed on still runs, everything else ends with
    /// [`Error::ShutDown`]. Dropping the engine does the same.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        if self.shared.check_fork().is_err() {
            // The worker did not come along into this process.
            std::mem::forget(worker);
            return;
        }
        let _ = self.shared.driver_lock.push(Command::Shutdown, Push::Ringing);
        self.shared.driver_lock.wake_worker();
        let _ = worker.join();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("rank", &self.rank).field("size", &self.size()).finish_non_exhaustive()
    }
}
