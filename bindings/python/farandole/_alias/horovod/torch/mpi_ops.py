"""`horovod.torch.mpi_ops` is `farandole.torch.mpi_ops`: importing this name gives that module itself."""

import sys

from farandole.torch.mpi_ops import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.mpi_ops"]
