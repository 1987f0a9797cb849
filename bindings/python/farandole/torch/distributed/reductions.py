"""Which operation of the engine stands for one of `torch.distributed`.

The engine has no bitwise operations. Of bool, two of them are the same as a minimum and a maximum. The others are done
by the ranks themselves, which get all contributions (`folding_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist

from farandole.exports import Average, Max, Min, Product, Sum

__all__ = ["folding_of", "reduction_of"]

Fold = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_OPERATIONS = {
    dist.ReduceOp.SUM: Sum,
    dist.ReduceOp.AVG: Average,
    dist.ReduceOp.PRODUCT: Product,
    dist.ReduceOp.MIN: Min,
    dist.ReduceOp.MAX: Max,
    dist.ReduceOp.PREMUL_SUM: Sum,
}
"""The engine's operation for each of torch's."""

_OF_BOOL = {dist.ReduceOp.BAND: Min, dist.ReduceOp.BOR: Max}
"""Bitwise operations that the engine has under other names."""

_FOLDS: dict[Any, Fold] = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}

_LINEAR = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)
"""What may be done to real and imaginary parts apart."""


def folding_of(opts: Any, tensors: Sequence[torch.Tensor]) -> Optional[Fold]:
    """The function that combines two contributions, for an operation that the engine does not have; else `None`."""
    kind = _kind(_asked(opts))
    if kind not in _FOLDS or kind in _OF_BOOL and _are_bool(tensors):
        return None
    if any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        raise ValueError(f"The backend farandole does not reduce {tensors[0].dtype} by {kind}.")
    return _FOLDS[kind]


def reduction_of(opts: Any, tensors: Sequence[torch.Tensor]) -> tuple[int, float]:
    """The engine's operation, and the factor of contributions."""
    asked = _asked(opts)
    kind = _kind(asked)
    operation = _OPERATIONS.get(kind)
    if operation is None and _are_bool(tensors):
        operation = _OF_BOOL.get(kind)
    if operation is None:
        raise ValueError(f"The backend farandole does not reduce {tensors[0].dtype} by {kind}.")
    if kind not in _LINEAR and any(tensor.is_complex() for tensor in tensors):
        raise ValueError(f"all_reduce does not support {kind} on complex tensors")
    if kind != dist.ReduceOp.PREMUL_SUM:
        return operation, 1.0
    if not hasattr(asked, "factor"):
        raise ValueError(f"PyTorch {torch.__version__} does not tell the backend farandole the factor of {kind}.")
    return operation, float(asked.factor)


def _are_bool(tensors: Sequence[torch.Tensor]) -> bool:
    return all(tensor.dtype == torch.bool for tensor in tensors)


def _asked(opts: Any) -> Any:
    """The operation that the options of a call name; the sum where there are none."""
    return dist.ReduceOp(dist.ReduceOp.SUM) if opts is None else opts.reduceOp


def _kind(asked: Any) -> Any:
    """Callers give an operation, or its kind alone, which has no kind of its own."""
    return getattr(asked, "op", asked)
