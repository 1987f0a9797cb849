"""A barrier that says who has not come.

It goes through the store of the process group and not through the engine: a rank that is late or gone does not end the
job's collectives. Rank 0 watches; the others wait for its word.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

__all__ = ["wait"]


def wait(store: Any, rank: int, size: int, limit: timedelta, wait_all_ranks: bool) -> None:
    """Returns when all ranks have called this. Rank 0 raises the first rank that has not come within the limit, or all
    of them. The beginnings of the texts are gloo's.

    store: for this barrier alone.
    """
    deadline, shown = time.monotonic() + limit.total_seconds(), f"{limit.total_seconds() * 1000:g} ms"
    if rank != 0:
        store.set(str(rank), "here")
        if not _is_set_by(store, "end", deadline) or store.get("end") != b"passed":
            raise RuntimeError(
                f"[Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
                f"for send/recv from rank 0: it did not pass within {shown}."
            )
        return
    missing: list[int] = []
    for other in range(1, size):
        if missing and not wait_all_ranks:
            break
        if not _is_set_by(store, str(other), deadline):
            missing.append(other)
    store.set("end", "failed" if missing else "passed")
    if missing and not limit:
        raise RuntimeError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {shown}.")
    if missing:
        which = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise RuntimeError(f"[Rank 0]: {which} failed to pass monitoredBarrier in {shown}.")


def _is_set_by(store: Any, key: str, deadline: float) -> bool:
    """Whether a key is in a store, waiting for it until this moment."""
    left = deadline - time.monotonic()
    if left <= 0:
        return store.check([key])
    try:
        store.wait([key], timedelta(seconds=left))
    except RuntimeError as error:
        # Stores of files and of TCP raise different classes at a timeout. A store that is gone is no late rank.
        if isinstance(error, dist.DistNetworkError) or "timeout" not in str(error).lower():
            raise
        return False
    return True
