//! A process as a rank of its job: [`World`].
//!
//! A world holds what `setup` has started: the communicator of direct calls, the engine of named requests, the
//! recorder, and the connection to the rendezvous. Dropping it leaves the job in order. The collectives are in
//! `direct`, `named` and `sets`.

use std::path::Path;
use std::sync::atomic::AtomicUsize;
#[cfg(any(feature = "burn", feature = "candle"))]
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farandole_cluster::publish::Publisher;
use farandole_cluster::{Lifeline, RendezvousAccess};
use farandole_engine::{AbortHandle, Communicator, Engine};
use farandole_plan::table::Table;
use farandole_plan::{ErrorClass, Exit, Rank, Topology};
use farandole_trace::event::{RecoveryStage, StepFate};
use farandole_trace::{Cycles, Event, PhaseGuard, Recorder};
use farandole_transport::{ProcessId, ProcessState};

use crate::blocks::BlockShare;
use crate::bond::Bond;
use crate::error::{Error, Result};
use crate::named::Submitter;
use crate::panic_words;
use crate::records::Records;

/// How often a rank looks whether the process of another one has exited: cheap, and short beside the end of a process.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// A rank's view of its job.
#[derive(Debug)]
pub struct World {
    rank: Rank,
    topology: Topology,
    /// A communicator is for one thread at a time. Who has the world to itself takes no lock
    /// ([`World::communicator`]); the edges to other languages share their world ([`World::lock_communicator`]).
    communicator: Mutex<Communicator>,
    /// Ends direct calls from any thread.
    direct_abort: AbortHandle,
    /// Shared with weak references alone: it ends with the world.
    engine: Arc<Engine>,
    /// Series of names given out so far, to adapters.
    #[cfg_attr(not(any(feature = "burn", feature = "candle")), expect(dead_code, reason = "adapters count with it"))]
    series: AtomicUsize,
    /// Goes after the engine and the communicator, whose last words are to be written down.
    records: Records,
    /// Goes after the engine and the communicator: they say goodbye to the peers, it says that all is over here.
    reporter: Arc<Reporter>,
    /// The process of each rank on this host; `None` for ranks of other hosts.
    processes: Vec<Option<ProcessId>>,
    /// Caches of this process get blocks from other ranks for as long as this is here.
    share: Option<BlockShare>,
    /// Where the ranks have met. The last to go: rank 0 may host the meeting for everybody.
    access: RendezvousAccess,
}

impl World {
    /// A world of what `Setup` has started.
    pub(crate) fn new(
        rank: Rank,
        topology: Topology,
        communicator: Communicator,
        engine: Engine,
        records: Records,
        bond: Arc<Bond>,
        access: RendezvousAccess,
    ) -> World {
        let reporter = Arc::new(Reporter { bond, suffered: OnceLock::new() });
        let (direct_abort, processes) = (communicator.abort_handle(), Vec::new());
        let (engine, communicator, series) = (Arc::new(engine), Mutex::new(communicator), AtomicUsize::new(0));
        World {
            rank,
            topology,
            communicator,
            direct_abort,
            engine,
            series,
            records,
            reporter,
            processes,
            share: None,
            access,
        }
    }

    /// Lets caches of this process get blocks from other ranks for as long as the world lasts.
    pub(crate) fn keep_share(&mut self, share: Option<BlockShare>) {
        self.share = share;
    }

    /// The processes of the ranks on this host.
    pub(crate) fn keep_processes(&mut self, processes: Vec<Option<ProcessId>>) {
        self.processes = processes;
    }

    /// Waits until the process of the rank that has ended the collectives has exited, for at most so long. Returns at
    /// once if there is none, if it is this one, on another host or stopped. Launchers that know nothing of ranks take
    /// the process that exits first for the cause.
    pub fn let_failed_rank_exit(&self, at_most: Duration) {
        let failed = self.engine.failure().filter(|error| matches!(error, farandole_engine::Error::Failed(_)));
        let failed = self.reporter.suffered.get().map_or(failed.and_then(|error| error.culprit()), |told| told.0);
        let Some(failed) = failed.filter(|&rank| rank != self.rank) else { return };
        let Some(process) = self.processes.get(failed.index()).copied().flatten() else { return };
        let deadline = Instant::now() + at_most;
        while process.state() == Some(ProcessState::Alive) && Instant::now() < deadline {
            std::thread::sleep(EXIT_CHECK_INTERVAL);
        }
    }

