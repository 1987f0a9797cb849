//! One bucket in device memory, on one rank: [`DeviceRun`].
//!
//! 1. *Load*: the tensors hold their data. What has to be packed, or has an output of its own, is copied. When the
//!    device has done that, this rank has *exposed* its contribution.
//! 2. *Meet*: all ranks have exposed theirs.
//! 3. *Fold*: if this rank folds, it maps the others' memory, queues its share, and waits for it; then it has
//!    *settled*.
//! 4. *Settle*: all ranks have settled. What was packed is copied back; whoever uses the results waits for the event
//!    behind that.
//!
//! A run that is dropped gives the bucket up. Before its memory goes back, what it has queued must be over: it waits
//! for that, but not for ever (see [`GIVE_UP_AFTER`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_device::{DeviceCopy, DeviceFold, Event, Export, Result as DeviceResult};
use farandole_plan::agree::Bucket;
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Rank, ReduceOp, device};
use farandole_tensor::{Finish, OnDevice};
use farandole_transport::shm::Windows;
use farandole_transport::{Error, Progress, Result};

use super::posting::Posting;
use super::{DevicePlane, Opened, local};
use crate::pending::PendingTable;

/// How long a run that is given up waits for what it has queued. That is microseconds of work; but it may stand behind
/// kernels of the program that never end.
const GIVE_UP_AFTER: Duration = Duration::from_secs(2);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct DeviceRun {
    plan: Arc<BucketPlan>,
    /// Ranks over which an average is taken.
    size: usize,
    /// The device, unless this rank has joined and has no memory.
    ordinal: Option<u32>,
    stage: Stage,
    /// Why it could not begin, until somebody is told.
    failure: Option<Error>,
    posting: Posting,
    copies_back: Vec<DeviceCopy>,
    /// The last event in the stream behind something that uses memory of the bucket.
    last: Option<Event>,
    /// Whether the driver was asked to ring for it.
    rings: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Load,
    Meet,
    Fold,
    Settle,
}

/// Where a tensor lies, and where its result goes.
struct Tensor {
    input: OnDevice,
    target: OnDevice,
    bytes: u64,
}

impl DeviceRun {
    /// Begins a bucket: looks where its tensors lie and queues what has to be copied. A failure is kept until the run
    /// is first advanced.
    pub(crate) fn begin(
        plane: &mut DevicePlane,
        bucket: &Bucket,
        table: &PendingTable,
        size: usize,
        slot_bytes: usize,
    ) -> DeviceRun {
        let mut run = DeviceRun {
            plan: Arc::clone(&bucket.plan),
            size,
            ordinal: None,
            stage: Stage::Load,
            failure: None,
            posting: Posting::default(),
            copies_back: Vec::new(),
            last: None,
            rings: false,
        };
        if let Err(error) = run.load(plane, bucket, table, slot_bytes) {
            run.posting = Posting::default();
            run.failure = Some(error);
        }
        run
    }

