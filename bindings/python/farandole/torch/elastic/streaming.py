"""Streams of a training's state: from this process to those that are about to join, and to this one before it joins.

Owns the two sides of a `Training` that is streamed. The member's side: at the end of every block, what the block was
made with goes to those who follow, and a copy of the state to those who want one (`replay`); threads of the engine send
it. The other side is `farandole.elastic.follower`, with what `replay` makes of what comes.

Invariant: a training that nobody wants to join pays two questions to the engine for each block. One that is followed
copies its state once for each process, and its gradients in each step; it never waits for anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from farandole import _native
from farandole.elastic.follower import Follower, Note
from farandole.torch.elastic import replay

__all__ = ["Streaming", "Streams"]


@dataclass(frozen=True)
class Streaming:
    """When a state is streamed, and what that may cost. Those of the first training of a process count."""

    #: States of fewer bytes are sent when the process is let in: that takes no longer than a step or two.
    least_bytes: int = 1 << 20
    #: Updates wait in the memory of the member that sends them. If they take more than so many times the memory of the
    #: state, the process joins without them.
    most_log: int = 4
    #: How much is sent in a second to each process, at most, to leave the network to gradients.
    bytes_per_second: Optional[int] = None


class Streams:
    """See the module's text."""

    def __init__(self, parts: replay.Parts, limits: Streaming) -> None:
        self._parts = parts
        self._recorder = replay.Recorder()
        self._source = _native.StateSource(
            least_bytes=limits.least_bytes, most_log=limits.most_log, bytes_per_second=limits.bytes_per_second
        )
        self.follower = Follower(
            lambda content: replay.restore(parts, content), lambda content: replay.apply(parts, content)
        )

    def block_begins(self) -> None:
        """A block begins; the one before may have come to nothing."""
        self._recorder.clear()

    def optimizer_steps(self, has_closure: bool) -> None:
        """The optimizer is about to make the step of a block."""
        if self._source.is_followed():
            self._recorder.optimizer_steps(self._parts, has_closure)

    def block_ended(self, note: Note) -> None:
        """A block was completed, and led to the state with this note."""
        if self._source.is_followed():
            update = self._recorder.update(self._parts)
            if update is None:
                self._source.begin_anew()
            else:
                self._source.give_update(note.encode(), update.head, update.pieces())
        if self._source.wants_snapshot():
            copy = replay.snapshot(self._parts)
            self._source.give_snapshot(note.encode(), copy.head, copy.pieces())

    def changed_otherwise(self) -> None:
        """The state has changed, and not by a block that has ended here."""
        self._source.begin_anew()

    def note_boundary(self) -> None:
        """No steps are made until `note_training`, for which others could wait."""
        self._source.note_boundary()

    def note_training(self) -> None:
        """The training goes on."""
        self._source.note_training()
