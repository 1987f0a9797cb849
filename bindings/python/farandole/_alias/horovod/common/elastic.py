"""`horovod.common.elastic` is `farandole.elastic`: importing this name gives that module itself."""

import sys

from farandole.elastic import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.elastic"]
