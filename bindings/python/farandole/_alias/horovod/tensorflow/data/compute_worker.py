"""`horovod.tensorflow.data.compute_worker` is `farandole.tensorflow.data.compute_worker`, as a module and as a program
(`python -m`)."""

import sys

from farandole.tensorflow.data.compute_worker import *  # noqa: F403

if __name__ == "__main__":
    import runpy

    # Loaded above as a module; it runs once more as the program.
    del sys.modules["farandole.tensorflow.data.compute_worker"]
    runpy.run_module("farandole.tensorflow.data.compute_worker", run_name="__main__", alter_sys=True)
else:
    sys.modules[__name__] = sys.modules["farandole.tensorflow.data.compute_worker"]
