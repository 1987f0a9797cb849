"""`horovod.keras.elastic` is `farandole.keras.elastic`: importing this name gives that module itself."""

import sys

from farandole.keras.elastic import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.keras.elastic"]
