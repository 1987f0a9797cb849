//! Requests by name, through the engine: submit, agree, fuse, wait.

use anyhow::{Context, Result};
use farandole_engine::{Engine, Submission, wait_all};
use farandole_plan::{Collective, Rank, Request};
use farandole_tensor::{OwnedBytes, Region};

use super::contestant::{Refusal, buffer_bytes};
use super::task::{Kind, Task};

/// A rank that submits requests.
pub(crate) struct Named {
    engine: Engine,
    prepared: Option<Prepared>,
}

struct Prepared {
    task: Task,
    tensors: Vec<Tensor>,
}

/// One tensor with its name and memory. The memory is away while a request is under way.
struct Tensor {
    request: Request,
    input: Option<Region>,
    /// What the engine has made for the result, where it does not replace the input.
    result: Option<Region>,
}

impl Named {
    pub(crate) fn new(engine: Engine) -> Named {
        Named { engine, prepared: None }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn prepare(&mut self, task: &Task) -> Result<(), Refusal> {
        if self.prepared.as_ref().is_some_and(|prepared| prepared.task == *task) {
            return Ok(());
        }
        // The old buffers go before the new ones come, so that the largest size needs its memory only once.
        self.prepared = None;
        let (input, _) = buffer_bytes(task, self.engine.size());
        let region = |bytes| Region::from_owned_bytes(OwnedBytes::zeroed(bytes), task.dtype);
        let tensor = |index: usize| Tensor {
            // The size is part of the name: another size is another tensor, as in a model.
            request: Request::new(
                format!("bench.{}.{index}", task.bytes),
                collective(task),
                task.dtype,
                [(input / task.dtype.size_bytes()) as u64],
            ),
            input: (task.kind != Kind::Barrier).then(|| region(input)),
            result: None,
        };
        self.prepared = Some(Prepared { task: task.clone(), tensors: (0..task.tensors).map(tensor).collect() });
        Ok(())
    }

    fn tensors(&mut self) -> &mut [Tensor] {
        &mut self.prepared.as_mut().expect("prepare comes first").tensors
    }

    pub(crate) fn inputs(&mut self) -> Vec<&mut [u8]> {
        self.tensors().iter_mut().filter_map(|tensor| tensor.input.as_mut()).map(Region::as_bytes_mut).collect()
    }

    pub(crate) fn outputs(&mut self) -> Vec<&[u8]> {
        self.tensors()
            .iter()
            .filter_map(|tensor| tensor.result.as_ref().or(tensor.input.as_ref()))
            .map(Region::as_bytes)
            .collect()
    }

    pub(crate) fn run(&mut self) -> Result<()> {
        let Named { engine, prepared } = self;
        let tensors = &mut prepared.as_mut().expect("prepare comes first").tensors;
        let mut tickets = Vec::with_capacity(tensors.len());
        for tensor in tensors.iter_mut() {
            let request = tensor.request.clone();
            let submission = match tensor.input.take() {
                Some(input) => Submission::new(request, input),
                None => Submission::without_memory(request),
            };
            tickets.push(engine.submit(submission)?);
        }
        for (tensor, outcome) in tensors.iter_mut().zip(wait_all(tickets)) {
            let outcome = outcome.with_context(|| tensor.request.name.to_string())?;
            tensor.input = outcome.input;
            tensor.result = outcome.output;
        }
        Ok(())
    }
}

fn collective(task: &Task) -> Collective {
    let (op, prescale, postscale) = (task.op, 1.0, 1.0);
    match task.kind {
        Kind::Allreduce => Collective::Allreduce { op, prescale, postscale },
        Kind::Reducescatter => Collective::ReduceScatter { op, prescale, postscale },
        Kind::Allgather => Collective::Allgather,
        Kind::Broadcast => Collective::Broadcast { root: Rank(0) },
        Kind::Alltoall => Collective::Alltoall { splits: None },
        Kind::Barrier => Collective::Barrier,
    }
}
