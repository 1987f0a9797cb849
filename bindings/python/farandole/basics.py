"""Joining and leaving a job, and what a process can ask about its place in it.

`HorovodBasics` carries Horovod's names; one instance, `basics`, serves all front ends, because a process has one
engine. Front ends that keep state of their own about the engine's requests register with `on_reset`, those that want to
know of a new job with `on_init`, and those that have something to finish before it ends with `on_shutdown`.

Invariant: the sets of `process_sets` and the state of front ends belong to the engine that runs now. They are forgotten
before an engine starts and after it has ended.

**Which `*_built` are true.** They say what Horovod was compiled with, and scripts use them to pick a code path. Here
nothing is compiled in: host memory travels through our own transports, which need nothing else installed, as Gloo does
in Horovod. So `gloo_built` and `gloo_enabled` are true. `mpi_built` is true, because jobs may be started by `mpirun`
and described by communicators of mpi4py, and `mpi_enabled` says whether this job was; data never travels through MPI.
`nccl_built` and `cuda_built` look whether the libraries are there when they are asked: both are opened at run time, by
`init` where tensors on GPUs may come, and not by importing anything. oneCCL, DDL and ROCm are not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from farandole import _ending, _native, _traceback, mpi
from farandole import process_sets as _process_sets
from farandole.process_sets import ProcessSet, is_communicator

__all__ = ["HorovodBasics", "basics", "handle_average_backwards_compatibility"]


# The hook of the second calls that of the first.
_traceback.install()
_ending.watch()

_on_reset: list[Callable[[], None]] = []
_on_init: list[Callable[[], None]] = []
_on_shutdown: list[Callable[[], None]] = []


def on_init(begin: Callable[[], None]) -> None:
    """Has `begin` called whenever this process has become a rank of a job, on the thread that called `init`; at once if
    it is one."""
    _on_init.append(begin)
    if _native.is_initialized():
        begin()


def on_reset(forget: Callable[[], None]) -> None:
    """Has `forget` called whenever the engine begins or ends."""
    _on_reset.append(forget)


def on_shutdown(finish: Callable[[], None]) -> None:
    """Has `finish` called before this process leaves its job by `shutdown`. What it raises is raised when the job is
    left."""
    _on_shutdown.append(finish)


def _reset() -> None:
    for forget in _on_reset:
        forget()


def _nccl_files() -> list[str]:
    """Where wheels of frameworks keep NCCL, which no dynamic linker looks at. Nothing is imported for it."""
    files = (os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so.2") for folder in sys.path)
    return [file for file in files if os.path.exists(file)]


class HorovodBasics:
    """Horovod's basic API. Arguments of the constructor (where Horovod's library lies) are accepted and ignored: the
    library is the module that is loaded already."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    def __init__(self, *_unused: object) -> None:
        self._wire_protection: Optional[str] = None
        #: Makes this process a rank, if it is to be one later.
        self._later: Optional[Callable[[Optional[Callable[[Any], None]]], None]] = None
        #: Whether `init` was told so, in an elastic job.
        self.was_to_join_later = False

    @functools.cached_property
    def MPI_LIB_CTYPES(self) -> ctypes.CDLL:
        """The C functions of the engine of this process, for ctypes: Horovod's, which begin with `horovod_`, and our
        own. `horovod.h` and `farandole.h` declare them. They act on the same job as everything here. C code that begins
        or ends the job goes past the front ends: call `init` and `shutdown` here as well."""
        return ctypes.CDLL(_native.__file__)

    def init(
        self,
        comm: Union[Sequence[int], Any, None] = None,
        process_sets: Union[Sequence[ProcessSet], str, None] = None,
        *,
        wire_protection: Optional[str] = None,
        store_rank: Optional[tuple[int, int, str, Optional[str]]] = None,
        elastic_join: str = "now",
    ) -> None:
        """Makes this process a rank of its job.

        comm: `None`, or all ranks of the job as a list or as a communicator of mpi4py. A part of the job cannot be
            chosen here; use process sets.
        process_sets: sets to register, the same on all ranks; or `"dynamic"`, to add sets later. Sets that are the same
            are refused with a `ValueError`; the job is initialised nevertheless and may be initialised again with a
            proper list.
        wire_protection: how tensors are protected between hosts, the same on all ranks: `"off"`, `"checksum"` (CRC32C)
            or `"encrypt"` (AES-256-GCM). `None`: what FARANDOLE_WIRE_PROTECTION says. Not in Horovod.
        store_rank: for processes that know each other through a store: rank, size, a word that all ranks of this job
            and no others have, and where rank 0 can be met if there are several hosts. Not in Horovod.
        elastic_join: `"now"`, or `"later"`: in an elastic job `hvd.elastic.Training` makes this process a rank, when it
            is first used. Until then whatever needs rank or size raises. A process that joins has its model by then,
            and gets the state of the others while they go on (`Training(streamed=True)`). Not in Horovod.

        Does nothing to the engine if it runs already. May be called again after `shutdown`.
        """
        if isinstance(process_sets, str):
            if process_sets.lower() != "dynamic":
                raise ValueError(f'process_sets is a list of hvd.ProcessSet or "dynamic", not {process_sets!r}')
            # Stays for the life of the process, as with Horovod: a job that is initialised again is dynamic again.
            os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
            process_sets = None
        self._wire_protection = wire_protection
        own_sets = list(process_sets or ())
        mpi.initialise_for_mpi4py()
        if comm is not None and not is_communicator(comm):
            comm = _rank_list(comm)
        if elastic_join not in ("now", "later"):
            raise ValueError(f'elastic_join is "now" or "later", not {elastic_join!r}')
        begin = functools.partial(self._begin, comm, own_sets, wire_protection, store_rank)
        if elastic_join == "later" and _native.elastic_enabled() and not _native.is_initialized():
            self._later, self.was_to_join_later = begin, True
            _native.join_later()
            return
        begin(None)

    def join_job(self, follow: Optional[Callable[[Any], None]] = None) -> None:
        """Makes this process a rank, if `init` has left that for later. `follow` is called in a process that joins a
        job whose members stream their states, with a `_native.Joining`; it gets one of them."""
        if self._later is not None and not _native.is_initialized():
            self._later(follow)

    def _begin(
        self,
        comm: Any,
        own_sets: list[ProcessSet],
        wire_protection: Optional[str],
        store_rank: Optional[tuple[int, int, str, Optional[str]]],
        follow: Optional[Callable[[Any], None]],
    ) -> None:
        distinct = _distinct_ranks(own_sets, comm)
        if not _native.is_initialized():
            _reset()
            _process_sets.forget()
            dynamic = _native.switch_setting("FARANDOLE_DYNAMIC_PROCESS_SETS")
            _native.init(
                distinct,
                dynamic=dynamic,
                wire_protection=wire_protection,
                store_rank=store_rank,
                nccl_files=_nccl_files(),
                follow=follow,
            )
            self._later = None
            try:
                _check_covers_job(comm)
            except ValueError:
                self.shutdown()
                raise
        _process_sets.refresh()
        if is_communicator(comm):
            _process_sets.global_process_set.mpi_comm = comm
        _process_sets.bind(own_sets)
        for begin in _on_init:
            begin()

    def shutdown(self) -> None:
        """Leaves the job. Requests under way fail. Does nothing if the process is in none. The end of the process does
        it, too."""
        with contextlib.ExitStack() as leaving:
            # Callbacks run in the opposite order.
            leaving.callback(_reset)
            leaving.callback(_process_sets.forget)
            leaving.callback(_native.shutdown)
            for finish in _on_shutdown:
                leaving.callback(finish)

    def init_again(self) -> None:
        """Enters the next generation of an elastic job, protected as `init` was told last. Process sets are gone."""
        self.init(wire_protection=self._wire_protection)

    def is_initialized(self) -> bool:
        """Whether this process is a rank of a job now."""
        return _native.is_initialized()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Begins to record a timeline into a file. HOROVOD_TIMELINE must have been set (to DYNAMIC, say) at `init`."""
        _native.start_timeline(os.fspath(file_path), bool(mark_cycles))

    def stop_timeline(self) -> None:
        """Ends the recording and closes the file."""
        _native.stop_timeline()

    def size(self) -> int:
        """Number of ranks of the job."""
        return _native.size()

    def local_size(self) -> int:
        """Number of ranks on this host."""
        return _native.local_size()

    def cross_size(self) -> int:
        """Number of hosts that have a rank with this local rank."""
        return _native.cross_size()

    def rank(self) -> int:
        """This process's number in the job, from zero."""
        return _native.rank()

    def local_rank(self) -> int:
        """This process's number on its host, from zero."""
        return _native.local_rank()

    def cross_rank(self) -> int:
        """The number of this host among those that have a rank with this local rank."""
        return _native.cross_rank()

    def is_homogeneous(self) -> bool:
        """Whether every host has the same number of ranks."""
        return _native.is_homogeneous()

    def mpi_threads_supported(self) -> bool:
        """True: this library makes no calls of MPI that could be in the way of other threads'. `ValueError` without
        `mpirun`."""
        if not mpi.started_this_job():
            raise ValueError(f"{_native.product()} MPI is not enabled; Please make sure it's installed and enabled.")
        _native.rank()  # Raises before initialisation.
        return True

    def mpi_enabled(self) -> bool:
        """Whether `mpirun` started this job, so that mpi4py sees the same ranks."""
        return mpi.started_this_job()

    def mpi_built(self) -> bool:
        """True: `mpirun` can start jobs, and communicators of mpi4py can describe them."""
        return True

    def gloo_enabled(self) -> bool:
        """True: our own transports stand where Gloo does in Horovod."""
        return True

    def gloo_built(self) -> bool:
        """True: our own transports stand where Gloo does in Horovod."""
        return True

    def nccl_built(self) -> int:
        """NCCL's version as a number (23007 is 2.30.7) if it is there and not too old, otherwise 0. Opens it."""
        return _native.nccl_version(_nccl_files())

    def ddl_built(self) -> bool:
        """False; see the module's text."""
        return False

    def ccl_built(self) -> bool:
        """False; see the module's text."""
        return False

    def cuda_built(self) -> bool:
        """Whether CUDA's driver is there and has a device. Opens the driver."""
        return _native.has_cuda()

    def rocm_built(self) -> bool:
        """False; see the module's text."""
        return False

    def _add_process_set_impl(self, ranks: Sequence[int]) -> Optional[int]:
        if sorted(ranks) in _process_sets._registered.values():
            return None
        return _process_sets.add_process_set(list(ranks)).process_set_id

    def _remove_process_set_impl(self, process_set_id: int) -> Optional[int]:
        removed = _process_sets.remove_process_set(_process_sets._temp_process_set_object(process_set_id))
        return process_set_id if removed else None

    def _process_set_rank(self, process_set_id: int) -> int:
        place = _process_sets._temp_process_set_object(process_set_id).rank()
        assert place is not None, "invariant: a set with an id has ranks"
        return place

    def _process_set_size(self, process_set_id: int) -> int:
        return len(_process_sets.ranks_of(process_set_id))

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        if not _native.is_initialized():
            raise ValueError(f"{_native.product()} has not been initialized properly; use hvd.init().")
        return {number: list(ranks) for number, ranks in _process_sets._registered.items()}

    def _comm_process_set_id(self, comm: Any) -> int:
        members = sorted(comm.allgather(_native.rank()))
        for number, ranks in _process_sets._registered.items():
            if ranks == members:
                return number
        raise ValueError("MPI communicator does not correspond to any registered process set.")


