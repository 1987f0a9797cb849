//! An allreduce in device memory between hosts, on one rank: [`HostsRun`].
//!
//! It is hierarchical. The elements are cut into *shards*, one for each rank of a host, its *holder*; all hosts have as
//! many ranks. A shard crosses the network once for each host, over its holders' own links, and only shards go through
//! host memory:
//!
//! 1. *Load*: the tensors hold their data; this rank has *exposed* its contribution.
//! 2. *Meet*: all ranks of the host have exposed theirs.
//! 3. *Fold*: ranks that work for a device fold the contributions of the host into the shards, in device memory.
//! 4. *Collect*: all shards of the host are folded.
//! 5. *Exchange*: the holders of this shard on all hosts combine theirs, over links (`plan::hierarchical`). For that it
//!    is copied to pinned host memory and back, in slices, which overlaps with the network (`exchange`).
//! 6. *Return*: all shards of the host are back.
//! 7. *Spread*: ranks that work for a device store all shards, finished, with the ranks of that device.
//! 8. *Settle*: all ranks of the host have done so. 9. *Unpack*: what was packed is copied back.
//!
//! Halves are partial sums in between, so shards are singles then (`plan::plane::carrier`). No rank writes a caller's
//! memory before all ranks of all hosts have come: a shard needs its holders everywhere, and those need their hosts.
//!
//! Bytes: with `l` ranks on each of `h` hosts, each rank copies `1/l` of the bucket to the host and back, and sends
//! `2 (h - 1) / (h l)` of it. Folding and spreading are not cut into slices: they run at the speed of device memory,
//! some hundred times that of a network, and the ranks of a host would have to meet for each slice.

use std::sync::Arc;

use farandole_device::{DeviceFold, Result as DeviceResult};
use farandole_plan::agree::Bucket;
use farandole_plan::device::Movement;
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Rank, ReduceOp};
use farandole_tensor::Finish;
use farandole_trace::event::DeviceStep;
use farandole_transport::shm::Windows;
use farandole_transport::{Error, Mesh, Progress, Result};

use super::exchange::Exchange;
use super::in_flight::InFlight;
use super::posting::{EndBytes, Told};
use super::shards::Shards;
use super::sharing::{Shared, Sharing};
use super::tensors::{Stretch, Tensors};
use super::work::{self, Places, Share};
use super::{Begin, DevicePlane, local};
use crate::bucket::GroupRank;
use crate::exec::links::LinkRun;
use crate::exec::planes::Prepared;
use crate::pending::PendingTable;

/// Marks by which the ranks of a host meet: contributions are there, shards are folded, shards are back.
const EXPOSED: u64 = 0;
const FOLDED: u64 = 1;
const RETURNED: u64 = 2;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct HostsRun {
    plan: Arc<BucketPlan>,
    movement: Arc<Movement>,
    here: GroupRank,
    /// The group's ranks on this host, and this rank's place among them.
    locals: Vec<Rank>,
    local_rank: usize,
    shards: Shards,
    tensors: Tensors,
    /// The device on which this rank's shard lies.
    ordinal: u32,
    shard: Stretch,
    shared: Shared,
    stage: Stage,
    /// Why it could not begin, until somebody is told.
    failure: Option<Error>,
    /// Where everything lies on this host, once all have told.
    reached: Option<Reached>,
    exchange: Exchange,
    in_flight: InFlight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Load,
    Meet,
    Fold,
    Collect,
    Exchange,
    Return,
    Spread,
    Settle,
    Unpack,
}

/// Where the tensors and shards of the host's ranks lie in this process.
#[derive(Debug)]
struct Reached {
    places: Vec<Places>,
    shards: Vec<u64>,
    /// What this rank does, if it works for a device.
    share: Option<Share>,
}

