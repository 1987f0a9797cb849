"""The name `horovod`, for scripts that say `import horovod.torch as hvd` and shall not be changed.

Owns nothing but names: everything here is Farandole's, under the module names under which scripts look for Horovod's.
The invariant is identity, not likeness: `horovod.torch.mpi_ops` *is* `farandole.torch.mpi_ops`, so that a process set,
an exception or a handle that one library got from `horovod` can be given to another that uses `farandole`.

Two ways lead here: `farandole run --horovod` puts the folder above this one on the path of its ranks, and the
distribution in `bindings/horovod` installs it.

Not there yet: Spark and Ray.
"""

import os

# Horovod refuses allgather, broadcast, alltoall and reducescatter while a rank has joined, and scripts may rely on the
# refusal; Farandole by itself serves them. Set before anything of Farandole's is loaded; a value of the user's stays.
os.environ.setdefault("FARANDOLE_JOIN_EVERYTHING", "0")

from farandole import _native  # noqa: E402
from horovod.runner import run  # noqa: E402

# Scripts that catch one of Horovod's errors look for its words.
_native.set_imported_as_horovod(True)

# The last release of Horovod whose API this is. The local tag tells an inquirer that this is not that library, and
# compares as newer, so that "horovod >= 0.28.1" holds.
__version__ = "0.28.1+farandole"

__all__ = ["run", "__version__"]
