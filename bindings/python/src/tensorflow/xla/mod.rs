//! The ops in functions that XLA compiles (`jit_compile=True`), on the CPU.
//!
//! TensorFlow translates such a function by running a kernel for each node on a device that only exists for that,
//! `XLA_CPU_JIT`. A kernel's inputs and outputs are then values of the program under construction, and their shapes are
//! known. Ours emits a custom call (`graph`) whose attributes say which collective it is (`call`). When the program
//! runs and comes to the call, XLA calls us (`registration`), the requests go to the engine like those of any other
//! kernel (`calls`), and XLA goes on when they are done (`xla_ffi::resume`). So ops and graphs are the same, compiled
//! or not; gradients are those of the ops.
//!
//! What holds:
//!
//! - A call has side effects for XLA, so it is neither dropped nor done twice. It never blocks a thread: XLA is given a
//!   future, and keeps operands and results until it is fulfilled.
//! - Collectives take turns: a call has one more operand, the *turn*, which is a result of the call that was emitted
//!   before it. XLA is free to order what does not depend on each other, and what it finds depends on constants. If
//!   those differ between ranks, one rank would wait in a first collective for another that waits in a second.
//!   TensorFlow translates the nodes of the same graph in the same order everywhere. Turns are passed on inside a
//!   computation; the body of a loop and the branches of a condition have their own.
//! - A result's shape is fixed by compilation. That every rank brings equally many rows is assumed for ops whose result
//!   depends on it, and checked when they run.
//!
//! What cannot be translated is refused with UNIMPLEMENTED and the op's name. That is also the code at which
//! TensorFlow's automatic clustering runs a cluster without XLA.
//!
//! What is deliberately not here: XLA on GPUs. TensorFlow itself says there that the op has no kernel.
//!
//! This is an unsafe module: TensorFlow calls into it with addresses.

#![allow(unsafe_code)]

mod call;
mod graph;
mod registration;

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use farandole::Dtype;

use super::api::{Opaque, Status, api};
use super::definitions::Kind;
use super::kernel::{Kernel, dtype_of, get_input};
use crate::op_calls;
use crate::op_error::{OpError, UNIMPLEMENTED, UNKNOWN};
use crate::xla_ffi::element_type::primitive_type;
use graph::{Array, Program, XlaOp};

/// The device for which functions are translated to run on the CPU.
pub(super) const DEVICE: &CStr = c"XLA_CPU_JIT";

/// Whether compiled programs can call us, or why not. Asked when the first op is compiled, not before: most programs
/// never do.
fn ready() -> Result<(), OpError> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let ready = READY.get_or_init(|| {
        graph::check()?;
        registration::register(call::TARGET)
    });
    ready.clone().map_err(|missing| {
        let text = format!("this TensorFlow cannot call the op from XLA: {missing}. TensorFlow 2.20 and 2.21 can");
        OpError { code: UNIMPLEMENTED, text }
    })
}

/// The compute function of a kernel for [`DEVICE`]: it runs when a function is compiled.
///
/// # Safety
/// What TensorFlow passes to a kernel.
pub(super) unsafe extern "C" fn compile(kernel: Opaque, context: Opaque) {
    // SAFETY: TensorFlow passes what our `create` has made, and the context of a call.
    let kernel = unsafe { &*kernel.cast_const().cast::<Kernel>() };
    // SAFETY: as above.
    let compiled = catch_unwind(AssertUnwindSafe(|| unsafe { emit(kernel, context) }));
    let error = match compiled {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(_) => OpError { code: UNKNOWN, text: "a panic; its text is in this rank's output".to_owned() },
    };
    let (op, name) = (call::op_name(kernel.kind), &kernel.name);
    let status = Status::new();
    status.set(error.code, &format!("{op} \"{name}\" cannot be compiled: {}. {}", error.text, ADVICE));
    // SAFETY: the context lives during the call.
    unsafe { (api().compute_failed)(context, status.raw()) };
}

/// What to do about an op that cannot be compiled.
const ADVICE: &str = "Call it outside of functions with jit_compile=True (for Keras: compile(jit_compile=False))";

