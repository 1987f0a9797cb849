"""`horovod.tensorflow.functions` is `farandole.tensorflow.functions`: importing this name gives that module itself."""

import sys

from farandole.tensorflow.functions import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.functions"]
