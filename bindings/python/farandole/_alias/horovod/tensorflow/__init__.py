"""`horovod.tensorflow`: what Horovod exports to TensorFlow scripts, name by name, from `farandole.tensorflow`.

The submodules that scripts import by themselves (`mpi_ops`, `functions`, `compression`, `util`, …) are Farandole's own
modules under these names. Without TensorFlow the import fails and says what to install.
"""

import importlib.util

if importlib.util.find_spec("tensorflow") is None:
    raise ImportError(f"{__name__} needs TensorFlow, which is not installed for this Python: pip install tensorflow")

from farandole.tensorflow import *  # noqa: E402, F403 -- what it exports is the list, and a test knows it by heart
from farandole.tensorflow import __getattr__  # noqa: E402, F401 -- makes SyncBatchNormalization when it is asked for
from farandole.tensorflow.mpi_ops import _allreduce, _grouped_allreduce  # noqa: E402, F401
from farandole.tensorflow.util import _cache, _executing_eagerly, _make_subgraph  # noqa: E402, F401
from horovod.common.util import check_extension, gpu_available, split_list  # noqa: E402, F401
from horovod.tensorflow import (  # noqa: E402
    compression,
    functions,
    gradient_aggregation,
    gradient_aggregation_eager,
    sync_batch_norm,
)
import horovod.tensorflow.elastic  # noqa: E402, F401 -- these three are names of what has come with the others, too
import horovod.tensorflow.mpi_ops  # noqa: E402, F401
import horovod.tensorflow.util  # noqa: E402, F401


def _check_has_gpu() -> bool:
    """Whether TensorFlow sees a GPU; `horovod.common.util.gpu_available("tensorflow")` asks this."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
