"""Measures for how long a GPU has nothing to do while the script gives it nothing.

The host runs ahead of its device. A script that waits for a batch loses nothing as long as the device still has work,
and the host's clock cannot tell. So a *pause*, a time in which the script gives its device nothing, begins and ends
with an event in the current stream. If the device has work, it reaches both one after the other; if it has none, the
time between them is the time for which it had nothing to do. Events are read later, when both have happened: nobody
waits for a device.

Invariants: pauses are those of the thread that trains (`phases`). Measuring never raises and never changes what PyTorch
does. Without a trace, or without a GPU, there are no events.

Not here: which phases are pauses. Work that the script gives its device within a pause counts as idle, which is never
worse than the host's clock: a pause is idle for no longer than it lasts.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Optional, Protocol

import torch

from farandole import _native

MOST_UNREAD = 256
"""Pauses that may wait to be read: a device is some steps behind its host, not hundreds."""


class TimedEvent(Protocol):
    """A mark in a stream, with the device's clock."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


def can_record() -> bool:
    """Whether there is a device that takes events now. A stream that is being captured executes nothing."""
    return torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()


def new_event() -> TimedEvent:
    """An event of the current device."""
    return torch.cuda.Event(enable_timing=True)


class _Pauses:
    """The pause that is open, and those that were not read yet."""

    def __init__(self) -> None:
        self._open: Optional[tuple[int, TimedEvent]] = None
        self._unread: deque[tuple[int, TimedEvent, int, TimedEvent]] = deque()
        self._spare: list[TimedEvent] = []

    def begin(self) -> None:
        if self._open is None and len(self._unread) < MOST_UNREAD and _native.wants_device_times() and can_record():
            since_ns = time.monotonic_ns()
            self._open = since_ns, self._record()

    def end(self) -> None:
        if self._open is None:
            return
        (since_ns, begun), self._open = self._open, None
        if can_record():
            self._unread.append((since_ns, begun, time.monotonic_ns(), self._record()))
        self._read()

    def discard(self) -> None:
        if self._open is not None:
            self._spare.append(self._open[1])
            self._open = None

    def _record(self) -> TimedEvent:
        event = self._spare.pop() if self._spare else new_event()
        event.record()
        return event

    def _read(self) -> None:
        while self._unread and self._unread[0][3].query():
            since_ns, begun, until_ns, ended = self._unread.popleft()
            _native.device_idle(since_ns, until_ns, max(0, round(1e6 * begun.elapsed_time(ended))))
            self._spare += (begun, ended)


_pauses: Optional[_Pauses] = _Pauses()
"""`None` once a device has refused: an error of its is not ours to tell."""


def begin() -> None:
    """From now on the script gives its device nothing."""
    _call("begin")


def end() -> None:
    """It goes on, if it has paused."""
    _call("end")


def discard() -> None:
    """It has gone on a while ago: this was no pause."""
    _call("discard")


def _call(name: str) -> None:
    global _pauses
    try:
        if _pauses is not None:
            getattr(_pauses, name)()
    except RuntimeError:
        # The device has failed, or the script has changed to another one within a pause.
        _pauses = None
