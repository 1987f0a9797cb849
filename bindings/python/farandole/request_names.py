"""The names under which ranks find each other's requests.

A request is known to the other ranks as `allreduce.NAME`; without a name as `allreduce.noname.N`, where N counts the
nameless operations of this kind in this process set since `init`, or since all ranks have last joined. So ranks must
make nameless calls of one kind in the same order, and need not agree about anything else: neither about other kinds,
nor about sets that only some of them are in.

Invariant: the counters belong to the engine that runs; `init` and `shutdown` clear them.
"""

from __future__ import annotations

import threading
from typing import Optional

from farandole import basics

_counters: dict[tuple[str, int], int] = {}
_counters_lock = threading.Lock()
"""For threads that ask for nameless operations at the same time."""


def _reset() -> None:
    with _counters_lock:
        _counters.clear()


basics.on_reset(_reset)


def name_of(kind: str, name: Optional[str], group: int) -> str:
    """The name of an operation for the other ranks."""
    if name is not None:
        return f"{kind}.{name}"
    with _counters_lock:
        number = _counters.get((kind, group), 0) + 1
        _counters[kind, group] = number
    return f"{kind}.noname.{number}"


def member_name(base_name: str, count: int, index: int) -> str:
    """The name of a member of a group for the other ranks."""
    return f"{base_name}_{index + 1}of{count}"


def count_anew(group: int) -> None:
    """Begins to count nameless operations of a set from one again. For the moment when all its ranks have joined: some
    have made calls that others have not, nothing is in flight, and from here on they are to agree again."""
    with _counters_lock:
        for key in [key for key in _counters if key[1] == group]:
            del _counters[key]
