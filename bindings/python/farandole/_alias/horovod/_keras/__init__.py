"""`horovod._keras`: the functions below Horovod's two Keras packages, for code that calls them itself.

Each takes the module `keras` or its backend first, as Horovod's do. Which Keras is meant is seen from the optimizer, so
the modules are not looked at here. Not there: the methods that Horovod gives to classes which it makes while it wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import farandole.tensorflow as hvd
from farandole._keras import optimizers, values
from farandole._keras.front_end import checked
from horovod._keras import callbacks, elastic

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "create_distributed_optimizer",
    "elastic",
    "load_model",
    "reducescatter",
]


def create_distributed_optimizer(
    keras: Any,
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A distributed optimizer like this one."""
    settings = checked(
        compression=compression,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return optimizers.distributed(optimizer, settings)


def _eval(backend: Any, op_or_result: Any) -> Any:
    """The result itself or, in a graph of TensorFlow 1, its value."""
    return op_or_result if hvd.util._executing_eagerly() else backend.get_session().run(op_or_result)


def broadcast_global_variables(backend: Any, root_rank: int) -> Any:
    """Gives all global variables the root's values."""
    return _eval(backend, hvd.broadcast_global_variables(root_rank))


def allreduce(
    backend: Any,
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: int | None,
    compression: Any,
) -> Any:
    """The combination of the values of all ranks."""
    return values.allreduce("tensorflow", value, name, average, prescale_factor, postscale_factor, op, compression)


def allgather(backend: Any, value: Any, name: str | None) -> Any:
    """The values of all ranks, one after the other."""
    return values.allgather("tensorflow", value, name)


def broadcast(backend: Any, value: Any, root_rank: int, name: str | None) -> Any:
    """The root's value."""
    return values.broadcast("tensorflow", value, root_rank, name)


def reducescatter(backend: Any, value: Any, name: str | None, op: int) -> Any:
    """This rank's part of the combination of the values of all ranks."""
    return values.reducescatter("tensorflow", value, name, op)


def load_model(
    keras: Any,
    wrap_optimizer: Callable[[type], Any],
    filepath: Any,
    custom_optimizers: Any,
    custom_objects: Any,
    legacy_opts: bool = False,
) -> Any:
    """The model of a file; `wrap_optimizer` makes, of each class of optimizer, what makes a distributed one of its
    configuration."""
    base = keras.optimizers.legacy.Optimizer if legacy_opts else keras.optimizers.Optimizer
    known = {cls.__name__.lower(): wrap_optimizer(cls) for cls in base.__subclasses__()}
    known.update({cls.__name__: wrap_optimizer(cls) for cls in custom_optimizers or ()})
    known.update(custom_objects or {})
    return keras.models.load_model(filepath, custom_objects=known)
