"""Requests of tensors on a GPU that nobody waits for on the host: which may be left so, and how they end.

A stream waits for such a request (`device_work`), so the results are used only when they are there; the script goes on
at once. What goes wrong with it comes to light later, and is raised by the next call of ours: of a hook, a collective,
`synchronize`, `step`, or `shutdown`.

Without a word of the user's everything is waited for: a call of CUDA that waits for the stream while it holds the
driver's lock keeps the engine from queueing what the stream waits for (docs/gpu.md). FARANDOLE_ASYNC_COMPLETION (or
HOROVOD_ENABLE_ASYNC_COMPLETION) changes that. With `auto`, what *repeats* is left alone: a script that asks for
something new wants to hear at once if the ranks refuse it. That is a request under a name that the script gave, or a
batch of gradients, from the second time on, when it has gone well once. With 1, nothing is waited for that need not be.

Invariants: the host is ahead by one round at most, because a request whose last round is under way is waited for before
the next one is submitted (names must not meet). What is under way holds the memory that was lent until it is over, and
is looked at in every call. All of it belongs to the engine that runs; `init` and `shutdown` clear it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Optional, Protocol, Union

from farandole import _native, basics

__all__ = ["WAITED_FOR", "Repeated", "add", "is_allowed", "repeated", "settle", "sweep"]


class LateWork(Protocol):
    """Requests that a stream waits for."""

    def is_over(self) -> bool:
        """Whether the ranks have carried them out, or given up."""

    def end(self) -> None:
        """Waits until they are over, and raises what went wrong."""


class Repeated:
    """A request that comes again, or a batch of them: its last round, and whether a round has gone well."""

    __slots__ = ("has_gone_well", "last")

    def __init__(self) -> None:
        self.has_gone_well = False
        self.last: Optional[LateWork] = None

    def note(self, work: LateWork) -> None:
        """A stream waits for this round."""
        self.last = work

    def let_last_end(self) -> None:
        """Before the next round is submitted. Raises what went wrong with the last one."""
        last, self.last = self.last, None
        if last is not None:
            if last in _under_way:
                _under_way.remove(last)
            last.end()


WAITED_FOR = Repeated()
"""For requests that are always waited for: other requests may come under their names."""

_under_way: list[LateWork] = []
"""What streams wait for, in the order in which it was submitted. Changed under the interpreter's lock."""

_by_name: dict[str, Repeated] = {}

_setting: Union[bool, str, None] = "unread"
"""What FARANDOLE_ASYNC_COMPLETION says; `None`: that it depends."""

_MOST_NAMES = 100_000
"""Names that are remembered. A script that makes up new ones all the time is waited for again now and then."""


def repeated(name: str) -> Repeated:
    """The request of this name, which the script gave."""
    known = _by_name.get(name)
    if known is None:
        if len(_by_name) >= _MOST_NAMES:
            settle()
            _by_name.clear()
        known = _by_name[name] = Repeated()
    return known


def is_allowed(request: Optional[Repeated]) -> bool:
    """Whether nobody has to wait for this request on the host. `None`: it does not repeat."""
    global _setting
    if _setting == "unread":
        _setting = _native.switch_or_auto_setting("FARANDOLE_ASYNC_COMPLETION")
    if request is WAITED_FOR:
        return False
    if _setting is None:
        return request is not None and request.has_gone_well
    return bool(_setting)


def add(work: LateWork) -> None:
    """A stream waits for this, and nobody else does."""
    _under_way.append(work)


def sweep() -> None:
    """Lets go of what is over. Raises what went wrong with it. Every call of ours makes this one."""
    if not _under_way:
        return
    for work in [work for work in _under_way if work.is_over()]:
        _under_way.remove(work)
        work.end()


def settle() -> None:
    """Waits for everything. Raises what went wrong first."""
    while _under_way:
        _under_way.pop(0).end()


def _reset() -> None:
    global _setting
    _under_way.clear()
    _by_name.clear()
    _setting = "unread"


_registered_by: Optional[int] = None
"""The process whose end is waited with: forked children end without."""


def _leave() -> None:
    """The job ends: others need this rank's part in what is under way."""
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
