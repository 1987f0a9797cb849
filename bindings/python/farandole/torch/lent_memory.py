"""The host memory in which the engine finds a tensor, and the copy of the result back into it.

The engine works on contiguous host memory. A tensor that is just that is lent as it is, and nothing is copied. Any
other one gets a *host copy*, which is contiguous:

- a strided tensor (transposed, sliced, expanded, channels last): an ordinary copy;
- a tensor on a GPU: a copy in pinned memory, made on a stream of its own after everything that was queued on the
  current stream when the operation was asked for. Nothing waits for it here (`staging` does).

Invariants: what a `Loan` holds lives until its request is done. That is a tensor's *storage*, because the bytes belong
to it and not to the tensor: after `t.data = other`, `t.set_(other)` or `module.half()` the tensor is there and its old
bytes would be gone. The engine then works on the old bytes, which nobody sees any more; `copy_back` notices and raises.
What reallocates inside a storage is refused before (`guard`). The caller's tensor is written by the engine, if it was
lent as it is, or by `copy_back`, and by nothing else.

Not here: names, operations, handles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Optional, Protocol

import torch

from farandole import _native

DTYPE_CODES: dict[torch.dtype, int] = {
    torch.bool: 0,
    torch.uint8: 1,
    torch.int8: 2,
    torch.uint16: 3,
    torch.int16: 4,
    torch.uint32: 5,
    torch.int32: 6,
    torch.uint64: 7,
    torch.int64: 8,
    torch.float16: 9,
    torch.bfloat16: 10,
    torch.float32: 11,
    torch.float64: 12,
}
"""The engine's numbers of the element types it knows. Complex, quantised and 8-bit floating-point types are not among
them."""


class Event(Protocol):
    """An event of a device's stream."""

    def synchronize(self) -> None:
        """Returns when it has happened."""

    def query(self) -> bool:
        """Whether it has happened."""


class Loan:
    """A tensor that is lent to the engine."""

    __slots__ = ("_address", "computed", "host", "ready", "tensor")

    def __init__(
        self,
        tensor: torch.Tensor,
        host: torch.Tensor,
        ready: Optional[Event] = None,
        computed: Optional[Event] = None,
    ) -> None:
        self.tensor = tensor
        """The caller's."""
        self.host = host
        """What the engine gets: the caller's tensor itself, or its host copy."""
        self.ready = ready
        """When the host copy holds the data; `None` if it does already."""
        self.computed = computed
        """When the device has computed them, and everything it was given before."""
        self._address: Optional[int] = None if host is tensor else address_of(tensor)
        """Where the caller's tensor lay when it was lent; `None` as long as nobody was told."""

    @property
    def is_copy(self) -> bool:
        """Whether the engine works on a copy."""
        return self.host is not self.tensor

    def native_arguments(self) -> tuple[int, tuple[int, ...], int, torch.UntypedStorage]:
        """Address, shape, element type and owner: the arguments of calls of the engine."""
        host = self.host
        address = host.data_ptr()
        if host is self.tensor:
            self._address = address
        return address, host.shape, DTYPE_CODES[host.dtype], host.untyped_storage()

    def has_moved(self) -> bool:
        """Whether the caller's tensor has got other memory since it was lent."""
        return self._address is not None and address_of(self.tensor) != self._address

    def copy_back(self, name: str) -> torch.Tensor:
        """Puts a result that the engine wrote to the host copy into the caller's tensor, and returns that."""
        tensor = self.tensor
        if tensor is self.host:
            if tensor.data_ptr() != self._address:
                raise_moved(name)
            return tensor
        if self.has_moved():
            raise_moved(name)
        # Through `data`: autograd is told as little of it as of what the engine writes by itself.
        tensor.data.copy_(self.host, non_blocking=True)
        return tensor

    def result(self) -> torch.Tensor:
        """A result that the engine wrote to the host copy, as a new tensor on the caller's device."""
        return to_device(self.host, self.tensor.device)


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's elements lie, or zero if nobody can tell: some devices keep that to themselves."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def raise_moved(name: str) -> NoReturn:
    """A tensor was given other memory while the engine had it."""
    raise ValueError(
        f"The memory of tensor {name!r} was replaced while the operation was under way (`.data = ...`, set_(), or a "
        "conversion such as Module.half() or Module.to()). The result is in the old memory and not in the tensor. Call "
        "synchronize() before you replace it."
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the engine can work on the tensor's own memory. Most tensors are like that; a training step asks for
    hundreds of them."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.dtype in DTYPE_CODES
        and not tensor.is_neg()
    )


