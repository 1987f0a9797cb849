"""Allreduce in all its forms: blocking or not, in place or not, one tensor or several.

The forms that return a new tensor are differentiable: the gradient of an allreduce is the allreduce of the gradient,
with the same operation and factors. The others are invisible to autograd.

Every element type, Sum, Average, Min, Max, Product, and Adasum for floating-point types, over any number of ranks and
any process set. Average of integers is cut off towards zero.

Not here: compression, which the caller chooses (`compression.py`), and sparse tensors (`sparse.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch

from farandole import _native
from farandole.basics import handle_average_backwards_compatibility
from farandole.process_sets import ProcessSet, global_process_set, group_for
from farandole.torch import device_memory, handles, lent_memory, staging
from farandole.torch.compression import Compression

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
]


def differentiable(*tensors: torch.Tensor) -> bool:
    """Whether autograd has to know of an operation on these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _Reduction(NamedTuple):
    """How tensors are reduced: what all forms of allreduce have in common. A tuple, because every call makes one, and
    making a frozen dataclass takes twice as long."""

    op: int
    prescale_factor: float
    postscale_factor: float
    process_set: ProcessSet
    priority: int

    def native_arguments(self) -> tuple[int, float, float]:
        """Operation and factors: arguments of calls of the engine."""
        return int(self.op), float(self.prescale_factor), float(self.postscale_factor)

    def collective(self) -> device_memory.Collective:
        """The same for tensors on a GPU."""
        return ("allreduce", *self.native_arguments())


def _lend(tensor: torch.Tensor, *, in_place: bool) -> tuple[lent_memory.Loan, Optional[torch.Tensor]]:
    """Lends a tensor; and where its result goes, unless in place or where the engine has read a copy of it."""
    return (lent_memory.lend_to_write(tensor), None) if in_place else lent_memory.lend_for_copy(tensor)


def _native_request(
    name: str,
    loan: lent_memory.Loan,
    output: Optional[torch.Tensor],
    reduction: _Reduction,
    group: int,
    batch: Optional[tuple[str, int]],
) -> tuple[Any, ...]:
    """What the engine is told of one tensor; `batch` is a group's name and the number of its members."""
    op, prescale, postscale, _, priority = reduction
    destination = None if output is None else (output.data_ptr(), output)
    factors = float(prescale), float(postscale)
    return (name, *loan.native_arguments(), int(op), *factors, group, batch, priority, destination)


def _result(
    name: str, loan: lent_memory.Loan, output: Optional[torch.Tensor], *, in_place: bool
) -> torch.Tensor:
    """The result of one tensor, once the request is done."""
    if in_place:
        return loan.copy_back(name)
    return loan.result() if output is None else output


def _start(tensor: torch.Tensor, name: Optional[str], reduction: _Reduction, *, in_place: bool) -> int:
    group = group_for(reduction.process_set, "Allreduce")
    full_name = handles.name_of("allreduce", name, group)
    if device_memory.lies_there(tensor) and device_memory.takes([tensor], reduction.collective(), group):
        return _start_on_device([tensor], [full_name], None, reduction, group, in_place=in_place)
    # Not through `_lend` and `_result`: a script makes this call for each of a thousand tensors, and notices both.
    if in_place:
        loan, output = lent_memory.lend_to_write(tensor), None
    else:
        loan, output = lent_memory.lend_for_copy(tensor)
    request = _native_request(full_name, loan, output, reduction, group, None)
    work = staging.submit((loan,), lambda: _native.allreduce_many((request,)))
    if in_place:
        return handles.put(work, lambda _results: loan.copy_back(full_name))
    return handles.put(work, lambda _results: loan.result() if output is None else output)


