"""`TorchState`: models, optimizers, samplers and plain values, saved, restored and made alike on all ranks.

What a value needs is up to its *handler*, which the registry finds by the value's type; users may register their own.
Values without a handler are Python objects, as in `ObjectState`.

Invariant: after `sync` every rank has what rank 0 had, and has it saved. A rank that joined and fails before its first
commit goes back to that, and not to what its script began with.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from farandole.elastic.state import ObjectState
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from farandole.torch.mpi_ops import rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """The state of a training with PyTorch.

    Arguments:
        model: a model, if there is one.
        optimizer: its optimizer, if there is one.
        kwargs: further models, optimizers and samplers, and any other values, as attributes.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        self._handlers: dict[str, Any] = {}
        handlers, values = {}, {}
        for name, value in {**kwargs, "model": model, "optimizer": optimizer}.items():
            handler = _handler_of(value)
            if handler is None:
                values[name] = value
            else:
                handlers[name] = handler
        for name, handler in handlers.items():
            setattr(self, name, handler.value)
        self._handlers = handlers
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **values)

    def save(self) -> None:
        """Keeps copies of everything."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was kept."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks rank 0's models, optimizers and samplers as they are, and the values that it kept."""
        for handler in self._handlers.values():
            handler.sync()
        for handler in self._handlers.values():
            handler.save()
        super().sync()

    def reset(self) -> None:
        """Samplers deal anew, also where nothing is synchronized afterwards."""
        for handler in self._handlers.values():
            if hasattr(handler, "reset"):
                handler.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)


class StateHandler:
    """How one value of a state is saved, restored and made alike."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps the value as it is."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks rank 0's value."""
        raise NotImplementedError

    def reset(self) -> None:
        """Gets ready for other ranks, before `sync`."""

    def set_value(self, value: Any) -> None:
        """Tracks another value from now on."""
        self.value = value
        self.save()


class _WithStateDict(StateHandler):
    """A value that has `state_dict` and `load_state_dict`."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Keeps a copy of its state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Loads the copy."""
        # A copy of the copy: an optimizer takes over the tensors that it is given.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_WithStateDict):
    """Parameters and buffers of a model."""

    def sync(self) -> None:
        """Broadcasts them."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_WithStateDict):
    """The state of an optimizer, with its options."""

    def sync(self) -> None:
        """Broadcasts it."""
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_WithStateDict):
    """What has been used of an epoch."""

    def sync(self) -> None:
        """Takes rank 0's place in the epoch, and what any rank has recorded one by one in it."""
        states = allgather_object(self.value.state_dict(), name="elastic.sampler")
        agreed = dict(states[0])
        recorded = (state["processed_indices"] for state in states if state["epoch"] == agreed["epoch"])
        agreed["processed_indices"] = sorted(set().union(*recorded))
        self.value.load_state_dict(agreed)

    def reset(self) -> None:
        """Deals anew."""
        self.value.reset()


_handler_registry: list[tuple[type, type]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type]]:
    """Pairs of a type and the class of handlers for its values; the first that fits is taken."""
    return _handler_registry


def set_handler_registry(registry: list[tuple[type, type]]) -> None:
    """Replaces the registry, for states that are made from now on."""
    global _handler_registry
    _handler_registry = registry


def _handler_of(value: Any) -> Any:
    return next((handler(value) for kind, handler in _handler_registry if isinstance(value, kind)), None)
