"""Requests of tensors on a GPU that are queued and not done: the script goes on, and streams wait for the results.

With FARANDOLE_ASYNC_COMPLETION (or HOROVOD_ENABLE_ASYNC_COMPLETION), waiting for a request on a GPU means: until the
ranks have queued it on their devices. The current stream then waits for an event behind it (`device_work`), so the
results are used only when they are there. What ranks refuse is raised by whoever waits, as everywhere. What goes wrong
after that, because a rank is lost, ends the engine and is raised by the next call of ours: of a hook, a collective,
`synchronize`, `step`, or `shutdown`.

Invariants: what is under way is looked at in every call. All of it belongs to the engine that runs; `init` and
`shutdown` clear it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Optional, Protocol

from farandole import _native, basics

__all__ = ["add", "is_allowed", "settle", "sweep"]


class LateWork(Protocol):
    """Requests that a stream waits for."""

    def is_over(self) -> bool:
        """Whether devices have carried them out, or the ranks have given up."""

    def end(self) -> None:
        """Waits until they are over, and raises what went wrong."""


_under_way: list[LateWork] = []
"""What streams wait for, in the order in which it was queued. Changed under the interpreter's lock."""


def is_allowed() -> bool:
    """Whether the host goes on when a request is queued."""
    return _native.runs_ahead()


def add(work: LateWork) -> None:
    """A stream waits for this, and nobody else does."""
    _under_way.append(work)


def sweep() -> None:
    """Lets go of what is over. Raises what went wrong with it. Every call of ours makes this one."""
    while _under_way and _under_way[0].is_over():
        _under_way.pop(0).end()


def settle() -> None:
    """Waits for everything. Raises what went wrong first."""
    while _under_way:
        _under_way.pop(0).end()


def _reset() -> None:
    _under_way.clear()


_registered_by: Optional[int] = None
"""The process whose end is waited with: forked children end without."""


def _leave() -> None:
    """The job ends: what is queued comes first."""
    if os.getpid() == _registered_by and _native.is_initialized():
        settle()


def _end() -> None:
    """The interpreter ends. A script that ends with an exception waits for nothing."""
    if getattr(sys, "last_value", None) is None:
        with contextlib.suppress(Exception):
            _leave()


def _register() -> None:
    """After `init`, whose own handler leaves the job: handlers run in the opposite order."""
    global _registered_by
    if _registered_by is None:
        _registered_by = os.getpid()
        atexit.register(_end)


basics.on_reset(_reset)
basics.on_init(_register)
basics.on_shutdown(_leave)
