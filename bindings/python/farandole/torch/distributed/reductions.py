"""Which operation of the engine stands for one of `torch.distributed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from farandole.exports import Average, Max, Min, Product, Sum

__all__ = ["reduction_of"]

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
"""The engine has no bitwise operations; of bool, these are the same."""

_LINEAR = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)
"""What may be done to real and imaginary parts apart."""


def reduction_of(opts: Any, tensors: Sequence[torch.Tensor]) -> tuple[int, float]:
    """The engine's operation, and the factor of contributions."""
    asked = dist.ReduceOp(dist.ReduceOp.SUM) if opts is None else opts.reduceOp
    kind = asked.op if isinstance(asked, dist.ReduceOp) else asked
    operations = _OPERATIONS
    if all(tensor.dtype == torch.bool for tensor in tensors):
        operations = {**_OPERATIONS, **_OF_BOOL}
    if kind not in operations:
        raise ValueError(f"The backend farandole does not reduce {tensors[0].dtype} by {kind}.")
    if kind not in _LINEAR and any(tensor.is_complex() for tensor in tensors):
        raise ValueError(f"all_reduce does not support {kind} on complex tensors")
    factor = asked.factor if kind == dist.ReduceOp.PREMUL_SUM else 1.0
    return operations[kind], float(factor)
