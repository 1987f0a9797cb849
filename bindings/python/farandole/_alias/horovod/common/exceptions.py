"""`horovod.common.exceptions` is `farandole.exceptions`: importing this name gives that module itself."""

import sys

from farandole.exceptions import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.exceptions"]
