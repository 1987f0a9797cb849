//! One bucket in device memory, on one rank: [`DeviceRun`].
//!
//! 1. *Load*: the tensors hold their data. If others cannot map them, they are packed. When the device has done that,
//!    this rank has *exposed* its contribution.
//! 2. *Meet*: all ranks have exposed theirs.
//! 3. *Work*: if this rank works for a device (`plan::device`), it maps the others' memory, queues folds and copies
//!    (`work`), and waits for them; then it has *settled*.
//! 4. *Settle*: all ranks have settled.
//! 5. *Unpack*: what was packed is copied back.
//!
//! Where all ranks let devices order the steps, the run only *gathers*: when all ranks have told where their tensors
//! lie, it queues everything and is done (`ordered`); the results are there after an event.
//!
//! A run that is dropped gives the bucket up (`in_flight`).

use std::sync::Arc;

use farandole_device::Result as DeviceResult;
use farandole_plan::agree::Bucket;
use farandole_plan::device::Movement;
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Rank};
use farandole_tensor::Region;
use farandole_trace::event::DeviceStep;
use farandole_transport::shm::Windows;
use farandole_transport::{Error, Progress, Result};

use super::in_flight::InFlight;
use super::ordered::{self, Ordered};
use super::posting::{EndBytes, Told};
use super::sharing::{Shared, Sharing};
use super::tensors::{Stretch, Tensors};
use super::trailing::Queued;
use super::{Begin, DevicePlane, local, work};
use crate::bucket::GroupRank;
use crate::pending::PendingTable;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct DeviceRun {
    plan: Arc<BucketPlan>,
    movement: Arc<Movement>,
    here: GroupRank,
    tensors: Tensors,
    stage: Stage,
    /// Why it could not begin, until somebody is told.
    failure: Option<Error>,
    shared: Shared,
    in_flight: InFlight,
    /// What devices order among themselves, once it is queued.
    queued: Option<Queued>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Only where this rank lets devices order the steps.
    Gather,
    Load,
    Meet,
    Work,
    Settle,
    Unpack,
}

/// What came of a bucket whose steps devices may order, when all ranks have told where their tensors are.
enum Gathered {
    /// All of it is queued.
    Queued,
    /// Hosts order its steps.
    Apart,
    /// The device still uses mappings that have to be closed.
    NotYet,
}

impl DeviceRun {
    /// Begins a bucket: looks where its tensors lie and queues what has to be copied. A failure is kept until the run
    /// is first advanced.
    pub(crate) fn begin(bucket: &Bucket, movement: &Arc<Movement>, begin: Begin<'_>) -> DeviceRun {
        let Begin { plane, table, mesh, here, stopwatch, .. } = begin;
        let windows = mesh.windows.as_ref().expect("invariant: ranks that share memory have windows");
        let mut run = DeviceRun {
            plan: Arc::clone(&bucket.plan),
            movement: Arc::clone(movement),
            here,
            tensors: Tensors::default(),
            stage: Stage::Load,
            failure: None,
            shared: Shared::default(),
            in_flight: InFlight::timed_by(stopwatch),
            queued: None,
        };
        if let Err(error) = run.load(plane, bucket, table, windows) {
            run.shared = Shared::default();
            run.failure = Some(error);
        }
        run
    }

