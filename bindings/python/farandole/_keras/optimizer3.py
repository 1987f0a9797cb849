"""Distributed optimizers of Keras 3, on any of its backends.

All ways to update variables in Keras 3 go through `Optimizer.apply`: `fit`, `apply_gradients`, and `stateless_apply` of
JAX. It is there that gradients are reduced. So gradients handed to a distributed optimizer are those of this rank
alone.

**Accumulation** (`backward_passes_per_step`): gradients are added to accumulators of this rank. Every so many calls
their sums are reduced and applied; the calls between only count as iterations. Accumulators are variables of the
backend, but no part of a saved model.

**Loss scale**: `LossScaleOptimizer` skips a step whose gradients are not finite. Ranks must agree on that, or some
would wait for others that skip. So a `LossScaleOptimizer` around a distributed optimizer asks all ranks (`hooks`), and
a distributed `LossScaleOptimizer` is one whose inner optimizer is distributed.

Not here: how gradients of a backend are reduced (`reduce_*`), Keras 2 (`optimizer2`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Optional

from farandole._keras import hooks, host, wrapping
from farandole._keras.variables import key
from farandole._keras.wrapping import STATE, Distributed
from farandole.gradient_settings import Settings


def backend_module() -> Any:
    """The module that reduces gradients of the backend at hand."""
    import keras

    name = keras.backend.backend()
    if name not in ("tensorflow", "torch", "jax"):
        raise RuntimeError(f"farandole.keras runs on the Keras backends tensorflow, torch and jax, not on {name}")
    return importlib.import_module(f"farandole._keras.reduce_{name}")


class _State:
    """What a distributed optimizer keeps beside what Keras knows of."""

    def __init__(self, optimizer: Any) -> None:
        self.backend = backend_module()
        self.local: dict[int, Any] = {}
        """Variables whose gradients stay on this rank, by key. They are held, so that no other object gets their id."""
        self.accumulators: Optional[list[Any]] = None
        self.counter: Any = None
        """Calls since the last update."""
        self.is_reduced = False
        """The next gradients to be applied come from `compute_gradients` and are reduced already."""
        self.reducer = self.backend.Reducer(wrapping.name_of(optimizer), optimizer.farandole_settings)


class DistributedOptimizer3(Distributed):
    """Stands before an optimizer class of Keras 3."""

    @property
    def _farandole(self) -> _State:
        state = self.__dict__.get(STATE)
        if state is None:
            state = self.__dict__[STATE] = _State(self)
        return state

    @property
    def _agg_helper(self) -> Optional[_State]:
        """What accumulates gradients, if anything does. It has a `counter`."""
        return self._farandole if self.farandole_settings.backward_passes_per_step > 1 else None

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradients of a variable on this rank: they are not reduced, but divided by the number of ranks
        unless `scale_local_gradients` is off."""
        state = self._farandole
        state.local[key(var)] = var

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the variables of the optimizer, and accumulators if there are to be any."""
        super().build(variables)  # type: ignore[misc]
        if self.farandole_settings.backward_passes_per_step > 1:
            self._make_accumulators(variables)

    def _make_accumulators(self, variables: Sequence[Any]) -> None:
        import keras

        state = self._farandole
        if state.accumulators is not None:
            return
        with keras.name_scope("farandole"):
            accumulators = [
                keras.Variable(keras.ops.zeros(tuple(v.shape), dtype=v.dtype), dtype=v.dtype, trainable=False)
                for v in variables
            ]
            state.counter = keras.Variable(0, dtype="int32", trainable=False)
        state.accumulators = accumulators
        if state.backend.STATELESS:
            # The train step gets and returns the variables of the optimizer; these come last, behind those that are
            # saved.
            for variable in (*accumulators, state.counter):
                self._track_variable(variable)  # type: ignore[attr-defined]

    def reduce_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks combined. Those of local variables stay; where there is no gradient, there is none
        after."""
        state, settings = self._farandole, self.farandole_settings
        reduced = list(grads)
        keys = [key(variable) for variable in variables]
        sent = [place for place, its_key in enumerate(keys) if grads[place] is not None and its_key not in state.local]
        results = state.reducer.reduce([grads[place] for place in sent], [variables[place] for place in sent], sent)
        for place, result in zip(sent, results):
            reduced[place] = result
        if settings.scale_local_gradients and state.local:
            ranks = float(host.size_of(settings.process_set))
            for place, its_key in enumerate(keys):
                if its_key in state.local and grads[place] is not None:
                    reduced[place] = state.backend.divide(grads[place], ranks)
        return reduced

    def apply(self, grads: Sequence[Any], trainable_variables: Optional[Sequence[Any]] = None) -> Any:
        """Reduces gradients of this rank and applies them, or adds them up for a later call."""
        grads = list(grads)
        if trainable_variables is None:
            trainable_variables = self._trainable_variables  # type: ignore[attr-defined]
        variables = list(trainable_variables)
        state = self._farandole
        if not grads or len(grads) != len(variables):
            # Nothing to do, or wrong, and the optimizer says so.
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        if state.is_reduced:
            state.is_reduced = False
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        if self.farandole_settings.backward_passes_per_step == 1:
            return super().apply(self.reduce_gradients(grads, variables), trainable_variables)  # type: ignore[misc]
        return self._accumulate_and_apply(grads, variables)

    def _accumulate_and_apply(self, grads: list[Any], variables: list[Any]) -> None:
        state, settings = self._farandole, self.farandole_settings
        if not self.built:  # type: ignore[has-type]
            self.build(variables)
            self.built = True
        elif state.accumulators is None:
            # It had its variables before it became distributed.
            self._make_accumulators(self._trainable_variables)  # type: ignore[attr-defined]
        grads = [state.backend.dense(grad, settings.sparse_as_dense) for grad in grads]
        assert state.accumulators is not None, "invariant: made with the other variables"
        places = [self._get_variable_index(variable) for variable in variables]  # type: ignore[attr-defined]
        accumulators = [state.accumulators[place] for place in places]

        def update(sums: list[Any]) -> list[Any]:
            if settings.average_aggregated_gradients:
                passes = float(settings.backward_passes_per_step)
                sums = [total if total is None else total / passes for total in sums]
            return self.reduce_gradients(sums, variables)

        base_apply = super().apply  # type: ignore[misc]
        state.backend.accumulate(
            self, grads, variables, accumulators, update, lambda reduced: base_apply(reduced, variables)
        )

    def save_own_variables(self, store: Any) -> None:
        """Saves what the optimizer's own class saves."""
        above: Any = super()
        self._without_accumulators(lambda: above.save_own_variables(store))

    def load_own_variables(self, store: Any) -> None:
        """Loads what the optimizer's own class has saved."""
        above: Any = super()
        self._without_accumulators(lambda: above.load_own_variables(store))

    def _without_accumulators(self, do: Any) -> None:
        """Does something while accumulators are not among the variables."""
        state = self._farandole
        if state.accumulators is None or not state.backend.STATELESS:
            do()
            return
        ours = {id(variable) for variable in (*state.accumulators, state.counter)}
        variables: list[Any] = self._variables  # type: ignore[attr-defined]
        every = variables[:]
        variables[:] = [variable for variable in every if id(variable) not in ours]
        try:
            do()
        finally:
            variables[:] = every

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Reduced gradients of a loss, with their variables, for `apply_gradients`. On the tensorflow backend only.

        loss: a tensor with the tape that recorded it, or a function that computes it.
        """
        state = self._farandole
        if not hasattr(state.backend, "gradients"):
            raise NotImplementedError(
                "compute_gradients needs the tensorflow backend of Keras; hand gradients to apply() instead"
            )
        grads, variables = state.backend.gradients(loss, var_list, tape)
        if self.farandole_settings.backward_passes_per_step == 1:
            grads = self.reduce_gradients(grads, variables)
            state.is_reduced = True
        return list(zip(grads, variables))

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """As `compute_gradients`, under the name that Keras 2 had for it."""
        if grad_loss is not None:
            raise NotImplementedError(
                "grad_loss is not supported; use the tape's output_gradients and apply_gradients()"
            )
        return self.compute_gradients(loss, var_list, tape)


class DistributedLossScale3(Distributed):
    """Stands before `LossScaleOptimizer` of Keras 3, whose inner optimizer is a distributed one."""

    def register_local_var(self, var: Any) -> None:
        """See the inner optimizer's."""
        self.inner_optimizer.register_local_var(var)  # type: ignore[attr-defined]


def is_loss_scale(optimizer: Any) -> bool:
    """Whether this is a `LossScaleOptimizer` of Keras 3."""
    return hasattr(optimizer, "inner_optimizer") and hasattr(optimizer, "check_finite")


def wrap(optimizer: Any, settings: Settings) -> Any:
    """A distributed optimizer like this one."""
    hooks.install_keras3()
    if not is_loss_scale(optimizer):
        return wrapping.wrap(optimizer, DistributedOptimizer3, settings, optimizer.built)
    if wrapping.is_distributed(optimizer.inner_optimizer):
        raise ValueError("the inner optimizer of this LossScaleOptimizer is distributed already")
    inner = wrap(optimizer.inner_optimizer, settings)
    outer = wrapping.wrap(optimizer, DistributedLossScale3, settings, optimizer.built)
    outer.inner_optimizer = inner
    return outer


def adopt(optimizer: Any, settings: Settings) -> Any:
    """Makes this very optimizer distributed."""
    hooks.install_keras3()
    if is_loss_scale(optimizer):
        adopt(optimizer.inner_optimizer, settings)
        return wrapping.adopt(optimizer, DistributedLossScale3, settings)
    return wrapping.adopt(optimizer, DistributedOptimizer3, settings)
