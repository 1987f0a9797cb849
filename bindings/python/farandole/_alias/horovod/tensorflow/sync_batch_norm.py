"""`horovod.tensorflow.sync_batch_norm` is `farandole.tensorflow.sync_batch_norm`: importing this name gives that module
itself."""

import sys

from farandole.tensorflow.sync_batch_norm import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.sync_batch_norm"]
