"""Giving an optimizer that exists a class of our own.

Owns `as_subclass`. The new object has everything that the old one had: parameter groups, state, defaults, hooks. It
shares them with the old one, so that a learning-rate scheduler which was made for the old one still reaches the groups
of the new.

Not here: what the class does (`optimizer`, `delta_optimizer`).
"""

from __future__ import annotations

from typing import Any

import torch


def as_subclass(optimizer: torch.optim.Optimizer, front: type, module: str) -> Any:
    """An object like `optimizer`, of a class that looks into `front` first, then into the optimizer's own class."""
    own = type(optimizer)
    if issubclass(own, front):
        raise ValueError(
            f"this {own.__name__} is distributed already: DistributedOptimizer() takes the optimizer that you made"
        )
    subclass = type(own.__name__, (front, own), {"__module__": module, "__doc__": own.__doc__})
    wrapped: Any = object.__new__(subclass)
    # A scheduler leaves a `step` of its own in the object that it was made for. It calls the old object's, so it stays
    # behind.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    return wrapped
