"""`horovod.tensorflow.util` is `farandole.tensorflow.util`: importing this name gives that module itself."""

import sys

from farandole.tensorflow.util import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.util"]
