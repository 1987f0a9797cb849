//! The bucket that runs: from the agreement's word to start it until its tickets are done.
//!
//! A bucket has a *plane* (`exec::planes`), *memory* (`bucket`) and a *stage*. If it must not touch memory before all
//! ranks have come to it, it begins with an *entry*; then the memory is loaded and the bytes travel.

use std::sync::Arc;
use std::time::Duration;

use farandole_plan::Rank;
use farandole_plan::agree::Bucket;
use farandole_plan::device::Movement;
use farandole_plan::plane::Plane;
use farandole_tensor::Region;
use farandole_transport::{Error as TransportError, Mesh, Progress};

use super::{Group, GroupError, TurnInput};
use crate::bucket::Memory;
use crate::exec::device::hosts::HostsRun;
use crate::exec::device::{Begin, DevicePlane, DeviceRun};
use crate::exec::nccl::{self, NcclRun};
use crate::exec::planes::{Prepared, shares_memory};
use crate::exec::{Buffers, Execution};

/// See the module's text.
pub(super) struct ActiveBucket {
    pub(super) bucket: Bucket,
    prepared: Arc<Prepared>,
    memory: Memory,
    stage: Stage,
    execution: Execution,
    pub(super) began: Duration,
    /// When it was last advanced.
    looked: Duration,
    /// When something last moved.
    pub(super) moved: Duration,
    /// For how long nothing must have moved before that is told again; zero: it was not told.
    pub(super) tell_again: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// All ranks gather before memory is touched: in their windows if they share memory, else by a barrier.
    Entry,
    /// The ranks work.
    Work,
}

impl ActiveBucket {
    /// Where it is on its way, in words.
    pub(super) fn place(&self) -> String {
        match self.stage {
            Stage::Entry => "gathering before memory is touched".to_owned(),
            Stage::Work => self.execution.progress(),
        }
    }

    /// The driver is about to sleep: a device that it waits for must wake it.
    pub(super) fn fall_asleep(&mut self, device: Option<&mut DevicePlane>) {
        self.execution.fall_asleep(device);
    }

    /// When it wants to be advanced at the latest.
    pub(super) fn next_look(&self) -> Duration {
        self.execution.look_every().map_or(Duration::MAX, |every| self.looked + every)
    }

    /// The peer that it waits for, if one can be named.
    pub(super) fn waiting_for(&self, mesh: &Mesh) -> Option<Rank> {
        self.execution.waiting_for(mesh)
    }
}

impl Group {
    /// Starts a bucket.
    pub(super) fn start(&mut self, bucket: Bucket, now: Duration) {
        assert!(self.active.is_none(), "invariant: one bucket runs at a time");
        self.record.started(&bucket, &self.table, now);
        let prepared = self.planes.prepare(&bucket.plan, &self.mesh, self.fusion.mapped_bytes());
        let mut memory = prepared.layout.memory(&bucket, &self.table);
        let shares_memory = shares_memory(&self.mesh);
        let on_device = self.begin_on_device(&bucket, &prepared, shares_memory);
        self.show_begun(&bucket, shares_memory, on_device.as_ref());
        // Whoever shares memory must see that all others have come before it goes on to the next bucket, or a slow
        // rank would find the flags overwritten. Steps through windows see to that themselves.
        let gathers = shares_memory
            && (matches!(prepared.plane, Plane::Links | Plane::Added(_) | Plane::Nccl) || bucket.plan.elems == 0);
        // What NCCL has been called for cannot be abandoned.
        let needs_entry = bucket.entry_barrier || bucket.replayed && prepared.plane == Plane::Nccl;
        let (stage, execution) = if let Some(execution) = on_device {
            (Stage::Work, execution)
        } else if needs_entry || gathers {
            let entry = if shares_memory { Execution::Gather } else { self.planes.entry(&bucket) };
            (Stage::Entry, entry)
        } else {
            prepared.layout.load(&mut memory, &bucket, &mut self.table, &mut self.fusion);
            (Stage::Work, Execution::Nothing)
        };
        let (began, looked, moved, tell_again) = (now, now, now, Duration::ZERO);
        let active = ActiveBucket { bucket, prepared, memory, stage, execution, began, looked, moved, tell_again };
        let mut active = Box::new(active);
        if stage == Stage::Work {
            self.begin_work(&mut active, now);
        }
        self.active = Some(active);
    }