def _rank_list(comm: Any) -> Optional[list[int]]:
    try:
        ranks = list(comm)
    except TypeError:
        ranks = [None]
    if any(not isinstance(rank, int) for rank in ranks):
        raise ValueError("Invalid type of argument comm. Expected list of rank integers or mpi4py.MPI.Comm object.")
    # Horovod takes an empty list for all ranks.
    return sorted(ranks) or None


def _distinct_ranks(own_sets: Sequence[ProcessSet], comm: Any) -> list[list[int]]:
    """The sets that the engine is to have, each once, the same on all ranks.

    A set that is defined by a communicator has other members on other ranks, where the communicator has been made by a
    split. All of them are registered everywhere: first those of rank 0's entry, then the others', in rank order.
    """
    wanted: list[list[int]] = []
    for process_set in own_sets:
        if process_set.ranks is not None and process_set.mpi_comm is None:
            wanted.append(process_set.ranks)
            continue
        if not is_communicator(comm):
            raise NotImplementedError(
                "Process sets that are defined by MPI communicators need hvd.init(comm=...) with the communicator of "
                "the job."
            )
        process_set.ranks = sorted(process_set.mpi_comm.allgather(comm.Get_rank()))
        wanted.extend(comm.allgather(process_set.ranks))
    distinct: list[list[int]] = []
    for ranks in wanted:
        if ranks not in distinct:
            distinct.append(ranks)
    return distinct


def _check_covers_job(comm: Any) -> None:
    """Refuses a communicator that is not the whole job: other ranks would wait for ones that never come."""
    size = _native.size()
    if comm is None:
        return
    if is_communicator(comm):
        if (comm.Get_rank(), comm.Get_size()) == (_native.rank(), size):
            return
        given = f"rank {comm.Get_rank()} of {comm.Get_size()} in the communicator"
    else:
        if comm == list(range(size)):
            return
        given = f"ranks {comm}"
    raise ValueError(
        f"{_native.product()} initialization failed. comm has {given}, but this is rank {_native.rank()} of a job of "
        f"{size}. Leave comm out and use process sets for a part of the job."
    )


basics = HorovodBasics()


def handle_average_backwards_compatibility(op: Optional[int], average: Optional[bool], stacklevel: int = 3) -> int:
    """The operation that a call means that may still use the old parameter `average`. `stacklevel` says how far up the
    script is."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    if average is None:
        return HorovodBasics.Average
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed in v1.0",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return HorovodBasics.Average if average else HorovodBasics.Sum
