"""Farandole for TensorFlow: `import farandole.tensorflow as hvd`.

Horovod's API, name by name. Everything here lives in a module of its own beside this one. `SyncBatchNormalization` is made when it is
asked for and is no part of `import *`, because it imports Keras, with whatever backend that has.
"""

from typing import Any

try:
    import tensorflow as _tensorflow
except ImportError as _error:
    raise ImportError(
        f"farandole.tensorflow needs TensorFlow, which cannot be imported here ({_error}); pip install tensorflow"
    ) from _error

from farandole.basics import handle_average_backwards_compatibility
from farandole.exceptions import HorovodInternalError
from farandole.tensorflow import elastic, mpi_ops, util
from farandole.tensorflow import faults as _faults
from farandole.tensorflow import phases as _phases
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from farandole.tensorflow.gradient_reduction import GradientReduction as _make_allreduce_grads_fn
from farandole.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from farandole.tensorflow.mpi_ops import _allreduce, _grouped_allreduce, _grouped_reducescatter, _reducescatter
from farandole.tensorflow.optimizer import DistributedOptimizer
from farandole.tensorflow.reduce import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from farandole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from farandole.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    check_num_rank_power_of_2,
    refs_to_vars,
    vars_to_refs,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "LocalGradientAggregationHelperEager",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "util",
    "vars_to_refs",
]


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":
        from farandole.tensorflow import sync_batch_norm

        return sync_batch_norm.SyncBatchNormalization
    if name == "estimator":
        raise AttributeError(
            "tf.estimator left TensorFlow with version 2.16, and nothing here stands in for it. Train with Keras "
            "(farandole.tensorflow.keras), with a loop of your own (DistributedGradientTape), or in a "
            "tf.compat.v1.train.MonitoredTrainingSession with DistributedOptimizer and BroadcastGlobalVariablesHook."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
