"""Names for the calls of one process group.

`torch.distributed` matches the ranks' calls by their order, the engine matches requests by name. So a call is named by
its number. But numbers never come again, and the engine learns an order, which it then replays without a message, by
names that do. So the sequence of calls is watched: when it has repeated itself long enough, calls are named by their
place in the repeated part.

Terms. A call's *signature* is what is the same on all ranks: its kind, element type, root and, where ranks must agree,
number of elements; the signature says how many *requests* it is, too, one for each tensor. The sequence has *period* p
where each signature equals the one p calls before. It is *established* after `_REPEATS` such requests, and two periods
of them at least; from then on a name is `PREFIX.SERIES.i`, where i counts the calls modulo the *cycle*: the smallest
multiple of p that is at least `_SHORTEST_CYCLE` requests and `_FEWEST_CALLS` calls. A call that does not fit has its
place's name for the last time; the next one is named by its number again.

Invariant: a name is a function of the signatures up to and with its call. Ranks that make the same calls name them
alike, and ranks that do not still use the same name for the first call that differs, which the engine then refuses.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Optional

__all__ = ["CallNames"]

_REPEATS = 32
"""Requests that must have repeated: more than a model has buckets of one size in a row, fewer than steps matter."""

_SHORTEST_CYCLE = 64
"""A name comes again after this many requests at least. A program that is further ahead of its results waits."""

_FEWEST_CALLS = 4
"""And after this many calls, however many requests they are: more than programs have in flight of calls that reduce
many tensors together. The engine learns a cycle when it has come twice, and none of more than 65,536 requests."""

_LONGEST_PERIOD = 4096
"""Longer periods are not looked for."""


class CallNames:
    """See the module's text."""

    def __init__(self, prefix: str = "c10d") -> None:
        self._prefix = prefix
        self._calls = 0
        self._history: list[Hashable] = []
        """Signatures of the last calls: a ring of `_LONGEST_PERIOD`, by number of the call."""
        self._requests: dict[Hashable, int] = {}
        """How many requests a call with each signature is."""
        self._last: dict[Hashable, int] = {}
        """The last call with each signature."""
        self._period = 0
        """The period that is being tried or followed; zero: none."""
        self._repeated = 0
        """Calls in a row that this period has foretold."""
        self._repeated_requests = 0
        """How many requests they were."""
        self._cycle = 0
        """Calls of the cycle that is followed."""
        self._series = 0
        self._first: Optional[int] = None
        """The call with which the cycle began; `None` while no period is established."""

    def next(self, signature: Hashable, requests: int = 1) -> tuple[str, bool]:
        """The name of the next call, and whether an earlier call may have had it."""
        number = self._calls
        first, cycle = self._first, self._cycle
        self._note(number, signature, requests)
        if first is None:
            return f"{self._prefix}.{number}", False
        place = number - first
        return f"{self._prefix}.{self._series}.{place % cycle}", place >= cycle

    def comes_again(self, name: str) -> bool:
        """Whether a later call may have this name."""
        return name.startswith(f"{self._prefix}.") and name.count(".") == 2

    def _cycle_of(self, number: int) -> int:
        """Calls of the cycle that begins after this call."""
        last = (self._before(number, distance) for distance in range(1, self._period + 1))
        requests = sum(self._requests[signature] for signature in last)
        return self._period * max(-(-_SHORTEST_CYCLE // requests), -(-_FEWEST_CALLS // self._period))

    def _note(self, number: int, signature: Hashable, requests: int) -> None:
        """Takes note of a call, which may begin or end a cycle for the calls after it."""
        before = self._before(number, self._period) if self._period else None
        if before == signature:
            # The same object, so that what is remembered does not grow with the calls.
            signature = before
            self._repeated += 1
            self._repeated_requests += requests
            is_long = self._repeated >= 2 * self._period and self._repeated_requests >= _REPEATS
            if self._first is None and is_long:
                self._first, self._cycle = number + 1, self._cycle_of(number)
                self._series += 1
        else:
            self._first = None
            distance = number - self._last.get(signature, number)
            self._period = distance if distance <= _LONGEST_PERIOD else 0
            self._repeated, self._repeated_requests = (1, requests) if self._period else (0, 0)
        self._requests[signature] = requests
        self._last[signature] = number
        if len(self._history) < _LONGEST_PERIOD:
            self._history.append(signature)
        else:
            self._history[number % _LONGEST_PERIOD] = signature
            if len(self._last) > 2 * _LONGEST_PERIOD:
                self._last = {known: at for known, at in self._last.items() if number - at <= _LONGEST_PERIOD}
                self._requests = {known: count for known, count in self._requests.items() if known in self._last}
        self._calls += 1

    def _before(self, number: int, distance: int) -> Hashable:
        return self._history[(number - distance) % _LONGEST_PERIOD] if number >= distance else None
