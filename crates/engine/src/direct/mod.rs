//! Direct collectives: on the caller's thread, in the caller's order, without names.
//!
//! A [`Communicator`] is for programs that know that all ranks make the same calls in the same order, as in MPI. There
//! is no agreement and no other thread: the call itself moves the bytes and returns when this rank's part is done. Each
//! call is an *operation* with the next number; ranks that do not make the same call find out (`descriptor`).
//!
//! There are several paths to a result. On one host a small tensor takes a single hand-over (`small`), larger ones go
//! through windows in tiles, long parts that are only copied are read from where they lie (`exec::reads`), and shared
//! buffers are worked on where they lie; between hosts, schedules of messages run over links. The path depends only on
//! what all ranks know (bytes, placement, settings, the table that they have agreed on: `choice`), so all take the same
//! one.
//!
//! An error is final: the communicator remembers the first cause and gives it as the answer to every later call, and
//! the peers are told. Named, unordered and asynchronous requests are the business of [`crate::Engine`], which has
//! connections of its own, so that the two never mix.

mod calls;
mod choice;
pub(crate) mod descriptor;
mod exchange;
mod goodbye;
mod probe;
mod shared;
mod small;
mod stall_hook;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farandole_plan::algorithm::{Algorithm, Tuning};
use farandole_plan::plane::{Movement, Plane, Site};
use farandole_plan::{Dtype, ErrorClass, Exit, GroupId, Rank, RankDeparture, Schedule, Topology};
use farandole_trace::Recorder;
use farandole_transport::shm::ForkGuard;
use farandole_transport::{AwakeClock, Countdown, Mesh, Progress, Waiter};

use crate::abort::{AbortCause, AbortHandle};
use crate::connector::Connector;
use crate::error::{Error, Failure, Result};
use crate::exec::backoff::{Backoff, LONGEST_SLEEP, Next, Wait};
use crate::exec::crowd::Crowd;
use crate::exec::plan_cache::PlanCache;
use crate::exec::store_policy::StorePolicies;
use crate::exec::{Buffers, Execution, step_trace};
use crate::record::call::CallRecord;
use crate::wait_limits::{WaitLimits, tell_again};
use choice::Chooser;
use descriptor::{Descriptor, Kind};
use goodbye::Goodbye;
use stall_hook::StallHook;

pub(crate) use choice::MAX_TEXT_BYTES;
pub use shared::SharedBuffer;

/// The number under which the ranks of the world meet for direct collectives, beside the engine's own groups.
const DIRECT_GROUP: GroupId = GroupId(u32::MAX);

/// How long a failing rank listens for a peer that knows the first cause.
const CAUSE_PATIENCE: Duration = Duration::from_millis(200);

/// How many communicators this process has made. Only counted, by whichever thread makes one.
static COMMUNICATORS: AtomicU64 = AtomicU64::new(0);

/// What can be set for a communicator. Must be the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct DirectSettings {
    /// An operation in which nothing moves for this long fails; zero: none does (`wait_limits`).
    pub deadline: Duration,
    /// Tensors of up to this many bytes take a single hand-over on one host.
    pub small_bytes: usize,
    /// Longest tile in bytes, on one host.
    pub tile_bytes: usize,
    /// On one host, parts of an alltoall from this size on are read from where they lie, and those of an allgather from
    /// sixteen times this size on; `usize::MAX`: none is.
    pub single_copy_bytes: usize,
    /// Algorithm for every allreduce that it fits, instead of the chosen one.
    pub algorithm: Option<Algorithm>,
}

impl Default for DirectSettings {
    fn default() -> DirectSettings {
        DirectSettings {
            deadline: Duration::ZERO,
            small_bytes: 32 << 10,
            tile_bytes: 512 << 10,
            single_copy_bytes: 64 << 10,
            algorithm: None,
        }
    }
}

/// What a kept schedule was made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    kind: u8,
    dtype: Dtype,
    root: usize,
    counts: Vec<u64>,
    more_counts: Vec<u64>,
}

/// The ranks of a group, for direct collectives.
#[derive(Debug)]
pub struct Communicator {
    mesh: Mesh,
    waiter: Waiter,
    settings: DirectSettings,
    backoff: Backoff,
    crowd: Crowd,
    chooser: Chooser,
    operation: u64,
    schedules: PlanCache<Call, Schedule>,
    store_policies: StorePolicies,
    fork: ForkGuard,
    abort: AbortHandle,
    failure: Option<Arc<Failure>>,
    record: CallRecord,
    /// Where it is told that a call waits too long.
    stall_hook: Option<StallHook>,
    wait_limits: WaitLimits,
    /// What each peer that has left has said.
    goodbyes: Vec<Option<Goodbye>>,
    /// How this rank leaves the job.
    exit: Exit,
    /// Tells the communicators of this process apart.
    id: u64,
    /// Shared buffers that were made; the same on all ranks.
    buffers_made: u64,
    /// Whether every rank may read the memory of every other, once that is known.
    reads_peers: Option<bool>,
}

