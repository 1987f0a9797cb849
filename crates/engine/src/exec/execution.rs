//! One collective under way on one rank: [`Execution`].
//!
//! An execution knows which step it has come to and nothing of the memory, which is lent to each call
//! ([`Buffers`]). The fronts make it (`group`, `direct`), whoever drives calls [`Execution::advance`] until it is done,
//! and dropping it gives the collective up on this rank.

use std::time::Duration;

use farandole_plan::Rank;
use farandole_tensor::Region;
use farandole_trace::event::DeviceStep;
use farandole_transport::shm::Windows;
use farandole_transport::{Link, Mesh, Progress, Result};

use super::Buffers;
use super::adasum::Adasum;
use super::buffers::FOLDS;
use super::device::hosts::HostsRun;
use super::device::trailing::Queued;
use super::device::{DevicePlane, DeviceRun};
use super::links::{LinkRun, Links};
use super::nccl::NcclRun;
use super::reads::Reads;
use super::step_trace::StepTrace;
use super::windows::WindowRun;
use crate::plane::PlaneRun;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum Execution {
    /// Nothing moves: that all ranks have come is all there is.
    Nothing,
    /// All ranks of the host show in their windows that they have come; then what they show can be read.
    Gather,
    /// Steps over links, and those through windows that lie between them.
    Links(LinkRun),
    /// Steps through windows or in the mapped buffer.
    Windows(WindowRun),
    /// Out of the peers' own memory.
    Reads(Reads),
    /// Exchanges of whole vectors over links.
    Adasum(Adasum),
    /// In the memory of devices.
    Device(Box<DeviceRun>),
    /// There and across hosts.
    Hosts(Box<HostsRun>),
    /// There, by NCCL.
    Nccl(Box<NcclRun>),
    /// On a plane that was added.
    Added(Box<dyn PlaneRun>),
}

impl Links for Mesh {
    fn link(&mut self, peer: Rank) -> &mut dyn Link {
        &mut *self.peer_mut(peer).link
    }

    fn windows(&mut self) -> Option<&mut Windows> {
        self.windows.as_mut()
    }
}

impl Execution {
    /// Does what can be done now.
    #[inline]
    pub(crate) fn advance(&mut self, mesh: &mut Mesh, buffers: &mut Buffers<'_>) -> Result<Progress> {
        match self {
            Execution::Nothing => Ok(Progress::Done),
            Execution::Gather if windows_of(mesh).all_begun()? => Ok(Progress::Done),
            Execution::Gather => Ok(Progress::Pending),
            Execution::Links(run) => run.advance(mesh, buffers),
            Execution::Windows(run) => run.advance(windows_of(mesh), buffers),
            Execution::Reads(reads) => reads.advance(windows_of(mesh), buffers.work),
            Execution::Adasum(adasum) => adasum.advance(mesh, buffers),
            Execution::Device(run) => {
                let plane = buffers.device.as_mut().expect("invariant: a bucket in device memory has its devices");
                run.advance(plane, windows_of(mesh))
            }
            Execution::Hosts(run) => {
                let plane = buffers.device.as_mut().expect("invariant: a bucket in device memory has its devices");
                run.advance(plane, mesh)
            }
            Execution::Nccl(run) => {
                let device = buffers.device.as_mut().expect("invariant: a bucket in device memory has its devices");
                let nccl = buffers.nccl.as_mut().expect("invariant: a bucket on NCCL has its group's");
                run.advance(device, nccl, mesh)
            }
            Execution::Added(run) => run.advance(buffers.work, &buffers.fold.expect(FOLDS)),
        }
    }

    /// The driver is about to sleep: a device that it waits for must wake it.
    pub(crate) fn fall_asleep(&mut self, device: Option<&mut DevicePlane>) {
        match (self, device) {
            (Execution::Device(run), Some(device)) => run.fall_asleep(device),
            (Execution::Hosts(run), Some(device)) => run.fall_asleep(device),
            (Execution::Nccl(run), Some(device)) => run.fall_asleep(device),
            _ => {}
        }
    }

    /// After how long it wants to be advanced again, even if nothing happens.
    pub(crate) fn look_every(&self) -> Option<Duration> {
        if let Execution::Nccl(run) = self { run.look_every() } else { None }
    }

