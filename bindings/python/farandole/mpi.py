"""Jobs that `mpirun` started: how to tell them, and what mpi4py expects of us there.

Owns two questions and one favour. Farandole sends nothing through MPI; it meets through what the launcher left in the
environment and then uses its own transports. But a script under `mpirun` may use mpi4py beside us, and one that was
written for Horovod may have told mpi4py not to initialise MPI (`mpi4py.rc.initialize = False`), because Horovod did.
Then we do, through mpi4py.

Invariant: MPI is touched only where an MPI launcher started the job *and* the script has imported mpi4py and asked to
be spared the initialisation. mpi4py is never imported by us otherwise; importing it would initialise MPI.
"""

from __future__ import annotations

import atexit
import os
import sys

__all__ = ["initialise_for_mpi4py", "started_this_job"]

# Launchers that leave variables of their own and go before MPI's, as they do when ranks look for each other.
_OTHER_LAUNCHERS = ("FARANDOLE_RANK", "HOROVOD_RANK", "TORCHELASTIC_RUN_ID")
_MPI_LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def started_this_job() -> bool:
    """Whether `mpirun` (Open MPI, MPICH and relatives) started this process as a rank."""
    if any(variable in os.environ for variable in _OTHER_LAUNCHERS):
        return False
    return any(variable in os.environ for variable in _MPI_LAUNCHERS)


def initialise_for_mpi4py() -> None:
    """Initialises MPI where the script counts on `init` to do so; the end of the process finalises it."""
    mpi4py = sys.modules.get("mpi4py")
    if mpi4py is None or mpi4py.rc.initialize or not started_this_job():
        return
    from mpi4py import MPI

    if MPI.Is_initialized():
        return
    # As Horovod asks for it: the script may call MPI from any thread; we never do.
    MPI.Init_thread(MPI.THREAD_MULTIPLE)

    def finalise() -> None:
        if not MPI.Is_finalized():
            MPI.Finalize()

    atexit.register(finalise)
