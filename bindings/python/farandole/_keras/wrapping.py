"""Giving a Keras optimizer a class of our own.

Owns `wrap` and `adopt`. The class is made at run time from the optimizer's own class and has its name, so that a saved
model can be loaded where there is no Farandole, and `isinstance` says what it said before.

`wrap` makes a new optimizer from the old one's configuration. An optimizer that has state already, or whose
configuration says less than it holds (a schedule or a class that Keras cannot make again), is not made again: the new
one gets everything that the old one has, and shares its variables. `adopt` changes the class of an optimizer in place,
for those that a model holds already.

Not here: what the class does (`optimizer3`, `optimizer2`).
"""

from __future__ import annotations

import sys
from typing import Any

from farandole.gradient_settings import Settings


REMEDY = "hvd.callbacks.BroadcastGlobalVariablesCallback(0)"
"""By what scripts give all ranks the same weights."""

STATE = "_farandole_state"
"""Where an optimizer keeps what is ours, past the tracking of attributes that Keras does."""


class Distributed:
    """What all distributed optimizers are, besides optimizers of their own class."""

    farandole_settings: Settings


def is_distributed(optimizer: Any) -> bool:
    """Whether this optimizer reduces gradients over the ranks."""
    return isinstance(optimizer, Distributed)


def distributed_class(own: type, front: type, settings: Settings) -> Any:
    """A class that looks into `front` first, then into the optimizer's own class, and passes for the latter."""
    names = {
        "__module__": own.__module__,
        "__qualname__": own.__qualname__,
        "__doc__": own.__doc__,
        "farandole_settings": settings,
    }
    subclass = type(own)(own.__name__, (front, own), names)
    _pass_for(own, subclass)
    return subclass


def _pass_for(own: type, subclass: type) -> None:
    """Has Keras 3 write the subclass into files under the public name of the class that it stands for.

    Without this a file names the module where the class is defined, which Keras finds as well, unless the class was
    registered under a name of its own.
    """
    api = sys.modules.get("keras.src.api_export")
    exported = getattr(api, "REGISTERED_OBJS_TO_NAMES", {})
    for ancestor in own.__mro__:
        # On the torch backend the optimizers are subclasses, of the same name, of the public ones.
        if ancestor.__name__ == own.__name__ and ancestor in exported:
            exported[subclass] = exported[ancestor]
            return
    for package in ("keras", "tf_keras"):
        registration = sys.modules.get(f"{package}.src.saving.object_registration")
        custom = getattr(registration, "GLOBAL_CUSTOM_NAMES", None) or getattr(registration, "_GLOBAL_CUSTOM_NAMES", {})
        if own in custom:
            custom[subclass] = custom[own]


def wrap(optimizer: Any, front: type, settings: Settings, has_state: bool) -> Any:
    """A distributed optimizer like this one, which is left as it is."""
    own = type(optimizer)
    if is_distributed(optimizer):
        raise ValueError(
            f"this {own.__name__} is distributed already: DistributedOptimizer() takes the optimizer that you made"
        )
    subclass = distributed_class(own, front, settings)
    if not has_state:
        try:
            return subclass.from_config(optimizer.get_config())
        except (TypeError, ValueError, NotImplementedError):
            # Not made of its configuration, then.
            pass
    twin = object.__new__(subclass)
    twin.__dict__.update(vars(optimizer))
    return twin


def adopt(optimizer: Any, front: type, settings: Settings) -> Any:
    """Makes this very optimizer distributed."""
    if not is_distributed(optimizer):
        optimizer.__class__ = distributed_class(type(optimizer), front, settings)
    return optimizer


def name_of(optimizer: Any) -> str:
    """What operations of a distributed optimizer are called after."""
    return optimizer.farandole_settings.name or f"Distributed{type(optimizer).__name__}"