    /// Memory on devices that was made for results, in the order of the requests of this rank.
    pub(crate) fn take_results(&mut self) -> Vec<Option<Region>> {
        match self {
            Execution::Device(run) => run.take_results(),
            Execution::Nccl(run) => run.take_results(),
            _ => Vec::new(),
        }
    }

    /// What was queued and goes on without the host.
    pub(crate) fn take_queued(&mut self) -> Option<Queued> {
        match self {
            Execution::Device(run) => run.take_queued(),
            Execution::Nccl(run) => run.take_queued(),
            _ => None,
        }
    }

    /// How long devices took for what, if somebody wanted to know.
    pub(crate) fn take_device_times(&mut self) -> Vec<(DeviceStep, u64)> {
        match self {
            Execution::Device(run) => run.take_times(),
            Execution::Hosts(run) => run.take_times(),
            _ => Vec::new(),
        }
    }

    /// Traces its steps from now on, where it has any.
    pub(crate) fn trace_steps(&mut self) {
        match self {
            Execution::Links(run) => run.trace_steps(),
            Execution::Windows(run) => run.trace_steps(),
            Execution::Nothing
            | Execution::Gather
            | Execution::Reads(_)
            | Execution::Adasum(_)
            | Execution::Device(_)
            | Execution::Hosts(_)
            | Execution::Nccl(_)
            | Execution::Added(_) => {}
        }
    }

    /// The step trace, if there is one.
    pub(crate) fn step_trace(&mut self) -> Option<&mut StepTrace> {
        match self {
            Execution::Links(run) => run.step_trace(),
            Execution::Windows(run) => run.step_trace(),
            Execution::Nothing
            | Execution::Gather
            | Execution::Reads(_)
            | Execution::Adasum(_)
            | Execution::Device(_)
            | Execution::Hosts(_)
            | Execution::Nccl(_)
            | Execution::Added(_) => None,
        }
    }

    /// Which way it takes and how far it has come, in words.
    pub(crate) fn progress(&self) -> String {
        let steps = |way: &str, (step, steps): (usize, usize)| match step <= steps {
            true => format!("step {step} of {steps} {way}"),
            false => format!("its last bytes {way}"),
        };
        match self {
            Execution::Nothing => "nothing to move".to_owned(),
            Execution::Gather => "gathering before memory is touched".to_owned(),
            Execution::Links(run) => steps("by messages", run.place()),
            Execution::Windows(run) => steps("through shared memory", run.place()),
            Execution::Reads(_) => "reading the peers' memory".to_owned(),
            Execution::Adasum(_) => "by pairs".to_owned(),
            Execution::Device(run) => run.progress().to_owned(),
            Execution::Hosts(run) => run.progress().to_owned(),
            Execution::Nccl(run) => run.progress().to_owned(),
            Execution::Added(run) => format!("on an added plane: {run:?}"),
        }
    }

    /// The peer that is being waited for, if one can be named.
    pub(crate) fn waiting_for(&self, mesh: &Mesh) -> Option<Rank> {
        let windows = mesh.windows.as_ref();
        match self {
            Execution::Nothing => None,
            Execution::Gather => {
                windows.and_then(|windows| windows.first_absent().map(|local_rank| windows.rank(local_rank)))
            }
            Execution::Links(run) => run.waiting_for(),
            Execution::Windows(run) => windows.and_then(|windows| run.waiting_for(windows)),
            Execution::Reads(reads) => windows.and_then(|windows| reads.waiting_for(windows)),
            Execution::Adasum(adasum) => adasum.waiting_for(),
            Execution::Device(run) => windows.and_then(|windows| run.waiting_for(windows)),
            Execution::Hosts(run) => run.waiting_for(windows),
            Execution::Nccl(run) => run.waiting_for(),
            Execution::Added(run) => run.waiting_for(),
        }
    }

    /// All peers that are known to be waited for: those of this host that have not begun, or else the one that can be
    /// named.
    pub(crate) fn missing(&self, mesh: &Mesh) -> Vec<Rank> {
        let absent =
            mesh.windows.iter().flat_map(|windows| windows.absent().map(|local_rank| windows.rank(local_rank)));
        let mut missing: Vec<Rank> = absent.collect();
        if let Some(peer) = self.waiting_for(mesh).filter(|peer| !missing.contains(peer)) {
            missing.push(peer);
        }
        missing
    }
}

fn windows_of(mesh: &mut Mesh) -> &mut Windows {
    mesh.windows.as_mut().expect("invariant: this path is for ranks with windows")
}
