"""Operations without data: barrier and join."""

from __future__ import annotations

from farandole import _native
from farandole.process_sets import ProcessSet, global_process_set, group_for, ranks_of
from farandole.torch import handles, staging

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the process set have called it."""
    group = group_for(process_set, "Barrier")
    name = handles.name_of("barrier", None, group)
    staging.Work([_native.barrier(name, group)]).wait()


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data, and returns when all ranks of the process set have said so: the rank that
    said it last.

    Until then this rank takes part in the operations of the others without data of its own: it adds zeros to sums and
    averages, ones to products, and nothing to what is gathered. (Horovod: in allreduce only;
    FARANDOLE_JOIN_EVERYTHING=0 has that.)

    device: where Horovod would make its zeros. Here they are made in host memory, and this is not used.
    """
    del device
    group = group_for(process_set, "Join")
    [result] = staging.Work([_native.join(group)]).wait()
    handles.count_anew(group)
    return ranks_of(group)[result.last_joined]
