"""Farandole for Keras: `import farandole.keras as hvd`.

Horovod's API for Keras, for Keras 3 on its backends tensorflow, torch and jax (`KERAS_BACKEND`). Optimizers of tf_keras are taken as well. The frameworks
of other backends are not imported. docs/keras.md says what works where.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import keras as _keras

from farandole._keras import models as _models
from farandole._keras import optimizers as _optimizers
from farandole._keras import settings as _settings
from farandole._keras import values as _values
from farandole._keras import variables as _variables
from farandole.basics import basics as _basics
from farandole.exceptions import HorovodInternalError
from farandole.objects import allgather_object, broadcast_object
from farandole.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built
Average = _basics.Average
Sum = _basics.Sum
Adasum = _basics.Adasum
Min = _basics.Min
Max = _basics.Max
Product = _basics.Product

_backend: str = _keras.backend.backend()
_COMPRESSION_IN = {
    "tensorflow": "farandole.tensorflow.compression",
    "torch": "farandole.torch.compression",
    "jax": "farandole._keras.reduce_jax",
}
if _backend not in _COMPRESSION_IN:
    raise ImportError(
        f"farandole.keras runs on the Keras backends {', '.join(_COMPRESSION_IN)}, not on {_backend!r}; set KERAS_BACKEND"
    )
Compression: Any = importlib.import_module(_COMPRESSION_IN[_backend]).Compression


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like this one that reduces gradients over all ranks before it applies them.

    Its class is made at run time from the optimizer's and has the same name, so that models can be saved, and loaded without Farandole.

    Arguments:
        optimizer: an optimizer of Keras, or a `LossScaleOptimizer` around one.
        name: prefix of the names of operations.
        device_dense, device_sparse: TensorFlow's devices for the operations. Not used on other backends.
        compression: what travels in place of gradients, from `hvd.Compression`.
        sparse_as_dense: reduce sparse gradients as dense ones.
        gradient_predivide_factor: gradients are divided by it before they are added and multiplied by it afterwards.
        op: `Average` or `Sum`.
        num_groups: deprecated; use `groups`.
        groups: how many groups of gradients are reduced together, or lists of variables whose gradients are.
        backward_passes_per_step: gradients of so many calls are added up on each rank before they are reduced and applied.
        average_aggregated_gradients: divide such sums by the number of calls.
        process_set: the ranks that take part.
        scale_local_gradients: divide gradients of variables of `register_local_var` by the number of ranks.
    """
    return _optimizers.distributed(
        optimizer,
        _settings.check(
            num_groups,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        ),
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As `DistributedOptimizer`, but the gradients of some layers stay on each rank.

    local_layers: a layer, or several, which have been built.
    """
    settings = _settings.check(
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return _optimizers.partial(optimizer, settings, local_layers)


def broadcast_global_variables(root_rank: int) -> None:
    """Gives all ranks the root's global variables. Only graphs of TensorFlow 1 have any; see `broadcast_variables`."""
    if _variables.graph_session(_backend) is None:
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs a graph of TensorFlow 1. Please use "
            "`hvd.callbacks.BroadcastGlobalVariablesCallback` or `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    import tensorflow as tf

    _variables.broadcast(tf.compat.v1.global_variables(), root_rank, _backend)


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the root's values of variables of Keras, such as `model.weights` and `optimizer.variables`."""
    _variables.broadcast(list(variables), root_rank, _backend, process_set)


def allreduce(
    value: Any,
    name: Optional[str] = None,
    average: Optional[bool] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Optional[int] = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The combination of the values of all ranks, which have the same shape and type. `op` is `Average` if not given."""
    return _values.allreduce(
        _backend, value, name, average, prescale_factor, postscale_factor, op, compression, process_set
    )


def allgather(value: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Any:
    """The values of all ranks, one after the other along the first dimension, in which they may differ."""
    return _values.allgather(_backend, value, name, process_set)


def broadcast(
    value: Any, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's value."""
    return _values.broadcast(_backend, value, root_rank, name, process_set)


def reducescatter(
    value: Any, name: Optional[str] = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """This rank's part, along the first dimension, of the combination of the values of all ranks."""
    return _values.reducescatter(_backend, value, name, op, process_set)


def load_model(
    filepath: Any,
    custom_optimizers: Optional[Iterable[type]] = None,
    custom_objects: Optional[Mapping[str, Any]] = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model that was saved with its optimizer, and makes the optimizer distributed.

    Arguments:
        filepath: what `keras.models.load_model` takes.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: names and objects for Keras.
        compression: as for `DistributedOptimizer`.
        legacy_opts: not used; the kind of optimizer is known from the file.
    """
    del legacy_opts
    settings = _settings.check(compression=compression)
    return _models.load_model(_keras, filepath, custom_optimizers, custom_objects, settings)


# These need the names above.
from farandole.keras import callbacks, elastic  # noqa: E402
from farandole.keras import phases as _phases  # noqa: E402
