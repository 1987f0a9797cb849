"""Who has which share: this rank's place, its cores, and its part of a list."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable
from typing import TypeVar

from farandole import _native

__all__ = ["cores", "place", "shard"]

Item = TypeVar("Item")


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This rank, and how many there are: what was said; else the job's; else that of `torch.distributed`; else one."""
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size belong together: say both, or none")
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        return rank, world_size
    if _native.is_initialized():
        return _native.rank(), _native.size()
    if _native.joins_later():
        raise ValueError("this process has not joined its elastic job yet: make a loader after it has")
    # A process group of torch's can only be there if somebody has imported it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def cores() -> int:
    """The cores of this rank: those it is bound to, or its share of the host's."""
    own = len(os.sched_getaffinity(0))
    if own < (os.cpu_count() or 1) or not _native.is_initialized():
        return own
    return max(1, own // _native.local_size())


def shard(
    items: Iterable[Item],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = False,
    equal: str | None = None,
    by_worker: bool = True,
) -> list[Item]:
    """This rank's share of a list, such as that of the shards of a data set; in a worker of a `DataLoader`, this
    worker's share of that.

    Every rank passes the same list. With `shuffle` it is brought into another order first, the same on all ranks, by
    `seed` and `epoch`. Shares differ by one item at most; with ``equal="drop"`` what is too much for some is left out,
    and with ``equal="repeat"`` items from the beginning come once more, so that all have the same number.
    """
    if equal not in (None, "drop", "repeat"):
        raise ValueError(f'equal is None, "drop" or "repeat", not {equal!r}')
    rank, world_size = place(rank, world_size)
    worker, workers = _worker() if by_worker else (0, 1)
    parts = world_size * workers
    everything = list(items)
    if shuffle:
        random.Random(f"{seed} {epoch}").shuffle(everything)
    if equal == "drop":
        everything = everything[: len(everything) // parts * parts]
    elif equal == "repeat" and everything:
        missing = -len(everything) % parts
        everything += [everything[at % len(everything)] for at in range(missing)]
    return everything[rank::world_size][worker::workers]


def _worker() -> tuple[int, int]:
    """Which worker of a `DataLoader` this is, and of how many."""
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
