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
//! A run that is dropped gives the bucket up. Before its memory goes back, what it has queued must be over: it waits
//! for that, but not for ever (see [`GIVE_UP_AFTER`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_device::{DeviceCopy, Error as DeviceError, Event, Result as DeviceResult};
use farandole_plan::agree::Bucket;
use farandole_plan::device::Movement;
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Rank};
use farandole_tensor::Region;
use farandole_trace::event::DeviceStep;
use farandole_transport::shm::Windows;
use farandole_transport::{Error, Progress, Result};

use super::posting::{EndBytes, Posting, Told, packed};
use super::stopwatch::Stopwatch;
use super::tensors::{Stretch, Tensors};
use super::{DevicePlane, Opened, local, work};
use crate::bucket::GroupRank;
use crate::pending::PendingTable;

/// How long a run that is given up waits for what it has queued. That is microseconds of work; but it may stand behind
/// kernels of the program that never end.
const GIVE_UP_AFTER: Duration = Duration::from_secs(2);

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
    posting: Posting,
    copies_back: Vec<DeviceCopy>,
    /// The last event in the stream behind something that uses memory of the bucket.
    last: Option<Event>,
    /// Whether the driver was asked to ring for it.
    rings: bool,
    stopwatch: Stopwatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Load,
    Meet,
    Work,
    Settle,
    Unpack,
}

