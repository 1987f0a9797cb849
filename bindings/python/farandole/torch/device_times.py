"""What a GPU does behind the script's back, measured on the GPU: when it has nothing to do, and when it waits.

The host runs ahead of its device, so the host's clock cannot tell what is lost. Events with timing in the current
stream can; they are read later, when they have happened, so that nobody waits for a device:

- A *pause* is a time in which the script gives its device nothing: it waits for a batch, say. If the device has work
  left, it reaches the events at both ends one after the other; if it has none, the time between them is the time for
  which it had nothing to do.
- A *wait* is a time in which the stream waits for a collective and the script has gone on (`follow`). A third event
  puts it on the host's clock: in a stream of its own that is always empty, it happens when it is recorded.
- What the device still has to do of an evaluation that is over for the host ends at an event, too (`staging`).

Invariants: all of it is done by the thread that trains (`phases`), and by no other. Measuring never raises and never
changes what PyTorch does. Without a trace, or without a GPU, there are no events.

Not here: which phases are pauses. Work that the script gives its device within a pause counts as idle, which is never
worse than the host's clock: a pause is idle for no longer than it lasts.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Protocol, Union

import torch

from farandole import _native

__all__ = ["begin_pause", "discard_pause", "end_pause", "end_later", "follow", "follow_this_thread", "mark"]

DEVICE_ROW = "device of this rank"
"""The row of what a device does in a phase that is over for the host; `trace` knows it by this name."""

MOST_UNREAD = 256
"""What may wait to be read: a device is some steps behind its host, not hundreds."""


class TimedEvent(Protocol):
    """A mark in a stream, with the device's clock."""

    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


def can_record() -> bool:
    """Whether there is a device that takes events now. A stream that is being captured executes nothing."""
    return torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()


def record() -> TimedEvent:
    """An event in the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def record_now() -> TimedEvent:
    """An event that happens at once, whatever the device has to do."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(_empty_stream(torch.cuda.current_device()))
    return event


@functools.cache
def _empty_stream(_device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream()


class _Pause(NamedTuple):
    since_ns: int
    begun: TimedEvent
    until_ns: int
    ended: TimedEvent

    def tell(self) -> None:
        idle_ns = round(1e6 * self.begun.elapsed_time(self.ended))
        _native.device_idle(self.since_ns, self.until_ns, max(0, idle_ns))


class _Anchor(NamedTuple):
    """An event, and when it happened on the host's clock."""

    at_ns: int
    event: TimedEvent

    def time_ns(self, event: TimedEvent) -> int:
        return self.at_ns + round(1e6 * self.event.elapsed_time(event))


class _Wait(NamedTuple):
    anchor: _Anchor
    begun: TimedEvent
    ended: TimedEvent
    request: str

    def tell(self) -> None:
        _native.device_waited(self.request, self.anchor.time_ns(self.begun), self.anchor.time_ns(self.ended))


class _Phase(NamedTuple):
    """What is left of a phase on the device."""

    anchor: _Anchor
    name: str
    since_ns: int
    ended: TimedEvent

    def tell(self) -> None:
        _native.phase_of(DEVICE_ROW, self.name, self.since_ns, self.anchor.time_ns(self.ended))


class _Measuring:
    """The pause that is open, and what was not read yet."""

    def __init__(self) -> None:
        self.thread: Optional[int] = None
        self._open: Optional[tuple[int, TimedEvent]] = None
        self._unread: deque[Union[_Pause, _Wait, _Phase]] = deque()

    def wants(self) -> bool:
        """Whether something is to be measured, on this thread and now."""
        return (
            _native.wants_device_times()
            and threading.get_ident() == self.thread
            and len(self._unread) < MOST_UNREAD
            and can_record()
        )

    def begin_pause(self) -> None:
        if self._open is None and self.wants():
            self._open = time.monotonic_ns(), record()

    def end_pause(self) -> None:
        if self._open is not None and threading.get_ident() == self.thread:
            (since_ns, begun), self._open = self._open, None
            if can_record():
                self._unread.append(_Pause(since_ns, begun, time.monotonic_ns(), record()))
            self.read()

    def discard_pause(self) -> None:
        if threading.get_ident() == self.thread:
            self._open = None

    def begin_wait(self) -> Optional[tuple[_Anchor, TimedEvent]]:
        return (self._anchor(), record()) if self.wants() else None

    def end_wait(self, anchor: _Anchor, begun: TimedEvent, request: str) -> None:
        self._unread.append(_Wait(anchor, begun, record(), request))

    def end_later(self, phase: str, ended: TimedEvent, since_ns: int) -> None:
        if self.wants():
            self._unread.append(_Phase(self._anchor(), phase, since_ns, ended))

    def read(self) -> None:
        while self._unread and self._unread[0].ended.query():
            self._unread.popleft().tell()

    def _anchor(self) -> _Anchor:
        event = record_now()
        return _Anchor(time.monotonic_ns(), event)


_measuring: Optional[_Measuring] = _Measuring()
"""`None` once a device has refused: an error of its is not ours to tell."""


def _never_raises(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def safely(*args: Any) -> Any:
        global _measuring
        try:
            return None if _measuring is None else function(_measuring, *args)
        except RuntimeError:
            # The device has failed, or the script has changed to another one in between.
            _measuring = None
            return None

    return safely


@_never_raises
def follow_this_thread(measuring: _Measuring) -> None:
    """This thread trains from now on."""
    measuring.thread = threading.get_ident()


begin_pause = _never_raises(_Measuring.begin_pause)
"""From now on the script gives its device nothing."""

end_pause = _never_raises(_Measuring.end_pause)
"""It goes on, if it has paused."""

discard_pause = _never_raises(_Measuring.discard_pause)
"""It has gone on a while ago: that was no pause."""

end_later = _never_raises(_Measuring.end_later)
"""A phase is over for the host since a moment, and for the device at an event of `mark`."""

_begin_wait = _never_raises(_Measuring.begin_wait)
_end_wait = _never_raises(_Measuring.end_wait)


def mark() -> torch.cuda.Event:
    """An event behind what the current device was given so far, which knows when it happens if somebody wants that."""
    event = torch.cuda.Event(enable_timing=_native.wants_device_times())
    event.record()
    return event


class Followed(Protocol):
    """Requests that a stream can wait for."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the requests."""

    def follow(self, stream: int) -> None:
        """Makes what comes into a stream from now on wait until they are over."""


def follow(requests: Followed, stream: int) -> None:
    """Makes the current stream, which has this handle, wait for requests, and measures for how long it does."""
    begun = _begin_wait()
    requests.follow(stream)
    if begun is not None:
        _end_wait(*begun, requests.names[-1])
