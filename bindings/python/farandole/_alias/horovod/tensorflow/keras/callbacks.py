"""`horovod.tensorflow.keras.callbacks` is `farandole.tensorflow.keras.callbacks`: importing this name gives that module
itself."""

import sys

from farandole.tensorflow.keras.callbacks import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.tensorflow.keras.callbacks"]
