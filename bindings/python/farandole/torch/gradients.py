"""One parameter's gradient: `Gradient`, the record that the optimizer keeps of each parameter.

Nearly all gradients are dense and laid out like their parameter. They are reduced *in place*, without a copy: in host
memory, or on a GPU (`device_memory`). All others are packed first (`gradient_packing`).

Invariant: from submission to the end of `synchronize` a gradient belongs to the engine, which holds its storage. If it
is replaced or changed meanwhile, `synchronize` raises, because the result would be garbage without any other sign. That
is found by identity (`p.grad = other`), by address (`p.grad.data = other`, `module.half()`) and by torch's version
counter (`p.grad.mul_(2)`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from farandole.torch.lent_memory import DTYPE_CODES

if TYPE_CHECKING:
    from farandole.torch.gradient_queue import GradientBatch


class Gradient:
    """What is known of one parameter's gradient.

    `submitted` is what `parameter.grad` was when it was ready, and `None` while it is the user's. `address` is where it
    was then (`None` if it is sparse), and `version` how often it had been changed. `unpack`, if any, makes the gradient
    of what was reduced. `index` is its index in its batch.
    """

    __slots__ = (
        "address",
        "batch",
        "dtype",
        "dtype_code",
        "frozen",
        "index",
        "name",
        "numel",
        "parameter",
        "parameter_name",
        "passes_left",
        "permuted",
        "shape",
        "size_bytes",
        "sparse_dims",
        "submitted",
        "unpack",
        "version",
    )

    def __init__(self, parameter: torch.Tensor, parameter_name: str, passes: int) -> None:
        self.parameter = parameter
        self.parameter_name = parameter_name
        self.name = "allreduce." + parameter_name
        self.passes_left = passes
        self.batch: GradientBatch | None = None
        self.index = 0
        self.submitted: torch.Tensor | None = None
        self.address: int | None = None
        self.version = 0
        self.unpack: Callable[[], None] | None = None
        self.sparse_dims = 0
        self.frozen = False
        self.describe()

    def describe(self) -> None:
        """Records how the parameter is laid out, which is how its gradients will be."""
        parameter = self.parameter
        if self.batch is not None:
            self.batch.native = None
        self.dtype = parameter.dtype
        self.dtype_code = DTYPE_CODES.get(parameter.dtype)
        self.numel = parameter.numel()
        self.size_bytes = self.numel * parameter.element_size()
        # A parameter that is dense in another order of its dimensions (channels last) has gradients like itself. These
        # are submitted in the order of memory, with the shape in that order, so that ranks with different layouts are
        # refused and not mixed up.
        order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
        self.permuted = not parameter.is_contiguous() and parameter.permute(order).is_contiguous()
        self.shape = tuple(parameter.shape[dim] for dim in order) if self.permuted else tuple(parameter.shape)

    def reduces_in_place(self, grad: torch.Tensor) -> bool:
        """Whether the engine can work on this gradient's own memory. Called for each gradient of each iteration."""
        if grad.requires_grad or not (grad.is_cpu or grad.is_cuda):
            return False
        if grad.dtype is not self.dtype or grad.numel() != self.numel:
            self.describe()
        if self.permuted or not grad.is_contiguous():
            # Sparse tensors are never contiguous, so they need not be tested for before.
            return self.permuted and grad.layout is torch.strided and grad.stride() == self.parameter.stride()
        return self.dtype_code is not None

    def note_submitted(self, grad: torch.Tensor) -> None:
        """This is what is submitted, as it is now."""
        self.submitted = grad
        self.address = grad.data_ptr() if grad.layout is torch.strided else None
        self.version = grad._version
