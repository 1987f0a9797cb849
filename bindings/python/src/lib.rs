//! The Python module `farandole._native`: the engine's door for Python front ends.
//!
//! It has no idea of any framework. Tensors come as address, shape, element type and owner; what a call means, and
//! which names Horovod has for it, is said in the Python package beside this crate. One gradient's way: `request`
//! (arguments) → `region` (memory and what keeps it alive; `lent` knows all of it) → the engine → `waiting` → `handle`
//! → `result`; many gradients at once take `bundle` instead.
//!
//! What holds everywhere: a process is at most one rank (`world`); whoever waits for anything has released the
//! interpreter's lock; a lock of ours is never held while Python code may run. Unsafe code is in `region`, which lends
//! memory, and in `dlpack`, which gives it away.
//!
//! What is deliberately not here: linking of any framework or of libpython. Python loads this library; there is no
//! other way to run it, so its tests are written in Python, too.

#![deny(unsafe_code)]

mod bundle;
mod convoy;
mod dlpack;
mod errors;
mod handle;
mod lent;
mod records;
mod region;
mod request;
mod result;
mod sampling;
mod stacks;
mod tensorflow;
mod waiting;
mod world;

use pyo3::prelude::*;

/// The engine behind farandole's Python front ends.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::bundle::{Bundle, allreduce_bundle};
    #[pymodule_export]
    use crate::convoy::Convoy;
    #[pymodule_export]
    use crate::errors::HorovodInternalError;
    #[pymodule_export]
    use crate::handle::{Handle, wait_all};
    #[pymodule_export]
    use crate::lent::lent;
    #[pymodule_export]
    use crate::records::{
        mark_epoch, mark_iteration, name_thread, note_setting, phase_begin, phase_end, phase_of, start_timeline,
        stop_timeline,
    };
    #[pymodule_export]
    use crate::request::{allgather, allreduce, allreduce_many, alltoall, barrier, broadcast, join, reducescatter};
    #[pymodule_export]
    use crate::result::Result;
    #[pymodule_export]
    use crate::sampling::watch_own_code;
    #[pymodule_export]
    use crate::tensorflow::register_tensorflow_ops;
    #[pymodule_export]
    use crate::world::{
        add_process_set, cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size,
        process_sets, rank, remove_process_set, shutdown, size,
    };
}
