"""`horovod.tensorflow.gradient_aggregation` is `farandole.tensorflow.gradient_aggregation`: importing this name gives
that module itself."""

import sys

from farandole.tensorflow.gradient_aggregation import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.gradient_aggregation"]