impl DeviceRun {
    /// Begins a bucket: looks where its tensors lie and queues what has to be copied. A failure is kept until the run
    /// is first advanced.
    pub(crate) fn begin(
        plane: &mut DevicePlane,
        bucket: &Bucket,
        movement: &Arc<Movement>,
        table: &PendingTable,
        here: GroupRank,
        slot_bytes: usize,
        stopwatch: Stopwatch,
    ) -> DeviceRun {
        let mut run = DeviceRun {
            plan: Arc::clone(&bucket.plan),
            movement: Arc::clone(movement),
            here,
            tensors: Tensors::default(),
            stage: Stage::Load,
            failure: None,
            posting: Posting::default(),
            copies_back: Vec::new(),
            last: None,
            rings: false,
            stopwatch,
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
                    self.work(plane, windows)?;
                    Some(Stage::Work)
                }
                Stage::Work if self.has_happened()? => {
                    windows.settle();
                    windows.announce();
                    Some(Stage::Settle)
                }
                Stage::Settle if windows.all_settled() => {
                    windows.finish();
                    self.copy_back(plane).map_err(|error| local("copying results on the device", error))?;
                    Some(Stage::Unpack)
                }
                Stage::Unpack if self.has_happened()? => return Ok(Progress::Done),
                _ => None,
            };
            match went_on {
                Some(stage) => (self.stage, progress) = (stage, Progress::Moved),
                None => return Ok(progress),
            }
        }
    }

    /// What the device took for this bucket, as far as it was timed.
    pub(crate) fn take_times(&mut self) -> Vec<(DeviceStep, u64)> {
        self.stopwatch.take()
    }

    /// Memory that was made for results, in the order of the requests of this rank.
    pub(crate) fn take_results(&mut self) -> Vec<Option<Region>> {
        self.tensors.take_results()
    }

    /// The driver is about to sleep: the device must wake it.
    pub(crate) fn fall_asleep(&mut self, plane: &mut DevicePlane) {
        let (Some(ordinal), Some(event)) = (self.tensors.ordinal, &self.last) else { return };
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
            Stage::Load => "packing on the device",
            Stage::Meet => "waiting until the others have their data",
            Stage::Work => "working on the device",
            Stage::Settle => "waiting until the others have done their share",
            Stage::Unpack => "unpacking on the device",
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
            self.stopwatch.read();
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
        self.tensors = Tensors::find(plane, bucket, table, self.here)?;
        let Some(ordinal) = self.tensors.ordinal else { return Ok(()) };
        let opened = plane.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        self.share(opened, slot_bytes).map_err(|error| local("sharing device memory", error))
    }

    /// Decides where the ranks work on the tensors.
    fn share(&mut self, opened: &mut Opened, slot_bytes: usize) -> DeviceResult<()> {
        opened.exports.begin_round();
        let exports = &mut opened.exports;
        let export = |stretch: Stretch| exports.get(stretch.address, stretch.bytes).cloned();
        match Posting::of(&self.tensors.tensors, export) {
            Ok(posting) if posting.len_bytes() <= slot_bytes => {
                self.posting = posting;
                Ok(())
            }
            // Too many to tell of, or memory that cannot be mapped.
            Ok(_) | Err(DeviceError::NotShareable(_)) => self.pack(opened),
            Err(error) => Err(error),
        }
    }

    /// Lets the ranks work in the fusion buffer.
    fn pack(&mut self, opened: &mut Opened) -> DeviceResult<()> {
        let (offsets, total) = packed(&self.end_bytes(self.here.me.index()), self.replaces());
        let start = opened.fusion(total as usize)?.address();
        opened.exports.begin_round();
        self.posting = Posting::packed(opened.exports.get(start, total)?.clone(), start);
        let mut copies = Vec::with_capacity(offsets.len());
        for (tensor, (input, output)) in self.tensors.tensors.iter().zip(offsets) {
            let Stretch { address, bytes } = tensor.input;
            copies.push(DeviceCopy { source: address, target: start + input, bytes });
            let Stretch { address, bytes } = tensor.output;
            self.copies_back.push(DeviceCopy { source: start + output, target: address, bytes });
        }
        self.stopwatch.start(&opened.stream)?;
        opened.stream.copy(&copies)?;
        self.last = Some(self.stopwatch.stop(&opened.stream, DeviceStep::Pack)?);
        Ok(())
    }

    /// Queues what this rank does, if it does anything.
    fn work(&mut self, plane: &mut DevicePlane, windows: &Windows) -> Result<()> {
        let Some(ordinal) = self.tensors.ordinal else { return Ok(()) };
        let told = self.told(windows)?;
        let Some(share) = work::Share::of(&told, windows.me()) else { return Ok(()) };
        let opened = plane.opened(ordinal).map_err(|error| local(format!("opening device {ordinal}"), error))?;
        let mut places = Vec::with_capacity(told.len());
        for (local_rank, told) in told.iter().enumerate() {
            places.push(work::translate(&mut opened.mappings, told).map_err(|error| {
                local(format!("mapping the device memory of rank {}", windows.rank(local_rank)), error)
            })?);
        }
        let stream = &opened.stream;
        self.stopwatch.start(stream).map_err(|error| local("recording an event", error))?;
        let queued = work::queue(stream, &self.plan, &self.movement.moves, &places, &share, self.here.size);
        if queued.map_err(|error| local("working on the device", error))? {
            let event = self.stopwatch.stop(stream, DeviceStep::Fold);
            self.last = Some(event.map_err(|error| local("recording an event", error))?);
        }
        Ok(())
    }

    fn copy_back(&mut self, plane: &mut DevicePlane) -> DeviceResult<()> {
        if let (false, Some(ordinal)) = (self.copies_back.is_empty(), self.tensors.ordinal) {
            let opened = plane.opened(ordinal)?;
            self.stopwatch.start(&opened.stream)?;
            opened.stream.copy(&self.copies_back)?;
            self.last = Some(self.stopwatch.stop(&opened.stream, DeviceStep::Unpack)?);
        }
        Ok(())
    }

    /// What all ranks of the host have told, in the order of their local ranks.
    fn told(&self, windows: &Windows) -> Result<Vec<Told>> {
        let read = |local_rank: usize| {
            let slot = windows.small_part(local_rank, 0, windows.layout().small_bytes);
            let rank = windows.rank(local_rank);
            Told::read(slot, &self.end_bytes(rank.index()), self.replaces())
                .map_err(|what| Error::Garbled { peer: rank, what })
        };
        (0..windows.size()).map(read).collect()
    }

    fn end_bytes(&self, rank: usize) -> Vec<EndBytes> {
        let elem_bytes = self.plan.dtype.size_bytes() as u64;
        let bytes = |ends: &farandole_plan::device::Ends| EndBytes {
            input: ends.input * elem_bytes,
            output: ends.output * elem_bytes,
        };
        self.movement.ends[rank].iter().map(bytes).collect()
    }

    /// Whether results replace inputs where tensors are packed.
    fn replaces(&self) -> bool {
        matches!(
            self.plan.collective,
            Collective::Allreduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. }
        )
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
