//! What a run has queued in one stream of its device and not yet seen done: [`InFlight`].
//!
//! A run that is dropped gives its bucket up. Before the bucket's memory goes back, what the run has queued must be
//! over: dropping waits for that, but not for ever ([`GIVE_UP_AFTER`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use farandole_device::{Event, Stream};
use farandole_trace::event::DeviceStep;
use farandole_transport::Result;

use super::stopwatch::Stopwatch;
use super::{DevicePlane, local};

/// How long a run that is given up waits for what it has queued. That is microseconds of work; but it may stand behind
/// kernels of the program that never end.
const GIVE_UP_AFTER: Duration = Duration::from_secs(2);

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Events in the stream behind what uses memory of the bucket, the oldest first.
    events: VecDeque<Event>,
    /// Whether the driver was asked to ring for the oldest.
    rings: bool,
    stopwatch: Stopwatch,
}

impl InFlight {
    /// Nothing yet; what comes is timed by this stopwatch.
    pub(crate) fn timed_by(stopwatch: Stopwatch) -> InFlight {
        InFlight { events: VecDeque::new(), rings: false, stopwatch }
    }

    /// Something is about to be queued.
    pub(crate) fn begin(&mut self, stream: &Stream) -> farandole_device::Result<()> {
        self.stopwatch.start(stream)
    }

    /// It was queued.
    pub(crate) fn record(&mut self, stream: &Stream, step: DeviceStep) -> farandole_device::Result<()> {
        self.events.push_back(self.stopwatch.stop(stream, step)?);
        Ok(())
    }

    /// The stopwatch, for whoever queues the whole bucket.
    pub(crate) fn take_stopwatch(&mut self) -> Stopwatch {
        std::mem::take(&mut self.stopwatch)
    }

    /// How long the device took for what is done.
    pub(crate) fn take_times(&mut self) -> Vec<(DeviceStep, u64)> {
        self.stopwatch.take()
    }

    /// Whether everything is done.
    pub(crate) fn is_done(&mut self) -> Result<bool> {
        Ok(self.under_way()? == 0)
    }

    /// How many of those that were recorded are not done.
    pub(crate) fn under_way(&mut self) -> Result<usize> {
        while let Some(oldest) = self.events.front() {
            if !oldest.has_happened().map_err(|error| local("waiting for the device", error))? {
                break;
            }
            (self.rings, _) = (false, self.events.pop_front());
            if self.events.is_empty() {
                self.stopwatch.read();
            }
        }
        Ok(self.events.len())
    }

    /// The driver is about to sleep: the device must wake it.
    pub(crate) fn fall_asleep(&mut self, plane: &mut DevicePlane, ordinal: u32) -> Result<()> {
        let Some(event) = self.events.front().filter(|_| !self.rings) else { return Ok(()) };
        plane.ring_after(ordinal, event).map_err(|error| local("waiting for the device", error))?;
        self.rings = true;
        Ok(())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(event) = self.events.back() else { return };
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
