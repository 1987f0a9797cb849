//! One rank's engine: what it holds, what can be asked of it, and its end.
//!
//! Not here: how it starts (`start`), how requests are handed in (`submission`), groups (`process_sets`).

use std::sync::{Arc, Mutex, Once, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use farandole_device::nccl::SharedLibrary;
use farandole_plan::table::Table;
use farandole_plan::{ErrorClass, Exit, GroupId, Rank, RankDeparture};
use farandole_trace::Recorder;

use crate::abort::AbortHandle;
use crate::completion_queue::CompletionQueue;
use crate::config::Config;
use crate::connector::Connector;
use crate::driver::{Command, OnStall};
use crate::driver_lock::Push;
use crate::error::{Error, Result};
use crate::exec::device::OpenDevice;
use crate::plane::Plane;
use crate::record::group::Start;
use crate::record::progress;
use crate::shared::Shared;
use crate::start::wait_limits;
use crate::status_reporter::Stacks;
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
    pub(crate) devices: Option<OpenDevice>,
    pub(crate) nccl: Option<SharedLibrary>,
    /// Why ranks do not map each other's device memory; the first request that could use it logs it.
    pub(crate) not_mapped: Option<String>,
    pub(crate) not_mapped_logged: Once,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) start: Start,
    pub(crate) forming: Mutex<Forming>,
    /// How this process leaves the job, if it was said. Written once, by the thread that ends the job.
    pub(crate) exit: OnceLock<Exit>,
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
    /// Opens devices in whose memory allreduces are carried out. Either all ranks have it or none.
    pub devices: Option<OpenDevice>,
    /// NCCL, for collectives in device memory ([`Config::plane`] says which). Either all ranks have the same version or
    /// none has any.
    pub nccl: Option<SharedLibrary>,
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

    /// Says that an optimizer of this rank reduces gradients of these names in every step, from the step on whose
    /// requests have just been made. A gradient that an optimizer of another rank lacks, because its parameter is
    /// frozen there, is then refused with that reason instead of waited for. To be called once for each optimizer, and
    /// again when its parameters have changed; on all ranks.
    pub fn reduces(&self, group: GroupId, names: Vec<Arc<str>>) {
        let _ = self.shared.driver_lock.push(Command::Reduces { group, names }, Push::Ringing);
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

    /// Has the peers told how this process ends, when the engine is dropped. An exit that fails the job ends the
    /// collectives of all ranks at once. The first call counts.
    pub fn leave(&self, exit: Exit) {
        if self.exit.set(exit).is_ok() && self.exit.get().is_some_and(Exit::is_failure) {
            self.abort.abort_in_words(Some(self.rank), ErrorClass::RankLost, self.departure().to_string());
        }
    }

    /// What the peers are told when this rank leaves the job now.
    pub fn departure(&self) -> RankDeparture {
        let exit = self.exit.get().cloned().unwrap_or_default();
        RankDeparture { rank: self.rank, exit, progress: progress(&self.recorder) }
    }

    /// A queue for the completions of many requests, for a thread that learns of each as it is done.
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue::new(Arc::clone(&self.shared))
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
        let _ = self.shared.driver_lock.push(Command::Shutdown(self.departure()), Push::Ringing);
        self.shared.driver_lock.wake_worker();
        let _ = worker.join();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("rank", &self.rank).field("size", &self.size()).finish_non_exhaustive()
    }
}
