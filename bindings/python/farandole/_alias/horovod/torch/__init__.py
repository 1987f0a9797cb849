"""`horovod.torch`: what Horovod exports to PyTorch scripts, name by name, from `farandole.torch`.

The submodules that scripts import by themselves (`mpi_ops`, `functions`, `optimizer`, `compression`, `sync_batch_norm`,
`elastic`) are Farandole's own modules under these names.
"""

from farandole.torch import *  # noqa: F403 -- what it exports is the list, and a test knows it by heart
from horovod.torch import compression, functions, optimizer, sync_batch_norm
import horovod.torch.elastic  # noqa: F401 -- under this name, too; the object has come with the others
import horovod.torch.mpi_ops  # noqa: F401 -- likewise

# Horovod says so when its compiled part is missing; some scripts ask.
_MPI_LIB_AVAILABLE = True


def _check_has_gpu() -> bool:
    """Whether PyTorch sees a GPU; `horovod.common.util.gpu_available("torch")` asks this."""
    import torch

    return torch.cuda.is_available()
