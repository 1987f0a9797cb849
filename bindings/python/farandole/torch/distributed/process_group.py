"""The process group that Python callers get: `FarandoleProcessGroup`.

torch's own `ProcessGroup` with a backend in it would do, but it hands a Python backend's `Work` on in a wrapper that
answers `wait` and `get_future` alone. Here Python callers get the `Work` itself, without a way through C++; C++ callers
(the reducer of DistributedDataParallel) come in through the same methods. The backend is registered inside, so whatever
asks a group for its backend finds it.

Where a group has other backends beside this one ("cpu:farandole,cuda:nccl"), torch's group stays.

Before a backend could be written in Python, a process group could: there the group has the operations alone, and knows
its name itself, which torch keeps in backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from farandole.torch.distributed import membership
from farandole.torch.distributed.backend import CAN_BE_REGISTERED, NAME, FarandoleBackend

__all__ = ["NAME", "FarandoleProcessGroup", "create"]

_OPERATIONS = (
    "abort",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "scatter",
    "send",
    "set_timeout",
    "shutdown",
)

_OLD_NAMES = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "alltoall_base": "all_to_all_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}
"""Names that torch keeps for callers from before."""


class FarandoleProcessGroup(dist.ProcessGroup):
    """See the module's text. Its operations are those of the backend."""

    def __init__(self, backend: FarandoleBackend, store: Any) -> None:
        self.backend, self.store = backend, store
        if not CAN_BE_REGISTERED:
            super().__init__(backend.rank(), backend.size())
            return
        super().__init__(store, backend.rank(), backend.size())
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        for device in dist.Backend.backend_capability[NAME]:
            self._register_backend(torch.device(device), kind, backend)

    def getBackendName(self) -> str:
        """The name of the backend."""
        return NAME

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: Optional[timedelta] = None,
        opts: Any = None,
        group_name: Optional[str] = None,
        group_desc: Optional[str] = None,
        device_types: Any = None,
    ) -> Optional[FarandoleProcessGroup]:
        """A group of these ranks of this one; `None` on ranks that are not among them.

        opts, device_types: of no use here: the backend has no options, and serves every device.
        """
        store = dist.PrefixStore(f"{group_name}/", self.store)
        part = self.backend.part(store, ranks, timeout or dist.default_pg_timeout)
        if part is None:
            return None
        group = FarandoleProcessGroup(part, store)
        group._set_group_name(group_name or "")  # type: ignore[arg-type]  # A name for types alone.
        group._set_group_desc(group_desc or f"{self.group_desc}:split")
        return group


class _NamedProcessGroup(FarandoleProcessGroup):
    """A group without a backend in it."""

    _name = _description = ""

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:
        """The name that torch has given it."""
        return self._name

    def getGroupDesc(self) -> str:
        """What torch says of it."""
        return self._description


def _forward(operation: str) -> Any:
    def call(self: FarandoleProcessGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self.backend, operation)(*arguments, **options)

    call.__name__, call.__doc__ = operation, getattr(FarandoleBackend, operation).__doc__
    return call


for _name, _operation in [*zip(_OPERATIONS, _OPERATIONS), *_OLD_NAMES.items()]:
    setattr(FarandoleProcessGroup, _name, _forward(_operation))


def create(options: Any, _backend_options: Any) -> Union[FarandoleProcessGroup, FarandoleBackend]:
    """Makes a process group, or the backend of one that has others, too. torch calls this on all members."""
    joined = membership.join(
        options.store, options.group_rank, options.group_size, list(options.global_ranks_in_group)
    )
    backend = FarandoleBackend(joined, options.store, options.timeout)
    whole = getattr(options, "process_group", None) if CAN_BE_REGISTERED else None
    if whole is not None and whole.name() != "custom":
        return backend
    return (FarandoleProcessGroup if CAN_BE_REGISTERED else _NamedProcessGroup)(backend, options.store)
