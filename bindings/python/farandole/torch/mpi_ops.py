"""Horovod's name for the module that has all operations of its torch front end; everything here lives elsewhere."""

from __future__ import annotations

from typing import Any

from farandole import exports as _exports
from farandole.basics import HorovodBasics as _HorovodBasics
from farandole.basics import basics as _basics
from farandole.exports import *
from farandole.torch.broadcast import HorovodBroadcast, broadcast, broadcast_, broadcast_async, broadcast_async_
from farandole.torch.compression import Compression
from farandole.torch.gather import (
    HorovodAllgather,
    HorovodAlltoall,
    HorovodGroupedAllgather,
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
)
from farandole.torch.handles import poll, synchronize
from farandole.torch.meet import barrier, join
from farandole.torch.reduce import (
    HorovodAllreduce,
    HorovodGroupedAllreduce,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    handle_average_backwards_compatibility,
)
from farandole.torch.scatter import (
    HorovodGroupedReducescatter,
    HorovodReducescatter,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from farandole.torch.sparse import sparse_allreduce_async

__all__ = [
    *_exports.__all__,
    "Compression",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "gpu_available",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "join",
    "num_rank_is_power_2",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether this is a power of two. Horovod's Adasum needs it; ours does not."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def gpu_available(*_unused: Any) -> bool:
    """Whether torch finds a GPU in this process."""
    import torch

    return torch.cuda.is_available()