impl HostsRun {
    /// Begins a bucket. A failure is kept until the run is first advanced.
    pub(crate) fn begin(bucket: &Bucket, movement: &Arc<Movement>, prepared: &Prepared, begin: Begin<'_>) -> HostsRun {
        let Begin { plane, table, mesh, here, descriptor, stopwatch } = begin;
        let topology = mesh.topology();
        let locals = topology.ranks_on(topology.host_of(here.me)).to_vec();
        let shards = Shards::new(&bucket.plan, locals.len());
        let run = LinkRun::new(Arc::clone(&prepared.schedule), here.size, bucket.operation.0, descriptor);
        let times = [stopwatch.another(), stopwatch.another()];
        let exchange = Exchange::new(&prepared.slices, run, shards.carrier, reduction(&bucket.plan).0, times);
        let mut run = HostsRun {
            plan: Arc::clone(&bucket.plan),
            movement: Arc::clone(movement),
            here,
            local_rank: topology.local_rank(here.me),
            shards,
            locals,
            tensors: Tensors::default(),
            ordinal: 0,
            shard: Stretch::default(),
            shared: Shared::default(),
            stage: Stage::Load,
            failure: None,
            reached: None,
            exchange,
            in_flight: InFlight::timed_by(stopwatch),
        };
        if let Err(error) = run.load(plane, bucket, table, mesh.windows.as_ref()) {
            run.shared = Shared::default();
            run.failure = Some(error);
        }
        run
    }