    /// Begins a bucket in device memory that ranks map, if it is one.
    fn begin_on_device(&mut self, bucket: &Bucket, prepared: &Prepared, shares_memory: bool) -> Option<Execution> {
        let movement = prepared.movement.as_ref().filter(|_| prepared.plane == Plane::Device)?;
        // Without elements there are no shards by which hosts would meet; its entry is all there is to such a bucket.
        if !shares_memory && bucket.plan.elems == 0 {
            return None;
        }
        let plane = self.device.as_mut().expect("invariant: buckets in device memory are for groups with devices");
        let (descriptor, stopwatch) = (self.planes.descriptor(&bucket.plan), self.record.stopwatch());
        let begin = Begin { plane, table: &self.table, mesh: &self.mesh, here: self.here, descriptor, stopwatch };
        Some(match shares_memory {
            true => Execution::Device(Box::new(DeviceRun::begin(bucket, movement, begin))),
            false => Execution::Hosts(Box::new(HostsRun::begin(bucket, movement, prepared, begin))),
        })
    }

    /// Begins a bucket on NCCL.
    fn begin_on_nccl(&mut self, bucket: &Bucket, movement: &Arc<Movement>, entry: Execution) -> Box<NcclRun> {
        let links = self.planes.links_after(bucket, entry);
        let device = self.device.as_mut().expect("invariant: buckets in device memory are for groups with devices");
        let nccl = self.nccl.as_mut().expect("invariant: buckets on NCCL are for groups with NCCL");
        let begin = nccl::Begin { device, nccl, mesh: &self.mesh, table: &self.table, here: self.here };
        Box::new(NcclRun::begin(bucket, movement, links, begin))
    }

    /// Shows the other ranks of the host that this one has begun a bucket.
    fn show_begun(&mut self, bucket: &Bucket, shares_memory: bool, on_device: Option<&Execution>) {
        let number = self.window_operation(bucket);
        let descriptor = self.planes.descriptor(&bucket.plan);
        let Some(windows) = &mut self.mesh.windows else { return };
        match on_device {
            Some(Execution::Device(run)) => {
                windows.begin_with_note(number, descriptor, &[], |slot| run.write_posting(slot));
            }
            Some(Execution::Hosts(run)) => {
                windows.begin_with_note(number, descriptor, &[], |slot| run.write_posting(slot));
            }
            _ if shares_memory => windows.begin(number, descriptor, &[]),
            _ => {}
        }
    }

    /// The contribution of a bucket has been loaded: its execution begins.
    fn begin_work(&mut self, active: &mut ActiveBucket, now: Duration) {
        let bucket = &active.bucket;
        self.record.packed(bucket, now);
        if !matches!(active.execution, Execution::Device(_) | Execution::Hosts(_)) {
            let entry = std::mem::replace(&mut active.execution, Execution::Nothing);
            active.execution = match &active.prepared.movement {
                Some(movement) if active.prepared.plane == Plane::Nccl => {
                    Execution::Nccl(self.begin_on_nccl(bucket, movement, entry))
                }
                _ => self.planes.execution(bucket, &active.prepared, entry),
            };
        }
        if self.record.wants_step_trace(bucket) {
            active.execution.trace_steps();
        }
        active.stage = Stage::Work;
    }

    /// The number of a bucket on the flags of this host. Like the bucket's own it grows and is the same on all ranks;
    /// besides, two buckets that run one after the other have numbers of different parity, because a flags has two
    /// sides. An abandoned bucket and the one in its place have the same parity, which does no harm: nobody looks any
    /// more.
    fn window_operation(&self, bucket: &Bucket) -> u64 {
        self.window_operations + 2 * u64::from(bucket.operation.round()) + 1
    }

    /// Moves the running bucket on, if there is one.
    pub(super) fn advance(&mut self, now: Duration) -> Result<Option<Progress>, GroupError> {
        let Some(mut active) = self.active.take() else { return Ok(None) };
        let progress = self.advance_active(&mut active, now);
        self.active = Some(active);
        progress.map(Some)
    }