    /// What the others must know, for this rank's small slot.
    pub(crate) fn write_posting(&self, slot: &mut [u8]) {
        self.shared.posting.write(slot);
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, plane: &mut DevicePlane, windows: &mut Windows) -> Result<Progress> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut progress = Progress::Pending;
        loop {
            let stage = self.stage;
            let went_on = match stage {
                Stage::Gather if windows.all_begun()? => match self.queue_ordered(plane, windows)? {
                    Gathered::Queued => return Ok(Progress::Done),
                    Gathered::Apart => Some(Stage::Load),
                    Gathered::NotYet => None,
                },
                Stage::Load if self.in_flight.is_done()? => {
                    windows.expose();
                    // What comes next may be looks at the device: sleepers would hear of it late.
                    windows.announce();
                    Some(Stage::Meet)
                }
                Stage::Meet if windows.all_begun()? && windows.all_exposed() => {
                    self.work(plane, windows)?.then_some(Stage::Work)
                }
                Stage::Work if self.in_flight.is_done()? => {
                    windows.settle();
                    windows.announce();
                    Some(Stage::Settle)
                }
                Stage::Settle if windows.all_settled() => {
                    windows.finish();
                    self.copy_back(plane).map_err(|error| local("copying results on the device", error))?;
                    Some(Stage::Unpack)
                }
                Stage::Unpack if self.in_flight.is_done()? => return Ok(Progress::Done),
                _ => None,
            };
            match went_on {
                Some(stage) => (self.stage, progress) = (stage, Progress::Moved),
                None => return Ok(progress),
            }
        }
    }

    /// What was queued for devices to order, if it was.
    pub(crate) fn take_queued(&mut self) -> Option<Queued> {
        self.queued.take()
    }

    /// What the device took for this bucket, as far as it was timed.
    pub(crate) fn take_times(&mut self) -> Vec<(DeviceStep, u64)> {
        self.in_flight.take_times()
    }

    /// Memory that was made for results, in the order of the requests of this rank.
    pub(crate) fn take_results(&mut self) -> Vec<Option<Region>> {
        self.tensors.take_results()
    }

    /// The driver is about to sleep: the device must wake it.
    pub(crate) fn fall_asleep(&mut self, plane: &mut DevicePlane) {
        let Some(ordinal) = self.tensors.ordinal else { return };
        // A driver that cannot ring has an error for the next look, too.
        if let Err(error) = self.in_flight.fall_asleep(plane, ordinal) {
            self.failure = Some(error);
        }
    }

    /// How far it has come, in words.
    pub(crate) fn progress(&self) -> &'static str {
        match self.stage {
            Stage::Gather => "waiting until the others have come",
            Stage::Load => "packing on the device",
            Stage::Meet => "waiting until the others have their data",
            Stage::Work => "working on the device",
            Stage::Settle => "waiting until the others have done their share",
            Stage::Unpack => "unpacking on the device",
        }
    }

    /// The peer that is waited for, if one can be named.
    pub(crate) fn waiting_for(&self, windows: &Windows) -> Option<Rank> {
        let waits = matches!(self.stage, Stage::Gather | Stage::Meet | Stage::Settle);
        let peer = || windows.first_absent().or_else(|| windows.last_behind());
        waits.then(peer).flatten().map(|local_rank| windows.rank(local_rank))
    }

    fn load(
        &mut self,
        plane: &mut DevicePlane,
        bucket: &Bucket,
        table: &PendingTable,
        windows: &Windows,
    ) -> Result<()> {
        self.tensors = Tensors::find(plane, bucket, &self.movement, table, self.here)?;
        let Some(ordinal) = self.tensors.ordinal else { return Ok(()) };
        let opening = |error| local(format!("opening device {ordinal}"), error);
        let is_ordered = self.tensors.runs_ahead && plane.has_words(ordinal, windows).map_err(opening)?;
        let opened = plane.opened(ordinal).map_err(opening)?;
        // What an abandoned bucket has waited for says nothing about work that was queued since.
        opened.draining = None;
        let slot_bytes = windows.layout().small_bytes;
        let (ends, replaces) = (self.end_bytes(self.here.me.index()), self.replaces());
        let shard = Stretch::default();
        let sharing =
            Sharing { tensors: &self.tensors, dtype: self.plan.dtype, ends: &ends, replaces, shard, slot_bytes };
        self.shared = sharing.share(opened).map_err(|error| local("sharing device memory", error))?;
        self.shared.posting.is_ordered = is_ordered;
        self.shared.posting.at_once = opened.device.info().runs_processes_at_once;
        if is_ordered {
            self.stage = Stage::Gather;
            return Ok(());
        }
        self.queue_load(plane)
    }

    fn queue_load(&mut self, plane: &mut DevicePlane) -> Result<()> {
        let Some(ordinal) = self.tensors.ordinal else { return Ok(()) };
        let opened = plane.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let loaded = self.shared.queue_load(&self.tensors, &opened.stream, &mut self.in_flight);
        loaded.map_err(|error| local("packing on the device", error))
    }

    /// Queues the whole bucket if all ranks let devices order its steps; otherwise what comes first.
    fn queue_ordered(&mut self, plane: &mut DevicePlane, windows: &mut Windows) -> Result<Gathered> {
        let told = self.told(windows)?;
        let Some(ordinal) = self.tensors.ordinal.filter(|_| ordered::is_possible(&told)) else {
            self.queue_load(plane)?;
            return Ok(Gathered::Apart);
        };
        plane.watch_sharing(ordinal, &told, windows);
        let Some(work) = ordered::reach(plane, ordinal, &told, windows)? else { return Ok(Gathered::NotYet) };
        let (plan, movement, size) = (&self.plan, &self.movement, self.here.size);
        let ordered = Ordered { plan, movement, tensors: &self.tensors, shared: &self.shared, size };
        let stopwatch = self.in_flight.take_stopwatch();
        self.queued = Some(ordered.queue(plane, ordinal, &told, work, stopwatch)?);
        windows.finish();
        Ok(Gathered::Queued)
    }

    /// Queues what this rank does, if it does anything. Says whether it could: the device may still use mappings that
    /// have to be closed.
    fn work(&mut self, plane: &mut DevicePlane, windows: &Windows) -> Result<bool> {
        let Some(ordinal) = self.tensors.ordinal else { return Ok(true) };
        let told = self.told(windows)?;
        plane.watch_sharing(ordinal, &told, windows);
        let Some(share) = work::Share::of(&told, windows.me()) else { return Ok(true) };
        let Some(places) = plane.translate_all(ordinal, &told, windows)? else { return Ok(false) };
        let (plan, moves, size) = (&*self.plan, &*self.movement.moves, self.here.size);
        let work = work::Work { plan, moves, places: &places, share: &share, size };
        let opened = plane.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let scratch = opened.scratch(work.scratch_bytes());
        let scratch = scratch.map_err(|error| local("allocating scratch memory on the device", error))?;
        let stream = &opened.stream;
        self.in_flight.begin(stream).map_err(|error| local("recording an event", error))?;
        let queued = work.queue(stream, scratch);
        if queued.map_err(|error| local("working on the device", error))? {
            self.in_flight.record(stream, DeviceStep::Fold).map_err(|error| local("recording an event", error))?;
        }
        Ok(true)
    }

    fn copy_back(&mut self, plane: &mut DevicePlane) -> DeviceResult<()> {
        if let (false, Some(ordinal)) = (self.shared.unpacking.is_empty(), self.tensors.ordinal) {
            let opened = plane.opened(ordinal)?;
            self.in_flight.begin(&opened.stream)?;
            self.shared.unpacking.queue(&opened.stream)?;
            self.in_flight.record(&opened.stream, DeviceStep::Unpack)?;
        }
        Ok(())
    }

    /// What all ranks of the host have told, in the order of their local ranks.
    fn told(&self, windows: &Windows) -> Result<Vec<Told>> {
        let read = |local_rank: usize| {
            let slot = windows.small_part(local_rank, 0, windows.layout().small_bytes);
            let rank = windows.rank(local_rank);
            Told::read(slot, &self.end_bytes(rank.index()), 0, self.replaces())
                .map_err(|what| Error::Garbled { peer: rank, what })
        };
        (0..windows.size()).map(read).collect()
    }

    fn end_bytes(&self, rank: usize) -> Vec<EndBytes> {
        EndBytes::of(&self.movement.ends[rank], self.plan.dtype)
    }

    /// Whether results replace inputs where tensors are packed.
    fn replaces(&self) -> bool {
        matches!(
            self.plan.collective,
            Collective::Allreduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. }
        )
    }
}
