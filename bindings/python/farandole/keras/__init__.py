"""Farandole for Keras: `import farandole.keras as hvd`.

Horovod's API for Keras, for Keras 3 on its backends tensorflow, torch and jax (`KERAS_BACKEND`). Optimizers of tf_keras
are taken as well. The frameworks of other backends are not imported. docs/keras.md says what works where.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import keras as _keras

from farandole import exports as _exports
from farandole._keras import values as _values
from farandole._keras.front_end import FrontEnd as _FrontEnd
from farandole._keras.front_end import documented_by as _documented_by
from farandole.exports import *
from farandole.objects import allgather_object, broadcast_object

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


_backend: str = _keras.backend.backend()
_COMPRESSION_IN = {
    "tensorflow": "farandole.tensorflow.compression",
    "torch": "farandole.torch.compression",
    "jax": "farandole._keras.reduce_jax",
}
if _backend not in _COMPRESSION_IN:
    raise ImportError(
        f"farandole.keras runs on the Keras backends {', '.join(_COMPRESSION_IN)}, not on {_backend!r}; set "
        "KERAS_BACKEND"
    )
Compression: Any = importlib.import_module(_COMPRESSION_IN[_backend]).Compression
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
    num_groups: int = 0,
    groups: Any = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
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
from farandole.keras import callbacks, elastic  # noqa: E402
from farandole.keras import phases as _phases  # noqa: E402
