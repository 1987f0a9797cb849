//! Allreduces of tensors in the memory of GPUs, through the engine.
//!
//! Ranks take the machine's devices in turn. What the benchmark fills and checks lies in host memory; it is copied to
//! the device before the next run, and from it when somebody looks. An iteration is what a front end does: an event in
//! the program's stream, then one request for each tensor, then the wait for all.

use anyhow::{Context, Result, bail};
use farandole_device::{Device, Stream, cuda};
use farandole_engine::{Engine, Error as EngineError, Submission};
use farandole_plan::{Collective, Device as Place, Request};
use farandole_tensor::Region;

use super::contestant::Refusal;
use super::task::{Kind, Task};

/// This rank's device, and what is prepared there.
#[derive(Default)]
pub(crate) struct OnDevice {
    device: Option<(Device, Stream)>,
    prepared: Option<Prepared>,
}

struct Prepared {
    task: Task,
    tensors: Vec<Tensor>,
    /// Whether the host has other contents than the device.
    is_changed: bool,
}

struct Tensor {
    request: Request,
    /// Away while a request is under way.
    region: Option<Region>,
    host: Vec<u8>,
}

impl OnDevice {
    pub(crate) fn prepare(&mut self, engine: &Engine, task: &Task) -> Result<(), Refusal> {
        if task.kind != Kind::Allreduce {
            return Err(Refusal::Unsupported("only allreduce works in device memory".to_owned()));
        }
        if self.prepared.as_ref().is_some_and(|prepared| prepared.task == *task) {
            return Ok(());
        }
        self.prepared = None;
        self.open(engine)?;
        let (device, _) = self.device.as_ref().context("invariant: the device was opened")?;
        let bytes = task.bytes as usize;
        // In one allocation, as tensors of a framework lie in its allocator's segments.
        let whole = device.allocate(task.tensors * bytes.next_multiple_of(512)).map_err(anyhow::Error::from)?;
        let regions = whole.into_regions(&vec![bytes; task.tensors], task.dtype);
        let tensor = |(index, region): (usize, Region)| {
            let (op, prescale, postscale) = (task.op, 1.0, 1.0);
            let collective = Collective::Allreduce { op, prescale, postscale };
            let shape = [task.bytes / task.dtype.size_bytes() as u64];
            let mut request = Request::new(format!("bench.{}.{index}", task.bytes), collective, task.dtype, shape);
            request.device = Place::Gpu(device.info().ordinal);
            Tensor { request, region: Some(region), host: vec![0; bytes] }
        };
        let tensors = regions.into_iter().enumerate().map(tensor).collect();
        self.prepared = Some(Prepared { task: task.clone(), tensors, is_changed: true });
        Ok(())
    }

    fn open(&mut self, engine: &Engine) -> Result<()> {
        if self.device.is_none() {
            let devices = cuda::list()?;
            if devices.is_empty() {
                bail!("this machine has no GPU");
            }
            // All ranks are on this machine.
            let device = cuda::open((engine.rank().index() % devices.len()) as u32)?;
            let stream = device.stream()?;
            self.device = Some((device, stream));
        }
        Ok(())
    }

    fn prepared(&mut self) -> &mut Prepared {
        self.prepared.as_mut().expect("prepare comes first")
    }

    pub(crate) fn inputs(&mut self) -> Vec<&mut [u8]> {
        let prepared = self.prepared();
        prepared.is_changed = true;
        prepared.tensors.iter_mut().map(|tensor| &mut tensor.host[..]).collect()
    }

    pub(crate) fn outputs(&mut self) -> Result<Vec<&[u8]>> {
        let (device, _) = self.device.as_ref().context("prepare comes first")?;
        let tensors = &mut self.prepared.as_mut().context("prepare comes first")?.tensors;
        for tensor in tensors.iter_mut() {
            device.read_and_wait(address(tensor)?, &mut tensor.host)?;
        }
        Ok(tensors.iter().map(|tensor| &tensor.host[..]).collect())
    }

    pub(crate) fn run(&mut self, engine: &Engine) -> Result<()> {
        let (device, stream) = self.device.as_ref().context("prepare comes first")?;
        let Prepared { tensors, is_changed, .. } = self.prepared.as_mut().context("prepare comes first")?;
        if std::mem::take(is_changed) {
            for tensor in tensors.iter() {
                device.write_and_wait(address(tensor)?, &tensor.host)?;
            }
        }
        let ready = stream.record()?;
        let submission = |tensor: &mut Tensor| {
            let region = tensor.region.take().expect("invariant: the memory is back");
            Submission::new(tensor.request.clone(), region).ready_after(ready.clone())
        };
        let tickets = engine.submit_quietly(tensors.iter_mut().map(submission));
        for (tensor, outcome) in tensors.iter_mut().zip(tickets.wait_returning()) {
            let outcome = outcome.map_err(EngineError::from).with_context(|| tensor.request.name.to_string())?;
            tensor.region = outcome.input;
        }
        Ok(())
    }
}

fn address(tensor: &Tensor) -> Result<u64> {
    let place = tensor.region.as_ref().and_then(Region::device);
    Ok(place.context("invariant: tensors lie on a device between runs")?.address)
}
