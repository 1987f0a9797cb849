"""Farandole for PyTorch: `import farandole.torch as hvd`.

Horovod's API, name by name. Everything here lives in a module of its own beside this one.
"""

from farandole.torch import functions as _functions
from farandole.torch import mpi_ops
from farandole.torch.functions import *
from farandole.torch.mpi_ops import *
from farandole.torch.optimizer import DistributedOptimizer
from farandole.torch.sync_batch_norm import SyncBatchNorm

__all__ = [*mpi_ops.__all__, *_functions.__all__, "DistributedOptimizer", "SyncBatchNorm", "mpi_ops"]
