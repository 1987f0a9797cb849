"""Loading a model with its optimizer distributed.

Keras loads the model, with the optimizer's class and state as they were saved, and then the optimizer is made
distributed as it is. So every format works that the Keras at hand can load.

**HDF5 and Keras 3.** Keras 3.15 gives the optimizer of a model from such a file no variables, so that it cannot train.
`_repair` makes them and reads their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional

from farandole._keras import optimizers, variables, wrapping
from farandole.gradient_settings import Settings


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Optional[Iterable[type]],
    custom_objects: Optional[Mapping[str, Any]],
    settings: Settings,
) -> Any:
    """The model of a file, with a distributed optimizer if it was saved with one, distributed or not."""
    known: dict[str, Any] = {cls.__name__: cls for cls in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not wrapping.is_distributed(getattr(optimizer, "inner_optimizer", optimizer)):
        _repair(model, filepath)
        variables.build_optimizer(model)
        optimizers.made_distributed(optimizer, settings)
        _forget_functions(model)
    return model


def _repair(model: Any, filepath: Any) -> None:
    """Gives the optimizer the variables that Keras has forgotten; see the module's text."""
    optimizer = model.optimizer
    is_forgotten = variables.is_keras3(optimizer) and optimizer.built and not list(optimizer._trainable_variables)
    if not is_forgotten or not model.trainable_variables:
        return
    optimizer.built = False
    optimizer.build(model.trainable_variables)
    import h5py

    with filepath if isinstance(filepath, h5py.File) else h5py.File(filepath, "r") as file:
        group = file.get("optimizer_weights")
        if group is not None:
            names = [name.decode() if isinstance(name, bytes) else name for name in group.attrs["weight_names"]]
            optimizer.set_weights([group[name][()] for name in names])


def _forget_functions(model: Any) -> None:
    """What was traced with the optimizer as it was is not used again."""
    for name in ("train_function", "train_tf_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
