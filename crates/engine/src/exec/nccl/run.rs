//! One bucket on NCCL, on one rank: [`NcclRun`].
//!
//! 1. *Tell* and *join*, for the first bucket of a group: rank 0 tells all ranks NCCL's id, and they join.
//! 2. *Call*: packing and NCCL's calls are queued. NCCL may take a while for that, too.
//! 3. *Work*: they are in the stream, with unpacking and an event behind them. When that has happened, all is done.
//!
//! Where the program lets its streams wait for the results, and the bucket is a familiar one (`familiar`), it is over
//! for the host when it is queued; the results are there after the event.
//!
//! A run holds the group's communicator. Dropped before it is done it gives the bucket up: the communicator is aborted,
//! which ends what it has on the device, and the memory goes back when that is over, or after a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_device::nccl::{NcclCommunicator, UNIQUE_ID_BYTES, UniqueId};
use farandole_device::{
    Allocation, DeviceCopy, DeviceFold, Error as DeviceError, Event, Result as DeviceResult, Stream,
};
use farandole_plan::agree::Bucket;
use farandole_plan::algorithm::{self, Tuning};
use farandole_plan::device::Movement;
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Dtype, Rank, ReduceOp};
use farandole_tensor::{Finish, Fold, Region};
use farandole_transport::{Error, Mesh, Progress, Result};

use super::NcclPlane;
use super::familiar::Kind;
use super::program::{Program, Scaled};
use super::suspicion::Suspicion;
use crate::bucket::GroupRank;
use crate::exec::Buffers;
use crate::exec::device::tensors::{Stretch, Tensor, Tensors};
use crate::exec::device::trailing::Queued;
use crate::exec::device::{DevicePlane, local};
use crate::exec::links::LinkRun;
use crate::pending::PendingTable;

/// How often NCCL is asked whether it has come further with what has no event: joining takes tens of milliseconds,
/// queueing microseconds.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// How often NCCL is asked whether anything has gone wrong while its work runs. The work's end rings.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// How long a run that is given up waits for the stream after its communicator was aborted.
const GIVE_UP_AFTER: Duration = Duration::from_millis(500);

/// Neutral elements that are copied from the host; the device copies them further.
const NEUTRAL_BYTES: usize = 1 << 20;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct NcclRun {
    plan: Arc<BucketPlan>,
    movement: Arc<Movement>,
    here: GroupRank,
    tensors: Tensors,
    /// The device that this rank works on.
    ordinal: u32,
    stage: Stage,
    /// Why it could not begin, until somebody is told.
    failure: Option<Error>,
    suspicion: Suspicion,
    /// Until all ranks know the id.
    telling: Option<Box<Telling>>,
    communicator: Option<NcclCommunicator>,
    program: Program,
    /// Where it packs.
    packed: Option<Arc<Allocation>>,
    /// Whether the host need not wait for what it has queued.
    runs_ahead: bool,
    /// What devices go on with, once it is queued.
    queued: Option<Queued>,
    /// Behind everything that was queued.
    last: Option<Event>,
    /// Whether the driver was asked to ring for it.
    rings: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Tell,
    Join,
    Call,
    Work,
}

/// NCCL's id on its way from rank 0 to all.
#[derive(Debug)]
struct Telling {
    run: LinkRun,
    id: [u8; UNIQUE_ID_BYTES],
}

/// What a new run is told besides its bucket.
pub(crate) struct Begin<'a> {
    pub(crate) device: &'a mut DevicePlane,
    pub(crate) nccl: &'a mut NcclPlane,
    pub(crate) mesh: &'a Mesh,
    pub(crate) table: &'a PendingTable,
    pub(crate) here: GroupRank,
}

impl NcclRun {
    /// Begins a bucket, for which `links` stands at the end of its entry. A failure is kept until the run is first
    /// advanced.
    pub(crate) fn begin(bucket: &Bucket, movement: &Arc<Movement>, links: LinkRun, begin: Begin<'_>) -> NcclRun {
        let Begin { device, nccl, mesh, table, here } = begin;
        let mut run = NcclRun {
            plan: Arc::clone(&bucket.plan),
            movement: Arc::clone(movement),
            here,
            tensors: Tensors::default(),
            ordinal: 0,
            stage: Stage::Join,
            failure: None,
            suspicion: Suspicion::default(),
            telling: None,
            communicator: nccl.communicator.take(),
            program: Program::default(),
            packed: None,
            runs_ahead: false,
            queued: None,
            last: None,
            rings: false,
        };
        match Tensors::find(device, bucket, movement, table, here) {
            Ok(tensors) => run.tensors = tensors,
            Err(error) => run.failure = Some(error),
        }
        if movement.moves.is_empty() {
            // There is memory for results, and nothing in it.
            run.stage = Stage::Work;
            return run;
        }
        let local_rank = mesh.topology().local_rank(here.me) as u32;
        if let Err(error) = run.choose_device(device, local_rank).and_then(|()| run.begin_telling(nccl, mesh, links)) {
            run.failure.get_or_insert(error);
        }
        run
    }

