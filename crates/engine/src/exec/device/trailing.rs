//! Buckets that are queued on a device, and on which no host has to work any more: [`Trailing`].
//!
//! Their requests are over for the engine when they are queued; whoever uses the results waits for the event behind the
//! bucket. What is left to do is to look now and then whether the device gets on: its times are recorded, and a bucket
//! that stands still for longer than the user allows ends the group, as one that a host works on would.
//!
//! The invariant: while a bucket trails, its memory is kept, no mapping is closed and no word is unregistered that its
//! work uses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farandole_device::{Allocation, Event};
use farandole_plan::agree::Operation;
use farandole_tensor::SharedOwner;
use farandole_trace::event::DeviceStep;
use farandole_transport::Result;

use super::local;
use super::stopwatch::Stopwatch;

/// How often the host looks at what trails. Nobody waits for that.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long a device took for what, in nanoseconds.
type StepTimes = Vec<(DeviceStep, u64)>;

/// A bucket that is queued.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Behind everything that the bucket does on the device.
    pub(crate) event: Event,
    /// By which the ranks whose data are not there can be found, where devices order the steps.
    pub(super) round: Option<u32>,
    pub(super) stopwatch: Stopwatch,
    /// What its work uses.
    pub(crate) memory: Vec<SharedOwner>,
    /// Where it is packed, if that may go before.
    pub(super) _packed: Option<Arc<Allocation>>,
}

impl Queued {
    /// One that ends with this event and is packed there; its ranks do not wait for each other through words.
    pub(crate) fn without_words(event: Event, packed: Option<Arc<Allocation>>) -> Queued {
        Queued { event, round: None, stopwatch: Stopwatch::default(), memory: Vec::new(), _packed: packed }
    }
}

/// See the module's text. The oldest first.
#[derive(Debug, Default)]
pub(crate) struct Trailing {
    queued: VecDeque<(Operation, Queued)>,
    /// When it was last looked at, and when something was last done.
    looked: Duration,
    moved: Duration,
}

impl Trailing {
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// A bucket has been queued.
    pub(crate) fn push(&mut self, operation: Operation, queued: Queued, now: Duration) {
        if self.queued.is_empty() {
            (self.looked, self.moved) = (now, now);
        }
        self.queued.push_back((operation, queued));
    }

    /// When it wants to be looked at.
    pub(crate) fn next_look(&self) -> Duration {
        if self.queued.is_empty() { Duration::MAX } else { self.look_again() }
    }

    /// When it is time to look again, if there is a reason.
    pub(crate) fn look_again(&self) -> Duration {
        self.looked + LOOK_EVERY
    }

    /// Takes out a bucket that the device has done, with its times.
    ///
    /// # Errors
    /// If the device has failed.
    pub(crate) fn take_done(&mut self, now: Duration) -> Result<Option<(Operation, StepTimes)>> {
        self.looked = now;
        let Some((_, first)) = self.queued.front() else { return Ok(None) };
        if !first.event.has_happened().map_err(|error| local("waiting for the device", error))? {
            return Ok(None);
        }
        self.moved = now;
        Ok(self.queued.pop_front().map(|(operation, mut queued)| {
            queued.stopwatch.read();
            (operation, queued.stopwatch.take())
        }))
    }

    /// For how long nothing was done, and the round that is waited for.
    pub(super) fn stands_still(&self, now: Duration) -> Option<(Duration, Option<u32>)> {
        self.queued.front().map(|(_, first)| (now.saturating_sub(self.moved), first.round))
    }

    /// Takes out the buckets that the device has done and puts the owners of their memory aside. Says whether none is
    /// left.
    pub(super) fn take_ended(&mut self, ended: &mut Vec<SharedOwner>) -> bool {
        // A device that has failed does nothing more.
        while let Some((_, queued)) = self.queued.pop_front_if(|(_, first)| first.event.has_happened().unwrap_or(true))
        {
            ended.extend(queued.memory);
        }
        self.queued.is_empty()
    }
}
