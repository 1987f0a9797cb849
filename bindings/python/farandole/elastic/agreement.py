"""Whose state goes on after the ranks of a job have changed, and from which sample.

Every rank brings a `Standing`: how many steps its state has seen (`completed`), and where it would go on in the
samples (`epoch`, `position`). `decide` makes one `Decision` of all of them, the same on every rank, because all have
the same standings in the same order.

- The *source* is the rank with most steps completed, the first of them. Its state is whole: a step counts when the
  optimizer has made it, and it makes it only with gradients of all ranks. A rank that was one step behind, because it
  heard of a death before its last gradient was there, gets the step that it missed, not a part of it.
- A rank that has just come has completed `NOTHING`. If all have, the job begins, and rank 0 is the source.
- Nobody is sent anything if all have completed the same steps: their states have the same bits already.
- A rank that joins with a state that was streamed to it is no source as long as somebody else has one, and is not sent
  the source's before both are compared (`is_to_compare`): it may have the same bits, or get them with what is still on
  its way to it.
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
    #: Whether the state was streamed to this rank, and nobody has looked yet whether it is right.
    is_streamed: int = 0


class Decision(NamedTuple):
    """What all ranks do."""

    source: int
    is_sent: bool
    completed: int
    epoch: int
    position: int
    #: Whether ranks have states that were streamed to them, and all others have the source's.
    is_to_compare: bool = False


def decide(standings: Sequence[Standing]) -> Decision:
    """`standings` in the order of ranks."""
    # What was streamed counts only where nobody else has a state: better than to begin anew.
    counted = [one for one in standings if not one.is_streamed]
    if all(one.completed == NOTHING for one in counted):
        counted = list(standings)
    most = max(standing.completed for standing in counted)
    source = next(rank for rank, one in enumerate(standings) if one in counted and one.completed == most)
    is_behind = any(standing.completed != most for standing in counted)
    # Nobody has looked at what was streamed, so where it counts all get the same.
    is_sent = most == NOTHING or is_behind or len(counted) > 1 and any(one.is_streamed for one in counted)
    # A rank behind the source has no say about samples: the step that it would repeat or drop is done. When the job
    # begins, rank 0 alone may have read a checkpoint.
    informed = standings[:1] if most == NOTHING else [other for other in counted if other.completed == most]
    epoch, position = max((standing.epoch, standing.position) for standing in informed)
    is_to_compare = not is_sent and len(counted) < len(standings)
    return Decision(source, is_sent, max(most, 0), epoch, position, is_to_compare)
