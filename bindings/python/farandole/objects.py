"""Python objects from one rank to all, and from all to all. Serves every front end: no framework takes part.

**What is pickled.** Objects are pickled, with cloudpickle where it is installed, so that functions and classes of the
main script are sent, too. Unpickling runs code that the sender chose. What is unpickled here has come through the
engine, from a rank of this job that has shown that it knows the job's key; nothing that a stranger sends gets this far.

Sizes are 64-bit. Ranks may pass different things, of different types even.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any, Optional

from farandole import _native
from farandole.process_sets import ProcessSet, global_process_set, group_for

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle  # Functions and classes of the main script then need to be importable.

__all__ = ["allgather_object", "broadcast_object"]

# Numbers of element types for the engine.
_UINT8 = 1
_INT64 = 8


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on all ranks. It is pickled; see the module's text.

    Arguments:
        obj: on the root, the object; elsewhere anything, which is ignored.
        root_rank: the rank whose object counts, numbered in the world.
        name: tells simultaneous calls from different threads apart.
        process_set: the ranks that take part.
    """
    name = f"broadcast.{name or 'broadcast_object'}"
    group = group_for(process_set, "Broadcast")
    is_root = _native.rank() == root_rank
    packed = _packed(obj) if is_root else bytearray()
    size = (ctypes.c_int64 * 1)(len(packed))
    _native.broadcast(f"{name}.sz", ctypes.addressof(size), [1], _INT64, size, root_rank, group, None).wait()
    if not is_root:
        packed = bytearray(size[0])
    memory = (ctypes.c_uint8 * len(packed)).from_buffer(packed)
    _native.broadcast(
        f"{name}.t", ctypes.addressof(memory), [len(packed)], _UINT8, memory, root_rank, group, None
    ).wait()
    return obj if is_root else pickle.loads(packed)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Everybody's objects, in the order of ranks, on all ranks. They are pickled; see the module's text.

    Arguments:
        obj: this rank's object.
        name: tells simultaneous calls from different threads apart.
        process_set: the ranks that take part.
    """
    import numpy

    name = f"allgather.{name or 'allgather_object'}"
    group = group_for(process_set, "Allgather")
    packed = _packed(obj)
    size = (ctypes.c_int64 * 1)(len(packed))
    memory = (ctypes.c_uint8 * len(packed)).from_buffer(packed)
    sizes = _native.allgather(f"{name}.sz", ctypes.addressof(size), [1], _INT64, size, group, None)
    parts = _native.allgather(f"{name}.t", ctypes.addressof(memory), [len(packed)], _UINT8, memory, group, None)
    ends = numpy.cumsum(numpy.from_dlpack(sizes.wait()))
    gathered = numpy.from_dlpack(parts.wait())
    return [pickle.loads(part.data) for part in numpy.split(gathered, ends[:-1])]


def _packed(obj: Any) -> bytearray:
    """The pickled object."""
    buffer = io.BytesIO()
    _pickler.dump(obj, buffer)
    return bytearray(buffer.getbuffer())
