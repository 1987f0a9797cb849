//! Times what a run has its device do, on the device's own clock: [`Stopwatch`].
//!
//! Two events of a run's stream lie around what it queues, and the later one is the event that the run looks at anyway.
//! They are read when that has happened, so nobody waits for them. Events that know when they happened cost more, so
//! that there are some only while a trace is kept; otherwise the run records what it would record without this file.

use farandole_device::{Event, Result, Stream};
use farandole_trace::event::DeviceStep;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    is_wanted: bool,
    begun: Option<Event>,
    running: Vec<(DeviceStep, Event, Event)>,
    taken: Vec<(DeviceStep, u64)>,
}

impl Stopwatch {
    /// One that times.
    pub(crate) fn timing() -> Stopwatch {
        Stopwatch { is_wanted: true, ..Stopwatch::default() }
    }

    /// Another one, for another stream, that times if this one does.
    pub(crate) fn another(&self) -> Stopwatch {
        Stopwatch { is_wanted: self.is_wanted, ..Stopwatch::default() }
    }

    /// Something is about to be queued.
    pub(crate) fn start(&mut self, stream: &Stream) -> Result<()> {
        if self.is_wanted {
            self.begun = Some(stream.record_timed()?);
        }
        Ok(())
    }

    /// It was queued: the event behind it.
    pub(crate) fn stop(&mut self, stream: &Stream, step: DeviceStep) -> Result<Event> {
        let Some(begun) = self.begun.take() else { return stream.record() };
        let ended = stream.record_timed()?;
        self.running.push((step, begun, ended.clone()));
        Ok(ended)
    }

    /// The last event has happened.
    pub(crate) fn read(&mut self) {
        // What a device that has failed says of its times is not missed.
        for (step, begun, ended) in self.running.drain(..) {
            if let Ok(Some(ns)) = ended.ns_since(&begun) {
                self.taken.push((step, ns));
            }
        }
    }

    /// What was timed so far.
    pub(crate) fn take(&mut self) -> Vec<(DeviceStep, u64)> {
        std::mem::take(&mut self.taken)
    }
}

#[cfg(test)]
mod tests {
    use farandole_device::DeviceCopy;
    use farandole_device::pretend::{DeviceFaults, Pretend};

    use super::*;

    #[test]
    fn a_run_is_timed_only_where_somebody_wants_to_know() {
        let device = Pretend::with(0, DeviceFaults::default()).device();
        let (stream, memory) = (device.stream().unwrap(), device.allocate(8).unwrap());
        let copy = DeviceCopy { source: memory.address(), target: memory.address() + 4, bytes: 4 };
        for (mut stopwatch, times) in [(Stopwatch::timing(), 1), (Stopwatch::default(), 0)] {
            stopwatch.start(&stream).unwrap();
            stream.copy(&[copy]).unwrap();
            let event = stopwatch.stop(&stream, DeviceStep::Fold).unwrap();
            assert!(event.has_happened().unwrap());
            stopwatch.read();
            let taken = stopwatch.take();
            assert_eq!(taken.len(), times);
            assert!(taken.iter().all(|&(step, ns)| step == DeviceStep::Fold && ns >= 1000), "{taken:?}");
            assert_eq!(stopwatch.take(), []);
        }
    }
}
