"""The state of a training, from the memory of one rank to that of all: no commit and no disk.

Owns what travels: parameters and buffers of the model (or, without one, the parameters of the optimizer), the
optimizer's state and options, and the `state_dict` of whatever else belongs to the training.

First the source tells what there is (one object), then come the tensors, each a broadcast; all are under way at once.
Everybody else receives into new memory and takes it over when everything has arrived.

Invariant: a rank's state is the old one until the new one is complete, and then the new one. So a source that is lost
half-way leaves nobody with a mixture; receivers need memory for a second copy as long as it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

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
    own = _tensors_of(model, parameters)
    is_source = rank() == source
    told = None
    if is_source:
        states = {name: other.state_dict() for name, other in others.items()}
        told = (_description(own), functions._structure(optimizer, parameters), states)
    description, structure, states = functions.broadcast_object(told, source, name="elastic.state")
    _check_same(_description(own), description, source)
    _check_groups(optimizer, structure[0], source)
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


def _tensors_of(
    model: torch.nn.Module | None, parameters: list[torch.Tensor]
) -> list[tuple[str, torch.Tensor]]:
    named: list[tuple[str, torch.Tensor]] = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    if model is not None:
        tensors = model.state_dict()
        named = [(name, value) for name, value in sorted(tensors.items()) if isinstance(value, torch.Tensor)]
        # Parameters that the optimizer has and the model has not.
        known = {tensor.data_ptr() for _, tensor in named}
        named += [(str(at), one) for at, one in enumerate(parameters) if one.data_ptr() not in known]
    return [(name, tensor.detach()) for name, tensor in named]


def _description(tensors: list[tuple[str, torch.Tensor]]) -> _What:
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors]


def _check_same(own: _What, theirs: _What, source: int) -> None:
    if own == theirs:
        return
    pairs = [(mine, other) for mine, other in zip(own, theirs) if mine != other]
    mine, other = pairs[0] if pairs else (f"{len(own)} tensors", f"{len(theirs)} tensors")
    raise ValueError(
        f"the model of rank {rank()} is not that of rank {source}: {mine} here, {other} there. A process that joins "
        "must run the same script with the same arguments."
    )


def _check_groups(optimizer: torch.optim.Optimizer, theirs: list[int], source: int) -> None:
    own = [len(group["params"]) for group in optimizer.param_groups]
    if own != theirs:
        raise ValueError(
            f"this rank's optimizer has parameter groups of {own} parameters, that of rank {source} has {theirs}. A "
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
