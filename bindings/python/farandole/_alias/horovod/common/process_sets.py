"""`horovod.common.process_sets` is `farandole.process_sets`: importing this name gives that module itself."""

import sys

from farandole.process_sets import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.process_sets"]