def lend(tensor: torch.Tensor) -> Loan:
    """Lends a tensor that the engine reads."""
    if is_plain(tensor):
        return Loan(tensor, tensor)
    _check(tensor)
    if tensor.is_cpu:
        return Loan(tensor, tensor.detach().resolve_neg().contiguous())
    return _lend_from_device(tensor)


def lend_to_write(tensor: torch.Tensor) -> Loan:
    """Lends a tensor that the engine reads and writes."""
    if is_plain(tensor):
        return Loan(tensor, tensor)
    check_writable(tensor)
    return lend(tensor)


def lend_together(tensors: Sequence[torch.Tensor]) -> list[Loan]:
    """Lends tensors that the engine reads and writes and that are ready together. Those on one GPU share the events
    that say when they are on the host."""
    on_gpus: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_cuda:
            check_writable(tensor)
            on_gpus.setdefault(tensor.device, []).append(tensor)
    copied = {id(loan.tensor): loan for on_gpu in on_gpus.values() for loan in _lend_from_gpu(on_gpu)}
    return [copied.get(id(tensor)) or lend_to_write(tensor) for tensor in tensors]


def lend_for_copy(tensor: torch.Tensor) -> tuple[Loan, Optional[torch.Tensor]]:
    """Lends a tensor whose result goes elsewhere. The second value is where, if the loan is the caller's own memory;
    otherwise the host copy takes the result."""
    loan = lend(tensor)
    if loan.is_copy:
        return loan, None
    return loan, torch.empty_like(loan.host, memory_format=torch.contiguous_format, requires_grad=False)


def to_device(result: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A result in host memory, on the device where the caller wants it."""
    return result if device.type == "cpu" else result.to(device, non_blocking=True)


def from_result(result: _native.Result, device: torch.device) -> torch.Tensor:
    """Host memory that the engine made for a result, as a tensor; on the host without a copy."""
    return to_device(torch.from_dlpack(result), device)


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory that the engine cannot work on."""
    return not tensor.is_cpu


def _check(tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"A tensor was expected, not {type(tensor).__name__}.")
    if tensor.dtype not in DTYPE_CODES or tensor.layout != torch.strided or tensor.device.type == "meta":
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")


def check_writable(tensor: torch.Tensor) -> None:
    """Raises unless results can be put into a tensor."""
    _check(tensor)
    if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape)):
        raise ValueError(
            f"A tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} cannot be written in place: "
            "several of its elements share one place in memory. Use a copy (clone()), or the variant that returns a "
            "new tensor."
        )


_copy_streams: dict[torch.device, Any] = {}
"""One stream for copies to the host on each device. Filled under the interpreter's lock; a stream too many does no
harm."""


def _lend_from_device(tensor: torch.Tensor) -> Loan:
    if tensor.device.type != "cuda":
        # Other accelerators: correct, and the caller waits.
        return Loan(tensor, tensor.detach().to("cpu").contiguous())
    [loan] = _lend_from_gpu([tensor])
    return loan


def _lend_from_gpu(tensors: Sequence[torch.Tensor]) -> list[Loan]:
    """Copies tensors of one GPU to the host, on the stream for copies."""
    device = tensors[0].device
    stream = _copy_streams.get(device)
    if stream is None:
        stream = _copy_streams[device] = torch.cuda.Stream(device)
    computed = torch.cuda.current_stream(device).record_event()
    stream.wait_event(computed)
    hosts = []
    with torch.cuda.stream(stream):
        for tensor in tensors:
            data = tensor.detach()
            host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True, device="cpu")
            host.copy_(data, non_blocking=True)
            # The allocator must not give the tensor's memory to somebody else before the copy is complete.
            data.record_stream(stream)
            hosts.append(host)
        ready = torch.cuda.Event()
        ready.record(stream)
    return [Loan(tensor, host, ready, computed) for tensor, host in zip(tensors, hosts)]
