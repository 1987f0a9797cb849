"""`horovod.common.basics` is `farandole.basics`: importing this name gives that module itself."""

import sys

from farandole.basics import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.basics"]
