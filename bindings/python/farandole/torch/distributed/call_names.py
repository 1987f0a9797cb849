"""Names for the calls of one process group.

`torch.distributed` matches the ranks' calls by their order, the engine matches requests by name. So a call is named by
its number. But numbers never come again, and the engine learns an order, which it then replays without a message, by
names that do. So the sequence of calls is watched: when it has repeated itself long enough, calls are named by their
place in the repeated part.

Terms. A call's *signature* is what is the same on all ranks: its kind, element type, root and, where ranks must agree,
number of elements. The sequence has *period* p where each signature equals the one p calls before. It is *established*
after `_REPEATS` such calls, and two periods of them at least; from then on a name is `PREFIX.SERIES.i`, where i counts
the calls modulo the *cycle*: the smallest multiple of p that is at least `_SHORTEST_CYCLE`. A call that does not fit
has its place's name for the last time; the next one is named by its number again.

Invariant: a name is a function of the signatures up to and with its call. Ranks that make the same calls name them
alike, and ranks that do not still use the same name for the first call that differs, which the engine then refuses.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Optional

__all__ = ["CallNames"]

_REPEATS = 32
"""Calls that must have repeated: more than a model has buckets of one size in a row, fewer than steps matter."""

_SHORTEST_CYCLE = 64
"""A name comes again after this many calls at least. A program that is further ahead of its results waits."""

_LONGEST_PERIOD = 4096
"""Longer periods are not looked for."""


class CallNames:
    """See the module's text."""

    def __init__(self, prefix: str = "c10d") -> None:
        self._prefix = prefix
        self._calls = 0
        self._history: list[Hashable] = []
        """Signatures of the last calls: a ring of `_LONGEST_PERIOD`, by number of the call."""
        self._last: dict[Hashable, int] = {}
        """The last call with each signature."""
        self._period = 0
        """The period that is being tried or followed; zero: none."""
        self._repeated = 0
        """Calls in a row that this period has foretold."""
        self._series = 0
        self._first: Optional[int] = None
        """The call with which the cycle began; `None` while no period is established."""

    def next(self, signature: Hashable) -> tuple[str, bool]:
        """The name of the next call, and whether an earlier call may have had it."""
        number = self._calls
        first, cycle = self._first, self._cycle()
        self._note(number, signature)
        if first is None:
            return f"{self._prefix}.{number}", False
        place = number - first
        return f"{self._prefix}.{self._series}.{place % cycle}", place >= cycle

    def comes_again(self, name: str) -> bool:
        """Whether a later call may have this name."""
        return name.startswith(f"{self._prefix}.") and name.count(".") == 2

    def _cycle(self) -> int:
        return self._period * -(-_SHORTEST_CYCLE // self._period) if self._period else 0

    def _note(self, number: int, signature: Hashable) -> None:
        """Takes note of a call, which may begin or end a cycle for the calls after it."""
        if self._period and self._before(number, self._period) == signature:
            self._repeated += 1
            if self._first is None and self._repeated >= max(_REPEATS, 2 * self._period):
                self._first = number + 1
                self._series += 1
        else:
            self._first = None
            distance = number - self._last.get(signature, number)
            self._period = distance if distance <= _LONGEST_PERIOD else 0
            self._repeated = 1 if self._period else 0
        self._last[signature] = number
        if len(self._history) < _LONGEST_PERIOD:
            self._history.append(signature)
        else:
            self._history[number % _LONGEST_PERIOD] = signature
            if len(self._last) > 2 * _LONGEST_PERIOD:
                self._last = {known: at for known, at in self._last.items() if number - at <= _LONGEST_PERIOD}
        self._calls += 1

    def _before(self, number: int, distance: int) -> Hashable:
        return self._history[(number - distance) % _LONGEST_PERIOD] if number >= distance else None
