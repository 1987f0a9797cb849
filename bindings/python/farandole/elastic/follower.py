"""A process that gets the state of a member before it joins, while the members go on: for every front end.

The *follower* asks one member after the other, until one is there. It takes over what comes, a copy of the state first
(the *snapshot*) and then the *update* of every step, with which it makes the same step. It is ready to join when little
is left at the source. From then on it makes the members' steps a moment after them, until it is a member, and gets the
last of them when the ranks have come together (`catch_up`).

What a snapshot and an update are is told by two functions that take them over. Each has a *note*, which says what the
state has seen afterwards.

Invariant: a state that was taken over is whole, and `standing` says which it is. Whatever goes wrong leaves the process
as one that gets the whole state when it is let in.

The other side, and the same for programs in Rust, is in the crates `farandole-cluster` (`streaming`) and `farandole`
(`elastic::follower`).
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Optional

MOST_SOURCES = 3
"""So many members are asked; after that, losses are too frequent for streams."""

LITTLE = 16
"""Little is left if it is at most one update, or this part of the state."""

LAST_PATIENCE_S = 5.0
"""In a change of the job, for the last updates. They are on their way, or they do not come."""

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.005
"""How long a process that waits to be let in takes over updates before it looks whether it is."""

_WAIT_S = 0.1
"""How long a wait for a member goes on before Python looks for signals."""

_NOTE = struct.Struct("<3q")


class Note(NamedTuple):
    """What a state has seen: blocks that are completed, and the place in the samples."""

    completed: int
    epoch: int
    position: int

    def encode(self) -> bytes:
        """As it travels."""
        return _NOTE.pack(*self)

    @classmethod
    def decode(cls, note: bytes) -> Note:
        """`ValueError` if it is none."""
        try:
            return cls(*_NOTE.unpack(note))
        except struct.error as error:
            raise ValueError(f"a note says nothing: {error}") from None


_Stage = Literal["behind", "close", "over", "lost"]


class Follower:
    """See the module's text.

    Arguments:
        restore: takes over a snapshot.
        apply: makes a step with an update.

    What they raise ends the stream: this process has another state than the members, which is said again when it is let
    in.
    """

    def __init__(self, restore: Callable[[bytearray], None], apply: Callable[[bytearray], None]) -> None:
        self._restore, self._apply = restore, apply
        #: Which state this process has; `None`: its own.
        self.standing: Optional[Note] = None
        self._stream: Any = None
        self._stage: _Stage = "over"
        self._state_bytes, self._idle, self._is_stale = 0, 0, False

    def follow(self, joining: Any) -> None:
        """Gets a state, and goes on until this process was let in. `joining` is `_native.Joining`."""
        for number in range(min(joining.sources, MOST_SOURCES)):
            try:
                self._stream = joining.connect(number)
            except OSError:
                continue
            self._stage, self._is_stale = "behind", False
            while self._stage == "behind":
                self._take(_WAIT_S)
            if self._stage != "lost":
                break
        joining.go()
        while self._is_on and not joining.is_over():
            self._take(_LOOK_EVERY_S)

    def catch_up(self, completed: int) -> bool:
        """Takes over what is left until the state has completed so many blocks. Whether it has."""
        until = time.monotonic() + LAST_PATIENCE_S
        self._idle = 0
        # All updates were handed over before the members came together: what has not come does not come. One word of
        # waiting may be older than the last update.
        while self._is_on and not self._is_stale and self._idle < 2 and self._completed < completed:
            left = until - time.monotonic()
            if left <= 0:
                break
            self._take(min(left, _WAIT_S))
        return self._completed == completed

    def stop(self) -> None:
        """This process is a member, and has the state of all."""
        self._stream, self._stage, self.standing = None, "over", None

    @property
    def _completed(self) -> int:
        return -1 if self.standing is None else self.standing.completed

    @property
    def _is_on(self) -> bool:
        return self._stage in ("behind", "close")

    def _take(self, seconds: float) -> None:
        """Takes over what comes within this time."""
        received = self._stream.receive(seconds)
        if received is None:
            return
        word, note, content, left_bytes = received
        self._idle = self._idle + 1 if word == "wait" else 0
        if word == "again":
            self._stage, self._is_stale = "behind", True
        elif word == "join_now":
            self._stage = "over"
        elif word == "lost":
            self._stage = "lost"
        elif word in ("snapshot", "update"):
            self._take_over(word, note, content, left_bytes)

    def _take_over(self, word: str, note: bytes, content: bytearray, left_bytes: int) -> None:
        update_bytes = 0
        try:
            standing = Note.decode(note)
            if word == "snapshot":
                self._state_bytes, self._is_stale = len(content), False
                self._restore(content)
            else:
                update_bytes = len(content)
                self._apply(content)
        except Exception as error:
            text = "farandole: this process joins without the state that was streamed to it: %s: %s"
            _log.warning(text, type(error).__name__, error)
            self._stage, self.standing = "over", None
            return
        self.standing = standing
        is_little = left_bytes <= update_bytes or left_bytes * LITTLE <= self._state_bytes
        self._stage = "close" if is_little else "behind"
