//! An op that marks the beginning or the end of a phase, inside of a compiled function: `FarandoleMark`.
//!
//! While a compiled function runs, the thread that trains waits for it, and the function's ops run on threads of
//! TensorFlow's. Python knows when the function begins and ends, and nothing in between. The op marks what is in
//! between on behalf of the thread that trains; control dependencies say what it comes before or behind
//! (`farandole/tensorflow/phases.py`).
//!
//! A mark never fails: where there is no job, or nobody has said which thread trains, it does nothing.
//!
//! This module has unsafe code: TensorFlow calls into it with addresses.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use farandole::Edge;

use super::api::{Api, Opaque, Status};
use super::definitions::Shapes;
use super::kernel::Attrs;
use super::{DEVICES, text};
use crate::op_calls;
use crate::sampling;

const NAME: &str = "FarandoleMark";

/// One node of a graph.
struct Mark {
    phase: String,
    edge: Edge,
}

/// Registers the op.
pub(super) fn register(api: &Api) -> Result<(), String> {
    let (status, name) = (Status::new(), text(NAME));
    // SAFETY: builders belong to `register_op` and `register_kernel`, which free them; all texts are copied.
    unsafe {
        let builder = (api.new_op)(name.as_ptr());
        ["phase: string", "begins: bool"].iter().for_each(|attr| (api.add_attr)(builder, text(attr).as_ptr()));
        (api.set_stateful)(builder, true);
        (api.set_shape_function)(builder, Shapes::None.function());
        (api.register_op)(builder, status.raw());
    }
    for device in DEVICES {
        // SAFETY: as above.
        unsafe {
            let builder = (api.new_kernel_builder)(name.as_ptr(), device.as_ptr(), create, compute, delete);
            (api.register_kernel)(name.as_ptr(), builder, status.raw());
        }
    }
    status.error().map_or(Ok(()), |error| Err(format!("{NAME}: {error}")))
}

unsafe extern "C" fn create(construction: Opaque) -> Opaque {
    let read = || {
        // SAFETY: TensorFlow passes the construction of the kernel, which lives during the call.
        let attrs = unsafe { Attrs::of(construction) };
        let (phase, begins) = (attrs.string(c"phase").ok()?, attrs.bool(c"begins").ok()?);
        Some(Mark { phase, edge: if begins { Edge::Begins } else { Edge::Ends } })
    };
    // A node without its attributes marks nothing.
    let mark = catch_unwind(AssertUnwindSafe(read)).ok().flatten();
    mark.map_or(std::ptr::null_mut(), |mark| Box::into_raw(Box::new(mark)).cast())
}

unsafe extern "C" fn compute(kernel: Opaque, _context: Opaque) {
    // SAFETY: what `create` has made, which lives until `delete`.
    let mark = unsafe { kernel.cast_const().cast::<Mark>().as_ref() };
    let make = || {
        let (mark, thread, job) = (mark?, sampling::program_thread()?, op_calls::current().ok()?);
        job.world.recorder().mark_phase_on(thread, &mark.phase, mark.edge);
        Some(())
    };
    // Whatever goes wrong with a mark is no reason to fail a training step.
    let _ = catch_unwind(AssertUnwindSafe(make));
}

unsafe extern "C" fn delete(kernel: Opaque) {
    if !kernel.is_null() {
        // SAFETY: made by `create`; TensorFlow deletes it once, after its last call.
        drop(unsafe { Box::from_raw(kernel.cast::<Mark>()) });
    }
}
