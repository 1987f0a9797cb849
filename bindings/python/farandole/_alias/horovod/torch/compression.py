"""`horovod.torch.compression` is `farandole.torch.compression`: importing this name gives that module itself."""

import sys

from farandole.torch.compression import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.compression"]
