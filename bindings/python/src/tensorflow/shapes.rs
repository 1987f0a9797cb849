//! What TensorFlow learns of the outputs' shapes before an op runs.
//!
//! This is an unsafe module: TensorFlow calls these functions with objects that live during the call, and every handle
//! made here is deleted here. What goes wrong is left in the status that came with the call.

#![allow(unsafe_code)]

use std::ffi::c_int;

use super::api::{InferShapes, OK, Opaque, Status, api};
use super::definitions::Shapes;
use crate::op_error::INVALID_ARGUMENT;

/// The end of a shape, in TensorFlow's words.
const TO_THE_END: i64 = i64::MAX;

/// A dimension that is not known, in TensorFlow's words.
const UNKNOWN: usize = usize::MAX;

impl Shapes {
    /// The function to register.
    pub(crate) fn function(self) -> InferShapes {
        match self {
            Shapes::Same => same,
            Shapes::OtherRows => other_rows,
            Shapes::Alltoall => alltoall,
            Shapes::Scalar => scalar,
            Shapes::None => none,
        }
    }
}

/// A `TF_ShapeHandle`.
struct Handle(Opaque);

impl Handle {
    fn new() -> Handle {
        // SAFETY: makes an object that `drop` deletes.
        Handle(unsafe { (api().new_shape)() })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: ours, deleted once.
        unsafe { (api().delete_shape)(self.0) };
    }
}

unsafe extern "C" fn same(context: Opaque, status: Opaque) {
    // SAFETY: TensorFlow's objects, which live during the call.
    unsafe { each_input(context, status, |index, shape| pass(context, status, index, shape)) };
}

unsafe extern "C" fn other_rows(context: Opaque, status: Opaque) {
    // SAFETY: as above.
    unsafe { each_input(context, status, |index, shape| pass_other_rows(context, status, index, shape)) };
}

unsafe extern "C" fn alltoall(context: Opaque, status: Opaque) {
    // SAFETY: as above. The second input are the splits: as many as there are ranks, or none, which means that rows are
    // dealt out evenly.
    unsafe {
        let shape = Handle::new();
        (api().shape_input)(context, 0, shape.0, status);
        if (api().get_code)(status) != OK {
            return;
        }
        pass_other_rows(context, status, 0, &shape);
        if (api().get_code)(status) == OK {
            let received = Handle((api().shape_vector)(context, UNKNOWN));
            (api().shape_set_output)(context, 1, received.0, status);
        }
    }
}

unsafe extern "C" fn scalar(context: Opaque, status: Opaque) {
    // SAFETY: as above; the handle is ours to delete.
    unsafe {
        let shape = Handle((api().shape_scalar)(context));
        (api().shape_set_output)(context, 0, shape.0, status);
    }
}

unsafe extern "C" fn none(_context: Opaque, _status: Opaque) {}

/// # Safety
/// Objects of a call that is under way.
unsafe fn each_input(context: Opaque, status: Opaque, infer: impl Fn(c_int, &Handle)) {
    // SAFETY: promised by the caller.
    let count = unsafe { (api().shape_inputs)(context) };
    for index in 0..c_int::try_from(count).unwrap_or(0) {
        let shape = Handle::new();
        // SAFETY: as above, and the index is below the number of inputs.
        let code = unsafe {
            (api().shape_input)(context, index, shape.0, status);
            (api().get_code)(status)
        };
        if code == OK {
            infer(index, &shape);
        }
    }
}

/// # Safety
/// As for [`each_input`].
unsafe fn pass(context: Opaque, status: Opaque, index: c_int, shape: &Handle) {
    // SAFETY: promised by the caller.
    unsafe { (api().shape_set_output)(context, index, shape.0, status) };
}

/// The output of this number has the input's shape, with a first dimension that nobody knows yet.
///
/// # Safety
/// As for [`each_input`].
unsafe fn pass_other_rows(context: Opaque, status: Opaque, index: c_int, shape: &Handle) {
    // SAFETY: promised by the caller.
    unsafe {
        if (api().shape_rank_known)(context, shape.0) != 0 && (api().shape_rank)(context, shape.0) == 0 {
            let what = "this op does not support scalar inputs: it needs a first dimension";
            Status::set_raw(status, INVALID_ARGUMENT, what);
            return;
        }
        let (rest, whole) = (Handle::new(), Handle::new());
        (api().shape_part)(context, shape.0, 1, TO_THE_END, rest.0, status);
        if (api().get_code)(status) != OK {
            return;
        }
        let rows = Handle((api().shape_vector)(context, UNKNOWN));
        (api().shape_concatenate)(context, rows.0, rest.0, whole.0, status);
        if (api().get_code)(status) == OK {
            pass(context, status, index, &whole);
        }
    }
}
