"""Making ranks alike: parameters and optimizer states from one rank to all.

Owns what is built from broadcasts. Ranks may pass different things, of different types even; what counts is the
root's. The options and structure of an optimizer's state are sent as an object, which is pickled (`farandole.objects`);
tensors never are.

Not here: checkpoints, and anything that follows a change of membership.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from farandole.objects import allgather_object, broadcast_object
from farandole.torch.mpi_ops import ProcessSet, broadcast_async_, global_process_set, rank, synchronize

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the root's tensors, in place.

    Arguments:
        params: `model.state_dict()`, `model.named_parameters()`, `model.parameters()`, or a list of tensors or of pairs
            of name and tensor. All ranks pass tensors of the same shapes and types; those without names in the same
            order.
        root_rank: the rank whose values count, numbered in the world.
        process_set: the ranks that take part.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (torch.Tensor, str, bytes)):
        pairs = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"entry {name!r} is a {type(tensor).__name__} and not a tensor; broadcast_object() is for other things"
            )
    handles = [
        broadcast_async_(tensor.detach(), root_rank, name=name, process_set=process_set) for name, tensor in pairs
    ]
    for handle in handles:
        synchronize(handle)


class _TensorOf(NamedTuple):
    """Stands for a tensor in a state whose structure is told before its tensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    beside_parameter: bool


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's optimizer state and options. Ranks that have no state yet get it; those that have one
    lose it.

    Gradients that do not exist yet are set to zeros where the root's optimizer has no state, as scripts for Horovod
    expect.

    Arguments:
        optimizer: any optimizer of torch but LBFGS, distributed or not, with the same parameter groups on all ranks.
        root_rank: the rank whose state counts, numbered in the world.
        model: tells which parameters have sparse gradients, for which no zeros are made.
        process_set: the ranks that take part.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    told = _structure(optimizer, parameters) if rank() == root_rank else None
    sizes, options, states = broadcast_object(told, root_rank, name="optimizer.structure", process_set=process_set)
    own_sizes = [len(group["params"]) for group in optimizer.param_groups]
    if own_sizes != sizes:
        raise ValueError(
            f"this rank's optimizer has parameter groups of {own_sizes} parameters, that of rank {root_rank} has "
            f"{sizes}; all ranks must make the same optimizer before its state is broadcast"
        )
    tensors = _take_over(optimizer, parameters, options, states)
    broadcast_parameters(tensors, root_rank, process_set)
    if not states:
        _provide_gradients(optimizer, parameters, model)


def _structure(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> Any:
    """Everything of an optimizer that is not a tensor of its state: sizes of groups, options, and where tensors are."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    options = [
        {
            key: value.detach().cpu() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]
    states = {}
    for number, parameter in enumerate(parameters):
        if parameter in optimizer.state:
            states[number] = {
                key: _TensorOf(tuple(value.shape), value.dtype, value.device == parameter.device)
                if isinstance(value, torch.Tensor)
                else value
                for key, value in optimizer.state[parameter].items()
            }
    return sizes, options, states


def _take_over(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    options: list[dict[str, Any]],
    states: dict[int, dict[str, Any]],
) -> list[tuple[str, torch.Tensor]]:
    """Gives the optimizer the root's options and structure; returns the tensors of its state, to be filled."""
    _take_options(optimizer, options)
    tensors = []
    for number, parameter in enumerate(parameters):
        if number not in states:
            optimizer.state.pop(parameter, None)
            continue
        own_state = optimizer.state[parameter]
        for key in [key for key in own_state if key not in states[number]]:
            del own_state[key]
        for key, value in states[number].items():
            if not isinstance(value, _TensorOf):
                own_state[key] = value
                continue
            own = own_state.get(key)
            if not isinstance(own, torch.Tensor) or own.shape != value.shape or own.dtype != value.dtype:
                device = parameter.device if value.beside_parameter else torch.device("cpu")
                like = parameter.detach() if parameter.shape == value.shape else torch.empty(value.shape, device=device)
                own = own_state[key] = torch.zeros_like(like, dtype=value.dtype, device=device)
            tensors.append((f"optimizer.{number}.{key}", own))
    return tensors


def _take_options(optimizer: torch.optim.Optimizer, options: list[dict[str, Any]]) -> None:
    for group, theirs in zip(optimizer.param_groups, options, strict=True):
        for key, value in theirs.items():
            own = group.get(key)
            if isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor) and own.shape == value.shape:
                own.detach().copy_(value)
            else:
                group[key] = value


def _provide_gradients(
    optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], model: torch.nn.Module | None
) -> None:
    """Zeros for gradients that do not exist, unless they will be sparse."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return
    modules = model.modules() if model is not None else []
    sparse = {id(module.weight) for module in modules if getattr(module, "sparse", False) and hasattr(module, "weight")}
    for parameter in parameters:
        if parameter.requires_grad and parameter.grad is None and id(parameter) not in sparse:
            parameter.grad = torch.zeros_like(parameter, requires_grad=False)