impl Communicator {
    /// Takes over the mesh of a group. The waiter must be the one that the mesh was made with.
    pub fn new(mesh: Mesh, waiter: Waiter, settings: DirectSettings) -> Result<Communicator> {
        let backoff = Backoff::of_calls(mesh.topology().local_size(mesh.me()), mesh.size());
        let chooser = Chooser::new(&mesh, &settings, None);
        let goodbyes = vec![None; mesh.size()];
        let fork = ForkGuard::new().map_err(|error| failed(None, ErrorClass::Other, &error.to_string()))?;
        let abort = AbortHandle::new(waiter.bell());
        Ok(Communicator {
            mesh,
            waiter,
            settings,
            backoff,
            crowd: Crowd::default(),
            chooser,
            operation: 0,
            schedules: PlanCache::new(),
            store_policies: StorePolicies::default(),
            fork,
            abort,
            failure: None,
            record: CallRecord::default(),
            stall_hook: None,
            wait_limits: WaitLimits { timeout: settings.deadline, ..WaitLimits::default() },
            goodbyes,
            exit: Exit::default(),
            id: COMMUNICATORS.fetch_add(1, Ordering::Relaxed),
            buffers_made: 0,
            reads_peers: None,
        })
    }

    /// Joins this rank to all others of a world, with connections of its own.
    pub fn join(connector: &mut dyn Connector, settings: DirectSettings, at_most: Duration) -> Result<Communicator> {
        let fail = |error: farandole_transport::Error| failed(error.peer(), error.class(), &error.to_string());
        let waiter = Waiter::new().map_err(fail)?;
        let world: Vec<Rank> = (0..connector.hosts().len()).map(Rank::from).collect();
        let mesh = connector.mesh(DIRECT_GROUP, &world, &waiter, at_most).map_err(fail)?;
        Communicator::new(mesh, waiter, settings)
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.mesh.me()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.mesh.size()
    }

    /// Where the ranks are.
    pub fn topology(&self) -> &Topology {
        self.mesh.topology()
    }

    /// The cause that ended it, if it has ended.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// What ends the call that blocks, and all later ones, from any thread, with a cause. If no call is under way, the
    /// peers are told when the next one is made, or when the communicator is dropped.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Has the peers told how this process ends, when the communicator is dropped.
    pub fn leave(&mut self, exit: Exit) {
        self.exit = exit;
    }

    /// Records what this communicator does.
    pub fn record_with(&mut self, recorder: &Arc<Recorder>) {
        self.record.record_with(recorder, self.mesh.size() as u32);
    }

    /// Whether all ranks share memory.
    pub fn is_one_host(&self) -> bool {
        self.mesh.windows.as_ref().is_some_and(|windows| windows.size() == self.mesh.size())
    }

    /// Takes this algorithm for every allreduce that it fits from now on, or, with `None`, the chosen one again. All
    /// ranks call this between the same two operations.
    pub fn set_algorithm(&mut self, algorithm: Option<Algorithm>) {
        self.settings.algorithm = algorithm;
    }

    fn tuning(&self, dtype: Dtype) -> Tuning {
        let tuning = Tuning::for_dtype(dtype);
        let Some(layout) = self.mesh.windows.as_ref().map(|windows| windows.layout()) else { return tuning };
        tuning.with_windows(dtype, self.settings.tile_bytes.min(layout.tile_bytes), layout.slots)
    }

    /// Checks that a call may be made, and counts it.
    fn next_operation(&mut self) -> Result<u64> {
        if let Some(failure) = &self.failure {
            return Err(Error::Failed(Arc::clone(failure)));
        }
        if !self.fork.is_owner() {
            return Err(Error::Forked);
        }
        if let Some(AbortCause { peer, class, cause, .. }) = self.abort.aborted().cloned() {
            return Err(self.end(peer, class, None, cause));
        }
        self.operation += 1;
        Ok(self.operation)
    }

    /// The schedule of a call on this plane, made at its first time.
    fn schedule(&mut self, call: Call, plane: Plane, movement: Movement<'_>) -> Arc<Schedule> {
        if let Some(schedule) = self.schedules.get(&call) {
            return schedule;
        }
        let (topology, me, dtype) = (self.mesh.topology(), self.mesh.me(), call.dtype);
        let site = Site { topology, me, choices: self.chooser.choices() };
        let schedule = site.schedule(plane, movement, dtype, self.tuning(dtype));
        self.schedules.put(call, schedule)
    }

    /// The built-in plane of collectives that copy: windows where all ranks share memory.
    fn plane(&self) -> Plane {
        if self.is_one_host() { Plane::Windows } else { Plane::Links }
    }