/// # Safety
/// As for [`compile`].
unsafe fn emit(kernel: &Kernel, context: Opaque) -> Result<(), OpError> {
    ready()?;
    // SAFETY: promised by the caller.
    let mut program = unsafe { Program::of_kernel(context) }.map_err(|missing| unimplemented(missing.to_owned()))?;
    // SAFETY: promised by the caller.
    let count = unsafe { (api().num_inputs)(context) };
    let mut operands: Vec<(XlaOp, Array)> = Vec::new();
    for index in 0..count {
        // SAFETY: promised by the caller. The tensor has the shape of the value; its memory is the translator's and not
        // looked at.
        let tensor = unsafe { get_input(context, index)? };
        let primitive_type = primitive_type(dtype_of(tensor.data_type())?);
        operands.push((program.input(index), Array { primitive_type, dims: tensor.dims() }));
    }
    let mut results = results(kernel, &operands)?;
    let takes_turns = !kernel.kind.is_local();
    if takes_turns {
        operands.extend(program.last_left().map(|turn| (turn, number())));
        results.push(number());
    }
    let mut values = program.call(call::TARGET, &call::attributes(kernel), &operands, &results);
    if takes_turns && let Some(turn) = values.pop() {
        program.leave(turn);
    }
    for (index, value) in (0..).zip(values) {
        program.set_output(index, value);
    }
    Ok(())
}

/// The shapes of the results, if every rank brings tensors of the same shape.
fn results(kernel: &Kernel, operands: &[(XlaOp, Array)]) -> Result<Vec<Array>, OpError> {
    match kernel.kind {
        Kind::Allreduce | Kind::GroupedAllreduce | Kind::Broadcast | Kind::AllreduceMany | Kind::BroadcastMany => {
            Ok(operands.iter().map(|(_, array)| array.clone()).collect())
        }
        Kind::Barrier => Ok(Vec::new()),
        Kind::Join | Kind::Size | Kind::ProcessSetIncluded | Kind::LocalSize | Kind::Rank | Kind::LocalRank => {
            Ok(vec![number()])
        }
        Kind::Allgather | Kind::GroupedAllgather => {
            let (size, _) = place(kernel)?;
            operands.iter().map(|(_, array)| array.with_rows(|rows| rows * size)).collect()
        }
        Kind::Reducescatter | Kind::GroupedReducescatter => {
            let (size, rank) = place(kernel)?;
            let kept = |rows: i64| rows / size + i64::from(rank < rows % size);
            operands.iter().map(|(_, array)| array.with_rows(kept)).collect()
        }
        Kind::Alltoall => {
            let (size, _) = place(kernel)?;
            let [(_, tensor), _splits] = operands else {
                return Err(unimplemented("it has not the inputs of an alltoall".to_owned()));
            };
            let received = Array { dims: vec![size], ..number() };
            Ok(vec![tensor.with_rows(|rows| rows)?, received])
        }
    }
}

/// How many ranks the process set has, and which of them this is.
fn place(kernel: &Kernel) -> Result<(i64, i64), OpError> {
    let job = op_calls::current()?;
    let engine = job.world.engine();
    let members = engine.group(kernel.group).map_err(|error| OpError::from(&error))?;
    let rank = engine.rank_in(kernel.group).map_err(|error| OpError::from(&error))?;
    let rank = rank.ok_or_else(|| OpError::wrong_use(format!("this rank is not in process set {}", kernel.group)))?;
    Ok((members.len().cast_signed() as i64, i64::from(rank.0)))
}

impl Array {
    /// The same with another number of rows.
    fn with_rows(&self, rows: impl Fn(i64) -> i64) -> Result<Array, OpError> {
        let mut array = self.clone();
        let first = array.dims.first_mut().ok_or_else(|| unimplemented("it needs a first dimension".to_owned()))?;
        *first = rows(*first);
        Ok(array)
    }
}

/// One number of int32.
fn number() -> Array {
    Array { primitive_type: primitive_type(Dtype::I32), dims: Vec::new() }
}

fn unimplemented(text: String) -> OpError {
    OpError { code: UNIMPLEMENTED, text }
}
