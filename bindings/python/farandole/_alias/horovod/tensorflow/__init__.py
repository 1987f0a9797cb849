"""`horovod.tensorflow`: what Horovod exports to TensorFlow scripts, name by name, from `farandole.tensorflow`.

The submodules that scripts import by themselves (`mpi_ops`, `functions`, `compression`, `util`, …) are Farandole's own modules under
these names. Without TensorFlow the import fails and says what to install.
"""

import importlib.util

if importlib.util.find_spec("tensorflow") is None:
    raise ImportError(f"{__name__} needs TensorFlow, which is not installed for this Python: pip install tensorflow")

from farandole.tensorflow import *  # noqa: E402, F403 -- what it exports is the list, and a test knows it by heart
from farandole.basics import handle_average_backwards_compatibility  # noqa: E402, F401
from horovod.common.util import check_extension, gpu_available, split_list  # noqa: E402, F401
from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2  # noqa: E402, F401
from horovod.tensorflow import (  # noqa: E402
    compression,
    elastic,
    functions,
    gradient_aggregation,
    gradient_aggregation_eager,
    mpi_ops,
    sync_batch_norm,
    util,
)

# Horovod's modules share these with each other through the package; its tests and some scripts use them.
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper  # noqa: E402, F401
from horovod.tensorflow.mpi_ops import _allreduce, _grouped_allreduce  # noqa: E402, F401
from horovod.tensorflow.util import (  # noqa: E402, F401
    _cache,
    _executing_eagerly,
    _make_subgraph,
    refs_to_vars,
    vars_to_refs,
)


def _check_has_gpu() -> bool:
    """Whether TensorFlow sees a GPU; `horovod.common.util.gpu_available("tensorflow")` asks this."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