    /// Carries a collective on so many bytes out and records it.
    fn drive(
        &mut self,
        descriptor: Descriptor,
        bytes: usize,
        execution: &mut Execution,
        buffers: &mut Buffers<'_>,
    ) -> Result<()> {
        self.record.started(self.operation, descriptor, bytes);
        self.run(descriptor, execution, buffers)?;
        self.record.finished();
        Ok(())
    }

    /// Waits until all ranks of this host have begun the current operation on their windows.
    fn gather(&mut self, descriptor: Descriptor) -> Result<()> {
        self.run(descriptor, &mut Execution::Gather, &mut Buffers::none())
    }

    /// Advances an execution until it is done.
    fn run(&mut self, descriptor: Descriptor, execution: &mut Execution, buffers: &mut Buffers<'_>) -> Result<()> {
        if self.record.is_running() && buffers.len_bytes() as u64 >= step_trace::FROM_BYTES {
            execution.trace_steps();
        }
        let mut wait = Wait::default();
        let mut began = None;
        // A clock from when nothing has moved any more.
        let mut still = None;
        let mut report_after = self.stall_hook.as_ref().map_or(Duration::MAX, |stall_hook| stall_hook.after);
        loop {
            let progress = execution.advance(&mut self.mesh, buffers);
            if let Some(step_trace) = execution.step_trace() {
                self.record.steps(step_trace);
            }
            match progress {
                Ok(Progress::Done) => {
                    self.record.moved();
                    return Ok(());
                }
                Ok(Progress::Moved) => {
                    self.record.moved();
                    wait = Wait::default();
                    still = None;
                    continue;
                }
                Ok(Progress::Pending) => {}
                Err(error) => return Err(self.fail(descriptor, began, error)),
            }
            if let Some(abort) = self.abort.aborted().cloned() {
                return Err(self.fail_aborted(descriptor, began, abort));
            }
            if self.backoff.lets_others_run(&wait) {
                let (execution, mesh) = (&*execution, &self.mesh);
                self.record.still(|| execution.waiting_for(mesh).map(|peer| peer.0));
            }
            if self.backoff.spend(&self.crowd, &mut wait) == Next::Look {
                continue;
            }
            let now = Instant::now();
            began.get_or_insert(now);
            let (since, clock): &mut (Instant, AwakeClock) = still.get_or_insert((now, AwakeClock::new(now)));
            let waited = clock.look(now, LONGEST_SLEEP).saturating_duration_since(*since);
            if let Some(waiting_for) = self.wait_limits.exceeded(waited) {
                let peer = execution.waiting_for(&self.mesh);
                let error = farandole_transport::Error::Deadline { peer, waiting_for, waited };
                return Err(self.fail(descriptor, began, error));
            }
            if waited >= report_after {
                report_after = tell_again(waited);
                self.report_wait(descriptor, execution, waited);
            }
            if let Err(error) = self.sleep(execution, buffers) {
                match error {
                    Woken::Done => {
                        self.record.moved();
                        return Ok(());
                    }
                    Woken::Moved => {
                        self.record.moved();
                        wait = Wait::default();
                        still = None;
                    }
                    Woken::Failed(error) => return Err(self.fail(descriptor, began, error)),
                }
            }
        }
    }

    /// Sleeps until somebody rings, unless something moves after the flag is up ("looked, then slept").
    fn sleep(&mut self, execution: &mut Execution, buffers: &mut Buffers<'_>) -> std::result::Result<(), Woken> {
        if let Some(windows) = &self.mesh.windows {
            windows.raise_asleep();
        }
        let outcome = match execution.advance(&mut self.mesh, buffers) {
            Ok(Progress::Done) => Err(Woken::Done),
            Ok(Progress::Moved) => Err(Woken::Moved),
            Ok(Progress::Pending) => {
                self.waiter.wait(LONGEST_SLEEP.min(self.wait_limits.shortest())).map(drop).map_err(Woken::Failed)
            }
            Err(error) => Err(Woken::Failed(error)),
        };
        if let Some(windows) = &self.mesh.windows {
            windows.lower_asleep();
        }
        outcome?;
        self.listen().map_err(Woken::Failed)
    }

    /// Hears what peers say outside of operations: that they give up, that they leave, or nothing more at all.
    ///
    /// A peer that leaves in good order has said after which operation. If that is this one or a later one, all that we
    /// need of it has been sent, and its silence means nothing.
    fn listen(&mut self) -> farandole_transport::Result<()> {
        self.listen_to(|_| true)
    }

