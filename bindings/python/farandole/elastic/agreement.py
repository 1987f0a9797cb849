"""Whose state goes on after the ranks of a job have changed, and from which sample: the decision of Rust's trainings
(`crates/farandole/src/elastic/standing.rs`, which has the rules), for trainings in Python.

Every rank brings a `Standing`. `decide` makes one `Decision` of all of them, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole import _native

NOTHING = -1
"""Completed by a rank that has no state yet, only what its script began with."""


class Standing(NamedTuple):
    """What one rank brings."""

    completed: int
    epoch: int
    position: int
    #: Whether the state was streamed to this rank and was not yet compared with that of a member.
    is_streamed: int = 0


class Decision(NamedTuple):
    """What all ranks do."""

    source: int
    is_sent: bool
    completed: int
    epoch: int
    position: int
    #: Whether states that were streamed to ranks are to be compared with the source's.
    is_to_compare: bool = False


def decide(standings: Sequence[Standing]) -> Decision:
    """`standings` in the order of ranks."""
    return Decision(*_native.elastic_decide([(*one[:3], bool(one.is_streamed)) for one in standings]))


def retry_pause(failed_before: int) -> float | None:
    """The seconds to wait before a block is computed again that has failed this often before; None: it is not."""
    return _native.elastic_retry_pause(failed_before)
