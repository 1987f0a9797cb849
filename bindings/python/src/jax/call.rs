//! One custom call of a JAX program: what its attribute says, and what it does when it runs.
//!
//! A compiled program may outlive everything that was there when it was compiled. So a call carries all that it needs
//! as text, and sizes are compared with what the ranks agree on when it runs. The text is made by
//! `farandole/jax/primitive.py`.
//!
//! Operands and results are one array for each request, besides tokens, by which XLA keeps calls in order. A call with
//! several arrays is one batch: the ranks must bring equally many.
//!
//! This is an unsafe module: it lends the memory of operands and results to the engine, which XLA keeps until the
//! future is fulfilled.

#![allow(unsafe_code)]

use std::sync::Arc;

use farandole::{Batch, Collective, Dtype, GroupId, Outcome, Rank, ReduceOp, Request, Submission};

use super::{compared, on_device};
use crate::op_calls;
use crate::op_error::{FAILED_PRECONDITION, INVALID_ARGUMENT, OpError};
use crate::records;
use crate::world::Job;
use crate::xla_ffi::element_type::{TOKEN, dtype_of};
use crate::xla_ffi::{Buffer, Call, resume};

/// The attribute that holds the text.
const ATTRIBUTE: &str = "collective";

/// The attribute with the names of parameters, a line for each, which are the last operands (`compared`).
const PARAMETERS: &str = "parameters";

/// What a call asks for.
pub(super) struct Asked {
    kind: Kind,
    group: GroupId,
    op: ReduceOp,
    prescale: f64,
    postscale: f64,
    /// A rank of the world.
    root: u32,
    ends: Ends,
    waits: Waits,
    pub(super) name: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allreduce,
    Allgather,
    Broadcast,
    Alltoall,
    Reducescatter,
    Barrier,
}

/// What is over when the call is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The gradients of an iteration have been reduced.
    Iteration,
    Nothing,
}

/// Who waits for the call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The thread that runs the program, which has nothing else to do: the call is all of it.
    Thread,
    /// The program: its thread may go on with what does not depend on the call.
    Program,
}

impl Asked {
    fn read(words: &str) -> Option<Asked> {
        let mut words = words.splitn(9, ' ');
        let kind = match words.next()? {
            "allreduce" => Kind::Allreduce,
            "allgather" => Kind::Allgather,
            "broadcast" => Kind::Broadcast,
            "alltoall" => Kind::Alltoall,
            "reducescatter" => Kind::Reducescatter,
            "barrier" => Kind::Barrier,
            _ => return None,
        };
        let group = GroupId(words.next()?.parse().ok()?);
        let op = ReduceOp::from_wire(words.next()?.parse().ok()?)?;
        let mut factor = || Some(f64::from_bits(u64::from_str_radix(words.next()?, 16).ok()?));
        let (prescale, postscale) = (factor()?, factor()?);
        let root = words.next()?.parse().ok()?;
        let ends = match words.next()? {
            "iteration" => Ends::Iteration,
            "nothing" => Ends::Nothing,
            _ => return None,
        };
        let waits = match words.next()? {
            "thread" => Waits::Thread,
            "program" => Waits::Program,
            _ => return None,
        };
        Some(Asked { kind, group, op, prescale, postscale, root, ends, waits, name: words.next()?.into() })
    }

    fn collective(&self, job: &Job) -> Result<Collective, OpError> {
        let &Asked { op, prescale, postscale, .. } = self;
        Ok(match self.kind {
            Kind::Allreduce => Collective::Allreduce { op, prescale, postscale },
            Kind::Reducescatter => Collective::ReduceScatter { op, prescale, postscale },
            Kind::Allgather => Collective::Allgather,
            Kind::Alltoall => Collective::Alltoall { splits: None },
            Kind::Broadcast => Collective::Broadcast { root: self.root_in_group(job)? },
            Kind::Barrier => Collective::Barrier,
        })
    }

    /// The number inside the process set of the root, which callers name by its number in the world.
    fn root_in_group(&self, job: &Job) -> Result<Rank, OpError> {
        let members = job.world.engine().group(self.group).map_err(|error| OpError::from(&error))?;
        let number = members.iter().position(|rank| rank.0 == self.root).ok_or_else(|| {
            let (root, group) = (self.root, self.group);
            OpError::wrong_use(format!("broadcast received invalid root rank {root} for provided process set {group}"))
        })?;
        Ok(Rank::from(number))
    }

    /// The requests of one call.
    pub(super) fn submissions(
        &self,
        job: &Job,
        operands: &[Buffer],
        results: &[Buffer],
        memory: Memory,
    ) -> Result<Vec<Submission>, OpError> {
        let collective = self.collective(job)?;
        if self.kind == Kind::Barrier {
            let request = Request::new(Arc::clone(&self.name), collective, Dtype::U8, Vec::new());
            return Ok(vec![Submission::without_memory(request).in_group(self.group)]);
        }
        let members = operands.len() as u32;
        let batch = (members > 1).then(|| Batch { name: Arc::clone(&self.name), members });
        let submission = |(index, (operand, result)): (usize, (&Buffer, &Buffer))| {
            let dtype = dtype_of(operand.primitive_type)?;
            let name = self.name_of(index, operands.len());
            let request = Request::new(name, collective.clone(), dtype, operand.dims.clone()).in_batch(batch.clone());
            // SAFETY: XLA keeps operand and result until the future is fulfilled, or its stream has passed the signal,
            // which is after the regions are gone. Others may read the operand meanwhile, and so does the engine only:
            // there is a place for the result.
            let (input, output) = unsafe {
                match memory {
                    Memory::Host => (operand.lend(dtype), result.lend(dtype)),
                    Memory::OnDevice(ordinal) => {
                        (operand.lend_on_device(dtype, ordinal), result.lend_on_device(dtype, ordinal))
                    }
                }
            };
            Ok(Submission::new(request, input).in_group(self.group).with_output(output))
        };
        operands.iter().zip(results).enumerate().map(submission).collect()
    }

