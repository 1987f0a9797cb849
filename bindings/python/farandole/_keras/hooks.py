"""The few places where Keras has to know of us, because an optimizer is not asked there.

Installed when the first distributed optimizer is made, once; they change nothing for models whose optimizer is another.

- `fit` and `train_on_batch`: when a collective fails inside of a graph, TensorFlow and JAX raise errors of their own.
  They become `FarandoleError` here, with the framework's error as its cause (`faults`).
- `LossScaleOptimizer.check_finite` of Keras 3: gradients are finite if they are on all ranks.
- `make_train_function` of Keras 3 on JAX: `fit` keeps weights outside of the model's variables while it trains, and
  hands them to the train function, before which those of all ranks are compared (`farandole::parameter_check`).
- `jit_compile="auto"` of Keras 3 on TensorFlow would choose XLA where there is a GPU. Collectives have kernels for XLA
  on CPUs alone, so it does not. `jit_compile=True` stays the user's choice.

Not here: phases for reports.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from farandole import _native, array_pieces
from farandole._keras import faults, wrapping
from farandole._keras.variables import key
from farandole.process_sets import group_for

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
    elif keras.backend.backend() == "jax":
        _compare_weights(keras.Model)


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


def _compare_weights(model: type) -> None:
    # The class of the backend, which users' models inherit from.
    definer = _definer(model, "make_train_function")
    original = vars(definer)["make_train_function"]

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.train_function
        result = original(self, *args, **kwargs)
        optimizer = getattr(self, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if self.train_function is not None and self.train_function is not before and wrapping.is_distributed(inner):
            self.train_function = _comparing(self, inner, self.train_function)
        return result

    definer.make_train_function = make  # type: ignore[attr-defined]


def _comparing(model: Any, optimizer: Any, train: Callable[..., Any]) -> Callable[..., Any]:
    """A train function of JAX that compares the weights it is given, if that is due."""
    process_set = optimizer.farandole_settings.process_set
    # Callbacks may broadcast weights when the first step is made.
    check = _native.ParameterCheck(1, wrapping.REMEDY, False)

    @functools.wraps(train)
    def compare_and_train(state: Any, *args: Any, **kwargs: Any) -> Any:
        whole = check.next_step(group_for(process_set, "Allreduce")) if process_set.included() else None
        if whole is not None:
            local = optimizer._farandole.local
            pairs = zip(model.trainable_variables, state[0])
            named = [(variable.path, value) for variable, value in pairs if key(variable) not in local]
            check.compare(group_for(process_set, "Allreduce"), array_pieces.pieces(named))
        return train(state, *args, **kwargs)

    return compare_and_train
