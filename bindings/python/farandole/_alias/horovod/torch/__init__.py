"""`horovod.torch`: what Horovod exports to PyTorch scripts, name by name, from `farandole.torch`.

The submodules that scripts import by themselves (`mpi_ops`, `functions`, `optimizer`, `compression`, `sync_batch_norm`)
are Farandole's own modules under these names. `elastic` can be imported, and says that it is not there yet when it is
used.
"""

from farandole.torch import *  # noqa: F403 -- what it exports is the list, and a test knows it by heart
from horovod.torch import compression, elastic, functions, optimizer, sync_batch_norm
import horovod.torch.mpi_ops  # noqa: F401 -- under this name, too; the object has come with the others

# Horovod says so when its compiled part is missing; some scripts ask.
_MPI_LIB_AVAILABLE = True


def _check_has_gpu() -> bool:
    """Whether PyTorch sees a GPU; `horovod.common.util.gpu_available("torch")` asks this."""
    import torch

    return torch.cuda.is_available()
