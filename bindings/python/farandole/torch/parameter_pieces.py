"""Where parameters of torch lie, for comparing them with those of other ranks (`farandole::parameter_check`).

A parameter in host memory is read where it lies, in the order of its memory. Of those on another device a sample is
copied to the host, with two kernels for each element type and device, or all of them, if all bits are compared. Which
bytes a sample has does not depend on the device.

A parameter that is not a plain dense tensor, such as one whose parts are on different ranks (`DTensor`), is compared by
its name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from farandole import _native

Piece = tuple[str, int, int, int, object]
"""Name, address, bytes, bytes of the parameter that this is the sample of, owner."""


def pieces(named: Iterable[tuple[str, torch.Tensor]], whole: bool) -> list[Piece]:
    """The memory of parameters: all of it, or at least their samples."""
    found: list[Piece | None] = []
    elsewhere: dict[tuple[torch.device, torch.dtype], list[tuple[int, str, torch.Tensor]]] = {}
    for place, (name, parameter) in enumerate(named):
        tensor = parameter.detach()
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_meta:
            found.append((name, 0, 0, 0, None))
            continue
        if not tensor.is_contiguous():
            tensor = _in_order_of_memory(tensor)
        if tensor.is_cpu or whole:
            host = tensor if tensor.is_cpu else tensor.cpu()
            size_bytes = host.numel() * host.element_size()
            found.append((name, host.data_ptr(), size_bytes, size_bytes, host))
        else:
            elsewhere.setdefault((tensor.device, tensor.dtype), []).append((place, name, tensor))
            found.append(None)
    for together in elsewhere.values():
        for place, piece in samples(together):
            found[place] = piece
    return [piece for piece in found if piece is not None]


def _in_order_of_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is dense in another order of its dimensions (channels last), in that order; a copy of others."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    permuted = tensor.permute(order)
    return permuted if permuted.is_contiguous() else tensor.contiguous()


def samples(tensors: Sequence[tuple[int, str, torch.Tensor]]) -> Iterator[tuple[int, Piece]]:
    """Samples of contiguous tensors of one device and element type, in host memory; with the place of each."""
    small: list[tuple[int, str, torch.Tensor]] = []
    large: list[tuple[int, str, torch.Tensor]] = []
    for place, name, tensor in tensors:
        element_bytes = tensor.element_size()
        blocks, block_bytes, distance = _native.sample_of(tensor.numel() * element_bytes)
        if blocks == 1:
            small.append((place, name, tensor.view(-1)))
        else:
            shape = (blocks, block_bytes // element_bytes)
            large.append((place, name, tensor.as_strided(shape, (distance // element_bytes, 1))))
    sizes = {place: tensor.numel() * tensor.element_size() for place, _, tensor in tensors}
    for views in (small, large):
        if not views:
            continue
        host = torch.cat([view for _, _, view in views]).cpu()
        address, owner = host.data_ptr(), host
        for place, name, view in views:
            size_bytes = view.numel() * view.element_size()
            yield place, (name, address, size_bytes, sizes[place], owner)
            address += size_bytes


class OptimizerCheck:
    """The checks of one optimizer of torch."""

    __slots__ = ("_check",)

    def __init__(self) -> None:
        self._check = _native.ParameterCheck(0, "hvd.broadcast_parameters(model.state_dict(), root_rank=0)", True)

    def step_begins(self, group: int, named: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> None:
        """Compares parameters, if that is due. All ranks call this when they are about to wait for gradients."""
        whole = self._check.next_step(group)
        if whole is not None:
            self._check.compare(group, pieces(named(), whole))
