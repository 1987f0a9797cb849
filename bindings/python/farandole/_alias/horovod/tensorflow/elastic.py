"""`horovod.tensorflow.elastic` is `farandole.tensorflow.elastic`: importing this name gives that module itself."""

import sys

from farandole.tensorflow.elastic import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.elastic"]
