"""`horovod.torch.functions` is `farandole.torch.functions`: importing this name gives that module itself."""

import sys

from farandole.torch.functions import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.functions"]