    /// The name of the request for one of so many arrays.
    fn name_of(&self, index: usize, members: usize) -> Arc<str> {
        if members > 1 { format!("{}.{index}", self.name).into() } else { Arc::clone(&self.name) }
    }

    /// The names of parameters that are to be compared, and these, taken from the operands.
    fn split_parameters<'a>(&self, call: &'a Call<'_>, operands: &mut Vec<Buffer>) -> Option<(&'a str, Vec<Buffer>)> {
        let names = call.attribute(PARAMETERS)?;
        let gradients = operands.len().checked_sub(names.lines().count())?;
        Some((names, operands.split_off(gradients)))
    }

    /// Tells the recorder what is over.
    pub(super) fn note_end(&self) {
        if self.ends == Ends::Iteration {
            records::end_program_iteration();
        }
    }

    /// Whether the ranks agreed on results of the shapes that the program was compiled for.
    pub(super) fn check(&self, outcomes: &[Outcome], results: &[Vec<u64>]) -> Result<(), OpError> {
        let differs = |(outcome, dims): &(&Outcome, &Vec<u64>)| outcome.shape != **dims;
        let Some((outcome, compiled)) = outcomes.iter().zip(results).find(differs) else { return Ok(()) };
        let (kind, name, agreed) = (self.kind, &self.name, &outcome.shape);
        let text = format!(
            "{kind:?} \"{name}\": the ranks' arrays make a result of shape {agreed:?}, but the program was compiled \
             for {compiled:?}. Shapes are known when JAX compiles, so every rank must bring as many rows as this one. \
             Call it outside of jit if they differ; and compile anew what was compiled in a job of another size."
        );
        Err(OpError { code: FAILED_PRECONDITION, text })
    }
}

/// Where operands and results lie.
#[derive(Clone, Copy)]
pub(super) enum Memory {
    Host,
    /// On the device with this number.
    OnDevice(u32),
}

/// What XLA calls when a program on the processor comes to the call.
pub(super) fn execute(call: &mut Call<'_>) -> Result<(), OpError> {
    let (asked, mut operands, results) = read(call)?;
    if let Some((names, parameters)) = asked.split_parameters(call, &mut operands) {
        let job = op_calls::current()?;
        if let Some(due) = compared::due(&job, &asked.name, asked.group) {
            compared::compare(&job, &asked.name, asked.group, due, names, &parameters, None)?;
        }
    }
    if asked.waits == Waits::Thread {
        return execute_here(&asked, &operands, &results);
    }
    let future = call.promise();
    let dims: Vec<Vec<u64>> = results.iter().map(|result| result.dims.clone()).collect();
    let asked = Arc::new(asked);
    let kept = Arc::clone(&asked);
    let tell = Box::new(move |outcomes: Result<Vec<Outcome>, OpError>| {
        let done = outcomes.and_then(|outcomes| kept.check(&outcomes, &dims));
        kept.note_end();
        resume::keep(future, done);
    });
    op_calls::submit(|job| asked.submissions(job, &operands, &results, Memory::Host), tell);
    Ok(())
}

/// The same for a program on a GPU.
pub(super) fn execute_on_device(call: &mut Call<'_>) -> Result<(), OpError> {
    let (asked, mut operands, results) = read(call)?;
    let place = call.device_and_stream()?;
    if let Some((names, parameters)) = asked.split_parameters(call, &mut operands) {
        let job = op_calls::current()?;
        if let Some(due) = compared::due(&job, &asked.name, asked.group) {
            let mut read = on_device::reader(place)?;
            compared::compare(&job, &asked.name, asked.group, due, names, &parameters, Some(&mut read))?;
        }
    }
    on_device::execute(asked, &operands, &results, place)
}

/// What a call asks for, its operands and its results.
fn read(call: &Call<'_>) -> Result<(Asked, Vec<Buffer>, Vec<Buffer>), OpError> {
    let words = call.attribute(ATTRIBUTE).unwrap_or_default();
    let asked = Asked::read(words).ok_or_else(|| {
        let text = format!("a program that was compiled with another version of farandole asks for \"{words}\"");
        OpError { code: INVALID_ARGUMENT, text }
    })?;
    let is_array = |buffer: &Buffer| buffer.primitive_type != TOKEN;
    let operands: Vec<Buffer> = call.operands().into_iter().filter(is_array).collect();
    let results: Vec<Buffer> = call.results().into_iter().filter(is_array).collect();
    Ok((asked, operands, results))
}

/// Carries the call out on this thread, which drives the engine meanwhile: no other thread is woken.
pub(super) fn execute_here(asked: &Asked, operands: &[Buffer], results: &[Buffer]) -> Result<(), OpError> {
    let job = op_calls::current()?;
    let tickets = job.world.engine().submit_quietly(asked.submissions(&job, operands, results, Memory::Host)?);
    // The thread that ends the job waits until no other thread holds it.
    let weak = Arc::downgrade(&job);
    drop(job);
    // All of them, before anything is said: the engine works on the memory of the others.
    let outcomes = op_calls::outcomes_of(tickets.wait_returning(), &weak)?;
    asked.note_end();
    let dims: Vec<Vec<u64>> = results.iter().map(|result| result.dims.clone()).collect();
    asked.check(&outcomes, &dims)
}
