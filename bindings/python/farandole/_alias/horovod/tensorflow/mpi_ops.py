"""`horovod.tensorflow.mpi_ops` is `farandole.tensorflow.mpi_ops`: importing this name gives that module itself."""

import sys

from farandole.tensorflow.mpi_ops import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.mpi_ops"]
