"""Tensors of `torch.distributed` as the engine takes and gives them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Optional

import torch

from farandole import _native
from farandole.torch import lent_memory
from farandole.torch.lent_memory import Loan

__all__ = [
    "Target",
    "Tensor",
    "as_numbers",
    "as_travelling",
    "check_size",
    "fill",
    "flat",
    "form",
    "joined",
    "member",
    "received",
    "tensor_of",
]

Tensor = torch.Tensor


def as_travelling(tensor: Tensor) -> Tensor:
    """A tensor of a type that the engine knows, with the same bytes."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor if tensor.dtype in lent_memory.DTYPE_CODES or tensor.is_sparse else tensor.view(torch.uint8)


def as_numbers(tensor: Tensor) -> Tensor:
    """A tensor that the engine can compute with."""
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def form(views: Sequence[Tensor]) -> bytes:
    """What ranks must agree on: element types and sizes, as `HostTensors.form` has them."""
    codes = lent_memory.DTYPE_CODES
    return b"".join(_FORM.pack(codes.get(view.dtype, _OTHER_TYPE), view.numel()) for view in views)


_FORM = struct.Struct("<BQ")
_OTHER_TYPE = 255
"""In the form of a tensor that the engine refuses."""


def flat(loan: Loan, rows: int = 0) -> tuple[int, tuple[int, ...], int, torch.UntypedStorage]:
    """The arguments of calls of the engine for a tensor as one dimension, or as so many rows."""
    address, _, code, owner = loan.native_arguments()
    elements = loan.host.numel()
    return address, (rows, elements // rows) if rows else (elements,), code, owner


def member(name: str, batch: Optional[tuple[str, int]], index: int) -> str:
    return name if batch is None else f"{name}_{index}"


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


class Target:
    """The tensors that take one result, in order. The engine writes a single one of them itself where it can."""

    def __init__(self, targets: Sequence[Tensor], source: Loan) -> None:
        self._views = [as_travelling(target) for target in targets]
        self.direct: Optional[tuple[int, int, torch.UntypedStorage]] = None
        """Address, number of elements and owner: the argument of calls of the engine."""
        if len(self._views) == 1 and lent_memory.is_plain(self._views[0]):
            [view] = self._views
            owner = view.untyped_storage()
            # Callers of all-gather like to have the input in its place of the output; the engine needs them apart.
            if owner.data_ptr() != source.host.untyped_storage().data_ptr() and view.dtype == source.host.dtype:
                self.direct = view.data_ptr(), view.numel(), owner

    def finish(self, result: _native.Result) -> None:
        """Sees to it that the targets hold the result."""
        if self.direct is None:
            fill(self._views, tensor_of(result))
        else:
            check_size(self._views[0].numel(), math.prod(result.shape))


def received(targets: Sequence[Tensor], result: _native.Result) -> Sequence[Tensor]:
    """The targets, filled with what came in."""
    fill([as_travelling(target) for target in targets], tensor_of(result))
    return targets


def tensor_of(result: _native.Result) -> Tensor:
    return torch.from_dlpack(result).view(-1)


def fill(targets: Sequence[Tensor], source: Tensor) -> None:
    """Puts what came in into the tensors that take it."""
    check_size(sum(target.numel() for target in targets), source.numel())
    start = 0
    for target in targets:
        piece = source[start : start + target.numel()]
        target.copy_(piece.view(target.shape), non_blocking=True)
        start += target.numel()


def check_size(needed: int, came: int) -> None:
    """Raises if the outputs take another number of elements than came in."""
    if needed != came:
        raise ValueError(f"The outputs take {needed} elements, but {came} came from the ranks.")
