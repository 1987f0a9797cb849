"""Making ranks alike: parameters from one rank to all, and Python objects.

Owns `broadcast_parameters`, with the parameters of Gluon whose shapes are not known yet: those are broadcast when MXNet
has initialised them, in the first forward pass.

Not here: how objects are sent (`farandole.objects`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Optional

import mxnet as mx

from farandole.mxnet.mpi_ops import broadcast_, size
from farandole.objects import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(params: Mapping[str, Any], root_rank: int = 0, prefix: Optional[str] = None) -> None:
    """Gives all ranks the root's parameters, in place.

    Arguments:
        params: a dict of arrays (`module.get_params()`) or of parameters (`block.collect_params()`), or a
            `ParameterDict`; with the same names, shapes and types on all ranks.
        root_rank: the rank whose values count, numbered in the world.
        prefix: put before the names, to tell parameters of several calls apart that are called the same.
    """
    if prefix is not None and not isinstance(prefix, str):
        raise ValueError(f"prefix is a string, not {type(prefix).__name__}")
    if not isinstance(params, (dict, mx.gluon.parameter.ParameterDict)):
        raise ValueError(f"invalid params of type: {type(params)}")
    if size() == 1:
        return
    for key, parameter in sorted(params.items()):
        name = f"{prefix or ''}{key}"
        if not isinstance(parameter, mx.gluon.parameter.Parameter):
            broadcast_(parameter, root_rank, name=name)
            continue
        try:
            copies = parameter.list_data()
        except mx.gluon.parameter.DeferredInitializationError:
            parameter._init_impl = types.MethodType(_initialising(parameter, root_rank, name), parameter)
        else:
            _broadcast_copies(copies, root_rank, name)


def _broadcast_copies(copies: list[Any], root_rank: int, name: str) -> None:
    """Gives all contexts of this rank the root's values."""
    first, *others = copies
    broadcast_(first, root_rank, name=name)
    for other in others:
        first.copyto(other)


def _initialising(parameter: Any, root_rank: int, name: str) -> Callable[..., None]:
    """What initialises a parameter and then broadcasts it, once: whoever initialises it again later does it for this
    rank alone."""
    initialise = parameter._init_impl

    def initialise_alike(this: Any, *args: Any, **kwargs: Any) -> None:
        this._init_impl = initialise
        initialise(*args, **kwargs)
        _broadcast_copies(this.list_data(), root_rank, name)

    return initialise_alike
