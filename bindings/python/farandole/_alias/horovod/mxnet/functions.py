"""`horovod.mxnet.functions` is `farandole.mxnet.functions`: importing this name gives that module itself."""

import sys

from farandole.mxnet.functions import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.mxnet.functions"]
