//! What a run has queued on its device and not yet seen done: [`InFlight`].
//!
//! A run that is dropped gives its bucket up. Before the bucket's memory goes back, what the run has queued must be
//! over: dropping waits for that, but not for ever ([`GIVE_UP_AFTER`]).

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
    /// The last event in the stream behind something that uses memory of the bucket.
    last: Option<Event>,
    /// Whether the driver was asked to ring for it.
    rings: bool,
    stopwatch: Stopwatch,
}

impl InFlight {
    /// Nothing yet; what comes is timed by this stopwatch.
    pub(crate) fn timed_by(stopwatch: Stopwatch) -> InFlight {
        InFlight { last: None, rings: false, stopwatch }
    }

    /// Something is about to be queued.
    pub(crate) fn begin(&mut self, stream: &Stream) -> farandole_device::Result<()> {
        self.stopwatch.start(stream)
    }

    /// It was queued.
    pub(crate) fn record(&mut self, stream: &Stream, step: DeviceStep) -> farandole_device::Result<()> {
        (self.last, self.rings) = (Some(self.stopwatch.stop(stream, step)?), false);
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
        let Some(event) = &self.last else { return Ok(true) };
        let happened = event.has_happened().map_err(|error| local("waiting for the device", error))?;
        if happened {
            (self.last, self.rings) = (None, false);
            self.stopwatch.read();
        }
        Ok(happened)
    }

    /// The driver is about to sleep: the device must wake it.
    pub(crate) fn fall_asleep(&mut self, plane: &mut DevicePlane, ordinal: u32) -> Result<()> {
        let Some(event) = self.last.as_ref().filter(|_| !self.rings) else { return Ok(()) };
        plane.ring_after(ordinal, event).map_err(|error| local("waiting for the device", error))?;
        self.rings = true;
        Ok(())
    }
}

impl Drop for InFlight {
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
