"""Allgather and alltoall: rows of the first dimension from all ranks, in the order of the process set.

How large a result is depends on the other ranks; the engine makes its memory, and the tensor returned is that memory,
or on a GPU a copy of it. `synchronize` therefore waits until the ranks have agreed, on every device.

Gradients are those of Horovod. Of an allgather: the *average* of the ranks' gradients of the result, and of it this
rank's rows. Of an alltoall: the gradient's rows, sent back to where they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from farandole import _native
from farandole.exceptions import FarandoleError
from farandole.exports import Average
from farandole.process_sets import ProcessSet, global_process_set, group_for
from farandole.torch import device_memory, handles, lent_memory, staging
from farandole.torch.reduce import allreduce, differentiable, grouped_allreduce

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "grouped_allgather",
    "grouped_allgather_async",
]

Splits = Union[torch.Tensor, Sequence[int], None]

_ALLGATHER = ("allgather",)


def allgather_async(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Asks for the tensors of all ranks, one after the other along the first dimension, in which they may differ.
    The tensor is left as it is; a new one comes from `synchronize` of the returned handle."""
    group = group_for(process_set, "Allgather")
    full_name = handles.name_of("allgather", name, group)
    if device_memory.lies_there(tensor) and device_memory.takes([tensor], _ALLGATHER, group):
        gathering = device_memory.collect(device_memory.lend([full_name], [tensor]), _ALLGATHER, group)
        return handles.put(gathering, lambda results: results[0].tensor(tensor.dtype))
    loan = lent_memory.lend(tensor)
    work = staging.submit([loan], lambda: [_native.allgather(full_name, *loan.native_arguments(), group, None)])
    return handles.put(work, lambda results: lent_memory.from_result(results[0], loan.tensor.device))


def _rows_before(rows: Sequence[int], process_set: ProcessSet) -> list[int]:
    """For each tensor of which this rank gave so many rows: how many rows lower ranks gave. All ranks ask together."""
    own = torch.tensor([list(rows)], dtype=torch.int64, device="cpu")
    everybodys = handles.synchronize(allgather_async(own, None, process_set))
    place = process_set.rank()
    return everybodys[:place].sum(0).tolist()


class HorovodAllgather(torch.autograd.Function):
    """Allgather for autograd."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], process_set: ProcessSet) -> torch.Tensor:
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        ctx.process_set = process_set
        return handles.synchronize(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        grad = allreduce(grad_output, op=Average, process_set=ctx.process_set)
        [before] = _rows_before([ctx.rows], ctx.process_set)
        return grad.narrow(0, before, ctx.rows), None, None


def allgather(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns the tensors of all ranks, one after the other along the first dimension, in which they may differ.
    Differentiable."""
    if differentiable(tensor):
        return HorovodAllgather.apply(tensor, name, process_set)
    return handles.synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """As `allgather_async`, for tensors that are gathered together: none of them before all are there on all ranks.
    `synchronize` returns a list."""
    group = group_for(process_set, "Allgather")
    base_name = handles.name_of("grouped_allgather", name, group)
    batch = (base_name, len(tensors))
    if tensors and device_memory.lies_there(tensors[0]) and device_memory.takes(tensors, _ALLGATHER, group):
        names = [handles.member_name(*batch, index) for index in range(len(tensors))]
        dtypes = [tensor.dtype for tensor in tensors]
        work = device_memory.collect(device_memory.lend(names, tensors), _ALLGATHER, group, base_name)
        return handles.put(work, lambda results: [result.tensor(dtype) for result, dtype in zip(results, dtypes)])
    loans = [lent_memory.lend(tensor) for tensor in tensors]

    def ask() -> list[_native.Handle]:
        return [
            _native.allgather(handles.member_name(*batch, index), *loan.native_arguments(), group, batch)
            for index, loan in enumerate(loans)
        ]

    def finish(results: list[_native.Result]) -> list[torch.Tensor]:
        return [lent_memory.from_result(result, loan.tensor.device) for result, loan in zip(results, loans)]

    return handles.put(staging.submit(loans, ask), finish)


