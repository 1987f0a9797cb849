"""The backend "farandole" of `torch.distributed`: `torch.distributed.init_process_group("farandole")`.

An ordinary script of DistributedDataParallel, FSDP or DeviceMesh runs on the engine with this name for its backend, and
its timeline, reports and verdict are those of other jobs. Under torchrun the name is enough: an installed wheel has an
entry point of the group `torch.distributed.backends`. Under other launchers, import this module first.

Modules: `membership` (how a process group gets its ranks of the engine), `backend` (what each operation asks the engine
for) with `reductions`, `tensors` and `monitored_barrier`, `call_names` (how calls of all ranks find each other), `work`
(what an operation returns), `process_group` (what Python callers call), `rendezvous` (`env://` under launchers that do
not set torch's variables).
"""

from __future__ import annotations

import torch.distributed as dist

from farandole import basics
from farandole.torch import optimizer_steps
from farandole.torch.distributed import process_group, rendezvous, work
from farandole.torch.distributed.work import DistBackendError, DistMismatchError, DistRankLostError, DistStallError

__all__ = ["NAME", "DistBackendError", "DistMismatchError", "DistRankLostError", "DistStallError", "register"]

NAME = process_group.NAME
"""What `init_process_group` calls the backend."""


def register() -> None:
    """Makes the backend known to torch. Importing this module does it; calling it again does nothing."""
    if NAME.upper() in dist.Backend._plugins:
        return
    # One backend for both: tensors on a GPU are worked on there where the engine can.
    dist.Backend.register_backend(NAME, process_group.create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.extend_env()
    work.keep_forward_pass_works()
    work.raise_errors_of_futures()
    basics.on_init(optimizer_steps.watch)


register()
