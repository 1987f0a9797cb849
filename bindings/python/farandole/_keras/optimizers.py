"""Which kind of optimizer this is, and `DistributedOptimizer` for all kinds.

Owns the choice between Keras 3 and Keras 2, by the optimizer and not by the module that is asked: `farandole.keras`
takes optimizers of tf_keras and `farandole.tensorflow.keras` those of Keras 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farandole.gradient_settings import Settings


def _kind(optimizer: Any) -> Any:
    """The module that knows this kind of optimizer."""
    if hasattr(optimizer, "stateless_apply"):
        from farandole._keras import optimizer3

        return optimizer3
    if hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "get_config"):
        from farandole._keras import optimizer2

        return optimizer2
    raise ValueError(
        f"DistributedOptimizer takes an optimizer of Keras, not {type(optimizer).__name__!r}; "
        "optimizers of tf.compat.v1.train and of PyTorch have one in farandole.tensorflow and farandole.torch"
    )


def distributed(optimizer: Any, settings: Settings) -> Any:
    """A distributed optimizer like this one."""
    return _kind(optimizer).wrap(optimizer, settings)


def made_distributed(optimizer: Any, settings: Settings) -> Any:
    """This very optimizer, distributed from now on."""
    return _kind(optimizer).adopt(optimizer, settings)


def partial(optimizer: Any, settings: Settings, layers: Any) -> Any:
    """A distributed optimizer that leaves the gradients of some layers on this rank."""
    result = distributed(optimizer, settings)
    for layer in _layers(layers):
        for variable in layer.trainable_weights:
            result.register_local_var(variable)
    return result


def _layers(layers: Any) -> list[Any]:
    if layers is None:
        return []
    listed = [layers] if _is_layer(layers) or not isinstance(layers, Iterable) else list(layers)
    if not all(_is_layer(layer) for layer in listed):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return listed


def _is_layer(candidate: Any) -> bool:
    return hasattr(candidate, "trainable_weights") and callable(candidate)
