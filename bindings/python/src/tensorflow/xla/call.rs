//! A collective as a custom call: its attributes when it is compiled, and what it does when it runs.
//!
//! A compiled program may outlive everything that was there when it was compiled, and may come from a cache on disk. So
//! a call carries all that its kernel knew, as text. Sizes and ranks are looked up when it runs; where the shape of a
//! result was derived from them, it is compared with what the ranks agree on.
//!
//! This is an unsafe module: it lends the memory of operands and results to the engine, which XLA keeps until the
//! future is fulfilled.

#![allow(unsafe_code)]

use std::fmt::Write;
use std::sync::Arc;

use farandole::{Dtype, GroupId, Outcome, ReduceOp, Request, Submission};

use super::super::definitions::{DEFINITIONS, Kind};
use super::super::kernel::Kernel;
use crate::op_calls;
use crate::op_error::{FAILED_PRECONDITION, INVALID_ARGUMENT, OpError};
use crate::world::Job;
use crate::xla_ffi::element_type::{dtype_of, primitive_type};
use crate::xla_ffi::{Buffer, Call, resume};

/// The name under which XLA knows us.
pub(super) const TARGET: &str = "farandole_collective";

/// The attribute that holds the text.
const ATTRIBUTE: &str = "collective";

/// The op's name in graphs.
pub(super) fn op_name(kind: Kind) -> &'static str {
    let found = DEFINITIONS.iter().find(|definition| definition.kind == kind);
    found.map(|definition| definition.name).expect("invariant: every kind has a definition")
}

/// The attributes of a call, in MLIR's syntax: a dictionary with one text.
pub(super) fn attributes(kernel: &Kernel) -> String {
    let Kernel { kind, name, members, group, op, prescale, postscale, root, .. } = kernel;
    let (op_name, count) = (op_name(*kind), members.len());
    let (prescale, postscale) = (prescale.to_bits(), postscale.to_bits());
    let names = if kind.is_many() { members.join("\n") } else { name.to_string() };
    let words = format!("{op_name} {} {} {prescale:x} {postscale:x} {root} {count} {names}", group.0, *op as u8);
    let mut text = format!("{{{ATTRIBUTE} = \"");
    for byte in words.bytes() {
        match byte {
            b' ' | b'/' | b'_' | b'.' | b':' | b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                text.push(char::from(byte))
            }
            _ => write!(text, "\\{byte:02X}").expect("invariant: a text takes everything"),
        }
    }
    text + "\"}"
}

/// The kernel whose call this is.
fn read(words: &str) -> Option<Kernel> {
    let mut words = words.splitn(8, ' ');
    let op_name = words.next()?;
    let kind = DEFINITIONS.iter().find(|definition| definition.name == op_name)?.kind;
    let group = GroupId(words.next()?.parse().ok()?);
    let op = ReduceOp::from_wire(words.next()?.parse().ok()?)?;
    let mut factor = || Some(f64::from_bits(u64::from_str_radix(words.next()?, 16).ok()?));
    let (prescale, postscale) = (factor()?, factor()?);
    let root = words.next()?.parse().ok()?;
    let count = words.next()?.parse().ok()?;
    let name = words.next()?;
    let members = match kind.is_many() {
        true => name.split('\n').map(Arc::from).collect(),
        false => Kernel::names_of_members(kind, name, count),
    };
    Some(Kernel { kind, caller_waits: false, name: name.into(), members, group, op, prescale, postscale, root })
}

/// What XLA calls when a program comes to the call.
pub(super) fn execute(call: &mut Call<'_>) -> Result<(), OpError> {
    let words = call.attribute(ATTRIBUTE).unwrap_or_default();
    let kernel = read(words).ok_or_else(|| {
        let text = format!("a program that was compiled with another version of farandole asks for \"{words}\"");
        OpError { code: INVALID_ARGUMENT, text }
    })?;
    let (operands, mut results) = (call.operands(), call.results());
    if kernel.kind.is_local() {
        let job = op_calls::current()?;
        let number = kernel.local_number(&job)?;
        return write_numbers(&results[0], &[number]);
    }
    // The last is the turn, which has no value.
    results.pop();
    let future = call.promise();
    let shared = Arc::new((kernel, results));
    let kept = Arc::clone(&shared);
    let tell = Box::new(move |outcomes: Result<Vec<Outcome>, OpError>| {
        let done = outcomes.and_then(|outcomes| put_results(&kept.0, outcomes, &kept.1));
        resume::keep(future, done);
    });
    op_calls::submit(|job| submissions(&shared.0, job, &operands, &shared.1), tell);
    Ok(())
}

