"""Collectives outside of `jit` whose results have a shape that only the ranks' agreement tells: allgather and alltoall.

They pass by XLA: the engine reads the arrays where they lie, and its memory becomes the result. Arrays on a GPU are
copied to host memory for it, and results back.

Names are counted for each process set, as in other front ends: calls without a name are matched in order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from farandole import _native
from farandole.basics import on_reset
from farandole.jax.arrays import CODES
from farandole.jax.primitive import Asked

__all__ = ["allgather", "alltoall", "count_anew"]

_counts: dict[int, int] = {}
"""Calls without a name of each process set."""

_counts_lock = threading.Lock()
"""For threads that make such calls at the same time."""


def count_anew(group: Optional[int] = None) -> None:
    """Begins to count calls without a name from one again: of all sets, or of one whose ranks have all joined. Some of
    them have made calls that others have not, nothing is in flight, and from here on they are to agree again."""
    with _counts_lock:
        if group is None:
            _counts.clear()
        else:
            _counts.pop(group, None)


on_reset(count_anew)


def allgather(asked: Asked, arrays: Sequence[Any]) -> list[Any]:
    """The arrays of all ranks, one after the other."""
    name = _name(asked)
    batch = (name, len(arrays)) if len(arrays) > 1 else None
    handles = [
        _native.allgather(name if batch is None else f"{name}.{index}", *_lend(array), asked.group, batch)
        for index, array in enumerate(arrays)
    ]
    return [_take(result, array) for result, array in zip(_native.wait_all(handles), arrays)]


def alltoall(asked: Asked, array: Any, splits: Optional[Sequence[int]]) -> tuple[Any, Any]:
    """The rows that came, and how many came from each rank."""
    rows = None if splits is None else [int(count) for count in np.asarray(splits).reshape(-1)]
    result = _native.alltoall(_name(asked), *_lend(array), rows, asked.group).wait()
    return _take(result, array), jnp.asarray(result.received_splits, jnp.int32)


def _name(asked: Asked) -> str:
    if asked.name is not None:
        return f"jax.{asked.name}"
    with _counts_lock:
        number = _counts.get(asked.group, 0) + 1
        _counts[asked.group] = number
    return f"jax.now.{number}"


def _lend(array: Any) -> tuple[int, Sequence[int], int, object]:
    """Address, shape, element type and owner of an array. A view of it, where it lies in host memory."""
    view = np.ascontiguousarray(np.asarray(array))
    return view.ctypes.data, array.shape, CODES[array.dtype], view


def _take(result: _native.Result, like: Any) -> Any:
    """The engine's memory as an array of JAX's, on the device of the array that was brought."""
    if 0 in result.shape:
        return jnp.zeros(result.shape, like.dtype, device=like.sharding)
    taken = jnp.from_dlpack(result)
    [device] = like.devices()
    return taken if device.platform == "cpu" else jax.device_put(taken, device)
