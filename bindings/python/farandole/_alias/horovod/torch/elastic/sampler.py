"""`horovod.torch.elastic.sampler` is `farandole.torch.elastic.sampler`: importing this name gives that module
itself."""

import sys

from farandole.torch.elastic.sampler import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.elastic.sampler"]
