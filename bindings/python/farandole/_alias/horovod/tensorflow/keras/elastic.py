"""`horovod.tensorflow.keras.elastic` is `farandole.tensorflow.keras.elastic`: importing this name gives that module
itself."""

import sys

from farandole.tensorflow.keras.elastic import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.keras.elastic"]
