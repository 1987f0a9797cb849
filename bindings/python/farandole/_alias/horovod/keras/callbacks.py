"""`horovod.keras.callbacks` is `farandole.keras.callbacks`: importing this name gives that module itself."""

import sys

from farandole.keras.callbacks import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.keras.callbacks"]