    /// What the others must know, for this rank's small slot.
    pub(crate) fn write_posting(&self, slot: &mut [u8]) {
        self.posting.write(slot);
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
                Stage::Load if self.has_happened()? => {
                    windows.expose();
                    // What comes next may be looks at the device: sleepers would hear of it late.
                    windows.announce();
                    Some(Stage::Meet)
                }
                Stage::Meet if windows.all_begun()? && windows.all_exposed() => {
                    self.fold(plane, windows)?;
                    Some(Stage::Fold)
                }
                Stage::Fold if self.has_happened()? => {
                    windows.settle();
                    windows.announce();
                    Some(Stage::Settle)
                }
                Stage::Settle if windows.all_settled() => {
                    windows.finish();
                    self.copy_back(plane).map_err(|error| local("copying results on the device", error))?;
                    return Ok(Progress::Done);
                }
                _ => None,
            };
            match went_on {
                Some(stage) => (self.stage, progress) = (stage, Progress::Moved),
                None => return Ok(progress),
            }
        }
    }

    /// The event behind which results are there, if they are not there yet.
    pub(crate) fn take_done(&mut self) -> Option<Event> {
        self.last.take()
    }

    /// The driver is about to sleep: the device must wake it.
    pub(crate) fn fall_asleep(&mut self, plane: &mut DevicePlane) {
        let (Some(ordinal), Some(event)) = (self.ordinal, &self.last) else { return };
        if self.rings {
            return;
        }
        // A driver that cannot ring has an error for the next look, too.
        match plane.ring_after(ordinal, event) {
            Ok(()) => self.rings = true,
            Err(error) => self.failure = Some(local("waiting for the device", error)),
        }
    }

    /// How far it has come, in words.
    pub(crate) fn progress(&self) -> &'static str {
        match self.stage {
            Stage::Load => "copying on the device",
            Stage::Meet => "waiting until the others have their data",
            Stage::Fold => "folding on the device",
            Stage::Settle => "waiting until the others have folded",
        }
    }

    /// The peer that is waited for, if one can be named.
    pub(crate) fn waiting_for(&self, windows: &Windows) -> Option<Rank> {
        let waits = matches!(self.stage, Stage::Meet | Stage::Settle);
        let peer = || windows.first_absent().or_else(|| windows.last_behind());
        waits.then(peer).flatten().map(|local_rank| windows.rank(local_rank))
    }

    fn has_happened(&mut self) -> Result<bool> {
        let Some(event) = &self.last else { return Ok(true) };
        let happened = event.has_happened().map_err(|error| local("waiting for the device", error))?;
        if happened {
            (self.last, self.rings) = (None, false);
        }
        Ok(happened)
    }

    fn load(
        &mut self,
        plane: &mut DevicePlane,
        bucket: &Bucket,
        table: &PendingTable,
        slot_bytes: usize,
    ) -> Result<()> {
        let pending: Vec<_> = bucket.requests.iter().flatten().map(|id| table.get(*id)).collect();
        let tensors: Vec<Tensor> = pending
            .iter()
            .map(|pending| {
                let input = pending.input.as_ref().expect("invariant: a collective on tensors has an input");
                let target = pending.output.as_ref().unwrap_or(input);
                let place = |region: &farandole_tensor::Region| {
                    region.device().expect("invariant: a bucket in device memory has regions there")
                };
                Tensor { input: place(input), target: place(target), bytes: input.len_bytes() as u64 }
            })
            .collect();
        let Some(first) = tensors.first() else { return Ok(()) };
        let ordinal = first.input.ordinal;
        let places = tensors.iter().flat_map(|tensor| [tensor.input, tensor.target]);
        if let Some(other) = places.map(|place| place.ordinal).find(|&other| other != ordinal) {
            let both = format!("devices {ordinal} and {other} of this process; FARANDOLE_PLANE=staged takes any");
            return Err(Error::local("reducing tensors together", std::io::Error::other(both)));
        }
        self.ordinal = Some(ordinal);
        let opened = plane.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let copied = self.place(opened, &tensors, slot_bytes).map_err(|error| local("sharing device memory", error))?;
        if copied {
            self.last = Some(opened.stream.record().map_err(|error| local("recording an event", error))?);
        }
        Ok(())
    }

    /// Decides where the ranks work on the tensors, and says whether copies were queued.
    fn place(&mut self, opened: &mut Opened, tensors: &[Tensor], slot_bytes: usize) -> DeviceResult<bool> {
        match told(opened, tensors) {
            Ok(posting) if posting.len_bytes() <= slot_bytes => {
                self.posting = posting;
                let apart = tensors.iter().filter(|tensor| tensor.input != tensor.target);
                let copies: Vec<DeviceCopy> = apart.map(|tensor| copying(tensor, tensor.target.address)).collect();
                opened.stream.copy(&copies)?;
                Ok(!copies.is_empty())
            }
            // Too many to tell of, or memory that cannot be mapped.
            Ok(_) | Err(farandole_device::Error::NotShareable(_)) => self.pack(opened, tensors),
            Err(error) => Err(error),
        }
    }

    /// Lets the ranks work in the fusion buffer.
    fn pack(&mut self, opened: &mut Opened, tensors: &[Tensor]) -> DeviceResult<bool> {
        let start = opened.fusion(self.plan.bytes() as usize)?.address();
        opened.exports.begin_round();
        let export = opened.exports.get(start, self.plan.bytes())?.clone();
        let elem_bytes = self.plan.dtype.size_bytes() as u64;
        self.posting = Posting::default();
        let mut copies = Vec::with_capacity(tensors.len());
        for (part, tensor) in self.plan.parts.iter().zip(tensors) {
            let address = start + part.span.start * elem_bytes;
            self.posting.add(&export, address);
            copies.push(copying(tensor, address));
            let back = DeviceCopy { source: address, target: tensor.target.address, bytes: tensor.bytes };
            self.copies_back.push(back);
        }
        opened.stream.copy(&copies)?;
        Ok(true)
    }

    /// Queues this rank's share, if it has one.
    fn fold(&mut self, plane: &mut DevicePlane, windows: &Windows) -> Result<()> {
        let Some(ordinal) = self.ordinal else { return Ok(()) };
        let postings = self.postings(windows)?;
        let devices: Vec<Option<farandole_device::Uuid>> =
            postings.iter().map(|posting| posting.exports.first().map(|export| export.device)).collect();
        let folders = device::folders(&devices);
        let Some(folder) = folders.iter().position(|&local_rank| local_rank == windows.me()) else { return Ok(()) };
        let opened = plane.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let tellers = (0..postings.len()).filter(|&local_rank| !postings[local_rank].places.is_empty());
        let mut contributions = Vec::new();
        for local_rank in tellers {
            let addresses = mapped(opened, &postings[local_rank]).map_err(|error| {
                local(format!("mapping the device memory of rank {}", windows.rank(local_rank)), error)
            })?;
            contributions.push(addresses);
        }
        self.queue_fold(opened, &contributions, folders.len(), folder)
            .map_err(|error| local("folding on the device", error))
    }

    fn queue_fold(
        &mut self,
        opened: &Opened,
        contributions: &[Vec<u64>],
        folders: usize,
        folder: usize,
    ) -> DeviceResult<()> {
        let Collective::Allreduce { op, prescale, postscale } = self.plan.collective else {
            panic!("invariant: only allreduces go through device memory");
        };
        assert_ne!(op, ReduceOp::Adasum, "invariant: Adasum is no fold");
        let lengths: Vec<u64> = self.plan.parts.iter().map(|part| part.span.len).collect();
        let elem_bytes = self.plan.dtype.size_bytes() as u64;
        let (mut elems, mut addresses) = (Vec::new(), Vec::new());
        for (part, span) in device::share(&lengths, folders, folder) {
            elems.push(span.len);
            addresses.extend(contributions.iter().map(|of_rank| of_rank[part] + span.start * elem_bytes));
        }
        if elems.is_empty() {
            return Ok(());
        }
        let finish = Finish::new(self.plan.dtype, op, self.size as u64, postscale);
        let (dtype, ranks) = (self.plan.dtype, contributions.len());
        let folding = DeviceFold { dtype, op, prescale, finish, ranks, elems: &elems, addresses: &addresses };
        opened.stream.fold(&folding)?;
        self.last = Some(opened.stream.record()?);
        Ok(())
    }

    fn copy_back(&mut self, plane: &mut DevicePlane) -> DeviceResult<()> {
        if let (false, Some(ordinal)) = (self.copies_back.is_empty(), self.ordinal) {
            let opened = plane.opened(ordinal)?;
            opened.stream.copy(&self.copies_back)?;
            self.last = Some(opened.stream.record()?);
        }
        Ok(())
    }

    /// What all ranks of the host have told, in the order of their local ranks.
    fn postings(&self, windows: &Windows) -> Result<Vec<Posting>> {
        let elem_bytes = self.plan.dtype.size_bytes() as u64;
        let sizes: Vec<u64> = self.plan.parts.iter().map(|part| part.span.len * elem_bytes).collect();
        let read = |local_rank: usize| {
            let slot = windows.small_part(local_rank, 0, windows.layout().small_bytes);
            Posting::read(slot, &sizes).map_err(|what| Error::Garbled { peer: windows.rank(local_rank), what })
        };
        (0..windows.size()).map(read).collect()
    }
}

