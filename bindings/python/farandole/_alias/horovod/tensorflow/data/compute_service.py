"""`horovod.tensorflow.data.compute_service` is `farandole.tensorflow.data.compute_service`: importing this name gives
that module itself."""

import sys

from farandole.tensorflow.data.compute_service import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.data.compute_service"]
