"""Reduces the gradients of torch's `DistributedDataParallel` through the engine, whatever its process group is.

`model.register_comm_hook(state, ddp_comm_hook)` has DDP hand each bucket of gradients to `ddp_comm_hook` in place of
its process group, which keeps the rest: the first broadcast of weights, and whatever else the script asks it for. A
bucket is reduced in place while backward computes the next ones; with compression a narrower copy of it is. On a GPU
that happens in its memory, and the host may run ahead of it (`run_ahead`).

Ranks of the hook's process set and those of DDP's process group must be the same processes, and calls are matched by
their order (`distributed.call_names`), as those of a process group are. DDP hands its buckets out in the same order on
all ranks, and waits for all of them before backward returns.

Not here: a process group of the engine's own, which needs no hook (`farandole.torch.distributed`).
"""

# No annotations as text: DDP compares those of the hook with the types that it asks for.

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Union

import torch
import torch.distributed as dist

from farandole import _native, basics
from farandole.exceptions import FarandoleError
from farandole.exports import Average
from farandole.process_sets import ProcessSet, global_process_set, group_for
from farandole.torch import device_memory, lent_memory, staging
from farandole.torch.compression import Compression, NoneCompressor
from farandole.torch.distributed.call_names import CallNames
from farandole.torch.distributed.work import FutureThread, Work, as_backend_error

__all__ = ["DdpCommState", "ddp_comm_hook"]


@dataclass(frozen=True)
class DdpCommState:
    """How `ddp_comm_hook` reduces: the first argument of `register_comm_hook`."""

    process_set: ProcessSet = global_process_set
    """The ranks of DDP's process group, as a process set."""
    compression: Any = Compression.none
    """What is sent in place of a bucket: `Compression.none`, `.fp16`, `.bf16` or your own."""
    op: int = Average
    """`Average`, as DDP's own reduction, or another one."""


_DEFAULT = DdpCommState()

_names: dict[int, CallNames] = {}
"""By process set. All models of a set share the sequence: what names come next depends on the calls alone."""

_futures = FutureThread()

_LONGEST_WAIT = timedelta.max
"""A stalled bucket is reported by the engine, and ended by it where the user says so."""


def _reset() -> None:
    _names.clear()


basics.on_reset(_reset)


def ddp_comm_hook(
    state: Union[DdpCommState, ProcessSet, None], bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for `DistributedDataParallel.register_comm_hook`: averages gradients through the engine.

    state: `None` for all ranks of the job, a process set, or a `DdpCommState`, which also chooses compression and
        reduction. Call `farandole.torch.init()` before the first backward pass.
    """
    how = _as_state(state)
    if not _native.is_initialized():
        raise ValueError("farandole.torch.ddp_comm_hook: call farandole.torch.init() before the first backward pass.")
    group = group_for(how.process_set, "ddp_comm_hook")
    buffer = bucket.buffer()
    packed, context = how.compression.compress(buffer)
    # With the number of the bucket, so that buckets of one size in a row are not taken for a repetition.
    signature = bucket.index(), how.op, packed.dtype, packed.numel()
    name, _ = _names.setdefault(group, CallNames("ddp")).next(signature)
    try:
        requests, take_back = _submit(packed, name, how.op, group)
    except FarandoleError as error:
        raise as_backend_error(error) from None

    def finish(_results: Any) -> list[torch.Tensor]:
        reduced = take_back()
        return [buffer if how.compression is NoneCompressor else how.compression.decompress(reduced, context)]

    return Work(name, requests, finish, _LONGEST_WAIT, _futures).get_future(part=lambda tensors: tensors[0])


def _submit(
    packed: torch.Tensor, name: str, op: int, group: int
) -> tuple[staging.RequestWork, Callable[[], torch.Tensor]]:
    """Reduces a bucket, or its narrow copy, in place. The second value returns it when it is reduced."""
    collective = ("allreduce", op, 1.0, 1.0)
    if device_memory.lies_there(packed) and device_memory.takes([packed], collective, group):
        lent = device_memory.Lent(name, packed)
        return device_memory.submit([lent], collective, group), lent.take_back
    loan = lent_memory.lend_to_write(packed)

    def ask() -> list[_native.Handle]:
        return _native.allreduce_many([(name, *loan.native_arguments(), op, 1.0, 1.0, group, None, 0, None)])

    return staging.submit([loan], ask), lambda: loan.copy_back(name)


def _as_state(state: Any) -> DdpCommState:
    if state is None:
        return _DEFAULT
    if isinstance(state, ProcessSet):
        return DdpCommState(state)
    if not isinstance(state, DdpCommState):
        raise ValueError(
            "The state of farandole.torch.ddp_comm_hook is None, a ProcessSet or a DdpCommState, not "
            f"{type(state).__name__}."
        )
    return state
