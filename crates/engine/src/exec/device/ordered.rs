//! A bucket whose steps the devices order among themselves: all of it is queued at once.
//!
//! Where a program lets its streams wait for results, no host has to see data come or go. When all ranks of the host
//! have submitted their requests and told where their tensors lie, each queues in its stream:
//!
//! 1. wait until the program's streams have computed the tensors; pack them, if others cannot map them;
//! 2. tell the others that this rank's contribution is there (`peer_words`);
//! 3. if this rank works for a device: wait for all contributions, fold and copy, tell that it has settled;
//! 4. wait until those that work have settled; copy back what was packed; record an event.
//!
//! Ranks that share a device without MPS take turns on it, and a stream that waits takes its turns, too: two ranks of a
//! training program made a third of the images so. There the hosts order the steps, as for programs that wait.
//!
//! **Why nothing hangs.** Ranks queue buckets in the same order, each when all ranks have come to it, and a program's
//! stream waits for an event only when the bucket before it is queued. Take the first bucket that does not end. Some
//! rank has not queued it, or some rank's data never come. A rank that has come to a bucket queues it unless it first
//! has to close mappings, which it does when the buckets before this one have ended, and those end. Data never
//! come only if the program's kernels do not end. So a call of the program that waits for its stream while it holds the
//! driver's lock holds nothing up for ever, which it would if a host had to queue something after the program's stream
//! has begun to wait. The argument is for one order of buckets: only the world's are queued so (`group`).

use farandole_device::{Error, Result as DeviceResult};
use farandole_plan::device::Movement;
use farandole_plan::fuse::BucketPlan;
use farandole_trace::event::DeviceStep;
use farandole_transport::Result;
use farandole_transport::shm::Windows;

use super::peer_words::Told as Tells;
use super::posting::Told;
use super::sharing::Shared;
use super::stopwatch::Stopwatch;
use super::tensors::Tensors;
use super::trailing::Queued;
use super::{DevicePlane, local, work};

/// Whether devices order the steps of a bucket: all ranks let them, and none takes turns with another one.
pub(super) fn is_possible(told: &[Told]) -> bool {
    let device = |told: &Told| told.exports.first().map(|export| export.device);
    let shares = |told_one: &Told| told.iter().filter(|other| device(other) == device(told_one)).count() > 1;
    told.iter().all(|told| told.is_ordered && (told.at_once || !shares(told)))
}

/// This rank's share of a bucket, if it has one, and where all tensors are in this process.
pub(super) type Reached = Option<(work::Share, Vec<work::Places>)>;

/// Maps what this rank works on. `None`: not yet ([`DevicePlane::translate_all`]).
pub(super) fn reach(
    plane: &mut DevicePlane,
    ordinal: u32,
    told: &[Told],
    windows: &Windows,
) -> Result<Option<Reached>> {
    let Some(share) = work::Share::of(told, windows.me()) else { return Ok(Some(None)) };
    Ok(plane.translate_all(ordinal, told, windows)?.map(|places| Some((share, places))))
}

/// What a rank queues.
pub(super) struct Ordered<'a> {
    pub(super) plan: &'a BucketPlan,
    pub(super) movement: &'a Movement,
    pub(super) tensors: &'a Tensors,
    pub(super) shared: &'a Shared,
    /// Ranks of the group.
    pub(super) size: usize,
}

impl Ordered<'_> {
    /// Queues all of it. `ordinal` is the device of the tensors; `work` is what [`reach`] gave.
    pub(super) fn queue(
        &self,
        plane: &mut DevicePlane,
        ordinal: u32,
        told: &[Told],
        work: Reached,
        stopwatch: Stopwatch,
    ) -> Result<Queued> {
        self.queue_on(plane, ordinal, told, work, stopwatch)
            .map_err(|error| local("queueing work on the device", error))
    }

    fn queue_on(
        &self,
        plane: &mut DevicePlane,
        ordinal: u32,
        told: &[Told],
        work: Reached,
        mut stopwatch: Stopwatch,
    ) -> DeviceResult<Queued> {
        let (opened, words) = plane.opened_with_words(ordinal)?;
        let words = words.ok_or_else(|| Error::Unavailable("the device's streams have no words".to_owned()))?;
        let (plan, moves, size) = (self.plan, &*self.movement.moves, self.size);
        let work = work.as_ref().map(|(share, places)| work::Work { plan, moves, places, share, size });
        let scratch = opened.scratch(work.as_ref().map_or(0, work::Work::scratch_bytes))?;
        let (stream, round) = (&opened.stream, words.begin_round());
        let all: Vec<usize> = (0..told.len()).collect();
        self.tensors.ready.iter().try_for_each(|ready| stream.wait(ready))?;
        if !self.shared.packing.is_empty() {
            stopwatch.start(stream)?;
            self.shared.packing.queue(stream)?;
            stopwatch.stop(stream, DeviceStep::Pack)?;
        }
        words.tell(stream, Tells::Exposed)?;
        if let Some(work) = work {
            words.wait_for(stream, &all, Tells::Exposed)?;
            stopwatch.start(stream)?;
            work.queue(stream, scratch)?;
            stopwatch.stop(stream, DeviceStep::Fold)?;
            words.tell(stream, Tells::Settled)?;
        }
        words.wait_for(stream, &work::workers(told), Tells::Settled)?;
        if !self.shared.unpacking.is_empty() {
            stopwatch.start(stream)?;
            self.shared.unpacking.queue(stream)?;
            stopwatch.stop(stream, DeviceStep::Unpack)?;
        }
        let (event, round) = (stream.record()?, Some(round));
        Ok(Queued { event, round, stopwatch, memory: Vec::new(), _packed: None })
    }
}

#[cfg(test)]
mod tests {
    use farandole_device::{Export, Uuid};
    use farandole_transport::ProcessId;

    use super::*;

    #[test]
    fn ranks_that_take_turns_on_a_device_are_ordered_by_their_hosts() {
        let told = |device: u8, at_once| {
            let device = Uuid([device; 16]);
            let process = ProcessId { pid: 7, namespace: 1, start_time: 1 };
            let export = Export { process, device, allocation: 1, base: 0, bytes: 8, handle: [0; 64] };
            Told { is_ordered: true, at_once, exports: vec![export], ..Told::default() }
        };
        assert!(is_possible(&[told(1, false), told(2, false)]), "each has its own");
        assert!(is_possible(&[told(1, true), told(1, true)]));
        assert!(!is_possible(&[told(1, false), told(2, true), told(1, false)]));
        assert!(!is_possible(&[told(1, true), Told { is_ordered: false, ..told(2, true) }]));
    }
}
