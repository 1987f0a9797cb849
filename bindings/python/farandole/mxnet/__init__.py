"""Farandole for MXNet 1.9: `import farandole.mxnet as hvd`.

Horovod's API, name by name. Everything here lives in a module of its own beside this one.
"""

try:
    # A folder of the name `mxnet` on the path is a package to Python, and has no arrays.
    from mxnet.ndarray import NDArray as _NDArray
except (ImportError, AttributeError, OSError) as _error:
    # MXNet 1.9 asks NumPy for names that NumPy 1.24 has no longer, and loads a library that wants others.
    raise ImportError(
        f"farandole.mxnet needs MXNet, which cannot be imported here ({_error}); with Python 3.11 or older: "
        "pip install mxnet==1.9.1 'numpy<1.24'"
    ) from _error

from farandole.mxnet import compression, functions, mpi_ops
from farandole.mxnet import phases as _phases
from farandole.mxnet.compression import Compression
from farandole.mxnet.functions import *
from farandole.mxnet.mpi_ops import *
from farandole.mxnet.optimizer import DistributedOptimizer
from farandole.mxnet.trainer import DistributedTrainer

__all__ = [
    *mpi_ops.__all__,
    *functions.__all__,
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "compression",
    "functions",
    "mpi_ops",
]
