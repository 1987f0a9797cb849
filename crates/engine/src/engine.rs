//! The engine itself: starting, submitting, groups, shutting down.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farandole_plan::agree::{Joining, Replay, Settings as AgreeSettings};
use farandole_plan::choose::Hierarchical;
use farandole_plan::fuse::BatchFusion;
use farandole_plan::table::Table;
use farandole_plan::topology::host_names;
use farandole_plan::{Collective, Device, Dtype, GroupId, Rank, Request, stall};
use farandole_tensor::Region;
use farandole_trace::event::{NameId, ThreadId};
use farandole_trace::{Identity, Recorder};
use farandole_transport::shm::ForkGuard;
use farandole_transport::{Mesh, Waiter};

use crate::abort::AbortHandle;
use crate::affinity;
use crate::bucket::Pending;
use crate::command_queue::After;
use crate::completion::Slot;
use crate::completion_queue::{CompletionQueue, Sleeper};
use crate::config::Config;
use crate::connector::{Connector, number_in};
use crate::driver_lock::{DriverLock, Push};
use crate::error::{Error, Failure, Result};
use crate::exec::backoff::Backoff;
use crate::group::{Group, Settings};
use crate::owed::{Owed, Recipient};
use crate::plane::{GroupSeat, Offer, Plane, PlaneGroup};
use crate::record::group::{GroupRecord, Mark, Start};
use crate::shared::Shared;
use crate::status_reporter::{Stacks, StatusReporter};
use crate::submission::{Outcome, Returned, Submission};
use crate::tensor_table::TensorTable;
use crate::ticket::{QuietTickets, Ticket};
use crate::wait_limits::WaitLimits;
use crate::worker::{Command, Driver, OnStall};

/// One rank's engine. See the crate's text.
pub struct Engine {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    abort: AbortHandle,
    rank: Rank,
    hosts: Arc<[String]>,
    /// The same for messages.
    host_names: Arc<[String]>,
    config: Config,
    table: Option<Arc<Table>>,
    planes: Vec<Arc<dyn Plane>>,
    recorder: Arc<Recorder>,
    start: Start,
    forming: Mutex<Forming>,
}

/// What adding groups needs. The lock keeps two threads of this rank from adding groups in two orders.
struct Forming {
    connector: Box<dyn Connector>,
    /// Groups added or tried so far, on all ranks alike. Connections and records are told apart by it, because numbers
    /// of groups are used again.
    rounds: u32,
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
    /// Starts this rank's engine: meets the other ranks and starts the worker. All ranks of the world call this.
    ///
    /// # Errors
    /// [`Error::Failed`] if the ranks do not find each other in time.
    pub fn start(connector: impl Connector + 'static, config: Config) -> Result<Engine> {
        Engine::start_with(connector, config, Hooks::default())
    }

