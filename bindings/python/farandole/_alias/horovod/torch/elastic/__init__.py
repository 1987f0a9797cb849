"""`horovod.torch.elastic` is `farandole.torch.elastic`: importing this name gives that module itself."""

import sys

from farandole.torch.elastic import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.elastic"]
