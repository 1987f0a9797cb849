"""Allreduces of tensors in the memory of a GPU, where they lie.

The engine reduces them in device memory if all ranks of the group are on one host and can map each other's. It learns
from an event in the current stream when the data are there; results are there for whatever comes into the stream that
is current when somebody waits for them. Nothing is copied, and the host does not wait for the device to compute.

Not everything can be reduced so (`take`): strided tensors, Adasum, groups across hosts, and FARANDOLE_PLANE=staged go
through pinned host memory (`lent_memory`, `staging`). All ranks decide alike, because they decide by what the engine
has agreed on and by what the request says.

Invariant: a tensor's storage lives until its request is done, and by then no kernel of ours uses it. So the allocator
needs no word of our streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from farandole import _native
from farandole.basics import basics
from farandole.torch.lent_memory import DTYPE_CODES, raise_moved
from farandole.torch.staging import DeviceWork, current_place

def reduces_in(group: int) -> bool:
    """Whether this group reduces tensors in device memory."""
    return _native.reduces_on_devices(group)


def take(tensors: Sequence[torch.Tensor], op: int, group: int) -> bool:
    """Whether these tensors are reduced where they lie, together: on one GPU."""
    device = tensors[0].device
    if device.type != "cuda" or op == basics.Adasum or not reduces_in(group):
        return False
    return all(
        tensor.device == device
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.dtype in DTYPE_CODES
        and not tensor.is_neg()
        for tensor in tensors
    )


def place_to_record(device: torch.device) -> tuple[int, int]:
    """The same where the engine may record an event now."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "A collective cannot become part of a CUDA graph: the ranks agree on each one when it runs. Capture what "
            "lies before and behind it, or leave it out of the graph."
        )
    return current_place(device)


def submit(
    tensors: Sequence[tuple[str, torch.Tensor]],
    reduction: tuple[int, float, float],
    group: int,
    batch: Optional[str] = None,
) -> DeviceWork:
    """Reduces tensors of one device in place, each under its name. `batch` names a group that runs together."""
    device = tensors[0][1].device
    arguments = [
        (name, tensor.data_ptr(), tensor.shape, DTYPE_CODES[tensor.dtype], tensor.untyped_storage())
        for name, tensor in tensors
    ]
    handle = _native.allreduce_batch(arguments, *reduction, group, batch, place_to_record(device))
    return DeviceWork(handle, device)


def check_place(name: str, tensor: torch.Tensor, address: int) -> None:
    """Raises if a tensor has got other memory since it lay at this address."""
    if tensor.data_ptr() != address:
        raise_moved(name)
