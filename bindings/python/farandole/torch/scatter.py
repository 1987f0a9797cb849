"""Reducescatter: the combination of all ranks' tensors, of which each rank gets its part of the first dimension.

Rows are dealt out in rank order; where they do not divide evenly, the first ranks have one more. All operations but
Adasum.

Differentiable, with Horovod's gradient: all ranks' gradients, gathered, times the factors, and for a Sum times the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from farandole import _native
from farandole.exports import Average, Sum
from farandole.process_sets import ProcessSet, global_process_set, group_for
from farandole.torch import device_memory, handles, lent_memory, staging
from farandole.torch.compression import Compression
from farandole.torch.gather import allgather, grouped_allgather
from farandole.torch.reduce import differentiable

__all__ = ["grouped_reducescatter", "grouped_reducescatter_async", "reducescatter", "reducescatter_async"]


def reducescatter_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Asks for this rank's rows of the combination of the tensors that all ranks submit under one name. They have the
    same shape and type. The tensor is left as it is; a new one comes from `synchronize` of the returned handle.

    op: `Average`, `Sum`, `Min`, `Max` or `Product`.
    prescale_factor, postscale_factor: contributions and result are multiplied by these.
    """
    group = group_for(process_set, "Reducescatter")
    full_name = handles.name_of("reducescatter", name, group)
    how = (int(op), float(prescale_factor), float(postscale_factor))
    if device_memory.lies_there(tensor) and device_memory.takes([tensor], ("reducescatter", *how), group):
        return _start_on_device([tensor], [full_name], None, how, process_set)
    loan = lent_memory.lend(tensor)
    work = staging.submit(
        [loan], lambda: [_native.reducescatter(full_name, *loan.native_arguments(), *how, group, None)]
    )
    return handles.put(work, lambda results: lent_memory.from_result(results[0], loan.tensor.device))


def _start_on_device(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str],
    batch: Optional[str],
    how: tuple[int, float, float],
    process_set: ProcessSet,
) -> int:
    """Tensors that the engine works on in the memory of their GPU. How large the results are is known before."""
    outputs = [
        torch.empty(_own_shape(tensor, process_set), dtype=tensor.dtype, device=tensor.device) for tensor in tensors
    ]
    lent = device_memory.lend(names, tensors, outputs)
    group = group_for(process_set, "Reducescatter")
    work = device_memory.submit(lent, ("reducescatter", *how), group, batch)
    return handles.put(work, lambda _results: outputs[0] if batch is None else outputs)


def _own_shape(tensor: torch.Tensor, process_set: ProcessSet) -> tuple[int, ...]:
    """The shape of this rank's rows. The first ranks have one more where rows cannot be dealt out evenly. What has no
    rows is refused by the engine, on all ranks."""
    if tensor.dim() == 0:
        return ()
    size, place = process_set.size() or 1, process_set.rank() or 0
    rows = tensor.shape[0] // size + (place < tensor.shape[0] % size)
    return (rows, *tensor.shape[1:])


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As `reducescatter_async`, for tensors that are reduced together: none of them before all are there on all ranks.
    `synchronize` returns a list."""
    group = group_for(process_set, "Reducescatter")
    base_name = handles.name_of("grouped_reducescatter", name, group)
    how = (int(op), float(prescale_factor), float(postscale_factor))
    batch = (base_name, len(tensors))
    collective = ("reducescatter", *how)
    if tensors and device_memory.lies_there(tensors[0]) and device_memory.takes(tensors, collective, group):
        names = [handles.member_name(*batch, index) for index in range(len(tensors))]
        return _start_on_device(tensors, names, base_name, how, process_set)
    loans = [lent_memory.lend(tensor) for tensor in tensors]

    def ask() -> list[_native.Handle]:
        return [
            _native.reducescatter(handles.member_name(*batch, index), *loan.native_arguments(), *how, group, batch)
            for index, loan in enumerate(loans)
        ]

    def finish(results: list[_native.Result]) -> list[torch.Tensor]:
        return [lent_memory.from_result(result, loan.tensor.device) for result, loan in zip(results, loans)]

    return handles.put(staging.submit(loans, ask), finish)


def _gradient_factor(op: int, process_set: ProcessSet, prescale_factor: float, postscale_factor: float) -> float:
    ranks = (process_set.size() or 1) if op == Sum else 1
    return ranks * prescale_factor * postscale_factor


class HorovodReducescatter(torch.autograd.Function):
    """Reducescatter for autograd."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], *how: Any) -> torch.Tensor:
        ctx.how = how
        return handles.synchronize(reducescatter_async(tensor, name, *how))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        _, process_set, *_ = ctx.how
        grad = allgather(grad_output * _gradient_factor(*ctx.how), process_set=process_set)
        return grad, None, None, None, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns this rank's rows of the combination of the tensors that all ranks submit under one name. Differentiable.
    The arguments are those of `reducescatter_async`.

    compression: what is sent in place of the tensor, from `hvd.Compression`.
    """
    compressed, context = compression.compress(tensor)
    how = (op, process_set, prescale_factor, postscale_factor)
    if differentiable(compressed):
        reduced = HorovodReducescatter.apply(compressed, name, *how)
    else:
        reduced = handles.synchronize(reducescatter_async(compressed, name, *how))
    return compression.decompress(reduced, context)


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Grouped reducescatter for autograd."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], how: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.how = how
        return tuple(handles.synchronize(grouped_reducescatter_async(tensors, name, *how)))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        factor = _gradient_factor(*ctx.how)
        _, process_set, *_ = ctx.how
        grads = grouped_allgather([grad * factor for grad in grad_outputs], process_set=process_set)
        return (None, None, *grads)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """As `reducescatter`, for tensors that are reduced together. Returns a list. Differentiable."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    how = (op, process_set, prescale_factor, postscale_factor)
    if differentiable(*compressed):
        reduced = HorovodGroupedReducescatter.apply(name, how, *compressed)
    else:
        reduced = handles.synchronize(grouped_reducescatter_async(compressed, name, *how))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs)]
