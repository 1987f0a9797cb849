"""`horovod.torch.optimizer` is `farandole.torch.optimizer`: importing this name gives that module itself."""

import sys

from farandole.torch.optimizer import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.optimizer"]