    /// This rank, from zero.
    pub fn rank(&self) -> usize {
        self.rank.index()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.topology.size()
    }

    /// How many ranks of this host come before this one.
    pub fn local_rank(&self) -> usize {
        self.topology.local_rank(self.rank)
    }

    /// Number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.topology.local_size(self.rank)
    }

    /// How many hosts before this one have a rank with this local rank.
    pub fn cross_rank(&self) -> usize {
        self.topology.cross_rank(self.rank)
    }

    /// How many hosts have a rank with this local rank.
    pub fn cross_size(&self) -> usize {
        self.topology.cross_size(self.rank)
    }

    /// Which rank runs where.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The measured table by which algorithms are chosen, the same on all ranks; without one, built-in limits decide.
    pub fn table(&self) -> Option<&Table> {
        self.engine.table().map(Arc::as_ref)
    }

    /// Direct collectives: all of them, on slices.
    pub fn communicator(&mut self) -> &mut Communicator {
        self.communicator.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same of a world that threads share: one of them at a time.
    pub fn lock_communicator(&self) -> MutexGuard<'_, Communicator> {
        // A call that panicked has left it failed, or as it was.
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Named requests: all of them, with groups, priorities and batches.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A number for names that must differ from call to call and be the same on all ranks: calls that all ranks make in
    /// the same order ask for it. The counter orders nothing else.
    #[cfg(any(feature = "burn", feature = "candle"))]
    pub(crate) fn next_series(&self) -> usize {
        self.series.fetch_add(1, Ordering::Relaxed)
    }

    /// Where this rank records what it does.
    pub fn recorder(&self) -> &Arc<Recorder> {
        self.records.recorder()
    }

    /// A phase of the program with this name begins on this thread; it ends when the guard is dropped.
    pub fn phase(&self, name: &str) -> PhaseGuard {
        self.recorder().user_phase(name)
    }

    /// An iteration of training begins.
    pub fn mark_iteration(&self, number: u64) {
        self.recorder().mark(Event::Iteration { number });
    }

    /// An epoch of training begins.
    pub fn mark_epoch(&self, number: u64) {
        self.recorder().mark(Event::Epoch { number });
    }

    /// A member of an elastic job has come so far in its generation: front ends know when all ranks have the same state
    /// again, and when a step is made. The first mark of a stage counts.
    pub fn mark_recovery(&self, stage: RecoveryStage) {
        self.recorder().mark(Event::Recovery { stage });
    }

    /// The step under way when the generation before ended was not made.
    pub fn mark_step_lost(&self, fate: StepFate) {
        self.recorder().mark(Event::StepLost { fate });
    }

    /// Begins a timeline in this file, as Horovod's users know it; rank 0 writes it, on other ranks nothing happens.
    /// One that is being written ends.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn start_timeline(&self, path: &Path, cycles: Cycles) -> std::io::Result<()> {
        self.records.start_timeline(path, cycles)
    }

    /// Ends the timeline; everything that has happened is in the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn stop_timeline(&self) -> std::io::Result<()> {
        self.records.stop_timeline()
    }

    /// Whether the environment has announced a timeline (`HOROVOD_TIMELINE`); front ends with Horovod's rules ask.
    pub fn timeline_prepared(&self) -> bool {
        self.records.timeline_prepared()
    }

    /// What this rank hears of the others' end; `None` in a world of one.
    pub fn lifeline(&self) -> Option<&Lifeline> {
        self.reporter.bond.lifeline()
    }

    /// Whether collectives of all ranks cannot go on: a rank is lost or has left. In an elastic job, drop the world and
    /// call [`init`](crate::init) again.
    pub fn has_ended(&self) -> bool {
        self.engine.failure().is_some() || self.lock_communicator().failure().is_some()
    }

    /// Fails on a rank that the job has replaced; call it last before a checkpoint or another file takes its place.
    ///
    /// In an elastic job it returns the number of this world's generation, after a majority of the generation's members
    /// has confirmed that this rank is in it. They have done so after the call began. It takes one round of messages,
    /// and at most the longest silence (`FARANDOLE_HEARTBEAT_TIMEOUT`). In a job of a fixed size, and in a world of
    /// one, it returns 0 at once. It is not a collective: any rank may call it alone.
    ///
    /// The answer is about the moment of the call. A rank that is stopped between this call and a rename renames when
    /// it continues; [`World::publisher`] compares tokens under a lock and has no such window.
    ///
    /// # Errors
    /// If the job continues without this rank, or a majority cannot be reached.
    pub fn fence(&self) -> Result<u64> {
        self.reporter.bond.confirm()
    }

    /// Publishes checkpoints of this process ([`crate::publish`]).
    pub fn publisher(&self) -> Publisher {
        let member = self.reporter.bond.member().unwrap_or(self.rank.index() as u64);
        Publisher::new(&self.access.job.to_string(), member)
    }

    /// Says how this process ends, before the world is dropped: ranks that wait for this one name it with this cause
    /// and with how far it was. An exit code other than zero, or a cause, ends the collectives of all ranks at once,
    /// and is what the launcher blames.
    ///
    /// If a request of this rank has failed because of another one, its exit is a consequence: all are told of that
    /// one instead. A world that is dropped by a panic does this by itself.
    pub fn leave(&self, exit: Exit) {
        if let Some((rank, class, words)) = self.reporter.suffered.get() {
            // Direct calls and requests have connections of their own: peers may know only one of them as ended.
            self.engine.abort_handle().abort_in_words(*rank, *class, words.clone());
            self.direct_abort.abort_in_words(*rank, *class, words.clone());
            self.reporter.bond.blame_at_last(*rank, words.clone());
        } else {
            self.engine.leave(exit.clone());
            if exit.is_failure() {
                let words = self.engine.departure().to_string();
                self.direct_abort.abort_in_words(Some(self.rank), ErrorClass::RankLost, words.clone());
                self.reporter.bond.blame_at_last(Some(self.rank), words);
            }
        }
    }

    /// Leaves the job: requests under way fail, peers see an orderly goodbye. Dropping a world does the same.
    pub fn shutdown(self) {}

    /// Passes an error on to the caller and, if it is the end of this rank's collectives, to the rendezvous: whoever
    /// keeps it hears from all ranks and finds out which failure was the first. Calls of a world do this themselves; it
    /// is for those that have an error from elsewhere, a ticket for instance.
    pub fn report(&self, error: farandole_engine::Error) -> Error {
        self.reporter.report(error)
    }

    /// What submits named requests for handles that may outlive this world.
    pub(crate) fn submitter(&self) -> Submitter {
        Submitter::new(&self.engine, &self.reporter)
    }
}

