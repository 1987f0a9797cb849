"""`horovod.tensorflow`, as far as it needs no TensorFlow: who takes part in the job, and process sets.

Collectives on TensorFlow's tensors are not there yet. Reaching for one of Horovod's other names here raises an
`ImportError` that says so; nothing pretends to work. TensorFlow itself is neither needed nor imported.
"""

from typing import NoReturn

from horovod.tensorflow import mpi_ops
from horovod.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

# What Horovod exports beside these names. A name that Horovod does not have either is an ordinary AttributeError.
_NOT_THERE_YET = {
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "BroadcastGlobalVariablesHook",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
}


def __getattr__(name: str) -> NoReturn:
    if name in _NOT_THERE_YET:
        raise ImportError(
            f"horovod.tensorflow.{name} is not there yet: Farandole has no TensorFlow front end so far, only "
            "initialisation, ranks and process sets. horovod.torch has all collectives."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
