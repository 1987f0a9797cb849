"""`horovod.tensorflow.gradient_aggregation_eager` is `farandole.tensorflow.gradient_aggregation_eager`: importing this
name gives that module itself."""

import sys

from farandole.tensorflow.gradient_aggregation_eager import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.gradient_aggregation_eager"]