class HorovodGroupedAllgather(torch.autograd.Function):
    """Grouped allgather for autograd."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.process_set = process_set
        return tuple(handles.synchronize(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        grads = grouped_allreduce(grad_outputs, op=Average, process_set=ctx.process_set)
        before = _rows_before(ctx.rows, ctx.process_set)
        return (None, None, *(grad.narrow(0, *rows) for grad, *rows in zip(grads, before, ctx.rows)))


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """As `allgather`, for tensors that are gathered together. Returns a list. Differentiable."""
    if differentiable(*tensors):
        return list(HorovodGroupedAllgather.apply(name, process_set, *tensors))
    return handles.synchronize(grouped_allgather_async(tensors, name, process_set))


def _read_splits(splits: Splits) -> Optional[list[int]]:
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        if splits.dtype not in (torch.int32, torch.int64) or splits.dim() != 1:
            raise ValueError(
                "alltoall expects splits to contain 32-bit or 64-bit integer elements in one dimension, not "
                f"{splits.dtype} in {splits.dim()}."
            )
        return splits.tolist()
    splits = list(splits)
    if any(not isinstance(rows, int) for rows in splits):
        raise ValueError(f"alltoall expects splits to contain integers, not {splits}.")
    return splits


def _fit(splits: Optional[list[int]], tensor: torch.Tensor, size: int) -> bool:
    """Whether this rank's splits are right, as far as it can tell. If not, the engine refuses them on all ranks, so
    that no rank waits for this one."""
    if tensor.dim() == 0:
        return True
    rows = tensor.shape[0]
    if splits is None:
        return rows % size == 0
    return len(splits) == size and sum(splits) == rows


def _received(rows: Sequence[int], splits: Splits) -> torch.Tensor:
    """How many rows came from each rank, in the type and place of the splits that were given."""
    if isinstance(splits, torch.Tensor):
        return torch.tensor(rows, dtype=splits.dtype, device=splits.device)
    few = all(count <= torch.iinfo(torch.int32).max for count in rows)
    return torch.tensor(rows, dtype=torch.int32 if few else torch.int64, device="cpu")


class _SplitsRefused:
    """Work that, when it fails, fails by this rank's own fault."""

    def __init__(self, work: staging.AnyWork) -> None:
        self.poll = work.poll
        self._wait = work.wait

    def wait(self) -> Sequence[Any]:
        try:
            return self._wait()
        except FarandoleError as error:
            raise ValueError(str(error)) from error


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Asks for rows to be sent to the other ranks, and theirs to this one. `synchronize` of the returned handle gives
    two tensors: the rows that came, in rank order, and how many came from each rank.

    splits: how many rows of the tensor go to each rank of the process set; equal parts, if not given.
    """
    group = group_for(process_set, "Alltoall")
    rows = _read_splits(splits)
    full_name = handles.name_of("alltoall", name, group)
    device, dtype = tensor.device, tensor.dtype
    on_device = device_memory.lies_there(tensor) and device_memory.takes([tensor], ("alltoall", None), group)
    if on_device:
        lent = device_memory.lend([full_name], [tensor])
        work: Any = device_memory.collect(lent, ("alltoall", rows), group)
    else:
        loan = lent_memory.lend(tensor)
        work = staging.submit([loan], lambda: [_native.alltoall(full_name, *loan.native_arguments(), rows, group)])
    if not _fit(rows, tensor, process_set.size() or 1):
        work = _SplitsRefused(work)

    def finish(results: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        [result] = results
        came = result.tensor(dtype) if on_device else lent_memory.from_result(result, device)
        return came, _received(result.received_splits, splits)

    return handles.put(work, finish)


class HorovodAlltoall(torch.autograd.Function):
    """Alltoall for autograd."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Splits, name: Optional[str], process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received_splits = handles.synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set = process_set
        ctx.received_splits = received_splits
        ctx.mark_non_differentiable(received_splits)
        return output, received_splits

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, *_unused: Any) -> Any:
        grad, _ = alltoall(grad_output, splits=ctx.received_splits, process_set=ctx.process_set)
        return grad, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to the other ranks, and returns those that they send here, in rank order; with `splits`, also how many
    came from each rank. Differentiable. The arguments are those of `alltoall_async`."""
    if differentiable(tensor):
        output, received_splits = HorovodAlltoall.apply(tensor, splits, name, process_set)
    else:
        output, received_splits = handles.synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received_splits)
