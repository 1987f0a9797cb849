"""Operations under way: their handles.

A handle is a number, as in Horovod. It stands for an entry of `_pending` until `synchronize` has fetched the result.

Invariant: everything here belongs to the engine that runs; `init` and `shutdown` clear it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Optional

from farandole import _native, basics
from farandole.request_names import count_anew, member_name, name_of
from farandole.torch import guard, run_ahead, staging
from farandole.torch.device_work import DeviceWork

__all__ = ["poll", "synchronize"]
"""What scripts call; the other names are for modules beside this one."""


class Pending:
    """An operation that was asked for and has not been fetched."""

    __slots__ = ("finish", "work")

    def __init__(self, work: staging.AnyWork, finish: Callable[[Any], Any]) -> None:
        self.work = work
        self.finish = finish
        """Makes the output of the results. It holds the tensors, which therefore live as long as the handle."""


_pending: dict[int, Pending] = {}
"""By handle. Single entries are put and taken by any thread, under the interpreter's lock."""

_next_handle = itertools.count(1)


def _reset() -> None:
    _pending.clear()


basics.on_reset(_reset)
basics.on_reset(guard.keep_lent_memory_in_place)
if _native.is_initialized():
    guard.keep_lent_memory_in_place()


def put(work: staging.AnyWork, finish: Callable[[Any], Any]) -> int:
    """Makes a handle for an operation."""
    handle = next(_next_handle)
    _pending[handle] = Pending(work, finish)
    return handle


def poll(handle: int) -> bool:
    """Whether an operation is done: `synchronize` returns at once, and results on a GPU are there."""
    run_ahead.sweep()
    pending = _pending.get(handle)
    if pending is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return pending.work.poll()


def synchronize(handle: int, block: bool = False) -> Any:
    """Waits for an operation and returns its output: a tensor, or a list of them for a grouped operation, or a pair for
    `alltoall_async`. Raises what went wrong. Returns `None` for a handle that was fetched before.

    Tensors on a GPU are there for whatever comes into the stream that is current now. Where the host may run ahead, it
    waits until the ranks have queued the operation, unless with `block`; what goes wrong later is raised by a later
    call (`farandole.torch.run_ahead`).

    Until this returns, the tensors of the operation belong to the engine. Somebody who changes one of them changes, or
    spoils, what the other ranks get.
    """
    run_ahead.sweep()
    pending = _pending.get(handle)
    if pending is None:
        return None
    try:
        work = pending.work
        results = work.wait_on_host() if block and isinstance(work, DeviceWork) else work.wait()
    except KeyboardInterrupt:
        # The operation goes on; its handle stays good.
        raise
    except BaseException:
        _pending.pop(handle, None)
        raise
    _pending.pop(handle, None)
    return pending.finish(results)