/// Tells the rendezvous, once, that this rank's collectives have failed.
#[derive(Debug)]
pub(crate) struct Reporter {
    bond: Arc<Bond>,
    /// Why a request of the program failed first, the rank that is to blame and the class of the error. Written once,
    /// by whichever thread meets the failure first.
    suffered: OnceLock<(Option<Rank>, ErrorClass, String)>,
}

impl Reporter {
    /// As [`World::report`].
    pub(crate) fn report(&self, error: farandole_engine::Error) -> Error {
        use farandole_engine::Error;
        if let Error::Failed(_) | Error::PeerLeft(_) = &error
            && self.suffered.set((error.culprit(), error.class(), error.to_string())).is_ok()
        {
            self.bond.blame(error.culprit(), error.to_string());
        }
        error.into()
    }
}

impl Drop for World {
    /// The failure of a named request may have been seen by nobody but the one who waited for its ticket. That another
    /// rank has left in order is none: this one may not have waited for it.
    fn drop(&mut self) {
        self.reporter.bond.note_over();
        if let Some(words) = panic_words::current() {
            self.leave(Exit::default().because(&words));
        }
        if let Some(error @ farandole_engine::Error::Failed(_)) = self.engine.failure() {
            self.report(error);
        }
        let exit = self.engine.departure().exit;
        self.communicator().leave(exit);
    }
}
