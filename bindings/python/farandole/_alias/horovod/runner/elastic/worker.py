"""`horovod.runner.elastic.worker` is `farandole.elastic.notification`: importing this name gives that module itself."""

import sys

from farandole.elastic.notification import *  # noqa: F403

sys.modules[__name__] = sys.modules["farandole.elastic.notification"]