def _start_group(
    tensors: Sequence[torch.Tensor], name: Optional[str], reduction: _Reduction, *, in_place: bool
) -> int:
    group = group_for(reduction.process_set, "Allreduce")
    tensors = list(tensors)
    base_name = handles.name_of("grouped_allreduce", name, group)
    names = _member_names(base_name, len(tensors))
    if tensors and device_memory.lies_there(tensors[0]):
        handle = _start_as_they_are(tensors, names, base_name, reduction, group) if in_place else None
        if handle is not None:
            return handle
        if device_memory.takes(tensors, reduction.collective(), group):
            return _start_on_device(tensors, names, base_name, reduction, group, in_place=in_place)
    if in_place and reduction.priority == 0 and all(map(lent_memory.is_plain, tensors)):
        return _start_plain_group(tensors, names, base_name, reduction, group)
    lent = [_lend(tensor, in_place=in_place) for tensor in tensors]
    batch = (base_name, len(tensors))
    requests = [_native_request(name, *one, reduction, group, batch) for name, one in zip(names, lent)]
    work = staging.submit([loan for loan, _ in lent], lambda: _native.allreduce_many(requests))
    return handles.put(
        work, lambda _results: [_result(name, *one, in_place=in_place) for name, one in zip(names, lent)]
    )


def _start_plain_group(
    tensors: list[torch.Tensor], names: list[str], base_name: str, reduction: _Reduction, group: int
) -> int:
    """Tensors that the engine works on in place need no copies, and one handle for all of them."""
    codes = lent_memory.DTYPE_CODES
    arguments = [
        (name, tensor.data_ptr(), tensor.shape, codes[tensor.dtype], tensor.untyped_storage())
        for name, tensor in zip(names, tensors)
    ]
    handle = _native.allreduce_batch(arguments, *reduction.native_arguments(), group, base_name)

    def finish(_results: list[_native.Result]) -> list[torch.Tensor]:
        for tensor, (name, address, *_) in zip(tensors, arguments):
            if tensor.data_ptr() != address:
                lent_memory.raise_moved(name)
        return tensors

    return handles.put(staging.BatchWork(handle), finish)


@functools.lru_cache(maxsize=256)
def _member_names(base_name: str, count: int) -> list[str]:
    """The names of a group's members. Kept, because a script asks for the same groups again and again."""
    return [handles.member_name(base_name, count, index) for index in range(count)]


def _start_as_they_are(
    tensors: list[torch.Tensor],
    names: list[str],
    batch: str,
    reduction: _Reduction,
    group: int,
) -> Optional[int]:
    """A group of tensors that the engine can work on without a copy, in the memory of their GPU; else `None`."""
    addresses = [tensor.data_ptr() for tensor in tensors]
    work = device_memory.submit_as_they_are(
        names, tensors, reduction.collective(), group, batch, reduction.priority
    )
    if work is None:
        return None

    def finish(_results: Any) -> list[torch.Tensor]:
        for name, tensor, address in zip(names, tensors, addresses):
            if tensor.data_ptr() != address:
                lent_memory.raise_moved(name)
        return tensors

    return handles.put(work, finish)


def _start_on_device(
    tensors: list[torch.Tensor],
    names: list[str],
    batch: Optional[str],
    reduction: _Reduction,
    group: int,
    *,
    in_place: bool,
) -> int:
    """Tensors that the engine works on in the memory of their GPU. Without `batch` it is one tensor."""
    if in_place:
        for tensor in tensors:
            lent_memory.check_writable(tensor)
    outputs = None if in_place else [device_memory.new_like(tensor) for tensor in tensors]
    lent = device_memory.lend(names, tensors, outputs)
    work = device_memory.submit(
        lent, reduction.collective(), group, batch, priority=reduction.priority
    )

    def finish(_results: Any) -> Any:
        results = [each.take_back() for each in lent] if outputs is None else outputs
        return results[0] if batch is None else results

    return handles.put(work, finish)


def _allreduce(tensor: torch.Tensor, name: Optional[str], reduction: _Reduction) -> torch.Tensor:
    if differentiable(tensor):
        return HorovodAllreduce.apply(tensor, name, reduction)
    return handles.synchronize(_start(tensor, name, reduction, in_place=False))


