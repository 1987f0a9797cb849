"""Collectives on values, in the tensors of the backend at hand: what scripts call outside of the train step.

TensorFlow's go through its own ops, in graphs of TensorFlow 1 with a session of Keras; PyTorch's and JAX's through host
memory. Numbers, lists and arrays of numpy are taken as well.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from farandole._keras import host, variables
from farandole.basics import handle_average_backwards_compatibility
from farandole.process_sets import ProcessSet, global_process_set


def allreduce(
    backend: str,
    value: Any,
    name: Optional[str],
    average: Optional[bool],
    prescale_factor: float,
    postscale_factor: float,
    op: Optional[int],
    compression: Any,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The combination of the values of all ranks, which have the same shape and type. `op` is `Average` if not
    given."""
    op = handle_average_backwards_compatibility(op, average)
    factors: dict[str, Any] = dict(
        prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set
    )
    if backend == "tensorflow":
        import farandole.tensorflow as hvd

        return _evaluated(hvd.allreduce(value, op=op, name=name, compression=compression, **factors))
    tensor = _tensor(backend, value)
    if backend == "torch":
        from farandole.torch import mpi_ops

        return mpi_ops.allreduce(tensor, name=_own(name), op=op, compression=compression, **factors)
    compressed, context = compression.compress(tensor)
    reduced = host.allreduce(compressed, name, op, **factors)
    return compression.decompress(_tensor(backend, reduced), context)


def allgather(backend: str, value: Any, name: Optional[str], process_set: ProcessSet = global_process_set) -> Any:
    """The values of all ranks, one after the other along the first dimension."""
    if backend == "tensorflow":
        import farandole.tensorflow as hvd

        return _evaluated(hvd.allgather(_tf(value), name=name, process_set=process_set))
    if backend == "torch":
        from farandole.torch import mpi_ops

        return mpi_ops.allgather(_tensor(backend, value), name=_own(name), process_set=process_set)
    return _tensor(backend, host.allgather(_tensor(backend, value), name, process_set))


def broadcast(
    backend: str, value: Any, root_rank: int, name: Optional[str], process_set: ProcessSet = global_process_set
) -> Any:
    """The root's value."""
    if backend == "tensorflow":
        import farandole.tensorflow as hvd

        return _evaluated(hvd.broadcast(_tf(value), root_rank, name=name, process_set=process_set))
    if backend == "torch":
        from farandole.torch import mpi_ops

        return mpi_ops.broadcast(_tensor(backend, value), root_rank, name=_own(name), process_set=process_set)
    return _tensor(backend, host.broadcast(_tensor(backend, value), root_rank, name, process_set))


def reducescatter(
    backend: str, value: Any, name: Optional[str], op: int, process_set: ProcessSet = global_process_set
) -> Any:
    """This rank's part of the combination of the values of all ranks."""
    if backend == "tensorflow":
        import farandole.tensorflow as hvd

        return _evaluated(hvd.reducescatter(_tf(value), op=op, name=name, process_set=process_set))
    if backend == "torch":
        from farandole.torch import mpi_ops

        return mpi_ops.reducescatter(_tensor(backend, value), name=_own(name), op=op, process_set=process_set)
    return _tensor(backend, host.reducescatter(_tensor(backend, value), name, op, process_set))


def _own(name: Optional[str]) -> Optional[str]:
    return None if name is None else f"keras.{name}"


def _tf(value: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(getattr(value, "value", value) if hasattr(value, "path") else value)


def _evaluated(result: Any) -> Any:
    """The result itself or, in a graph of TensorFlow 1, its value."""
    session = variables.graph_session("tensorflow")
    return result if session is None else session.run(result)


def _tensor(backend: str, value: Any) -> Any:
    """A tensor of the backend. Numbers of Python are float32 and int32, as Keras has them."""
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        value = np.asarray(value, dtype=np.float32 if isinstance(value, float) else np.int32)
    if backend == "torch":
        import torch

        value = getattr(value, "value", value) if hasattr(value, "path") else value
        return value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
    import jax.numpy as jnp

    return jnp.asarray(getattr(value, "value", value) if hasattr(value, "path") else value)
