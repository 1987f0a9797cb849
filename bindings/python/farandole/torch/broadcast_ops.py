"""Broadcast: one rank's tensor for all.

The root is a rank of the world, also within a process set.

The form that returns a new tensor is differentiable, with Horovod's gradient: the *average* of the ranks' gradients on
the root, and zero elsewhere.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from farandole import _native
from farandole.exports import Average
from farandole.process_sets import ProcessSet, global_process_set, group_for
from farandole.torch import device_memory, handles, lent_memory, staging
from farandole.torch.reduce import allreduce, differentiable

__all__ = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def _submit(
    name: str, loan: lent_memory.Loan, output: Optional[torch.Tensor], root_rank: int, group: int
) -> staging.AnyWork:
    destination = None if output is None else (output.data_ptr(), output)
    root_rank = int(root_rank)
    return staging.submit(
        [loan], lambda: [_native.broadcast(name, *loan.native_arguments(), root_rank, group, destination)]
    )


def _start_on_device(
    tensor: torch.Tensor, name: Optional[str], root_rank: int, group: int, *, in_place: bool
) -> Optional[int]:
    """A handle, if the tensor is broadcast in the memory of its GPU."""
    collective = ("broadcast", int(root_rank))
    if not device_memory.lies_there(tensor) or not device_memory.takes([tensor], collective, group):
        return None
    if in_place:
        lent_memory.check_writable(tensor)
    full_name = handles.name_of("broadcast", name, group)
    output = None if in_place else device_memory.new_like(tensor)
    lent = device_memory.Lent(full_name, tensor, output)
    work = device_memory.submit([lent], collective, group)
    return handles.put(work, lambda _results: lent.take_back() if output is None else output)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Asks for the root's tensor. All ranks' tensors have the same shape and type; they are left as they are, and a new
    one comes from `synchronize` of the returned handle."""
    group = group_for(process_set, "Broadcast")
    handle = _start_on_device(tensor, name, root_rank, group, in_place=False)
    if handle is not None:
        return handle
    loan, output = lent_memory.lend_for_copy(tensor)
    work = _submit(handles.name_of("broadcast", name, group), loan, output, root_rank, group)
    return handles.put(work, lambda _results: loan.result() if output is None else output)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `broadcast_async`, in place: `synchronize` returns the tensor itself, which then holds the root's data."""
    group = group_for(process_set, "Broadcast")
    handle = _start_on_device(tensor, name, root_rank, group, in_place=True)
    if handle is not None:
        return handle
    loan = lent_memory.lend_to_write(tensor)
    full_name = handles.name_of("broadcast", name, group)
    work = _submit(full_name, loan, None, root_rank, group)
    return handles.put(work, lambda _results: loan.copy_back(full_name))


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `broadcast`, in place and not differentiable. Returns the tensor."""
    return handles.synchronize(broadcast_async_(tensor, root_rank, name, process_set))


class HorovodBroadcast(torch.autograd.Function):
    """Broadcast for autograd."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        return handles.synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        grad = allreduce(grad_output, op=Average, process_set=ctx.process_set)
        if _native.rank() != ctx.root_rank:
            # A product, and not zeros: a second derivative must find its way to the other ranks.
            grad = grad * 0
        return grad, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the root's tensor as a new one. All ranks' tensors have the same shape and type. Differentiable."""
    if differentiable(tensor):
        return HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    return handles.synchronize(broadcast_async(tensor, root_rank, name, process_set))
