"""`horovod.keras`: what Horovod exports to scripts that use Keras by itself, name by name, from `farandole.keras`."""

import importlib.util

if importlib.util.find_spec("keras") is None:
    raise ImportError(f"{__name__} needs Keras, which is not installed for this Python: pip install keras")

from farandole.keras import *  # noqa: E402, F403 -- what it exports is the list, and a test knows it by heart
import horovod.keras.callbacks  # noqa: E402, F401 -- under this name, too; the object has come with the others
import horovod.keras.elastic  # noqa: E402, F401
