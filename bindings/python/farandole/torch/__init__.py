"""Farandole for PyTorch: `import farandole.torch as hvd`.

Horovod's API, name by name. Everything here lives in a module of its own beside this one. What builds on
`torch.distributed`, of which Horovod knows nothing, is imported when it is asked for: `ddp_comm_hook`, `DdpCommState`.
"""

from typing import TYPE_CHECKING, Any

from farandole.torch import functions as _functions
from farandole.torch import elastic, mpi_ops
from farandole.torch.functions import *
from farandole.torch.mpi_ops import *
from farandole.torch.optimizer import DistributedOptimizer
from farandole.torch.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from farandole.torch.ddp_hook import DdpCommState as DdpCommState
    from farandole.torch.ddp_hook import ddp_comm_hook as ddp_comm_hook

__all__ = [*mpi_ops.__all__, *_functions.__all__, "DistributedOptimizer", "SyncBatchNorm", "elastic", "mpi_ops"]

_OF_DDP = ("DdpCommState", "ddp_comm_hook")


def __getattr__(name: str) -> Any:
    if name not in _OF_DDP:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from farandole.torch import ddp_hook

    return getattr(ddp_hook, name)
