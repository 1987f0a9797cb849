"""Collectives on numpy arrays.

For what lies in host memory anyway: metrics, and variables of the JAX backend. Results are new arrays; arguments are
left as they are.

Names are the same on all ranks. Calls without a name are matched in their order, for each kind and process set.

Invariant: an array that the engine has lives until the call returns, because the call holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from farandole import _native, basics
from farandole.process_sets import ProcessSet, global_process_set, group_for, ranks_of

_CODES = {
    "bool": 0,
    "uint8": 1,
    "int8": 2,
    "uint16": 3,
    "int16": 4,
    "uint32": 5,
    "int32": 6,
    "uint64": 7,
    "int64": 8,
    "float16": 9,
    "bfloat16": 10,
    "float32": 11,
    "float64": 12,
}
"""The engine's numbers of element types, by numpy's names. bfloat16 is that of ml_dtypes, which JAX and TensorFlow
use."""

_counters: dict[tuple[str, int], int] = {}
_counters_lock = threading.Lock()
"""For threads that make nameless calls at the same time."""


def _forget() -> None:
    with _counters_lock:
        _counters.clear()


basics.on_reset(_forget)


def _full_name(kind: str, name: Optional[str], group: int) -> str:
    if name is not None:
        return f"keras.{kind}.{name}"
    with _counters_lock:
        number = _counters.get((kind, group), 0) + 1
        _counters[kind, group] = number
    return f"keras.{kind}.noname.{number}"


def _code(array: np.ndarray) -> int:
    code = _CODES.get(array.dtype.name)
    if code is None:
        raise ValueError(f"Tensor type {array.dtype} is not supported.")
    return code


def _own_copy(value: Any) -> np.ndarray:
    """A contiguous array that may be written."""
    return np.array(value, order="C", copy=True)


def allreduce_many(
    values: Sequence[Any],
    names: Sequence[str],
    op: int,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    groups: Sequence[Sequence[int]] = (),
) -> list[np.ndarray]:
    """Reduces many arrays in one submission. Those whose places are in one list of `groups` are reduced together or not
    at all."""
    group = group_for(process_set, "Allreduce")
    arrays = [_own_copy(value) for value in values]
    words = [
        (_full_name("allreduce", name, group), array.ctypes.data, array.shape, _code(array), array)
        for name, array in zip(names, arrays)
    ]
    terms = (int(op), float(prescale_factor), float(postscale_factor), group)
    grouped = {place for places in groups for place in places}
    batches = [
        _native.allreduce_batch([words[place] for place in places], *terms, words[places[0]][0])
        for places in groups
        if places
    ]
    rest = [word for place, word in enumerate(words) if place not in grouped]
    if rest:
        batches.append(_native.allreduce_batch(rest, *terms, None))
    for batch in batches:
        batch.wait()
    return arrays


def allreduce(
    value: Any,
    name: Optional[str],
    op: int,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray:
    """The combination of the arrays of all ranks."""
    group = group_for(process_set, "Allreduce")
    array = _own_copy(value)
    factors = (int(op), float(prescale_factor), float(postscale_factor))
    full_name = _full_name("allreduce", name, group)
    _native.allreduce(
        full_name, array.ctypes.data, array.shape, _code(array), array, *factors, group, None, 0, None
    ).wait()
    return array


def broadcast_many(
    values: Sequence[Any], names: Sequence[Optional[str]], root_rank: int, process_set: ProcessSet = global_process_set
) -> list[np.ndarray]:
    """The root's arrays. All ranks pass arrays of the same shapes and types."""
    group = group_for(process_set, "Broadcast")
    arrays = [_own_copy(value) for value in values]
    handles = [
        _native.broadcast(
            _full_name("broadcast", name, group),
            array.ctypes.data,
            array.shape,
            _code(array),
            array,
            root_rank,
            group,
            None,
        )
        for name, array in zip(names, arrays)
    ]
    _native.wait_all(handles)
    return arrays


def broadcast(
    value: Any, root_rank: int, name: Optional[str], process_set: ProcessSet = global_process_set
) -> np.ndarray:
    """The root's array."""
    return broadcast_many([value], [name], root_rank, process_set)[0]


def allgather(value: Any, name: Optional[str], process_set: ProcessSet = global_process_set) -> np.ndarray:
    """The arrays of all ranks, one after the other along the first dimension, in which they may differ."""
    group = group_for(process_set, "Allgather")
    array = np.ascontiguousarray(value)
    memory, back = _without_bfloat16(array)
    handle = _native.allgather(
        _full_name("allgather", name, group), memory.ctypes.data, np.shape(value), _code(memory), memory, group, None
    )
    return np.array(np.from_dlpack(handle.wait())).view(back)


def reducescatter(
    value: Any, name: Optional[str], op: int, process_set: ProcessSet = global_process_set
) -> np.ndarray:
    """This rank's part, along the first dimension, of the combination of the arrays of all ranks."""
    group = group_for(process_set, "Reducescatter")
    array = _own_copy(value)
    back = array.dtype
    if array.dtype.name == "bfloat16":
        # numpy takes no bfloat16 from DLPack. float32 holds its sums exactly, and they are rounded once.
        array = array.astype(np.float32)
    handle = _native.reducescatter(
        _full_name("reducescatter", name, group),
        array.ctypes.data,
        array.shape,
        _code(array),
        array,
        int(op),
        1.0,
        1.0,
        group,
        None,
    )
    return np.array(np.from_dlpack(handle.wait())).astype(back, copy=False)


def _without_bfloat16(array: np.ndarray) -> tuple[np.ndarray, np.dtype]:
    """An array of the same bytes in a type that DLPack has for numpy, and the type to see them as again."""
    return (array.view(np.uint16) if array.dtype.name == "bfloat16" else array), array.dtype


def size_of(process_set: ProcessSet) -> int:
    """Number of ranks of a registered set."""
    if process_set.process_set_id is None:
        raise ValueError("Process set does not exist or has not been registered.")
    return len(ranks_of(process_set.process_set_id))
