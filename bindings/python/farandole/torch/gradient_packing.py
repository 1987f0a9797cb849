"""Gradients that cannot be reduced in place: what is submitted for them, and how the result comes back.

- *packed*: compressed, laid out in another way, or sparse and to be made dense. A tensor of its own is reduced.
- *staged*: on a device. A copy in host memory is reduced (`staging`), together with those that are ready with it.
- *sparse*: gathered by an operation of its own (two allgathers).

Not here: when gradients are submitted (`gradient_queue`, `gradient_submission`).
"""

from __future__ import annotations

from typing import Any

import torch

from farandole.torch import gradient_errors, lent_memory, mpi_ops
from farandole.torch.compression import NoneCompressor
from farandole.torch.gradients import Gradient
from farandole.torch.reduce_options import ReduceOptions


def make_zeros(gradient: Gradient) -> torch.Tensor:
    """Makes a gradient where backward has made none: zeros, of the kind that other ranks are likely to submit."""
    parameter = gradient.parameter
    if gradient.sparse_dims:
        parameter.grad = _sparse_zeros(parameter, gradient.sparse_dims)
    else:
        gradient.frozen = not parameter.requires_grad
        parameter.grad = torch.zeros_like(parameter, requires_grad=False)
    return parameter.grad


def pack(gradient: Gradient, grad: torch.Tensor, options: ReduceOptions) -> torch.Tensor | None:
    """The tensor that is reduced for this gradient, contiguous. `None` if an operation of its own has been started for
    it."""
    if grad.is_sparse:
        gradient.sparse_dims = grad.sparse_dim()
        if not options.sparse_as_dense:
            _submit_sparse(gradient, grad, options)
            return None
        grad = grad.to_dense()
    if grad.is_complex():
        # Sums and averages of complex numbers are those of their parts.
        grad = torch.view_as_real(grad)
    compressed, context = options.compression.compress(grad)
    packed = compressed.detach().contiguous()
    gradient.unpack = lambda: _unpack(gradient, packed, context, options)
    return packed


def stage(gradient: Gradient, loan: lent_memory.Loan) -> None:
    """The packed tensor of this gradient is on a device, and a copy of it is reduced. The result is copied back before
    it is unpacked."""
    unpack = gradient.unpack

    def unpack_staged() -> None:
        loan.copy_back(gradient.name)
        if unpack is not None:
            unpack()

    gradient.unpack = unpack_staged


def finish(gradient: Gradient) -> None:
    """Makes the gradient of what was reduced, where it was not reduced in place."""
    if gradient.unpack is not None:
        unpack, gradient.unpack = gradient.unpack, None
        unpack()
    if gradient.frozen:
        gradient.frozen = False
        grad = gradient.parameter.grad
        if grad is not None and not bool(grad.any()):
            # Frozen here and without a gradient anywhere: an optimizer must not see one, or decay would move the
            # parameter.
            gradient.parameter.grad = None


def _submit_sparse(gradient: Gradient, grad: torch.Tensor, options: ReduceOptions) -> None:
    handle = mpi_ops.sparse_allreduce_async(
        grad, name=gradient.parameter_name, op=options.op, process_set=options.process_set
    )
    address = grad._values().data_ptr()

    def unpack() -> None:
        reduced = handle()
        if grad._values().data_ptr() != address:
            gradient_errors.raise_moved(gradient)
        gradient.parameter.grad = reduced

    gradient.unpack = unpack


def _unpack(gradient: Gradient, reduced: torch.Tensor, context: Any, options: ReduceOptions) -> None:
    """Makes the gradient of a reduced tensor: in its own memory, if it is dense."""
    grad = gradient.parameter.grad
    assert grad is not None, "invariant: checked before it is unpacked"
    if options.compression is not NoneCompressor:
        reduced = options.compression.decompress(reduced, context)
    if grad.is_complex():
        grad = torch.view_as_real(grad)
    if grad.is_sparse:
        gradient.parameter.grad = reduced.to_sparse(gradient.sparse_dims)
    elif reduced.data_ptr() != grad.data_ptr():
        grad.copy_(reduced.view_as(grad))


def _sparse_zeros(like: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    """A sparse tensor of this shape with nothing in it."""
    indices = torch.empty((sparse_dims, 0), dtype=torch.int64, device=like.device)
    values = torch.empty((0, *like.shape[sparse_dims:]), dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False)
