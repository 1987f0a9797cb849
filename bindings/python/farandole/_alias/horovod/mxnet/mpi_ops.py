"""`horovod.mxnet.mpi_ops` is `farandole.mxnet.mpi_ops`: importing this name gives that module itself."""

import sys

from farandole.mxnet.mpi_ops import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.mxnet.mpi_ops"]