impl Drop for DeviceRun {
    fn drop(&mut self) {
        let Some(event) = &self.last else { return };
        let began = Instant::now();
        // A device that has failed does nothing more.
        while matches!(event.has_happened(), Ok(false)) {
            if began.elapsed() > GIVE_UP_AFTER {
                log::warn!("the device is still busy with work that a collective which was given up stands behind");
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// What others need to know of these tensors, if they can map them.
fn told(opened: &mut Opened, tensors: &[Tensor]) -> DeviceResult<Posting> {
    opened.exports.begin_round();
    let mut posting = Posting::default();
    for tensor in tensors {
        let export = opened.exports.get(tensor.target.address, tensor.bytes)?;
        posting.add(export, tensor.target.address);
    }
    Ok(posting)
}

/// Where a rank's tensors lie in this process.
fn mapped(opened: &mut Opened, posting: &Posting) -> DeviceResult<Vec<u64>> {
    let translate = |export: &Export| opened.mappings.translate(export).map(|base| (base, export.base));
    let bases: Vec<(u64, u64)> = posting.exports.iter().map(translate).collect::<DeviceResult<_>>()?;
    let here = |&(export, address): &(usize, u64)| {
        let (base, theirs) = bases[export];
        base + (address - theirs)
    };
    Ok(posting.places.iter().map(here).collect())
}

fn copying(tensor: &Tensor, target: u64) -> DeviceCopy {
    DeviceCopy { source: tensor.input.address, target, bytes: tensor.bytes }
}
