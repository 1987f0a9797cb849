"""The few places where Keras has to know of us, because an optimizer is not asked there.

Installed when the first distributed optimizer is made, once; they change nothing for models whose optimizer is another.

- `fit` and `train_on_batch`: when a collective fails inside of a graph, TensorFlow and JAX raise errors of their own.
  They become `HorovodInternalError` here, with the framework's error as its cause (`faults`).
- `LossScaleOptimizer.check_finite` of Keras 3: gradients are finite if they are on all ranks.
- `jit_compile="auto"` of Keras 3 on TensorFlow would choose XLA where there is a GPU. Collectives have kernels for XLA
  on CPUs alone, so it does not. `jit_compile=True` stays the user's choice.

Not here: phases for reports.
"""

from __future__ import annotations

import functools
from typing import Any

from farandole._keras import faults, wrapping

_installed: set[str] = set()


def install_keras3() -> None:
    """For Keras 3, on the backend at hand."""
    if "keras3" in _installed:
        return
    import keras

    _installed.add("keras3")
    _translate_faults(keras.Model)
    _agree_on_finite(keras.optimizers.LossScaleOptimizer)
    if keras.backend.backend() == "tensorflow":
        _keep_from_xla(keras.Model)


def install_keras2(keras: Any) -> None:
    """For a Keras 2."""
    if "keras2" in _installed:
        return
    _installed.add("keras2")
    _translate_faults(keras.Model)


def _definer(cls: type, name: str) -> type:
    """The class among a class's ancestors that defines a method."""
    return next(ancestor for ancestor in cls.__mro__ if name in vars(ancestor))


def _translate_faults(model: type) -> None:
    for name in ("fit", "train_on_batch"):
        definer = _definer(model, name)
        setattr(definer, name, faults.translating(vars(definer)[name]))


def _agree_on_finite(loss_scale: type) -> None:
    original = vars(loss_scale)["check_finite"]

    @functools.wraps(original)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        inner = self.inner_optimizer
        if not wrapping.is_distributed(inner):
            return finite
        return inner._farandole.reducer.all_true(finite)

    loss_scale.check_finite = check_finite  # type: ignore[attr-defined]


def _keep_from_xla(model: type) -> None:
    definer = _definer(model, "_resolve_auto_jit_compile")
    original = vars(definer)["_resolve_auto_jit_compile"]

    @functools.wraps(original)
    def resolve(self: Any) -> bool:
        optimizer = getattr(self, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        return False if wrapping.is_distributed(inner) else original(self)

    definer._resolve_auto_jit_compile = resolve  # type: ignore[attr-defined]