    /// Does what can be done now.
    pub(crate) fn advance(
        &mut self,
        device: &mut DevicePlane,
        nccl: &mut NcclPlane,
        mesh: &mut Mesh,
    ) -> Result<Progress> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut progress = Progress::Pending;
        loop {
            let stage = self.stage;
            let next = match stage {
                Stage::Tell => match self.tell(mesh)? {
                    Progress::Done => {
                        self.join(device, nccl)?;
                        Some(Stage::Join)
                    }
                    Progress::Moved => return Ok(Progress::Moved),
                    Progress::Pending => None,
                },
                Stage::Join if self.is_ready()? && self.call(device, nccl)? => Some(Stage::Call),
                Stage::Call if self.is_ready()? => {
                    self.unpack(device)?;
                    if self.runs_ahead {
                        self.leave_queued(nccl);
                        return Ok(Progress::Done);
                    }
                    Some(Stage::Work)
                }
                // Kernels of NCCL's end early when something has gone wrong.
                Stage::Work if self.has_happened()? & self.is_ready()? => {
                    nccl.communicator = self.communicator.take();
                    if device.trailing.is_empty() {
                        nccl.note_idle();
                    }
                    nccl.familiar.note_done(self.plan.hash);
                    return Ok(Progress::Done);
                }
                Stage::Join | Stage::Call | Stage::Work => None,
            };
            match next {
                Some(stage) => (self.stage, progress) = (stage, Progress::Moved),
                None => return Ok(progress),
            }
        }
    }

    /// What was queued, if the host does not wait for it.
    pub(crate) fn take_queued(&mut self) -> Option<Queued> {
        self.queued.take()
    }

    /// Memory that was made for results, in the order of the requests of this rank.
    pub(crate) fn take_results(&mut self) -> Vec<Option<Region>> {
        self.tensors.take_results()
    }

    /// The driver is about to sleep: the device must wake it.
    pub(crate) fn fall_asleep(&mut self, device: &mut DevicePlane) {
        let Some(event) = self.last.as_ref().filter(|_| !self.rings) else { return };
        // A driver that cannot ring has an error for the next look, too.
        match device.ring_after(self.ordinal, event) {
            Ok(()) => self.rings = true,
            Err(error) => self.failure = Some(local("waiting for the device", error)),
        }
    }

    /// After how long it wants to be advanced again, whatever happens.
    pub(crate) fn look_every(&self) -> Option<Duration> {
        match self.stage {
            _ if self.suspicion.is_raised() => Some(WATCH_EVERY),
            Stage::Tell => None,
            Stage::Join | Stage::Call => Some(LOOK_EVERY),
            Stage::Work => Some(WATCH_EVERY),
        }
    }

    /// How far it has come, in words.
    pub(crate) fn progress(&self) -> &'static str {
        match self.stage {
            Stage::Tell => "telling NCCL's id",
            Stage::Join => "waiting until NCCL has connected all ranks",
            Stage::Call => "queueing calls of NCCL",
            Stage::Work => "working on the device, by NCCL",
        }
    }

    /// The peer that is waited for, if one can be named.
    pub(crate) fn waiting_for(&self) -> Option<Rank> {
        self.telling.as_ref().and_then(|telling| telling.run.waiting_for())
    }

    /// A communicator is for one device. A rank that has no tensors because it has joined takes the one of its number
    /// on the host, where programs put their tensors.
    fn choose_device(&mut self, device: &mut DevicePlane, local_rank: u32) -> Result<()> {
        let joined = self.communicator.as_ref().map(|communicator| communicator.device().info().ordinal);
        self.ordinal = match (self.tensors.ordinal, joined) {
            (Some(here), Some(before)) if here != before => {
                let both = format!(
                    "they lie on device {here} of this process, and NCCL connects its device {before} with the other \
                     ranks; FARANDOLE_PLANE=own or staged takes any"
                );
                return Err(Error::local("working on tensors by NCCL", std::io::Error::other(both)));
            }
            (Some(ordinal), _) | (None, Some(ordinal)) => ordinal,
            (None, None) if device.opened(local_rank).is_ok() => local_rank,
            (None, None) => 0,
        };
        Ok(())
    }

    fn begin_telling(&mut self, nccl: &NcclPlane, mesh: &Mesh, mut run: LinkRun) -> Result<()> {
        if self.communicator.is_some() {
            return Ok(());
        }
        let (root, tuning) = (Rank(0), Tuning::for_dtype(Dtype::U8));
        let id = match self.here.me == root {
            true => nccl.library.unique_id().map_err(|error| local("asking NCCL for an id", error))?.0,
            false => [0; UNIQUE_ID_BYTES],
        };
        let schedule = algorithm::broadcast(UNIQUE_ID_BYTES as u64, root, mesh.topology(), self.here.me, &tuning);
        run.then(Arc::new(schedule));
        (self.stage, self.telling) = (Stage::Tell, Some(Box::new(Telling { run, id })));
        Ok(())
    }

    fn tell(&mut self, mesh: &mut Mesh) -> Result<Progress> {
        let Telling { run, id } = &mut **self.telling.as_mut().expect("invariant: a run that tells has an id");
        run.advance(mesh, &mut Buffers::new(id, Dtype::U8))
    }

    fn join(&mut self, device: &mut DevicePlane, nccl: &NcclPlane) -> Result<()> {
        let telling = self.telling.take().expect("invariant: a run that tells has an id");
        let ordinal = self.ordinal;
        let opened = device.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let (size, me) = (self.here.size, self.here.me.index());
        let communicator = NcclCommunicator::join(&nccl.library, &opened.device, &UniqueId(telling.id), size, me);
        self.communicator = Some(communicator.map_err(|error| local("joining the others on NCCL", error))?);
        Ok(())
    }

    /// Queues packing and NCCL's calls. Says whether it has: where memory that devices still use would be written or
    /// given back by the host, it waits.
    fn call(&mut self, device: &mut DevicePlane, nccl: &mut NcclPlane) -> Result<bool> {
        let program = |packed| Program::new(&self.plan, &self.movement, self.here, &self.tensors.tensors, packed);
        let wanted = program(0);
        let (packed_bytes, packs_bytes) = (wanted.packed_bytes, self.packs_bytes(&wanted));
        let trails = !device.trailing.is_empty();
        if trails && (!wanted.neutral.is_empty() || !nccl.has_room(packed_bytes, packs_bytes)) {
            return Ok(false);
        }
        let kind = nccl.familiar.meet(self.plan.hash, packs_bytes);
        let has_tensors = !self.tensors.tensors.is_empty();
        self.runs_ahead = kind == Kind::Familiar && self.tensors.runs_ahead && has_tensors;
        let ordinal = self.ordinal;
        let opened = device.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let communicator = self.communicator.as_mut().expect("invariant: a run that has joined has a communicator");
        if packed_bytes > 0 {
            let memory = nccl.memory(communicator, packed_bytes, packs_bytes, kind);
            self.packed = Some(memory.map_err(|error| local("allocating a fusion buffer", error))?);
        }
        self.program = program(self.packed.as_ref().map_or(0, |memory| memory.address()));
        let queued = self.program.write_neutral(&self.plan, opened).and_then(|()| {
            self.tensors.ready.iter().try_for_each(|ready| opened.stream.wait(ready))?;
            let prescale = self.plan.collective.reduction().map_or(1.0, |(_, prescale, _)| prescale);
            let types = |tensor| (tensor, self.plan.dtype);
            queue_scaled(&opened.stream, types, &self.program.packing, prescale, Finish::Nothing)?;
            opened.stream.copy(&self.program.copies)
        });
        // From here on something may be in the stream.
        self.last = opened.stream.record().ok();
        queued.map_err(|error| local("packing on the device", error))?;
        communicator.call(&opened.stream, &self.program.calls).map_err(|error| local("calling NCCL", error))?;
        Ok(true)
    }

    /// NCCL's calls are in the stream: queues unpacking behind them.
    fn unpack(&mut self, device: &mut DevicePlane) -> Result<()> {
        let ordinal = self.ordinal;
        let opened = device.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let finish = match self.plan.collective.reduction() {
            Some((op, _, postscale)) => Finish::new(self.plan.dtype, op, self.here.size as u64, postscale),
            None => Finish::Nothing,
        };
        let types = |tensor| (self.plan.dtype, tensor);
        let unpacked = queue_scaled(&opened.stream, types, &self.program.unpacking, 1.0, finish);
        let event = opened.stream.record();
        if let Ok(event) = &event {
            (self.last, self.rings) = (Some(event.clone()), false);
        }
        unpacked.and(event.map(drop)).map_err(|error| local("unpacking on the device", error))
    }

    /// What ranks pack for this plan, if they have not joined and their tensors are of the type that travels.
    fn packs_bytes(&self, wanted: &Program) -> u64 {
        let (tensors, dtype) = (&self.tensors.tensors, self.plan.dtype);
        if !tensors.is_empty() && tensors.iter().all(|tensor| tensor.dtype == dtype) {
            return wanted.packed_bytes;
        }
        let nowhere = Tensor { input: Stretch::default(), output: Stretch::default(), dtype };
        let tensors = vec![nowhere; self.plan.parts.len()];
        Program::new(&self.plan, &self.movement, self.here, &tensors, 0).packed_bytes
    }

    /// The host goes on: the group has its communicator back while devices work.
    fn leave_queued(&mut self, nccl: &mut NcclPlane) {
        let event = self.last.take().expect("invariant: an event is recorded behind what was unpacked");
        self.queued = Some(Queued::without_words(event, self.packed.take()));
        nccl.communicator = self.communicator.take();
    }

    /// Whether NCCL is through with what was begun last.
    fn is_ready(&mut self) -> Result<bool> {
        // An empty bucket needs none.
        let Some(communicator) = self.communicator.as_mut() else { return Ok(true) };
        let doing = match self.stage {
            Stage::Tell | Stage::Join => "joining the others on NCCL",
            Stage::Call => "calling NCCL",
            Stage::Work => "working by NCCL",
        };
        self.suspicion.is_ready(communicator, doing)
    }

    fn has_happened(&mut self) -> Result<bool> {
        let Some(event) = &self.last else { return Ok(true) };
        let happened = event.has_happened().map_err(|error| local("waiting for the device", error))?;
        if happened {
            (self.last, self.rings) = (None, false);
        }
        Ok(happened)
    }
}