    /// What the others of the host must know, for this rank's small slot.
    pub(crate) fn write_posting(&self, slot: &mut [u8]) {
        self.shared.posting.write(slot);
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, plane: &mut DevicePlane, mesh: &mut Mesh) -> Result<Progress> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut progress = Progress::Pending;
        loop {
            match self.step(plane, mesh)? {
                Progress::Done if self.stage == Stage::Unpack => return Ok(Progress::Done),
                Progress::Done => (self.stage, progress) = (next(self.stage), Progress::Moved),
                Progress::Moved => return Ok(Progress::Moved),
                Progress::Pending => return Ok(progress),
            }
        }
    }

    /// Does what this stage asks for; done if the next one can begin.
    fn step(&mut self, plane: &mut DevicePlane, mesh: &mut Mesh) -> Result<Progress> {
        let pass = |passes: bool| Ok(if passes { Progress::Done } else { Progress::Pending });
        match self.stage {
            Stage::Load => pass(self.in_flight.is_done()? && show(mesh, EXPOSED)),
            Stage::Meet if met(mesh, EXPOSED)? => {
                self.fold(plane, mesh.windows.as_ref())?;
                Ok(Progress::Done)
            }
            Stage::Fold => pass(self.in_flight.is_done()? && show(mesh, FOLDED)),
            Stage::Collect if met(mesh, FOLDED)? => {
                self.begin_exchange(plane).map_err(|error| local("copying a shard to the host", error))?;
                Ok(Progress::Done)
            }
            Stage::Exchange => self.advance_exchange(plane, mesh),
            Stage::Return if met(mesh, RETURNED)? => {
                self.spread(plane).map_err(|error| local("working on the device", error))?;
                Ok(Progress::Done)
            }
            Stage::Spread => {
                let done = self.in_flight.is_done()?;
                if let (true, Some(windows)) = (done, &mut mesh.windows) {
                    windows.settle();
                    windows.announce();
                }
                pass(done)
            }
            Stage::Settle if mesh.windows.as_ref().is_none_or(Windows::all_settled) => {
                if let Some(windows) = &mut mesh.windows {
                    windows.finish();
                }
                self.copy_back(plane).map_err(|error| local("copying results on the device", error))?;
                Ok(Progress::Done)
            }
            Stage::Unpack => pass(self.in_flight.is_done()?),
            Stage::Meet | Stage::Collect | Stage::Return | Stage::Settle => Ok(Progress::Pending),
        }
    }

    /// The driver is about to sleep: the device must wake it.
    pub(crate) fn fall_asleep(&mut self, plane: &mut DevicePlane) {
        let asleep = self.in_flight.fall_asleep(plane, self.ordinal);
        if let Err(error) = asleep.and_then(|()| self.exchange.fall_asleep(plane, self.ordinal)) {
            self.failure = Some(error);
        }
    }

    /// How long the device took for what.
    pub(crate) fn take_times(&mut self) -> Vec<(DeviceStep, u64)> {
        let mut times = self.in_flight.take_times();
        // However many slices there were, their copies are one step each way.
        for (step, ns) in self.exchange.take_times() {
            match times.iter_mut().find(|(timed, _)| *timed == step) {
                Some((_, sum_ns)) => *sum_ns += ns,
                None => times.push((step, ns)),
            }
        }
        times
    }

    /// How far it has come, in words.
    pub(crate) fn progress(&self) -> &'static str {
        match self.stage {
            Stage::Load => "packing on the device",
            Stage::Meet => "waiting until the others of this host have their data",
            Stage::Fold => "folding on the device",
            Stage::Collect => "waiting until the others of this host have folded",
            Stage::Exchange => self.exchange.progress(),
            Stage::Return => "waiting for what the others of this host exchange with other hosts",
            Stage::Spread => "storing results on the device",
            Stage::Settle => "waiting until the others of this host have stored results",
            Stage::Unpack => "unpacking on the device",
        }
    }

    /// The peer that is waited for, if one can be named.
    pub(crate) fn waiting_for(&self, windows: Option<&Windows>) -> Option<Rank> {
        match self.stage {
            Stage::Exchange => self.exchange.waiting_for(),
            Stage::Meet | Stage::Collect | Stage::Return | Stage::Settle => {
                let windows = windows?;
                windows.first_absent().or_else(|| windows.last_behind()).map(|local_rank| windows.rank(local_rank))
            }
            _ => None,
        }
    }

    fn load(
        &mut self,
        plane: &mut DevicePlane,
        bucket: &Bucket,
        table: &PendingTable,
        windows: Option<&Windows>,
    ) -> Result<()> {
        self.tensors = Tensors::find(plane, bucket, &self.movement, table, self.here)?;
        // A rank that has joined has no tensors, and holds its shard on any device.
        self.ordinal = self.tensors.ordinal.unwrap_or_else(|| plane.any_ordinal());
        let opened = plane.opened(self.ordinal);
        let opened = opened.map_err(|error| local(format!("opening device {}", self.ordinal), error))?;
        let bytes = self.shards.bytes(self.local_rank);
        let address = opened.shard(bytes as usize).map_err(|error| local("allocating a shard", error))?;
        self.shard = Stretch { address, bytes };
        let slot_bytes = windows.map_or(0, |windows| windows.layout().small_bytes);
        let (ends, dtype, shard) = (self.end_bytes(self.here.me), self.plan.dtype, self.shard);
        let sharing = Sharing { tensors: &self.tensors, dtype, ends: &ends, replaces: true, shard, slot_bytes };
        let shared = if windows.is_some() { sharing.share(opened) } else { sharing.keep(opened) };
        self.shared = shared.map_err(|error| local("sharing device memory", error))?;
        let loaded = self.shared.queue_load(&self.tensors, &opened.stream, &mut self.in_flight);
        loaded.map_err(|error| local("packing on the device", error))?;
        Ok(())
    }

    /// Finds out where everything lies, and folds the contributions of this host.
    fn fold(&mut self, plane: &mut DevicePlane, windows: Option<&Windows>) -> Result<()> {
        let reached = self.reach(plane, windows)?;
        if let Some(share) = &reached.share {
            let segments = self.shards.fold(&reached.places, &reached.shards, share);
            let (op, prescale, _) = self.reduction();
            let (dtype, stored, finish) = (self.plan.dtype, self.shards.carrier, Finish::Nothing);
            let fold = segments.as_fold(dtype, stored, op, prescale, finish);
            let queued = self.queue(plane, &fold, DeviceStep::Fold);
            queued.map_err(|error| local("working on the device", error))?;
        }
        self.reached = Some(reached);
        Ok(())
    }

    /// Queues a fold, if it has any elements.
    fn queue(&mut self, plane: &mut DevicePlane, fold: &DeviceFold<'_>, step: DeviceStep) -> DeviceResult<()> {
        if fold.elems.is_empty() {
            return Ok(());
        }
        let stream = &plane.opened(self.ordinal)?.stream;
        self.in_flight.begin(stream)?;
        stream.fold(fold)?;
        self.in_flight.record(stream, step)
    }

    fn begin_exchange(&mut self, plane: &mut DevicePlane) -> DeviceResult<()> {
        let contributes = self.reached.as_ref().is_some_and(|reached| reached.places.iter().any(Option::is_some));
        // Otherwise all ranks of this host have joined.
        if contributes { Ok(()) } else { self.exchange.begin_neutral(plane.opened(self.ordinal)?, self.shard) }
    }

    fn advance_exchange(&mut self, plane: &mut DevicePlane, mesh: &mut Mesh) -> Result<Progress> {
        let ordinal = self.ordinal;
        let opened = plane.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let progress = self.exchange.advance(opened, mesh, self.shard)?;
        if progress == Progress::Done {
            show(mesh, RETURNED);
        }
        Ok(progress)
    }

    /// Stores all shards with the ranks that this one works for.
    fn spread(&mut self, plane: &mut DevicePlane) -> DeviceResult<()> {
        let reached = self.reached.take().expect("invariant: shards are folded before they are spread");
        let Some(share) = &reached.share else { return Ok(()) };
        let segments = self.shards.spread(&reached.places, &reached.shards, share);
        let (op, _, postscale) = self.reduction();
        let finish = Finish::new(self.plan.dtype, op, self.here.size as u64, postscale);
        // Of one contribution a sum is what it is.
        let (dtype, stored, op) = (self.shards.carrier, self.plan.dtype, ReduceOp::Sum);
        self.queue(plane, &segments.as_fold(dtype, stored, op, 1.0, finish), DeviceStep::Unpack)
    }

    fn copy_back(&mut self, plane: &mut DevicePlane) -> DeviceResult<()> {
        if self.shared.unpacking.is_empty() {
            return Ok(());
        }
        let stream = &plane.opened(self.ordinal)?.stream;
        self.in_flight.begin(stream)?;
        self.shared.unpacking.queue(stream)?;
        self.in_flight.record(stream, DeviceStep::Unpack)
    }

    /// Where the tensors and shards of this host lie.
    fn reach(&self, plane: &mut DevicePlane, windows: Option<&Windows>) -> Result<Reached> {
        let Some(windows) = windows else { return Ok(self.alone()) };
        let opened = plane.opened(self.ordinal);
        let opened = opened.map_err(|error| local(format!("opening device {}", self.ordinal), error))?;
        let (mut all, mut places, mut shards) = (Vec::new(), Vec::new(), Vec::new());
        for (local_rank, &rank) in self.locals.iter().enumerate() {
            let slot = windows.small_part(local_rank, 0, windows.layout().small_bytes);
            let told = Told::read(slot, &self.end_bytes(rank), self.shards.bytes(local_rank), true)
                .map_err(|what| Error::Garbled { peer: rank, what })?;
            all.push(told);
        }
        let share = Share::of(&all, windows.me());
        if share.is_some() {
            for (told, rank) in all.iter().zip(&self.locals) {
                let failed = |error| local(format!("mapping the device memory of rank {rank}"), error);
                places.push(work::translate(&mut opened.mappings, told).map_err(failed)?);
                shards.push(work::translate_shard(&mut opened.mappings, told).map_err(failed)?);
            }
        } else {
            places = all.iter().map(|told| (!told.places.is_empty()).then(Vec::new)).collect();
        }
        Ok(Reached { places, shards, share })
    }

    /// The same for the only rank of a host.
    fn alone(&self) -> Reached {
        let places = &self.shared.places;
        let places = vec![(!places.is_empty()).then(|| places.clone())];
        Reached { places, shards: vec![self.shard.address], share: Some(Share::alone()) }
    }

    fn end_bytes(&self, rank: Rank) -> Vec<EndBytes> {
        EndBytes::of(&self.movement.ends[rank.index()], self.plan.dtype)
    }

    fn reduction(&self) -> (ReduceOp, f64, f64) {
        reduction(&self.plan)
    }
}

fn reduction(plan: &BucketPlan) -> (ReduceOp, f64, f64) {
    plan.collective.reduction().expect("invariant: only allreduces cross hosts in shards")
}

fn next(stage: Stage) -> Stage {
    match stage {
        Stage::Load => Stage::Meet,
        Stage::Meet => Stage::Fold,
        Stage::Fold => Stage::Collect,
        Stage::Collect => Stage::Exchange,
        Stage::Exchange => Stage::Return,
        Stage::Return => Stage::Spread,
        Stage::Spread => Stage::Settle,
        Stage::Settle | Stage::Unpack => Stage::Unpack,
    }
}

/// Tells the others of this host how far this rank has come.
fn show(mesh: &mut Mesh, mark: u64) -> bool {
    if let Some(windows) = &mut mesh.windows {
        windows.mark_filled(mark);
        // What comes next may be looks at the device: sleepers would hear of it late.
        windows.announce();
    }
    true
}

/// Whether all ranks of this host have come so far.
fn met(mesh: &mut Mesh, mark: u64) -> Result<bool> {
    match &mut mesh.windows {
        Some(windows) => Ok(windows.all_begun()? && windows.all_filled(mark)),
        None => Ok(true),
    }
}
