"""`horovod.mxnet`: what Horovod exports to MXNet scripts, name by name, from `farandole.mxnet`.

The submodules that scripts import by themselves (`mpi_ops`, `functions`, `compression`) are Farandole's own modules
under these names. Without MXNet the import fails and says what to install.
"""

from horovod.common.util import check_extension, extension_available, split_list

if not extension_available("mxnet"):
    raise ImportError(
        f"{__name__} needs MXNet, which is not installed for this Python; with Python 3.11 or older: "
        "pip install mxnet==1.9.1 'numpy<1.24'"
    )

from farandole.mxnet import *  # noqa: E402, F403 -- what it exports is the list, and a test knows it by heart
import horovod.mxnet.compression  # noqa: E402, F401 -- these three are names of what has come with the others, too
import horovod.mxnet.functions  # noqa: E402, F401
import horovod.mxnet.mpi_ops  # noqa: E402, F401


def _check_has_gpu() -> bool:
    """Whether MXNet sees a GPU; `horovod.common.util.gpu_available("mxnet")` asks this."""
    import mxnet

    return mxnet.context.num_gpus() > 0