impl Drop for NcclRun {
    fn drop(&mut self) {
        // What it has on the device ends with it.
        drop(self.communicator.take());
        let Some(event) = &self.last else { return };
        let began = Instant::now();
        // A device that has failed does nothing more.
        while matches!(event.has_happened(), Ok(false)) {
            if began.elapsed() > GIVE_UP_AFTER {
                log::warn!("the device is still busy with work of NCCL's that was given up");
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Program {
    /// Writes what a rank that has joined contributes. The host may wait for its device here: the program on it waits
    /// for the other ranks.
    fn write_neutral(&self, plan: &BucketPlan, opened: &crate::exec::device::Opened) -> DeviceResult<()> {
        let Some((op, ..)) = plan.collective.reduction() else { return Ok(()) };
        for &(address, elems) in &self.neutral {
            let bytes = elems as usize * plan.dtype.size_bytes();
            let mut block = vec![0; bytes.min(NEUTRAL_BYTES)];
            Fold::new(plan.dtype, op).neutral(&mut block);
            opened.device.write_and_wait(address, &block)?;
            let copies: Vec<DeviceCopy> = (block.len()..bytes)
                .step_by(NEUTRAL_BYTES)
                .map(|start| DeviceCopy {
                    source: address,
                    target: address + start as u64,
                    bytes: (bytes - start).min(NEUTRAL_BYTES) as u64,
                })
                .collect();
            opened.stream.copy(&copies)?;
        }
        Ok(())
    }
}

/// Queues copies of elements that are scaled and finished on the way. Where there is nothing to do to them, elements
/// that stay where they are need no work. `types` says from which type to which one, for tensors of a type.
fn queue_scaled(
    stream: &Stream,
    types: impl Fn(Dtype) -> (Dtype, Dtype),
    scaled: &[Scaled],
    prescale: f64,
    finish: Finish,
) -> std::result::Result<(), DeviceError> {
    // A bucket has few types: one, or those that travel as one.
    let mut left: Vec<&Scaled> = scaled.iter().filter(|one| one.elems > 0).collect();
    while let Some(first) = left.first() {
        let dtype = first.dtype;
        let (alike, others) = left.into_iter().partition::<Vec<&Scaled>, _>(|one| one.dtype == dtype);
        queue_alike(stream, types(dtype), &alike, prescale, finish)?;
        left = others;
    }
    Ok(())
}

fn queue_alike(
    stream: &Stream,
    (dtype, stored): (Dtype, Dtype),
    scaled: &[&Scaled],
    prescale: f64,
    finish: Finish,
) -> std::result::Result<(), DeviceError> {
    if prescale == 1.0 && finish == Finish::Nothing && dtype != Dtype::Bool && dtype == stored {
        let bytes = |one: &Scaled| one.elems * dtype.size_bytes() as u64;
        let copies: Vec<DeviceCopy> = scaled
            .iter()
            .filter(|one| one.source != one.target)
            .map(|one| DeviceCopy { source: one.source, target: one.target, bytes: bytes(one) })
            .collect();
        return stream.copy(&copies);
    }
    let (elems, addresses): (Vec<u64>, Vec<[u64; 2]>) =
        scaled.iter().map(|one| (one.elems, [one.source, one.target])).unzip();
    // Of one contribution every operation but an average makes what it is; for bool "any" makes it zero or one.
    stream.fold(&DeviceFold {
        dtype,
        stored,
        op: ReduceOp::Sum,
        prescale,
        finish,
        ranks: 1,
        targets: 1,
        elems: &elems,
        addresses: addresses.as_flattened(),
    })
}