    /// As [`Engine::start`], with hooks.
    pub fn start_with(connector: impl Connector + 'static, config: Config, hooks: Hooks) -> Result<Engine> {
        let mut connector: Box<dyn Connector> = Box::new(connector);
        let (rank, hosts): (Rank, Arc<[String]>) = (connector.rank(), connector.hosts().into());
        let ranks: Arc<[Rank]> = (0..hosts.len()).map(Rank::from).collect();
        let core = affinity::core_of(&config, rank, &hosts)?;
        let waiter = Arc::new(Waiter::new().map_err(not_started)?);
        let fork = ForkGuard::new().map_err(not_started)?;
        let mesh = connector.mesh(GroupId::WORLD, &ranks, &waiter, config.meet_deadline).map_err(not_started)?;
        let awake = config.spin_us.map(Duration::from_micros);
        let backoff = Backoff::of_driver(mesh.topology().local_size(mesh.me()), awake);
        let recorder = hooks.recorder.unwrap_or_else(|| recorder(&config, rank, &hosts));
        let start = Start::now();
        let record = GroupRecord::new(&recorder, GroupId::WORLD, &ranks, start);
        let host_names: Arc<[String]> = host_names(&hosts).into();
        let settings = settings(&config, hooks.table.clone(), GroupId::WORLD, &ranks, &host_names);
        let added = join_planes(&hooks.planes, GroupId::WORLD, &mesh, &waiter).map_err(not_started)?;
        let world = Group::new(settings, mesh, record, added);
        let tensor_table = Arc::new(TensorTable::default());
        tensor_table.add(GroupId::WORLD, ranks, Some(rank));
        let on_stall: OnStall = hooks
            .on_stall
            .unwrap_or_else(|| Arc::new(|notice| log::warn!(target: farandole_settings::REPORT, "{}", notice.shown())));
        let abort = AbortHandle::new(waiter.bell());
        let status_reporter = StatusReporter::new(Arc::clone(&recorder), hooks.stacks, waiter.bell());
        let (known, woken) = (Arc::clone(&tensor_table), Arc::clone(&waiter));
        let driver = Driver::new(world, start.instant, known, woken, abort.clone(), on_stall, status_reporter);
        let driver_lock = DriverLock::new(driver, waiter, backoff);
        let shared = Arc::new(Shared { driver_lock, tensor_table, fork, recorder: Arc::clone(&recorder) });
        let (is_bound, bound) = std::sync::mpsc::sync_channel(1);
        let worker = std::thread::Builder::new()
            .name(format!("farandole-{rank}"))
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let bound = core.map_or(Ok(()), affinity::bind_to);
                    let works = bound.is_ok();
                    // The engine waits for this word, unless it has gone already.
                    let _ = is_bound.send(bound);
                    if works {
                        shared.driver_lock.work();
                    }
                }
            })
            .map_err(|error| not_started(farandole_transport::Error::local("starting a thread", error)))?;
        bound.recv().expect("invariant: the worker says first whether it is bound")?;
        let forming = Mutex::new(Forming { connector, rounds: 0 });
        let (table, planes, worker) = (hooks.table, hooks.planes, Some(worker));
        Ok(Engine { shared, worker, abort, rank, hosts, host_names, config, table, planes, recorder, start, forming })
    }

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
        let promise = Arc::new(Slot::new());
        let after = self.hand_over(submission, name_id, Recipient::Ticket(Arc::clone(&promise)), push);
        Ok((Ticket { name, name_id, promise, shared: Arc::clone(&self.shared) }, after))
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
        let mut pending = Pending { name, mark, promise: Owed::new(recipient), input, output };
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

    /// Makes a group of these world ranks. All ranks of the world call this, members or not, with the same ranks and
    /// in the same order among other additions and removals. The group gets the lowest number that is free.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] if these ranks do not make a group or the ranks do not ask for the same one,
    /// [`Error::ExistingGroup`] if there is one of exactly these ranks.
    pub fn add_group(&self, ranks: &[Rank]) -> Result<GroupId> {
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let invalid = |why: String| Err(Error::InvalidGroup(why.into()));
        if sorted.is_empty() || sorted.len() != ranks.len() {
            return invalid(format!("{ranks:?} is empty or names a rank twice"));
        }
        if let Some(rank) = sorted.iter().find(|rank| rank.index() >= self.size()) {
            return invalid(format!("there is no rank {rank} in a world of {}", self.size()));
        }
        let mut forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = self.shared.tensor_table.find(&sorted) {
            return Err(Error::ExistingGroup(group));
        }
        forming.rounds += 1;
        let (group, round) = (self.shared.tensor_table.lowest_free(), GroupId(forming.rounds));
        self.agree_on_members(round, &sorted)?;
        let me = sorted.contains(&self.rank).then(|| number_in(&sorted, self.rank));
        let ranks: Arc<[Rank]> = sorted.into();
        let waiter = self.shared.driver_lock.waiter();
        let joined = me.map(|_| {
            let mesh = forming.connector.mesh(round, &ranks, waiter, self.config.meet_deadline)?;
            let added = join_planes(&self.planes, round, &mesh, waiter)?;
            farandole_transport::Result::Ok((mesh, added))
        });
        self.agree_on_success(round, matches!(joined, Some(Err(_))))?;
        self.shared.tensor_table.add(group, Arc::clone(&ranks), me);
        if let Some(Ok((mesh, added))) = joined {
            let record = GroupRecord::new(&self.recorder, round, &ranks, self.start);
            let settings = settings(&self.config, self.table.clone(), group, &ranks, &self.host_names);
            let group = Box::new(Group::new(settings, mesh, record, added));
            let _ = self.shared.driver_lock.push(Command::AddGroup(group), Push::Ringing);
        }
        Ok(group)
    }

    /// Ends a group. All ranks of the world call this; requests that are still under way in it end with
    /// [`Error::ShutDown`].
    pub fn remove_group(&self, group: GroupId) -> Result<()> {
        if group == GroupId::WORLD {
            return Err(Error::InvalidGroup("the world ends with the engine".into()));
        }
        let forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, me) = self.shared.tensor_table.members(group)?;
        self.shared.tensor_table.end(group, &Error::UnknownGroup(group));
        self.run(Submission::without_memory(request(
            format!("farandole.group.{group}.remove"),
            Collective::Barrier,
            0,
        )))?;
        if me.is_some() {
            let done = Arc::new(Slot::new());
            let after =
                self.shared.driver_lock.push(Command::RemoveGroup { group, done: Arc::clone(&done) }, Push::Quiet);
            self.shared.driver_lock.wait(&*done, None, after, None);
        }
        self.shared.tensor_table.remove(group);
        drop(forming);
        Ok(())
    }

    /// Finds out whether all ranks want a group of the same members.
    fn agree_on_members(&self, round: GroupId, ranks: &[Rank]) -> Result<()> {
        let own: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
        let name = format!("farandole.group.{round}.members");
        let request = request(name, Collective::Allgather, own.len() as u64);
        let outcome = self.run(Submission::new(request, Region::from_vec(own)))?;
        let all = outcome.into_result().map(words).unwrap_or_default();
        let same = all.len() == ranks.len() * self.size()
            && all.chunks(ranks.len()).all(|theirs| theirs.iter().zip(ranks).all(|(their, own)| *their == own.0));
        match same {
            true => Ok(()),
            false => Err(Error::InvalidGroup(
                format!("the ranks want to add different groups at the same time: {all:?}").into(),
            )),
        }
    }

    /// Finds out whether all members have met.
    fn agree_on_success(&self, round: GroupId, failed: bool) -> Result<()> {
        let name = format!("farandole.group.{round}.met");
        let request = request(name, Collective::Allgather, 1);
        let outcome = self.run(Submission::new(request, Region::from_vec(vec![u32::from(failed)])))?;
        let all = outcome.into_result().map(words).unwrap_or_default();
        match all.iter().position(|&failed| failed != 0) {
            None => Ok(()),
            Some(rank) => Err(Error::InvalidGroup(format!("rank {rank} did not reach all its members").into())),
        }
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

/// The recorder of an engine that was given none.
fn recorder(config: &Config, rank: Rank, hosts: &[String]) -> Arc<Recorder> {
    let identity = Identity {
        rank: rank.0,
        size: hosts.len() as u32,
        host: hosts[rank.index()].clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: config.shown(),
    };
    Recorder::new(identity, config.recorder_records as usize)
}

fn wait_limits(config: &Config) -> WaitLimits {
    // As for stalls of named requests: a limit that comes before the warning is none.
    let counts = !config.stall_check_disable && config.stall_shutdown > config.stall_warning;
    let stall_shutdown = if counts { config.stall_shutdown } else { Duration::ZERO };
    WaitLimits { timeout: config.deadline, stall_shutdown }
}

/// Where ranks share memory, an allreduce of this size takes longer to be copied into the fusion buffer and out of it
/// (a quarter of a millisecond) than a bucket of its own costs, even if a sleeping peer has to be woken for it.
const ALONE_FROM_BYTES: u64 = 1 << 20;

fn share_a_host(ranks: &[Rank], host_names: &[String]) -> bool {
    ranks.windows(2).all(|pair| host_names[pair[0].index()] == host_names[pair[1].index()])
}

fn settings(
    config: &Config,
    table: Option<Arc<Table>>,
    id: GroupId,
    ranks: &Arc<[Rank]>,
    host_names: &Arc<[String]>,
) -> Settings {
    let defaults = AgreeSettings::default();
    // A replayed bucket that some rank has not come to must be given up before it looks like a failure.
    let longest = if config.deadline.is_zero() { Duration::MAX } else { config.deadline / 4 };
    let agree = AgreeSettings {
        threshold_bytes: config.fusion_threshold_bytes,
        alone_from_bytes: if share_a_host(ranks, host_names) { ALONE_FROM_BYTES } else { defaults.alone_from_bytes },
        patience: config.patience.min(longest),
        patience_limit: defaults.patience_limit.min(longest),
        run_limit: defaults.run_limit.min(longest),
        replay: if config.replay == 0 { Replay::Never } else { Replay::Allowed },
        batches: if config.disable_group_fusion { BatchFusion::Apart } else { BatchFusion::WithOthers },
        joining: if config.join_everything { Joining::Everything } else { Joining::LikeHorovod },
        world_ranks: ranks.to_vec(),
        ..defaults
    };
    let fusion_limit_bytes = config.fusion_threshold_bytes.max(agree.stage_below_bytes) as usize;
    let wait = wait_limits(config);
    let wait_limits = stall::StallLimits { warn_after: config.stall_warning, shut_down_after: config.stall_shutdown };
    Settings {
        id,
        ranks: Arc::clone(ranks),
        hosts: Arc::clone(host_names),
        agree,
        fusion_limit_bytes,
        wait,
        stall: (!config.stall_check_disable).then_some(wait_limits),
        table,
        hierarchical: match config.hierarchical_allreduce {
            None => Hierarchical::Chosen,
            Some(true) => Hierarchical::Always,
            Some(false) => Hierarchical::Never,
        },
    }
}

fn request(name: String, collective: Collective, rows: u64) -> Request {
    let dtype = Dtype::U32;
    Request { name: name.into(), collective, dtype, shape: vec![rows], device: Device::Cpu, batch: None, priority: 0 }
}

fn words(region: Region) -> Vec<u32> {
    let bytes = region.as_bytes().chunks_exact(4);
    bytes.map(|word| u32::from_ne_bytes(word.try_into().expect("chunks of four bytes"))).collect()
}

/// Joins this rank to the others of a group on every plane that was added.
fn join_planes(
    planes: &[Arc<dyn Plane>],
    group: GroupId,
    mesh: &Mesh,
    waiter: &Waiter,
) -> farandole_transport::Result<Vec<(Offer, Box<dyn PlaneGroup>)>> {
    let seat = || GroupSeat { group, me: mesh.me(), topology: mesh.topology(), bell: waiter.bell() };
    planes.iter().map(|plane| Ok((plane.offer(), plane.join(seat())?))).collect()
}

fn not_started(error: farandole_transport::Error) -> Error {
    let what = format!("the ranks could not meet: {error}");
    Error::from(Failure { what, rank: error.peer(), tensor: None, elapsed: None, orderly: false })
}