    fn advance_active(&mut self, active: &mut ActiveBucket, now: Duration) -> Result<Progress, GroupError> {
        let mut progress = Progress::Done;
        active.looked = now;
        if active.stage == Stage::Entry {
            progress = active.execution.advance(&mut self.mesh, &mut Buffers::none())?;
            if progress == Progress::Done {
                self.record.moved(&active.bucket, now);
                self.record.entered(&active.bucket, now);
                let (layout, memory) = (&active.prepared.layout, &mut active.memory);
                layout.load(memory, &active.bucket, &mut self.table, &mut self.fusion);
                self.begin_work(active, now);
            }
        }
        if active.stage == Stage::Work {
            let (layout, memory) = (&active.prepared.layout, &mut active.memory);
            let mut buffers = layout.buffers(memory, &active.bucket, &mut self.table, &mut self.fusion);
            (buffers.device, buffers.nccl) = (self.device.as_mut(), self.nccl.as_mut());
            progress = active.execution.advance(&mut self.mesh, &mut buffers)?;
            if progress != Progress::Pending {
                self.record.moved(&active.bucket, now);
            }
            if progress == Progress::Done {
                self.planes.learn(&active.execution);
            }
            if let Some(step_trace) = active.execution.step_trace() {
                self.record.steps(&active.bucket, step_trace);
            }
        }
        if progress != Progress::Pending {
            (active.moved, active.tell_again) = (now, Duration::ZERO);
            return Ok(progress);
        }
        self.record.still(&active.bucket, now, || active.execution.waiting_for(&self.mesh));
        match self.settings.wait.exceeded(now.saturating_sub(active.moved)) {
            None => Ok(progress),
            Some(waiting_for) => {
                let (peer, waited) = (active.execution.waiting_for(&self.mesh), now - active.moved);
                Err(TransportError::Deadline { peer, waiting_for, waited }.into())
            }
        }
    }

    /// The running bucket is done on this rank.
    pub(super) fn complete(&mut self, turn: &TurnInput<'_>) -> Result<(), GroupError> {
        let ActiveBucket { bucket, prepared, memory, mut execution, .. } =
            *self.active.take().expect("invariant: a bucket that is done was running");
        self.record.travelled(&bucket, turn.now);
        prepared.layout.unload(memory, &bucket, &mut self.table, &mut self.fusion, &mut self.done);
        for ((_, outcome), made) in self.done.iter_mut().zip(execution.take_results()) {
            outcome.output = made.or(outcome.output.take());
        }
        let mut queued = execution.take_queued();
        if let Some(queued) = &mut queued {
            for (_, outcome) in &mut self.done {
                outcome.after = Some(queued.event.clone());
                let regions = [&mut outcome.input, &mut outcome.output].into_iter().flatten();
                queued.memory.extend(regions.map(Region::share_owner));
            }
        }
        if let (true, Some(device)) = (prepared.plane.is_on_devices(), &mut self.device) {
            if let Some(queued) = queued {
                device.trailing.push(bucket.operation, queued, turn.now);
            }
            self.record.device_took(bucket.operation, execution.take_device_times(), turn.now);
            self.record.caches(&device.hits(), turn.now);
        }
        self.record.finished(&bucket, self.done.iter().map(|(pending, _)| pending), turn.now);
        self.record.count_collectives(self.done.len() as u64);
        self.member.finished(bucket.operation, turn.now);
        turn.tensor_table.leave(self.settings.id, self.done.iter().map(|(pending, _)| &pending.name));
        // One at a time: if the owner of a tensor that nobody waits for panics as it is dropped, the others are still
        // here.
        while let Some((pending, outcome)) = self.done.pop() {
            pending.promise.fulfil(Ok(outcome));
        }
        self.grow_mapped(&prepared)
    }

    /// Lets the mapped fusion buffer grow to what this bucket would have liked.
    fn grow_mapped(&mut self, prepared: &Prepared) -> Result<(), GroupError> {
        self.window_operations += 1;
        if !shares_memory(&self.mesh) {
            return Ok(());
        }
        let windows = self.mesh.windows.as_mut().expect("invariant: ranks that share memory have windows");
        Ok(self.fusion.after_bucket(prepared.wants_mapped_bytes, windows)?)
    }
}