def _grouped_allreduce(
    tensors: Sequence[torch.Tensor], name: Optional[str], reduction: _Reduction
) -> Sequence[torch.Tensor]:
    if differentiable(*tensors):
        return HorovodGroupedAllreduce.apply(name, reduction, *tensors)
    return handles.synchronize(_start_group(tensors, name, reduction, in_place=False))


class HorovodAllreduce(torch.autograd.Function):
    """Allreduce for autograd."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], reduction: _Reduction) -> torch.Tensor:
        ctx.reduction = reduction
        return handles.synchronize(_start(tensor, name, reduction, in_place=False))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return _allreduce(grad_output, None, ctx.reduction), None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Grouped allreduce for autograd."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], reduction: _Reduction, *tensors: torch.Tensor) -> Any:
        ctx.reduction = reduction
        return tuple(handles.synchronize(_start_group(tensors, name, reduction, in_place=False)))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return (None, None, *_grouped_allreduce(grad_outputs, None, ctx.reduction))


def allreduce_async(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """Asks for the combination of the tensors that all ranks of a process set submit under one name. They have the same
    shape and type. The tensor is left as it is; a new one comes from `synchronize` of the returned handle.

    average: deprecated; use `op`.
    name: ranks find each other's requests by it. Without one, nameless calls are matched in order.
    op: `Average` (also if not given), `Sum`, `Min`, `Max`, `Product` or `Adasum`.
    prescale_factor, postscale_factor: contributions and result are multiplied by these.
    process_set: the ranks that take part; all, if not given.
    priority: among operations that are ready on all ranks at the same time, those of higher priority run first. That of
        the rank which asked first counts. (Horovod's torch front end has none; its MXNet front end has this one.)
    """
    op = handle_average_backwards_compatibility(op, average)
    reduction = _Reduction(op, prescale_factor, postscale_factor, process_set, priority)
    return _start(tensor, name, reduction, in_place=False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """As `allreduce_async`, in place: `synchronize` returns the tensor itself, which then holds the result."""
    op = handle_average_backwards_compatibility(op, average)
    reduction = _Reduction(op, prescale_factor, postscale_factor, process_set, priority)
    return _start(tensor, name, reduction, in_place=True)


def allreduce_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """As `allreduce`, in place and not differentiable. Returns the tensor."""
    return handles.synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set, priority)
    )


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Combines the tensors that all ranks of a process set submit under one name, and returns the result as a new
    tensor. Differentiable. The arguments are those of `allreduce_async`.

    compression: what is sent in place of the tensor, from `hvd.Compression`.
    """
    op = handle_average_backwards_compatibility(op, average)
    reduction = _Reduction(op, prescale_factor, postscale_factor, process_set, priority)
    compressed, context = compression.compress(tensor)
    reduced = _allreduce(compressed, name, reduction)
    return compression.decompress(reduced, context)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """As `allreduce_async`, for tensors that are reduced together: none of them before all are there on all ranks.
    `synchronize` returns a list. They may differ in shape and type, and in the device that they are on."""
    op = handle_average_backwards_compatibility(op, average)
    reduction = _Reduction(op, prescale_factor, postscale_factor, process_set, priority)
    return _start_group(tensors, name, reduction, in_place=False)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """As `grouped_allreduce_async`, in place."""
    op = handle_average_backwards_compatibility(op, average)
    reduction = _Reduction(op, prescale_factor, postscale_factor, process_set, priority)
    return _start_group(tensors, name, reduction, in_place=True)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """As `grouped_allreduce`, in place and not differentiable. Returns the tensors."""
    return handles.synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set, priority)
    )


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """As `allreduce`, for tensors that are reduced together. Returns a list of new tensors. Differentiable."""
    op = handle_average_backwards_compatibility(op, average)
    reduction = _Reduction(op, prescale_factor, postscale_factor, process_set, priority)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = _grouped_allreduce([tensor for tensor, _ in pairs], name, reduction)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs)]
