"""Process sets: subsets of the ranks that run collectives of their own (elsewhere in Farandole: groups).

A `ProcessSet` names ranks. It becomes usable when it is *registered*: by `init(process_sets=[...])` or, in a dynamic
job, by `add_process_set`; then it has an id, the same on all ranks. What is registered is kept here by id, so that an
operation finds out without asking the engine whether this rank takes part.

Invariant: `_registered` holds what the engine knows, from `init` to `shutdown`. After a `shutdown` no set has an
id any more, except for `global_process_set`, which always has id 0 and learns its ranks anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Optional, Union

from farandole import _native

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

_NEITHER = "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"

_registered: dict[int, list[int]] = {}
"""World ranks of each registered set, ascending."""


def is_communicator(candidate: object) -> bool:
    """Whether this is a communicator of mpi4py. Asked of its methods, because importing mpi4py initialises MPI."""
    return hasattr(candidate, "Get_rank") and hasattr(candidate, "Get_size") and hasattr(candidate, "allgather")


class ProcessSet:
    """Ranks that run collectives together.

    Made of ranks in any order, or of a communicator of mpi4py. Give it to `init` or `add_process_set`, then to any
    operation. All ranks of the job register the same sets in the same order, also sets that they are not in.
    """

    process_set_id: Optional[int] = None
    ranks: Optional[list[int]] = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Union[Iterable[int], Any]) -> None:
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            return
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            raise ValueError(_NEITHER) from None
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError(_NEITHER)
        self.ranks = sorted(ranks)

    def _invalidate(self) -> None:
        self.process_set_id = None

    def size(self) -> Optional[int]:
        """Number of ranks in the set; `None` while it is not registered."""
        return None if self.process_set_id is None else len(ranks_of(self.process_set_id))

    def rank(self) -> Optional[int]:
        """This process's place in the set, from zero; `None` while the set is not registered.

        Results of `allgather` are in this order. Root ranks, though, are ranks of the world everywhere.
        """
        if self.process_set_id is None:
            return None
        ranks = ranks_of(self.process_set_id)
        me = _native.rank()
        if me not in ranks:
            raise ValueError("Process is not part of provided process set.")
        return ranks.index(me)

    def included(self) -> Optional[bool]:
        """Whether this process is in the set; `None` while its ranks are not known."""
        return None if self.ranks is None else _native.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_with_id: "weakref.WeakSet[ProcessSet]" = weakref.WeakSet()
"""Sets that lose their id at `shutdown`."""


def ranks_of(process_set_id: int) -> list[int]:
    """World ranks of a registered set, ascending."""
    if not _registered:
        # Tells apart "not initialised", which raises here, from an unknown set.
        _native.rank()
    ranks = _registered.get(process_set_id)
    if ranks is None:
        # C code in this process may have added it.
        refresh()
        ranks = _registered.get(process_set_id)
    if ranks is None:
        raise ValueError("Process set does not exist or has not been registered.")
    return ranks


def group_for(process_set: ProcessSet, operation: str) -> int:
    """The id under which this rank may ask for an operation of the set."""
    process_set_id = process_set.process_set_id
    if process_set_id == 0:
        return 0
    if process_set_id is None:
        raise ValueError(
            f"{operation}: {process_set} is not registered. Pass it to hvd.init(process_sets=[...]) or to "
            "hvd.add_process_set() first; sets of before a hvd.shutdown(), or of before a change of an elastic job, "
            "are to be registered again."
        )
    if _native.rank() not in ranks_of(process_set_id):
        raise ValueError(f"{operation}: Rank {_native.rank()} is not a member of the provided process set.")
    return process_set_id


def _temp_process_set_object(process_set_id: int) -> ProcessSet:
    """A set of which only the id is known."""
    process_set = ProcessSet.__new__(ProcessSet)
    process_set.process_set_id = process_set_id
    return process_set


def refresh() -> None:
    """Learns from the engine what is registered."""
    _registered.clear()
    _registered.update({number: sorted(ranks) for number, ranks in _native.process_sets().items()})
    if global_process_set.ranks != _registered[0]:
        global_process_set.ranks = list(_registered[0])


def forget() -> None:
    """The engine has ended, and the sets with it."""
    _registered.clear()
    for process_set in list(_with_id):
        process_set._invalidate()
    _with_id.clear()


def bind(process_sets: Sequence[ProcessSet]) -> None:
    """Gives sets the ids under which the engine knows their ranks. Raises `ValueError`, naming the first entry that is
    the same as an earlier one or as the world, or that is not registered; the others have their ids then."""
    id_by_ranks = {tuple(ranks): number for number, ranks in _registered.items()}
    seen = {0}
    problem: Optional[str] = None
    for entry, process_set in enumerate(process_sets):
        number = id_by_ranks.get(tuple(process_set.ranks or ()))
        if number is None:
            process_set._invalidate()
            problem = problem or (
                f"{_native.product()} is initialized already, and process_sets entry number {entry} is not one of its "
                f"process sets: {process_set}. Use hvd.add_process_set(), or hvd.shutdown() before hvd.init()."
            )
        elif number in seen:
            process_set._invalidate()
            problem = problem or (
                f"{_native.product()} could not be initialized because process_sets entry number {entry} is a "
                f"duplicate: {process_set}"
            )
        else:
            seen.add(number)
            process_set.process_set_id = number
            _with_id.add(process_set)
    if problem is not None:
        raise ValueError(problem)


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Registers a set in a running job and returns it. All ranks call this with the same ranks, in the same order.

    The job must be dynamic: `init(process_sets="dynamic")` or FARANDOLE_DYNAMIC_PROCESS_SETS=1.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        # Collective over the communicator; ranks that are not in it cannot know its members.
        raise NotImplementedError(
            "A process set that is defined by an MPI communicator can be given to hvd.init() only. "
            "Use a list of ranks to add one later."
        )
    if process_set.ranks in list(_registered.values()):
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    number = _native.add_process_set(process_set.ranks)
    _registered[number] = list(process_set.ranks)
    process_set.process_set_id = number
    _with_id.add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set out of a running dynamic job. All ranks call this in the same order. Says whether there was one to
    remove; the global set and unregistered ones are left alone."""
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    if number not in _registered:
        process_set._invalidate()
        _native.rank()
        return False
    _native.remove_process_set(number)
    del _registered[number]
    for other in list(_with_id):
        if other.process_set_id == number:
            other._invalidate()
            _with_id.discard(other)
    process_set._invalidate()
    return True
