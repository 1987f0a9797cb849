"""Collectives of tensors in the memory of a GPU, where they lie.

The engine learns from an event in the current stream when the data are there; results are there for whatever comes into
the stream that is current when somebody waits for them (`device_work`). The host does not wait for the device to
compute.

Not everything is carried out there (`takes`): tensors of one call on several GPUs, element types that the engine does
not know, groups and operations that it does not work on devices for, and FARANDOLE_PLANE=staged go through pinned host
memory (`lent_memory`, `staging`). All ranks decide alike, because they decide by what the request says and by what all
of them know (`_native.works_on_devices`). How a tensor lies in memory is each rank's own business: one that is not
contiguous is copied within its device, and so is its result.

Invariant: a tensor's storage lives until its request is over and no work of ours on the device uses it any more. So the
allocator needs no word of our streams (`record_stream`): it gets memory back only when that is free for every stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from farandole import _native
from farandole.torch import run_ahead
from farandole.torch.device_work import CollectingWork, DeviceWork
from farandole.torch.lent_memory import DTYPE_CODES, raise_moved
from farandole.torch.staging import current_place

Collective = tuple[Any, ...]
"""What is asked for, as `_native.submit_on_device` reads it: ("allreduce", op, prescale, postscale), ("allgather",)…"""

stands_in = _native.device_stands_in()
"""Whether host memory stands in for a GPU's: in tests."""


def lies_there(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in the memory of a GPU."""
    return isinstance(tensor, torch.Tensor) and (tensor.is_cuda or stands_in and tensor.is_cpu)


def takes(tensors: Sequence[torch.Tensor], collective: Collective, group: int) -> bool:
    """Whether this is carried out where the tensors lie: on one GPU."""
    first = tensors[0]
    if not lies_there(first):
        return False
    device, layout = first.device, torch.strided
    for tensor in tensors:
        if tensor.device != device or tensor.layout is not layout:
            return False
    codes = {DTYPE_CODES.get(dtype) for dtype in {tensor.dtype for tensor in tensors}}
    return all(code is not None and _native.works_on_devices(group, collective, code) for code in codes)


def place_to_record(device: torch.device) -> tuple[int, int]:
    """The number of a device and its current stream, where the engine may record an event now."""
    if not stands_in and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "A collective cannot become part of a CUDA graph: the ranks agree on each one when it runs. Capture what "
            "lies before and behind it, or leave it out of the graph."
        )
    return current_place(device)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it on its device that the engine can work on."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_neg().contiguous()


class Lent:
    """A tensor that is lent to the engine on its device."""

    __slots__ = ("_address", "_shape", "memory", "name", "output", "tensor")

    def __init__(
        self,
        name: str,
        tensor: torch.Tensor,
        output: Optional[torch.Tensor] = None,
        shape: Optional[tuple[int, ...]] = None,
    ) -> None:
        self.name = name
        self.tensor = tensor
        """The caller's."""
        self.memory = contiguous(tensor)
        """What the engine gets: the caller's tensor, or a contiguous copy."""
        self.output = output
        """Where the result goes, contiguous; without one, to `memory` or to memory of the engine's."""
        self._address = tensor.data_ptr()
        self._shape = shape
        """As which the ranks see it, if not as it is."""

    def native_arguments(self) -> tuple[Any, ...]:
        """What the engine is told of it."""
        memory, output = self.memory, self.output
        where = None if output is None else (output.data_ptr(), output.numel(), output.untyped_storage())
        return (
            self.name,
            memory.data_ptr(),
            memory.shape if self._shape is None else self._shape,
            DTYPE_CODES[memory.dtype],
            memory.untyped_storage(),
            where,
        )

    def take_back(self) -> torch.Tensor:
        """The caller's tensor with the result in it, which replaces the contribution."""
        tensor = self.tensor
        if tensor.data_ptr() != self._address:
            raise_moved(self.name)
        if tensor is not self.memory:
            # Through `data`: autograd is told as little of it as of what the engine writes by itself.
            tensor.data.copy_(self.memory)
        return tensor


def lend(
    names: Sequence[str], tensors: Sequence[torch.Tensor], outputs: Optional[Sequence[torch.Tensor]] = None
) -> list[Lent]:
    """Lends tensors of one GPU, each under its name."""
    if outputs is None:
        return [Lent(name, tensor) for name, tensor in zip(names, tensors)]
    return [Lent(*each) for each in zip(names, tensors, outputs)]


def new_like(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the same shape, for a result."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)


def submit(
    lent: Sequence[Lent],
    collective: Collective,
    group: int,
    batch: Optional[str] = None,
    check: Optional[Callable[[_native.DeviceHandle], None]] = None,
    priority: int = 0,
) -> DeviceWork:
    """Asks for a collective whose results go to the outputs, or replace the contributions. `batch` names a group that
    runs together, `check` looks at what came of it."""
    return DeviceWork(_ask(lent, collective, group, batch, priority), lent[0].tensor.device, check)


def submit_as_they_are(
    names: list[str],
    tensors: list[torch.Tensor],
    collective: Collective,
    group: int,
    batch: Optional[str],
    priority: int = 0,
) -> Optional[DeviceWork]:
    """Asks for a collective of many tensors whose results replace them, in one call that asks the tensors what they
    are. `None` if one of them is not contiguous or is not worked on where it lies; nothing has been asked for then."""
    if any(map(torch.Tensor.is_neg, tensors)):
        return None
    device = tensors[0].device
    place = _prepare(device)
    handle = _native.submit_tensors_on_device(collective, names, tensors, group, batch, place, priority=priority)
    return None if handle is None else DeviceWork(handle, device)


def collect(
    lent: Sequence[Lent],
    collective: Collective,
    group: int,
    batch: Optional[str] = None,
) -> CollectingWork:
    """Asks for a collective whose results are as large as the ranks agree."""
    return CollectingWork(_ask(lent, collective, group, batch), lent[0].tensor.device)


def _ask(
    lent: Sequence[Lent],
    collective: Collective,
    group: int,
    batch: Optional[str],
    priority: int = 0,
) -> _native.DeviceHandle:
    place = _prepare(lent[0].tensor.device)
    tensors = [each.native_arguments() for each in lent]
    return _native.submit_on_device(collective, tensors, group, batch, place, priority=priority)


def _prepare(device: torch.device) -> tuple[int, int]:
    """What comes before every request. Returns where the engine records when its data are there."""
    run_ahead.sweep()
    return place_to_record(device)