    /// The same of some peers.
    fn listen_to(&mut self, is_heard: impl Fn(Rank) -> bool) -> farandole_transport::Result<()> {
        use farandole_transport::Error as Cause;
        let me = self.mesh.me();
        for peer in self.mesh.peers_mut().filter(|peer| is_heard(peer.rank)) {
            let goodbye = &mut self.goodbyes[peer.rank.index()];
            while goodbye.is_none() {
                match peer.control.recv()? {
                    Some(message) => *goodbye = Some(Goodbye::decode(peer.rank, &message)?),
                    None => break,
                }
            }
            if let Some(Goodbye { departure, .. }) =
                goodbye.as_ref().filter(|left| left.last_operation < self.operation)
            {
                let cause = departure.missed_by(me, self.record.progress());
                let (peer, blamed, class) = (peer.rank, Some(departure.rank), ErrorClass::RankLost);
                return Err(Cause::PeerAborted { peer, blamed, class, cause });
            }
        }
        Ok(())
    }

    /// Remembers the first cause, tells the peers and makes the caller's error of it.
    fn fail(&mut self, descriptor: Descriptor, began: Option<Instant>, error: farandole_transport::Error) -> Error {
        use farandole_transport::Error as Cause;
        if let Some(abort) = self.abort.aborted().cloned() {
            return self.fail_aborted(descriptor, began, abort);
        }
        let error = self.departure_behind(error);
        let error = self.mesh.first_cause(error, &self.waiter, CAUSE_PATIENCE);
        // Finding the cause may have taken a while.
        if let Some(abort) = self.abort.aborted().cloned() {
            return self.fail_aborted(descriptor, began, abort);
        }
        let what = match &error {
            Cause::Disagree { peer, ours, theirs, .. } => format!(
                "{}: the ranks do not make the same calls in the same order",
                Descriptor::describe_both((peer.0, *theirs), (self.mesh.me().0, *ours))
            ),
            Cause::PeerAborted { cause, .. } => cause.clone(),
            other => format!("{other}, in {} on rank {}", Descriptor::describe(descriptor.word()), self.mesh.me()),
        };
        let rank = match &error {
            // Whoever tells of a failure is to blame only if it can name nobody else.
            Cause::PeerAborted { peer, blamed, .. } => blamed.or(Some(*peer)),
            other => other.peer(),
        };
        self.end(rank, error.class(), began, what)
    }

    /// A peer that leaves in order says so on its control line and then closes its links, whose end may be seen first.
    fn departure_behind(&mut self, error: farandole_transport::Error) -> farandole_transport::Error {
        use farandole_transport::Error as Cause;
        let Cause::PeerGone { peer: gone, .. } = error else { return error };
        let deadline = Countdown::new(CAUSE_PATIENCE);
        loop {
            match self.listen_to(|peer| peer == gone) {
                Ok(()) if !deadline.is_over() => {}
                Err(word @ Cause::PeerAborted { .. }) => return word,
                _ => return error,
            }
            if self.waiter.wait(deadline.left()).is_err() {
                return error;
            }
        }
    }

    /// The abort handle has rung while an operation is under way.
    fn fail_aborted(&mut self, descriptor: Descriptor, began: Option<Instant>, abort: AbortCause) -> Error {
        let AbortCause { peer, class, cause, is_complete } = abort;
        let what = match is_complete {
            true => cause,
            false => format!("{cause}, in {} on rank {}", Descriptor::describe(descriptor.word()), self.mesh.me()),
        };
        self.end(peer, class, began, what)
    }

    /// Remembers a failure and tells the peers.
    fn end(&mut self, rank: Option<Rank>, class: ErrorClass, began: Option<Instant>, what: String) -> Error {
        let elapsed = began.map(|began| began.elapsed());
        self.mesh.abort(rank, class, &what);
        self.record.group_error(&what);
        let failure = Arc::new(Failure { what, class, rank, tensor: None, elapsed });
        self.failure = Some(Arc::clone(&failure));
        Error::Failed(failure)
    }
}

impl Drop for Communicator {
    /// Leaves in good order, unless the communicator has failed or belongs to the process that this one was forked
    /// from.
    fn drop(&mut self) {
        if self.failure.is_some() || !self.fork.is_owner() {
            return;
        }
        if let Some(abort) = self.abort.aborted() {
            return self.mesh.abort(abort.peer, abort.class, &abort.cause);
        }
        let departure =
            RankDeparture { rank: self.mesh.me(), exit: self.exit.clone(), progress: self.record.progress() };
        let message = Goodbye { last_operation: self.operation, departure }.encode();
        for peer in self.mesh.peers_mut() {
            // A peer that cannot be told any more has left itself.
            let _ = peer.control.send(&message).and_then(|()| peer.control.flush());
        }
    }
}

/// Why a sleep ended early.
enum Woken {
    Done,
    Moved,
    Failed(farandole_transport::Error),
}

fn failed(rank: Option<Rank>, class: ErrorClass, what: &str) -> Error {
    Error::Failed(Arc::new(Failure { what: what.to_owned(), class, rank, tensor: None, elapsed: None }))
}
