"""The state of a training, from the memory of one rank to that of all: no commit and no disk.

Owns what travels: parameters and buffers of the model (or, without one, the parameters of the optimizer), the
optimizer's state and options, and the `state_dict` of whatever else belongs to the training.

First the source tells what there is (one object), then come the tensors, each a broadcast; all are under way at once.
Everybody else receives into new memory and takes it over when everything has arrived.

Invariant: a rank's state is the old one until the new one is complete, and then the new one. So a source that is lost
half-way leaves nobody with a mixture; receivers need memory for a second copy as long as it takes.

A rank that joins may have got a state before (`replay`). Then the source also tells a digest of every tensor, and only
those are sent that somebody has not (`send_what_differs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from farandole import _native
from farandole.elastic import native
from farandole.torch import functions
from farandole.torch.mpi_ops import broadcast_async_, rank, synchronize

_What = list[tuple[str, tuple[int, ...], torch.dtype]]


def send_or_receive(
    source: int, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer, others: Mapping[str, Any]
) -> None:
    """Makes every rank's state that of rank `source`. All ranks call this.

    others: what has `state_dict` and `load_state_dict`, by name.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = tensors_of(model, parameters)
    is_source = rank() == source
    told = None
    if is_source:
        states = {name: other.state_dict() for name, other in others.items()}
        told = (description(own), functions._structure(optimizer, parameters), states)
    theirs, structure, states = functions.broadcast_object(told, source, name="elastic.state")
    check_same(description(own), theirs, f"rank {source}")
    check_groups(optimizer, structure[0], f"rank {source}")
    if is_source:
        live = own + functions._take_over(optimizer, parameters, *structure[1:])
        _broadcast([tensor for _, tensor in live], source)
        return
    arrived = [torch.empty_like(tensor) for _, tensor in own] + _empty(structure[2], parameters)
    _broadcast(arrived, source)
    with torch.no_grad():
        places = own + functions._take_over(optimizer, parameters, *structure[1:])
        for (_, place), tensor in zip(places, arrived, strict=True):
            place.copy_(tensor)
    for name, state in states.items():
        if name in others:
            others[name].load_state_dict(state)


class Sent(NamedTuple):
    """What was sent to ranks that have joined with a state."""

    bytes: int
    of_bytes: int
    #: Names of parameters, and of tensors of the optimizer, that this rank did not have.
    missing: list[str]


def send_what_differs(
    source: int,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer,
    others: Mapping[str, Any],
    *,
    is_streamed: bool,
) -> Sent:
    """Makes every rank's state that of rank `source`, as `send_or_receive` does. All ranks call this, and have that
    state already, or one that was streamed to them (`is_streamed`). Only tensors that differ are sent."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = tensors_of(model, parameters)
    live = [tensor for _, tensor in own] + optimizer_tensors(optimizer, parameters)
    structure = functions._structure(optimizer, parameters)
    is_source = rank() == source
    told = None
    if is_source:
        states = {name: other.state_dict() for name, other in others.items()}
        told = (description(own), structure, states, digests(live))
    theirs, their_structure, states, their_digests = functions.broadcast_object(told, source, name="elastic.state")
    check_same(description(own), theirs, f"rank {source}")
    check_groups(optimizer, their_structure[0], f"rank {source}")
    differs = [0] * len(their_digests)
    if is_streamed:
        if _layout(structure[2]) == _layout(their_structure[2]):
            differs = [int(mine != other) for mine, other in zip(digests(live), their_digests, strict=True)]
        else:
            differs = [1] * len(their_digests)
    arrived = live if is_source else [torch.empty_like(tensor) for _, tensor in own]
    if not is_source:
        arrived += _empty(their_structure[2], parameters)
    wanted = [number for number, is_wanted in enumerate(native.largest(differs, "differs")) if is_wanted]
    _broadcast([arrived[number] for number in wanted], source)
    if not is_source:
        with torch.no_grad():
            places = own + functions._take_over(optimizer, parameters, *their_structure[1:])
            for number in wanted:
                places[number][1].copy_(arrived[number])
        for name, state in states.items():
            if name in others:
                others[name].load_state_dict(state)
    size = [tensor.numel() * tensor.element_size() for tensor in arrived]
    of_parameters = {parameter.data_ptr() for parameter in parameters}
    names = [name if tensor.data_ptr() in of_parameters else "" for name, tensor in own]
    names += ["optimizer"] * (len(arrived) - len(own))
    missing = [name for name, is_missing in zip(names, differs, strict=True) if is_missing and name]
    return Sent(sum(size[number] for number in wanted), sum(size), missing)


def digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number for each tensor, which depends on all its bits."""
    return _native.state_digests(pieces_of([tensor.detach().cpu().contiguous() for tensor in tensors]))


def pieces_of(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, torch.Tensor]]:
    """Address, bytes and owner of tensors in contiguous host memory."""
    return [(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor) for tensor in tensors]


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of an optimizer's state, in the order in which `functions._take_over` names them."""
    return [
        value
        for parameter in parameters
        if parameter in optimizer.state
        for value in optimizer.state[parameter].values()
        if isinstance(value, torch.Tensor)
    ]


def _layout(states: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Which tensors there are in an optimizer's state."""
    return {
        number: {key: value for key, value in state.items() if isinstance(value, functions._TensorOf)}
        for number, state in states.items()
    }


def tensors_of(model: torch.nn.Module | None, parameters: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers, by name."""
    named: list[tuple[str, torch.Tensor]] = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    if model is not None:
        tensors = model.state_dict()
        named = [(name, value) for name, value in sorted(tensors.items()) if isinstance(value, torch.Tensor)]
        # Parameters that the optimizer has and the model has not.
        known = {tensor.data_ptr() for _, tensor in named}
        named += [(str(at), one) for at, one in enumerate(parameters) if one.data_ptr() not in known]
    return [(name, tensor.detach()) for name, tensor in named]


def description(tensors: list[tuple[str, torch.Tensor]]) -> _What:
    """Names, shapes and types."""
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors]


def check_same(own: _What, theirs: _What, source: str) -> None:
    """`ValueError` if this process has another model than `source`."""
    if own == theirs:
        return
    pairs = [(mine, other) for mine, other in zip(own, theirs) if mine != other]
    mine, other = pairs[0] if pairs else (f"{len(own)} tensors", f"{len(theirs)} tensors")
    me = f"rank {rank()}" if native.is_rank() else "this process"
    raise ValueError(
        f"the model of {me} is not that of {source}: {mine} here, {other} there. A process that joins must run the "
        "same script with the same arguments."
    )


def check_groups(optimizer: torch.optim.Optimizer, theirs: list[int], source: str) -> None:
    """`ValueError` if this process has another optimizer than `source`."""
    own = [len(group["params"]) for group in optimizer.param_groups]
    if own != theirs:
        raise ValueError(
            f"this rank's optimizer has parameter groups of {own} parameters, that of {source} has {theirs}. A "
            "process that joins must run the same script with the same arguments."
        )


def _empty(states: dict[int, dict[str, Any]], parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Memory for the tensors of an optimizer's state, in the order in which `_take_over` names them."""
    return [
        torch.empty(value.shape, dtype=value.dtype, device=parameter.device if value.beside_parameter else "cpu")
        for number, parameter in enumerate(parameters)
        for value in states.get(number, {}).values()
        if isinstance(value, functions._TensorOf)
    ]


def _broadcast(tensors: list[torch.Tensor], source: int) -> None:
    handles = [
        broadcast_async_(tensor, source, name=f"elastic.state.{number}") for number, tensor in enumerate(tensors)
    ]
    for handle in handles:
        synchronize(handle)
