"""One parameter's gradient: when it is complete, in which memory it travels, and how the result comes back.

Owns `Gradient`, the record that the optimizer keeps of each parameter, and the ways in which a gradient can travel:

- *as it is*: dense, on the CPU, laid out like its parameter. It is reduced where it lies, without a copy. Nearly all
  are.
- *packed*: compressed, laid out in another way, or sparse and to be made dense. A tensor of its own travels.
- *staged*: on a device. A copy in host memory travels (`staging`), together with those that are ready with it.
- *by an operation*: sparse (two allgathers).

Invariant: from sending to arrival a gradient belongs to the engine, which holds its storage. Whoever replaces or
changes it meanwhile is told so at arrival, because the result would be garbage without any other sign: by identity
(`p.grad = other`), by its address (`p.grad.data = other`, `module.half()`) and by torch's version counter
(`p.grad.mul_(2)`).

Not here: when gradients are sent and in what company (`outbox`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from farandole.torch import mpi_ops, staging
from farandole.torch.compression import NoneCompressor
from farandole.torch.staging import DTYPE_CODES

if TYPE_CHECKING:
    from farandole.torch.outbox import Convoy, Terms


class Gradient:
    """What is known of one parameter's gradient.

    `sent` is what `parameter.grad` was when it was complete, and `None` while it is the user's. `address` and `version`
    are where it lay then, or `None` where that cannot be said (sparse), and how often it had been changed. `arrive`, if
    any, turns what came back into the gradient. `place` is its place in its convoy.
    """

    __slots__ = (
        "address",
        "arrive",
        "code",
        "convoy",
        "dtype",
        "frozen",
        "name",
        "numel",
        "parameter",
        "passes_left",
        "permuted",
        "place",
        "sent",
        "shape",
        "size_bytes",
        "sparse_dims",
        "version",
    )

    def __init__(self, parameter: torch.Tensor, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = "allreduce." + name
        self.passes_left = passes
        self.convoy: Convoy | None = None
        self.place = 0
        self.sent: torch.Tensor | None = None
        self.address: int | None = None
        self.version = 0
        self.arrive: Callable[[], None] | None = None
        self.sparse_dims = 0
        self.frozen = False
        self.describe()

    def describe(self) -> None:
        """Notes how the parameter is laid out, which is how its gradients will be."""
        parameter = self.parameter
        if self.convoy is not None:
            self.convoy.native = None
        self.dtype = parameter.dtype
        self.code = DTYPE_CODES.get(parameter.dtype)
        self.numel = parameter.numel()
        self.size_bytes = self.numel * parameter.element_size()
        # A parameter that is dense in another order of its dimensions (channels last) has gradients like itself. These
        # are sent in the order of memory, with the shape in that order, so that ranks with different layouts are
        # refused and not mixed up.
        order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
        self.permuted = not parameter.is_contiguous() and parameter.permute(order).is_contiguous()
        self.shape = tuple(parameter.shape[dim] for dim in order) if self.permuted else tuple(parameter.shape)

    def provide(self) -> torch.Tensor:
        """Makes a gradient where backward has made none: zeros, of the kind that other ranks are likely to send."""
        parameter = self.parameter
        if self.sparse_dims:
            parameter.grad = _sparse_zeros(parameter, self.sparse_dims)
        else:
            self.frozen = not parameter.requires_grad
            parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        return parameter.grad

    def travels_as_it_is(self, grad: torch.Tensor) -> bool:
        """Whether this gradient can be reduced where it lies. Asked for every gradient of every iteration."""
        if not grad.is_cpu or grad.requires_grad:
            return False
        if grad.dtype is not self.dtype or grad.numel() != self.numel:
            self.describe()
        if self.permuted or not grad.is_contiguous():
            # Sparse tensors are never contiguous, so they need not be asked for before.
            return self.permuted and grad.layout is torch.strided and grad.stride() == self.parameter.stride()
        return self.code is not None

    def note_sent(self, grad: torch.Tensor) -> None:
        """This is what leaves, as it is now."""
        self.sent = grad
        self.address = grad.data_ptr() if grad.layout is torch.strided else None
        self.version = grad._version

    def pack(self, grad: torch.Tensor, terms: Terms) -> torch.Tensor | None:
        """The tensor that travels for this gradient: contiguous, or on a device. `None` if an operation has been
        started for it."""
        if grad.is_sparse:
            self.sparse_dims = grad.sparse_dim()
            if not terms.sparse_as_dense:
                self._send_sparse(grad, terms)
                return None
            grad = grad.to_dense()
        if grad.is_complex():
            # Sums and averages of complex numbers are those of their parts.
            grad = torch.view_as_real(grad)
        compressed, context = terms.compression.compress(grad)
        memory = compressed.detach() if staging.is_on_device(compressed) else compressed.detach().contiguous()
        self.arrive = lambda: self._put_back(memory, context, terms)
        return memory

    def stage(self, loan: staging.Loan) -> None:
        """What travels for it lies on a device and was lent. The copy that comes back goes there first."""
        put_back = self.arrive
        assert put_back is not None, "invariant: what is on a device was packed"

        def arrive() -> None:
            loan.give_back(self.name)
            put_back()

        self.arrive = arrive

    def _send_sparse(self, grad: torch.Tensor, terms: Terms) -> None:
        handle = mpi_ops.sparse_allreduce_async(
            grad, name=self.name.removeprefix("allreduce."), op=terms.op, process_set=terms.process_set
        )

        address = grad._values().data_ptr()

        def arrive() -> None:
            reduced = handle()
            if grad._values().data_ptr() != address:
                self._complain_of_other_memory()
            self.parameter.grad = reduced

        self.arrive = arrive

    def _put_back(self, reduced: torch.Tensor, context: Any, terms: Terms) -> None:
        """Turns what came back into the gradient: in its own memory, if it is dense."""
        grad = self.parameter.grad
        assert grad is not None, "invariant: checked at arrival"
        if terms.compression is not NoneCompressor:
            reduced = terms.compression.decompress(reduced, context)
        if grad.is_complex():
            grad = torch.view_as_real(grad)
        if grad.is_sparse:
            self.parameter.grad = reduced.to_sparse(self.sparse_dims)
        elif reduced.data_ptr() != grad.data_ptr():
            grad.copy_(reduced.view_as(grad))

    def complain(self) -> None:
        """Says what has happened to a gradient on its way."""
        if self.parameter.grad is not self.sent:
            raise AssertionError(
                f"The gradient of parameter {self.name!r} was replaced while it was being reduced. Call "
                "optimizer.synchronize() or optimizer.step() after loss.backward(), before anything else touches the "
                "gradients."
            )
        if self.sent is not None and self.address is not None and self.sent.data_ptr() != self.address:
            self._complain_of_other_memory()
        raise AssertionError(
            f"The gradient of parameter {self.name!r} was changed while it was being reduced, so the result is "
            "neither. Call optimizer.synchronize() before you clip, scale or otherwise change gradients, and then "
            "optimizer.step() within optimizer.skip_synchronize()."
        )

    def _complain_of_other_memory(self) -> NoReturn:
        raise AssertionError(
            f"The memory of the gradient of parameter {self.name!r} was replaced while it was being reduced (`.data = "
            "...`, set_(), or a conversion such as Module.half() or Module.to()), so what is there now is not "
            "reduced. Call optimizer.synchronize() after loss.backward(), before anything else touches the gradients."
        )

    def finish(self) -> None:
        """Turns what came back into the gradient, where there is more to do than nothing."""
        if self.arrive is not None:
            arrive, self.arrive = self.arrive, None
            arrive()
        if self.frozen:
            self.frozen = False
            grad = self.parameter.grad
            if grad is not None and not bool(grad.any()):
                # Frozen here and without a gradient anywhere: an optimizer must not see one, or decay would move the
                # parameter.
                self.parameter.grad = None


def _sparse_zeros(like: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    """A sparse tensor of this shape with nothing in it."""
    indices = torch.empty((sparse_dims, 0), dtype=torch.int64, device=like.device)
    values = torch.empty((0, *like.shape[sparse_dims:]), dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False)
