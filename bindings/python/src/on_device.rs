//! Tensors in the memory of devices: what Python says of them, and waiting for them.
//!
//! A tensor on a device is submitted as it lies there. Python names the device and the stream in which its data are
//! computed; an event in that stream tells the engine when they are. Nobody waits here, except who asks for results and
//! names no stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole::device::{self, Event};
use farandole::{Collective, Device, Dtype, ReduceOp, Request, Submission};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::lent_memory::{LentMemory, Piece};
use crate::waiting::SIGNAL_CHECK_INTERVAL;
use crate::world;

/// How long a thread that waits for a device sleeps between two looks: what it waits for are copies within a device.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// A device, and the event after which memory there holds its data.
pub(crate) struct OnStream {
    ordinal: u32,
    ready: Event,
}

impl OnStream {
    /// The data are there when this stream of the device has done what it has now.
    pub(crate) fn record(ordinal: u32, stream: u64) -> PyResult<OnStream> {
        let ready = device::cuda::open(ordinal).and_then(|device| device.record_in(stream)).map_err(raised)?;
        Ok(OnStream { ordinal, ready })
    }

    /// The event.
    pub(crate) fn ready(&self) -> Event {
        self.ready.clone()
    }

    /// The submission of memory there.
    pub(crate) fn submission(
        &self,
        mut request: Request,
        memory: &Arc<LentMemory>,
        piece: &Piece,
        dtype: Dtype,
    ) -> Submission {
        request.device = Device::Gpu(self.ordinal);
        let region = memory.region_on_device(piece, dtype, self.ordinal);
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

/// Whether allreduces of device memory are carried out in a group.
#[pyfunction]
pub(crate) fn reduces_on_devices(group: i64) -> PyResult<bool> {
    let group = crate::request::read_group(group)?;
    let allreduce = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    let engine = world::current()?;
    engine.world.engine().works_on_devices(group, &allreduce, Dtype::F32).map_err(crate::errors::of_engine)
}

fn raised(error: device::Error) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
