"""`horovod.torch.elastic.state` is `farandole.torch.elastic.state`: importing this name gives that module itself."""

import sys

from farandole.torch.elastic.state import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.torch.elastic.state"]
