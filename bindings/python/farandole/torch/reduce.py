"""Allreduce in all its forms: blocking or not, in place or not, one tensor or several.

The forms that return a new tensor are differentiable: the gradient of an allreduce is the allreduce of the gradient,
with the same operation and factors. The others are invisible to autograd.

Every element type, Sum, Average, Min, Max, Product, and Adasum for floating-point types, over any number of ranks and
any process set. Average of integers is cut off towards zero.

Not here: compression, which the caller chooses (`compression.py`), and sparse tensors (`sparse.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from farandole import _native
from farandole.basics import handle_average_backwards_compatibility
from farandole.process_sets import ProcessSet, global_process_set, group_for
from farandole.torch import handles, staging
from farandole.torch.compression import Compression


def differentiable(*tensors: torch.Tensor) -> bool:
    """Whether autograd has to know of an operation on these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _submit(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    base_name: str,
    batch: Optional[tuple[str, int]],
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    group: int,
    priority: int,
) -> tuple[staging.AnyWork, list[staging.Loan], list[Optional[torch.Tensor]]]:
    """Asks for the reduction of tensors, which are members of one batch if there are several."""
    loans: list[staging.Loan] = []
    outputs: list[Optional[torch.Tensor]] = []
    for tensor in tensors:
        loan, output = (staging.lend_to_write(tensor), None) if in_place else staging.lend_for_copy(tensor)
        loans.append(loan)
        outputs.append(output)
    factors = (int(op), float(prescale_factor), float(postscale_factor))
    requests = []
    for index, (loan, output) in enumerate(zip(loans, outputs)):
        name = base_name if batch is None else _member_name(base_name, index, len(tensors))
        destination = None if output is None else (output.data_ptr(), output)
        requests.append((name, *loan.native_arguments(), *factors, group, batch, priority, destination))
    return staging.submit(loans, lambda: _native.allreduce_many(requests)), loans, outputs


def _member_name(base_name: str, index: int, count: int) -> str:
    """What a member of a group is called among the ranks."""
    return f"{base_name}_{index + 1}of{count}"


def _output(name: str, loan: staging.Loan, output: Optional[torch.Tensor], in_place: bool) -> torch.Tensor:
    if in_place:
        return loan.give_back(name)
    return loan.result() if output is None else output


def _start(
    tensor: torch.Tensor,
    in_place: bool,
    average: Optional[bool],
    name: Optional[str],
    op: Optional[int],
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    priority: int,
) -> int:
    op = handle_average_backwards_compatibility(op, average)
    group = group_for(process_set, "Allreduce")
    full_name = handles.name_of("allreduce", name, group)
    work, [loan], [output] = _submit(
        [tensor], in_place, full_name, None, op, prescale_factor, postscale_factor, group, priority
    )
    return handles.put(work, lambda _results: _output(full_name, loan, output, in_place))


def _start_group(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    average: Optional[bool],
    name: Optional[str],
    op: Optional[int],
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    priority: int,
) -> int:
    op = handle_average_backwards_compatibility(op, average)
    group = group_for(process_set, "Allreduce")
    tensors = list(tensors)
    base_name = handles.name_of("grouped_allreduce", name, group)
    if in_place and priority == 0 and all(map(staging.is_plain, tensors)):
        # Nothing to put aside and nothing to put back: one promise for all of them.
        codes, count = staging.DTYPE_CODES, len(tensors)
        words = [
            (_member_name(base_name, index, count), t.data_ptr(), t.shape, codes[t.dtype], t.untyped_storage())
            for index, t in enumerate(tensors)
        ]
        factors = (int(op), float(prescale_factor), float(postscale_factor))
        batch_handle = _native.allreduce_batch(words, *factors, group, base_name)

        def finish(_results: list[_native.Result]) -> list[torch.Tensor]:
            for tensor, (member_name, address, *_) in zip(tensors, words):
                if tensor.data_ptr() != address:
                    staging.refuse_moved(member_name)
            return tensors

        return handles.put(staging.BatchWork(batch_handle), finish)
    batch = (base_name, len(tensors))
    work, loans, outputs = _submit(
        tensors, in_place, base_name, batch, op, prescale_factor, postscale_factor, group, priority
    )

    def outputs_of(_results: list[_native.Result]) -> list[torch.Tensor]:
        return [
            _output(_member_name(base_name, index, len(loans)), loan, output, in_place)
            for index, (loan, output) in enumerate(zip(loans, outputs))
        ]

    return handles.put(work, outputs_of)


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
    the rank which
        asked first counts. (Horovod's torch front end has none; its MXNet front end has this one.)
    """
    return _start(tensor, False, average, name, op, prescale_factor, postscale_factor, process_set, priority)


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
    return _start(tensor, True, average, name, op, prescale_factor, postscale_factor, process_set, priority)


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


class HorovodAllreduce(torch.autograd.Function):
    """Allreduce for autograd."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], *how: Any) -> torch.Tensor:
        ctx.how = how
        op, prescale_factor, postscale_factor, process_set, priority = how
        return handles.synchronize(
            allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor, process_set, priority)
        )

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        op, prescale_factor, postscale_factor, process_set, priority = ctx.how
        grad = allreduce(
            grad_output,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            priority=priority,
        )
        return grad, None, None, None, None, None, None


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

    compression: what travels in place of the tensor, from `hvd.Compression`.
    """
    op = handle_average_backwards_compatibility(op, average)
    compressed, context = compression.compress(tensor)
    if differentiable(compressed):
        reduced = HorovodAllreduce.apply(compressed, name, op, prescale_factor, postscale_factor, process_set, priority)
    else:
        reduced = handles.synchronize(
            allreduce_async(compressed, None, name, op, prescale_factor, postscale_factor, process_set, priority)
        )
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
    return _start_group(tensors, False, average, name, op, prescale_factor, postscale_factor, process_set, priority)


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
    return _start_group(tensors, True, average, name, op, prescale_factor, postscale_factor, process_set, priority)


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


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Grouped allreduce for autograd."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], how: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.how = how
        return tuple(
            handles.synchronize(
                grouped_allreduce_async(tensors, None, name, *how)
            )
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        op, prescale_factor, postscale_factor, process_set, priority = ctx.how
        grads = grouped_allreduce(
            grad_outputs,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            priority=priority,
        )
        return (None, None, *grads)


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
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    how = (op, prescale_factor, postscale_factor, process_set, priority)
    if differentiable(*compressed):
        reduced = HorovodGroupedAllreduce.apply(name, how, *compressed)
    else:
        reduced = handles.synchronize(
            grouped_allreduce_async(compressed, None, name, *how)
        )
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs)]
