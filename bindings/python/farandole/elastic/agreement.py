"""Whose state goes on after the ranks of a job have changed, and from which sample.

Every rank brings a `Standing`: how many steps its state has seen (`completed`), and where it would go on in the
samples (`epoch`, `position`). `decide` makes one `Decision` of all of them, the same on every rank, because all have
the same standings in the same order.

- The *source* is the rank with most steps completed, the first of them. Its state is whole: a step counts when the
  optimizer has made it, and it makes it only with gradients of all ranks. A rank that was one step behind, because it
  heard of a death before its last gradient was there, gets the step that it missed, not a part of it.
- A rank that has just come has completed `NOTHING`. If all have, the job begins, and rank 0 is the source.
- Nobody is sent anything if all have completed the same steps: their states have the same bits already.
- Samples go on from the furthest place that any rank names. Ranks name the place up to which samples are in the
  source's state or, if the step under way shall be dropped, the end of that step; a rank that was still on its way to
  the step names an earlier one.

Pure: values go in and come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NOTHING = -1
"""Completed by a rank that has no state yet, only what its script began with."""


class Standing(NamedTuple):
    """What one rank brings."""

    completed: int
    epoch: int
    position: int


class Decision(NamedTuple):
    """What all ranks do."""

    source: int
    is_sent: bool
    completed: int
    epoch: int
    position: int


def decide(standings: Sequence[Standing]) -> Decision:
    """`standings` in the order of ranks."""
    most = max(standing.completed for standing in standings)
    source = next(rank for rank, standing in enumerate(standings) if standing.completed == most)
    is_sent = most == NOTHING or any(standing.completed != most for standing in standings)
    # A rank behind the source has no say about samples: the step that it would repeat or drop is done. When the job
    # begins, rank 0 alone may have read a checkpoint.
    informed = standings[:1] if most == NOTHING else [other for other in standings if other.completed == most]
    epoch, position = max((standing.epoch, standing.position) for standing in informed)
    return Decision(source, is_sent, max(most, 0), epoch, position)
