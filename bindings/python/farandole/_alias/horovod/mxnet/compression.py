"""`horovod.mxnet.compression` is `farandole.mxnet.compression`: importing this name gives that module itself."""

import sys

from farandole.mxnet.compression import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.mxnet.compression"]
