"""Farandole for TensorFlow: `import farandole.tensorflow as hvd`.

Horovod's API, name by name. Everything here lives in a module of its own beside this one. `SyncBatchNormalization` is
made when it is asked for and is no part of `import *`, because it imports Keras, with whatever backend that has.
"""

from typing import Any

try:
    import tensorflow as _tensorflow
except ImportError as _error:
    raise ImportError(
        f"farandole.tensorflow needs TensorFlow, which cannot be imported here ({_error}); pip install tensorflow"
    ) from _error

from farandole import exports as _exports
from farandole.basics import handle_average_backwards_compatibility
from farandole.exports import *
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
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
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
    *_exports.__all__,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "LocalGradientAggregationHelperEager",
    "PartialDistributedGradientTape",
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
    "check_num_rank_power_of_2",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "mpi_ops",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "size_op",
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
