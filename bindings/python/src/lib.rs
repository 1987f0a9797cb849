//! The Python module `farandole._native`: the engine for Python front ends.
//!
//! It knows no framework. Tensors come as address, shape, element type and owner; the Python package beside this crate
//! has Horovod's functions and names. The path of one request: `request` (arguments) → `lent_memory` (memory and its
//! owner) → the engine → `waiting` → `handle` → `result`. The gradients of an optimizer take `gradient_batch` instead.
//!
//! The C functions of `farandole_c` are linked in and exported as well; they act on the same job. Everywhere: a process
//! is at most one rank (`world`, `lifecycle`); a thread that waits has released the interpreter's lock; a lock of ours
//! is never held while Python code may run. Unsafe code is in `lent_memory`, in `dlpack`, which gives memory away, in
//! `library`, which finds a framework's symbols, in `tensorflow`, `mxnet` and `jax`, and in `xla_ffi`, by which
//! compiled programs call us.
//!
//! Not here: linking of any framework or of libpython. Only Python loads this library, so its tests are in Python, too.

#![deny(unsafe_code)]

mod accelerators;
mod calls;
mod data;
mod device_handle;
mod device_request;
mod dlpack;
mod elastic;
mod errors;
mod gradient_batch;
mod handle;
mod host_tensors;
mod jax;
mod lent_memory;
mod library;
mod lifecycle;
mod mxnet;
mod on_device;
mod op_calls;
mod op_error;
mod parameter_check;
mod records;
mod request;
mod result;
mod sampling;
mod settings;
mod stacks;
mod streaming;
mod tensorflow;
mod torch_tensor;
mod waiting;
mod world;
mod xla_ffi;

use pyo3::prelude::*;

/// The engine of farandole's Python front ends.
#[pymodule]
mod _native {
    /// C code in this process may begin and end the job; what belongs to the interpreter is done then, too.
    #[pymodule_init]
    fn introduce(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        farandole_c::job::set_interpreter(&crate::lifecycle::Callbacks);
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    #[pymodule_export]
    use crate::accelerators::{has_cuda, nccl_version};
    #[pymodule_export]
    use crate::calls::calls_under_way;
    #[pymodule_export]
    use crate::data::{DataArray, DataBatch, DataFeed, DataRecords};
    #[pymodule_export]
    use crate::device_handle::DeviceHandle;
    #[pymodule_export]
    use crate::device_request::{submit_on_device, submit_tensors_on_device, works_on_devices};
    #[pymodule_export]
    use crate::elastic::{
        elastic_candidates, elastic_decide, elastic_enabled, elastic_fence, elastic_generation, elastic_retry_pause,
        elastic_stage, elastic_step_count, elastic_step_end, elastic_step_lost,
    };
    #[pymodule_export]
    use crate::errors::{
        FarandoleError, HorovodInternalError, MismatchError, RankLostError, StallError, product,
        set_imported_as_horovod,
    };
    #[pymodule_export]
    use crate::gradient_batch::{BatchHandle, GradientBatch, declare_gradients};
    #[pymodule_export]
    use crate::handle::{Handle, wait_all};
    #[pymodule_export]
    use crate::host_tensors::{HostTensors, host_tensors};
    #[pymodule_export]
    use crate::jax::compared::jax_finish_comparing;
    #[pymodule_export]
    use crate::jax::on_device::jax_raise_late;
    #[pymodule_export]
    use crate::jax::{jax_device_handler, jax_handler};
    #[pymodule_export]
    use crate::lent_memory::lent;
    #[pymodule_export]
    use crate::lifecycle::{
        abort, add_process_set, host_identity, init, join_group, join_later, launched, leave_group, remove_process_set,
        shutdown,
    };
    #[pymodule_export]
    use crate::mxnet::{
        MxnetCall, load_mxnet, mxnet_allgather, mxnet_allreduce, mxnet_alltoall, mxnet_broadcast, mxnet_reducescatter,
    };
    #[pymodule_export]
    use crate::on_device::device_stands_in;
    #[pymodule_export]
    use crate::parameter_check::{ParameterCheck, compare_parameters, sample_of};
    #[pymodule_export]
    use crate::records::{
        act_for_itself, act_for_program, device_idle, device_waited, mark_epoch, mark_iteration, mark_step_done,
        name_thread, note_setting, phase_begin, phase_end, phase_of, start_timeline, stop_timeline, wants_device_times,
    };
    #[pymodule_export]
    use crate::request::{
        allgather, allreduce, allreduce_batch, allreduce_many, alltoall, barrier, broadcast, gather, join, recv,
        reduce, reducescatter, scatter, send,
    };
    #[pymodule_export]
    use crate::result::Result;
    #[pymodule_export]
    use crate::sampling::watch_own_code;
    #[pymodule_export]
    use crate::settings::{runs_ahead, switch_setting, text_setting};
    #[pymodule_export]
    use crate::streaming::{Joining, StateSource, StateStream, state_digests};
    #[pymodule_export]
    use crate::tensorflow::register_tensorflow_ops;
    #[pymodule_export]
    use crate::world::{
        cross_rank, cross_size, is_homogeneous, is_initialized, joins_later, local_rank, local_size, process_sets,
        rank, size,
    };
}
