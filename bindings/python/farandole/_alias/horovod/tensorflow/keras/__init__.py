"""`horovod.tensorflow.keras`: what Horovod exports to scripts that use `tf.keras`, name by name, from `farandole.tensorflow.keras`."""

import horovod.tensorflow  # noqa: F401 -- says what is missing where TensorFlow is
from farandole.tensorflow.keras import *  # noqa: F403 -- what it exports is the list, and a test knows it by heart
from horovod.tensorflow.keras import callbacks, elastic
