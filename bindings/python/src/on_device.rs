//! Tensors in the memory of devices: what Python says of them, and waiting for them.
//!
//! A tensor on a device is submitted as it lies there. Python names the device and the stream in which its data are
//! computed; an event in that stream tells the engine when they are. Nobody waits here, except who asks for results and
//! names no stream.
//!
//! With `FARANDOLE_TEST_STAND_IN_DEVICE`, host memory stands in for a device's: tests of the front ends need none. Only
//! a module with the feature `testing` has that fake device; no release has it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole::device::{self, DeviceCopy, Event};
use farandole::{Device, Dtype, Request, Submission};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::lent_memory::{LentMemory, Piece};
use crate::waiting::SIGNAL_CHECK_INTERVAL;

/// How long a thread that waits for a device sleeps between two looks: what it waits for are copies within a device.
pub(crate) const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Set by tests: host memory stands in for a device's.
const STAND_IN: &str = "FARANDOLE_TEST_STAND_IN_DEVICE";

/// Whether host memory stands in for a device's.
#[pyfunction]
pub(crate) fn device_stands_in() -> bool {
    std::env::var_os(STAND_IN).is_some_and(|value| !value.is_empty())
}

/// Opens a device by its number in this process.
pub(crate) fn open(ordinal: u32) -> device::Result<device::Device> {
    if device_stands_in() { open_stand_in(ordinal) } else { device::cuda::open(ordinal) }
}

#[cfg(feature = "testing")]
fn open_stand_in(ordinal: u32) -> device::Result<device::Device> {
    device::stand_in::open(ordinal)
}

#[cfg(not(feature = "testing"))]
fn open_stand_in(_ordinal: u32) -> device::Result<device::Device> {
    Err(device::Error::Unavailable(format!(
        "{STAND_IN}: this build has no fake device; unset it, or build the module with `cargo xtask python`"
    )))
}

/// A device, and the event after which memory there holds its data.
pub(crate) struct OnStream {
    device: device::Device,
    ready: Event,
}

impl OnStream {
    /// The data are there when this stream of the device has done what it has now.
    pub(crate) fn record(ordinal: u32, stream: u64) -> PyResult<OnStream> {
        let device = open(ordinal).map_err(raised)?;
        let ready = device.record_in(stream).map_err(raised)?;
        Ok(OnStream { device, ready })
    }

    /// The event.
    pub(crate) fn ready(&self) -> &Event {
        &self.ready
    }

    /// Copies within the device, in a stream of somebody else's; returns the event behind them.
    pub(crate) fn copy_in(&self, stream: u64, copies: &[DeviceCopy]) -> PyResult<Event> {
        self.device.copy_in(stream, copies).and_then(|()| self.device.record_in(stream)).map_err(raised)
    }

    /// The device's number in this process.
    pub(crate) fn ordinal(&self) -> u32 {
        self.device.info().ordinal
    }

    /// The submission of memory there.
    pub(crate) fn submission(
        &self,
        mut request: Request,
        memory: &Arc<LentMemory>,
        piece: &Piece,
        dtype: Dtype,
    ) -> Submission {
        request.device = Device::Gpu(self.ordinal());
        let region = memory.region_on_device(piece, dtype, self.ordinal());
        Submission::new(request, region).ready_after(self.ready.clone())
    }
}

/// Whether something happens within the time after which a thread looks for signals.
pub(crate) fn happens_soon(happened: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !happened() {
        if begun.elapsed() > SIGNAL_CHECK_INTERVAL {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}

pub(crate) fn raised(error: device::Error) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Memory that work on a device still uses, although nobody waits for it any more.
pub(crate) mod in_use {
    use std::any::Any;
    use std::sync::{Mutex, PoisonError};

    use farandole::device::Event;

    struct Kept {
        until: Event,
        _memory: Box<dyn Any + Send>,
    }

    /// Changed by threads that hold the interpreter's lock; nothing is dropped under it, because that runs Python code.
    static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

    /// Keeps memory until this has happened.
    pub(crate) fn keep(until: Event, memory: impl Any + Send) {
        let kept = Kept { until, _memory: Box::new(memory) };
        if !kept.is_over() {
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        }
    }

    /// Gives back what is not in use any more.
    pub(crate) fn release() {
        let over: Vec<Kept> = {
            let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            if all.is_empty() {
                return;
            }
            all.extract_if(.., |kept| kept.is_over()).collect()
        };
        drop(over);
    }

    impl Kept {
        /// A device that has failed uses nothing any more.
        fn is_over(&self) -> bool {
            self.until.has_happened().unwrap_or(true)
        }
    }
}
