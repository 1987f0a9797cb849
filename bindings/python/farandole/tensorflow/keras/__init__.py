"""Farandole for `tf.keras`: `import farandole.tensorflow.keras as hvd`.

Horovod's API for `tf.keras`: Keras 3 on its tensorflow backend or, with `TF_USE_LEGACY_KERAS=1`, Keras 2 (tf_keras),
with its new and its legacy optimizers. docs/keras.md says what works where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional

import tensorflow as tf

from farandole import exports as _exports
from farandole._keras import values as _values
from farandole._keras.front_end import FrontEnd as _FrontEnd
from farandole._keras.front_end import documented_by as _documented_by
from farandole.exports import *
from farandole.objects import allgather_object, broadcast_object
from farandole.tensorflow.compression import Compression

__all__ = [
    *_exports.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]


_keras: Any = tf.keras
_backend = "tensorflow"
if _keras.backend.backend() != _backend:
    raise ImportError(
        f"farandole.tensorflow.keras needs Keras 3 on its tensorflow backend, not on {_keras.backend.backend()!r}; use "
        "farandole.keras there"
    )
_front_end = _FrontEnd(_keras, _backend)

broadcast_global_variables = _front_end.broadcast_global_variables
broadcast_variables = _front_end.broadcast_variables
allgather = _front_end.allgather
broadcast = _front_end.broadcast
reducescatter = _front_end.reducescatter


@_documented_by(_front_end.distributed_optimizer)
def DistributedOptimizer(
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
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    return _front_end.distributed_optimizer(**locals())


@_documented_by(_front_end.partial_distributed_optimizer)
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
    return _front_end.partial_distributed_optimizer(**locals())


@_documented_by(_values.allreduce)
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
    return _values.allreduce(_front_end.backend, **locals())


@_documented_by(_front_end.load_model)
def load_model(
    filepath: Any,
    custom_optimizers: Optional[Iterable[type]] = None,
    custom_objects: Optional[Mapping[str, Any]] = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    return _front_end.load_model(**locals())


# These need the names above.
from farandole.tensorflow.keras import callbacks, elastic  # noqa: E402
