"""Distributed optimizers of Keras 2: those of `tf_keras.optimizers`, old (`legacy`) and new, and loss-scale optimizers
around them.

`minimize`, and with it `fit`, calls `compute_gradients` (new) or `_compute_gradients` (legacy) and then
`apply_gradients`; graphs of TensorFlow 1 call `get_gradients`. Gradients are reduced where they are computed, so that
whoever looks at them in between, as a loss scale does, sees what is applied. `apply_gradients` reduces those that were
computed elsewhere, by a tape for instance.

Invariant: gradients that `compute_gradients` has returned are not reduced again by the `apply_gradients` that follows.

Not here: Keras 3 (`optimizer3`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole._keras import hooks, wrapping
from farandole._keras.wrapping import STATE, Distributed
from farandole.gradient_settings import Settings
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.gradient_aggregation_eager import aggregation_helper
from farandole.tensorflow.gradient_reduction import GradientReduction, reduce_but_local
from farandole.tensorflow.util import VariableSet


class _State:
    """What a distributed optimizer keeps beside what Keras knows of."""

    def __init__(self, optimizer: Any) -> None:
        settings: Settings = optimizer.farandole_settings
        self.is_reduced = False
        """The next gradients to be applied are reduced already."""
        self.local = VariableSet()
        self.reduction = GradientReduction.of(wrapping.name_of(optimizer), settings)
        self.reduction.remedy = wrapping.REMEDY
        kind = LocalGradientAggregationHelper._OPTIMIZER_TYPE_KERAS
        self.helper = aggregation_helper(settings, self.reduction, kind)


class DistributedOptimizer2(Distributed):
    """Stands before an optimizer class of Keras 2."""

    _HAS_AGGREGATE_GRAD = True

    @property
    def _farandole(self) -> _State:
        state = self.__dict__.get(STATE)
        if state is None:
            state = self.__dict__[STATE] = _State(self)
        return state

    @property
    def _agg_helper(self) -> Any:
        """What adds gradients up, if anything does."""
        return self._farandole.helper

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradients of a variable on this rank: they are not reduced, but divided by the number of ranks
        unless `scale_local_gradients` is off."""
        state = self._farandole
        state.local.add(var)
        if state.helper is not None:
            state.helper.register_local_var(var)

    def _allreduce(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks combined, or what has been added up so far."""
        state, settings = self._farandole, self.farandole_settings
        state.is_reduced = True
        if state.helper is not None:
            return list(state.helper.compute_gradients(tuple(grads), tuple(vars)))
        return reduce_but_local(
            state.reduction, list(grads), list(vars), state.local, settings.scale_local_gradients, settings.process_set
        )

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Reduced gradients of a loss, with their variables."""
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        tape = tf.GradientTape() if tape is None else tape
        above: Any = super()
        if hasattr(above, "_compute_gradients"):
            pairs = above._compute_gradients(loss, var_list, grad_loss, tape=tape)
        else:
            pairs = above.compute_gradients(loss, var_list, tape=tape)
        grads, variables = zip(*pairs)
        return list(zip(self._allreduce(grads, variables), variables))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Reduced gradients in a graph of TensorFlow 1."""
        return self._allreduce(super().get_gradients(loss, params), params)  # type: ignore[misc]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients, and reduces them first unless `compute_gradients` has done it."""
        pairs = list(grads_and_vars)
        state = self._farandole
        if pairs and not state.is_reduced:
            grads, variables = zip(*pairs)
            pairs = list(zip(self._allreduce(grads, variables), variables))
        state.is_reduced = False
        above: Any = super()
        if state.helper is None:
            return above.apply_gradients(pairs, *args, **kwargs)
        return state.helper.apply_gradients(
            lambda: above.apply_gradients(pairs, *args, **kwargs), self, pairs, *args, **kwargs
        )


class DistributedLossScale2(Distributed):
    """Stands before a loss-scale optimizer of Keras 2, whose inner optimizer is a distributed one."""

    def register_local_var(self, var: Any) -> None:
        """See the inner optimizer's."""
        self.inner_optimizer.register_local_var(var)  # type: ignore[attr-defined]


def is_loss_scale(optimizer: Any) -> bool:
    """Whether this scales the loss for an inner optimizer. Asked of the class, because attributes may be those of the
    inner one."""
    return hasattr(type(optimizer), "inner_optimizer") and hasattr(type(optimizer), "get_scaled_loss")


def _has_state(optimizer: Any) -> bool:
    built = getattr(optimizer, "_built", None)
    return bool(getattr(optimizer, "_weights", ())) if built is None else bool(built)


def wrap(optimizer: Any, settings: Settings) -> Any:
    """A distributed optimizer like this one."""
    hooks.install_keras2(_keras_of(optimizer))
    if not is_loss_scale(optimizer):
        return wrapping.wrap(optimizer, DistributedOptimizer2, settings, _has_state(optimizer))
    if wrapping.is_distributed(optimizer.inner_optimizer):
        raise ValueError("the inner optimizer of this LossScaleOptimizer is distributed already")
    twin = object.__new__(wrapping.distributed_class(type(optimizer), DistributedLossScale2, settings))
    twin.__dict__.update(vars(optimizer))
    twin.__dict__["_optimizer"] = wrap(optimizer.inner_optimizer, settings)
    return twin


def adopt(optimizer: Any, settings: Settings) -> Any:
    """Makes this very optimizer distributed."""
    hooks.install_keras2(_keras_of(optimizer))
    if is_loss_scale(optimizer):
        adopt(optimizer.inner_optimizer, settings)
        return wrapping.adopt(optimizer, DistributedLossScale2, settings)
    return wrapping.adopt(optimizer, DistributedOptimizer2, settings)


def _keras_of(optimizer: Any) -> Any:
    """The Keras that an optimizer is of: tf_keras, or a Keras 2 under its own name."""
    import importlib

    ours = next(
        (
            cls.__module__.split(".")[0]
            for cls in type(optimizer).__mro__
            if cls.__module__.split(".")[0] in ("tf_keras", "keras")
        ),
        "tf_keras",
    )
    return importlib.import_module(ours)
