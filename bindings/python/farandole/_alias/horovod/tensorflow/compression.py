"""`horovod.tensorflow.compression` is `farandole.tensorflow.compression`: importing this name gives that module
itself."""

import sys

from farandole.tensorflow.compression import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.compression"]