/// The requests of one call.
fn submissions(
    kernel: &Kernel,
    job: &Job,
    operands: &[Buffer],
    results: &[Buffer],
) -> Result<Vec<Submission>, OpError> {
    if let Some(submission) = kernel.submission_without_memory() {
        return Ok(vec![submission]);
    }
    let splits = if kernel.kind == Kind::Alltoall { read_splits(&operands[1])? } else { None };
    let collective = kernel.collective(job, splits)?;
    (0..kernel.members.len())
        .map(|index| {
            let (input, dtype) = (&operands[index], dtype_of(operands[index].primitive_type)?);
            let request: Request = kernel.request(index, collective.clone(), dtype, input.dims.clone());
            // SAFETY: XLA keeps operand and result until the future is fulfilled, which is after the regions are gone.
            // Others may read the operand meanwhile, and so does the engine only: there is a place for the result.
            unsafe {
                let submission = Submission::new(request, input.lend(dtype)).in_group(kernel.group);
                let in_place = kernel.kind.is_in_place();
                Ok(if in_place { submission.with_output(results[index].lend(dtype)) } else { submission })
            }
        })
        .collect()
}

/// Writes what the engine has not written into the results itself.
fn put_results(kernel: &Kernel, outcomes: Vec<Outcome>, results: &[Buffer]) -> Result<(), OpError> {
    if kernel.kind.is_in_place() || kernel.kind == Kind::Barrier {
        return Ok(());
    }
    for (outcome, result) in outcomes.into_iter().zip(results) {
        if kernel.kind == Kind::Join {
            return write_numbers(result, &[outcome.last_joined.map_or(-1, |rank| rank.0 as i32)]);
        }
        if outcome.shape != result.dims {
            return Err(other_shape(kernel, &outcome.shape, &result.dims));
        }
        let region = outcome.output.expect("invariant: results of their own size bring their memory");
        // SAFETY: the result is ours to write until the future is fulfilled, and has so many bytes: same shape and
        // element type.
        unsafe { result.fill(region.as_bytes()) };
        if kernel.kind == Kind::Alltoall {
            let received: Vec<i32> = outcome.received_splits.iter().map(|&rows| rows as i32).collect();
            write_numbers(&results[1], &received)?;
        }
    }
    Ok(())
}

fn other_shape(kernel: &Kernel, agreed: &[u64], compiled: &[u64]) -> OpError {
    let (op, name) = (op_name(kernel.kind), &kernel.name);
    let text = format!(
        "{op} \"{name}\": the ranks' tensors make a result of shape {agreed:?}, but the program was compiled for \
         {compiled:?}. XLA needs shapes that are known when it compiles, so every rank must bring as many rows as this \
         one. Call the op outside of functions with jit_compile=True if they differ."
    );
    OpError { code: FAILED_PRECONDITION, text }
}

/// The splits of an alltoall; nothing means equal ones.
fn read_splits(splits: &Buffer) -> Result<Option<Vec<u64>>, OpError> {
    // SAFETY: an operand of int32 (the op says so), which nobody writes.
    let numbers: Vec<i32> = unsafe { splits.numbers() };
    let read = |rows: i32| {
        u64::try_from(rows).map_err(|_| OpError::wrong_use(format!("splits holds {rows}, which is below zero")))
    };
    let splits = numbers.into_iter().map(read).collect::<Result<Vec<u64>, _>>()?;
    Ok((!splits.is_empty()).then_some(splits))
}

/// Writes a result of int32.
fn write_numbers(result: &Buffer, numbers: &[i32]) -> Result<(), OpError> {
    let count: u64 = result.dims.iter().product();
    if result.primitive_type != primitive_type(Dtype::I32) || count != numbers.len() as u64 {
        return Err(OpError::wrong_use("the process set has another size than when the program was compiled"));
    }
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    // SAFETY: the result is ours to write until the future is fulfilled, and has so many bytes.
    unsafe { result.fill(&bytes) };
    Ok(())
}
