"""Horovod's name for the module that has all operations of its torch front end.

Each module that is imported here lists its functions in `__all__`; this is where the lists come together.
"""

from __future__ import annotations

from typing import Any

from farandole import exports as _exports
from farandole.basics import HorovodBasics as _HorovodBasics
from farandole.basics import basics as _basics
from farandole.basics import handle_average_backwards_compatibility
from farandole.exports import *
from farandole.torch import barrier_ops as _barrier_ops
from farandole.torch import broadcast_ops as _broadcast_ops
from farandole.torch import gather as _gather
from farandole.torch import handles as _handles
from farandole.torch import reduce as _reduce
from farandole.torch import scatter as _scatter
from farandole.torch import sparse as _sparse
from farandole.torch.barrier_ops import *
from farandole.torch.broadcast_ops import *
from farandole.torch.broadcast_ops import HorovodBroadcast
from farandole.torch.compression import Compression
from farandole.torch.gather import *
from farandole.torch.gather import HorovodAllgather, HorovodAlltoall, HorovodGroupedAllgather
from farandole.torch.handles import *
from farandole.torch.reduce import *
from farandole.torch.reduce import HorovodAllreduce, HorovodGroupedAllreduce
from farandole.torch.scatter import *
from farandole.torch.scatter import HorovodGroupedReducescatter, HorovodReducescatter
from farandole.torch.sparse import *

_PARTS = (_exports, _barrier_ops, _broadcast_ops, _gather, _handles, _reduce, _scatter, _sparse)

__all__ = ["Compression", *(name for part in _PARTS for name in part.__all__)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether this is a power of two. Horovod's Adasum needs it; ours does not."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def gpu_available(*_unused: Any) -> bool:
    """Whether torch finds a GPU in this process."""
    import torch

    return torch.cuda.is_available()
