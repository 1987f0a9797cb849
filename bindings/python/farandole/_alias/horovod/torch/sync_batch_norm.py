"""`horovod.torch.sync_batch_norm` is `farandole.torch.sync_batch_norm`: importing this name gives that module
itself."""

import sys

from farandole.torch.sync_batch_norm import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.sync_batch_norm"]
