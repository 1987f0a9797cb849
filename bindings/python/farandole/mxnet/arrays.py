"""MXNet's arrays as the engine takes them, and new ones for results.

Owns the connection to MXNet's library, the numbers of element types, and what becomes of arrays that are not in host
memory: they are copied to the host and back by operations of MXNet's engine, which keeps them in order.

Not here: collectives (`mpi_ops`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

import mxnet as mx
import numpy

from farandole import _native

IS_SYNCHRONOUS = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
"""Whether MXNet's engine runs every operation at once. Such an engine forgets errors."""

HOST_DEVICES = ("cpu", "cpu_pinned", "cpu_shared")
"""Kinds of devices whose memory the engine reaches."""

_NUMBERS = {
    numpy.dtype(numpy.bool_): 0,
    numpy.dtype(numpy.uint8): 1,
    numpy.dtype(numpy.int8): 2,
    numpy.dtype(numpy.int32): 6,
    numpy.dtype(numpy.int64): 8,
    numpy.dtype(numpy.float16): 9,
    numpy.dtype([("bfloat16", numpy.uint16)]): 10,
    numpy.dtype(numpy.float32): 11,
    numpy.dtype(numpy.float64): 12,
}
"""Of each element type that MXNet has: its number for the engine."""

Description = tuple[str, tuple[int, ...], int, Any, Optional[tuple[Any, int]]]
"""An array for the engine: name, shape, element type, the array, and where the result goes: `None` for memory of the
engine's, otherwise an array (the same one, in place) and its number of elements."""


def _connect() -> None:
    """Has the engine find MXNet's functions."""
    array, other = mx.nd.zeros((2,)), mx.nd.zeros((2,))
    _native.load_mxnet(mx.base._LIB._name, mx.__version__, array, array[:1], other)


_connect()


def check(tensor: Any, operation: str) -> None:
    """Refuses what is not an array that can be sent."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise ValueError(f"{operation} takes an NDArray of MXNet, not {type(tensor).__name__}")
    if tensor.stype != "default":
        raise ValueError(
            f"{operation} takes dense arrays, and this one has the storage type {tensor.stype!r}; "
            "tensor.tostype('default') makes a dense one"
        )
    if numpy.dtype(tensor.dtype) not in _NUMBERS:
        raise ValueError(f"{operation} does not know the element type {tensor.dtype}")


def has_no_dimensions(tensor: Any) -> bool:
    """Whether the array is a scalar, or nothing at all where MXNet has NumPy's shapes switched off."""
    return len(tensor.shape) == 0


def is_on_host(tensor: Any) -> bool:
    """Whether the engine reaches the memory of an array."""
    return tensor.context.device_type in HOST_DEVICES


def on_host(tensor: Any) -> Any:
    """The array itself, or a copy in host memory."""
    return tensor if is_on_host(tensor) else tensor.as_in_context(mx.cpu())


def beside(result: Any, tensor: Any) -> Any:
    """A result on the device of an array, and of its class."""
    if isinstance(tensor, mx.np.ndarray):
        result = result.as_np_ndarray()
    return result.as_in_context(tensor.context) if result.context != tensor.context else result


def new(shape: Sequence[int], like: Any) -> Any:
    """A new array in host memory, of the element type of another."""
    context = like.context if is_on_host(like) else mx.cpu()
    return mx.nd.empty(tuple(shape), ctx=context, dtype=like.dtype)


def describe(name: str, tensor: Any, result: Optional[Any] = None) -> Description:
    """An array for the engine, with the one that its result goes to."""
    place = None if result is None else (result, int(numpy.prod(result.shape, dtype=numpy.int64)))
    return name, tuple(tensor.shape), _NUMBERS[numpy.dtype(tensor.dtype)], tensor, place
