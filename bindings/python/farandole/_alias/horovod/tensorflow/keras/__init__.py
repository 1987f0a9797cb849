"""`horovod.tensorflow.keras`: what Horovod exports to scripts that use `tf.keras`, name by name, from
`farandole.tensorflow.keras`."""

import horovod.tensorflow  # noqa: F401 -- says what is missing where TensorFlow is
from farandole.tensorflow.keras import *  # noqa: F403 -- what it exports is the list, and a test knows it by heart
import horovod.tensorflow.keras.callbacks  # noqa: F401 -- under this name, too; the object has come with the others
import horovod.tensorflow.keras.elastic  # noqa: F401
