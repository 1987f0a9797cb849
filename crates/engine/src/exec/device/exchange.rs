//! A rank's shard on its way to the other hosts and back: [`Exchange`].
//!
//! The shard travels in slices (`plan::slices`), through pinned host memory, in which it lies as on the device. What
//! happens to which slice when is `pipeline`'s; here copies are queued, and the steps are taken whose slices are on the
//! host. Copies to the host are in the stream of the plane, copies back in one of their own, so that the device copies
//! both ways at once, and neither waits for the other.
//!
//! The bytes of a slice belong to its copy to the host first; then to the steps between the slice's first and its end;
//! then its copy back and sends that have not left read them, and nobody writes to them. So no two writers meet.

use std::ops::Range;
use std::sync::Arc;

use farandole_device::Result as DeviceResult;
use farandole_plan::slices::Slice;
use farandole_plan::{Dtype, Rank, ReduceOp, Span};
use farandole_tensor::Fold;
use farandole_trace::event::DeviceStep;
use farandole_transport::{Mesh, Progress, Result};

use super::in_flight::InFlight;
use super::pipeline::Pipeline;
use super::stopwatch::Stopwatch;
use super::tensors::Stretch;
use super::{DevicePlane, Opened, local};
use crate::exec::Buffers;
use crate::exec::links::LinkRun;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Exchange {
    slices: Arc<[Slice]>,
    run: LinkRun,
    /// What lies in the shard, and what is done to it.
    dtype: Dtype,
    op: ReduceOp,
    pipeline: Pipeline,
    to_host: InFlight,
    to_device: InFlight,
}

impl Exchange {
    /// Of these slices, by the steps of this run.
    pub(super) fn new(
        slices: &Arc<[Slice]>,
        run: LinkRun,
        dtype: Dtype,
        op: ReduceOp,
        times: [Stopwatch; 2],
    ) -> Exchange {
        let [to_host, to_device] = times.map(InFlight::timed_by);
        let (pipeline, slices) = (Pipeline::new(slices.len()), Arc::clone(slices));
        Exchange { slices, run, dtype, op, pipeline, to_host, to_device }
    }

    /// Nobody on this host contributes anything: neutral elements travel.
    ///
    /// # Errors
    /// If there is no memory left, or the device has failed.
    pub(super) fn begin_neutral(&mut self, opened: &mut Opened, shard: Stretch) -> DeviceResult<()> {
        let bytes = shard.bytes as usize;
        Fold::new(self.dtype, self.op).neutral(&mut opened.ways_to_host(bytes)?.pinned.bytes_mut()[..bytes]);
        self.pipeline.begin_on_host();
        Ok(())
    }

    /// Does what can be done now; done when the shard is back, and nothing more is to be sent of it.
    pub(super) fn advance(&mut self, opened: &mut Opened, mesh: &mut Mesh, shard: Stretch) -> Result<Progress> {
        let before = self.pipeline;
        self.pipeline.note_on_host(self.to_host.under_way()?);
        let travelled = self.travel(opened, mesh, shard)?;
        self.copy_to_device(opened, shard).map_err(|error| local("copying a shard to the device", error))?;
        self.copy_to_host(opened, shard).map_err(|error| local("copying a shard to the host", error))?;
        self.pipeline.note_back(self.to_device.under_way()?);
        Ok(match travelled {
            Progress::Done if self.pipeline.is_over() => Progress::Done,
            Progress::Moved => Progress::Moved,
            _ if self.pipeline != before => Progress::Moved,
            _ => Progress::Pending,
        })
    }

    /// The driver is about to sleep: the device must wake it.
    pub(super) fn fall_asleep(&mut self, plane: &mut DevicePlane, ordinal: u32) -> Result<()> {
        self.to_host.fall_asleep(plane, ordinal)?;
        self.to_device.fall_asleep(plane, ordinal)
    }

    /// How long the device took for copies.
    pub(super) fn take_times(&mut self) -> impl Iterator<Item = (DeviceStep, u64)> + use<> {
        self.to_host.take_times().into_iter().chain(self.to_device.take_times())
    }

    /// How far it has come, in words.
    pub(super) fn progress(&self) -> &'static str {
        match self.run.taken() < self.first_step_ahead() {
            _ if self.pipeline.are_all_across() => "copying to the device",
            true => "exchanging with other hosts",
            false => "copying to the host",
        }
    }

    /// The peer that is waited for, if one is.
    pub(super) fn waiting_for(&self) -> Option<Rank> {
        if self.run.taken() < self.first_step_ahead() { self.run.waiting_for() } else { None }
    }

    /// The first step whose slice is not on the host.
    fn first_step_ahead(&self) -> usize {
        self.slices.get(self.pipeline.on_host()).map_or(usize::MAX, |slice| slice.first_step)
    }

    fn travel(&mut self, opened: &mut Opened, mesh: &mut Mesh, shard: Stretch) -> Result<Progress> {
        let (bytes, until) = (shard.bytes as usize, self.first_step_ahead());
        let ways = opened.ways_to_host(bytes).map_err(|error| local("allocating pinned memory", error))?;
        let mut buffers = Buffers::new(&mut ways.pinned.bytes_mut()[..bytes], self.dtype);
        buffers.fold = Some(Fold::new(self.dtype, self.op));
        let progress = self.run.advance_until(until, mesh, &mut buffers)?;
        let taken = self.run.taken();
        let across = self.slices.partition_point(|slice| slice.end_step <= taken);
        self.pipeline.note_across(across.min(self.pipeline.on_host()));
        Ok(progress)
    }

    fn copy_to_host(&mut self, opened: &mut Opened, shard: Stretch) -> DeviceResult<()> {
        while let Some(slice) = self.pipeline.next_to_host() {
            let ways = opened.ways_to_host(shard.bytes as usize)?;
            self.to_host.begin(ways.to_host)?;
            for span in &self.slices[slice].spans {
                let range = self.range(*span);
                ways.to_host.copy_to_pinned(shard.address + range.start as u64, ways.pinned, range)?;
            }
            self.to_host.record(ways.to_host, DeviceStep::Pack)?;
        }
        Ok(())
    }

    fn copy_to_device(&mut self, opened: &mut Opened, shard: Stretch) -> DeviceResult<()> {
        while let Some(slice) = self.pipeline.next_to_device() {
            let ways = opened.ways_to_host(shard.bytes as usize)?;
            self.to_device.begin(ways.to_device)?;
            for span in &self.slices[slice].spans {
                let range = self.range(*span);
                ways.to_device.copy_from_pinned(ways.pinned, range.clone(), shard.address + range.start as u64)?;
            }
            self.to_device.record(ways.to_device, DeviceStep::Unpack)?;
        }
        Ok(())
    }

    /// Where elements of the shard lie in it, in bytes.
    fn range(&self, span: Span) -> Range<usize> {
        let elem_bytes = self.dtype.size_bytes();
        span.start as usize * elem_bytes..span.end() as usize * elem_bytes
    }
}
