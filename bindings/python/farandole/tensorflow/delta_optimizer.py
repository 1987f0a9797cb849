"""Adasum for `tf.compat.v1.train.Optimizer`: each rank steps on its own, and what the steps changed is combined.

**Step.** At the first of `backward_passes_per_step` passes the variables are remembered. The optimizer inside applies
the gradients of this rank in every pass. In the last one, the difference to what was remembered is reduced with Adasum,
and the variables become what was remembered plus the result. So optimizers that scale gradients by their history, such
as Adam, see gradients of one batch size whatever the number of ranks.

With one pass per step, nothing is remembered between runs of the graph. Otherwise, slots `delta_start` are.

Invariant: after a last pass the variables are the same on all ranks, if they were before the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import tensorflow as tf

from farandole.gradient_settings import Settings
from farandole.tensorflow.gradient_aggregation import as_list, operations
from farandole.tensorflow import parameter_check
from farandole.tensorflow.gradient_reduction import GradientReduction
from farandole.tensorflow.util import as_written

_START = "delta_start"


class DeltaOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """A `tf.compat.v1.train.Optimizer` around another. `DistributedOptimizer` describes the settings."""

    def __init__(self, optimizer: Any, settings: Settings, use_locking: bool = False) -> None:
        if settings.backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        name = settings.name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._passes = settings.backward_passes_per_step
        # Steps are dense, whatever the gradients were.
        self._reduction = GradientReduction.of(name, replace(settings, sparse_as_dense=False))
        # When steps are reduced, each rank has made its own.
        self._reduction.compares = False
        self._pass_count: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """What the optimizer inside computes: gradients of this rank's batch."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    @as_written
    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: Optional[str] = None
    ) -> Any:
        """Applies gradients and, in the last pass of a step, combines the ranks' steps."""
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        variables = [variable for _, variable in pairs]
        parameter_check.before_reducing(variables, self._reduction.process_set)
        if self._passes == 1:
            # A copy: what is read from a reference variable changes with it.
            starts = [tf.raw_ops.DeepCopy(x=variable.read_value()) for variable in variables]
            with tf.control_dependencies(starts):
                applied = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            with tf.control_dependencies(operations(applied)):
                values = [variable.read_value() for variable in variables]
            combined = self._combined(values, starts, variables)
            return tf.group(*[variable.assign(value) for variable, value in zip(variables, combined)])
        return self._apply_pass(pairs, variables, global_step, name)

    def _apply_pass(
        self, pairs: list[tuple[Any, Any]], variables: list[Any], global_step: Any, name: Optional[str]
    ) -> Any:
        with tf.init_scope():
            slots = [self._zeros_slot(variable, _START, self._name) for variable in variables]
            if self._pass_count is None:
                self._pass_count = tf.compat.v1.get_variable(
                    f"{self._name}/pass_count",
                    shape=(),
                    dtype=tf.int64,
                    initializer=tf.compat.v1.zeros_initializer(),
                    trainable=False,
                    use_resource=True,
                )
        number = self._pass_count.read_value()
        is_first, is_last = tf.equal(number % self._passes, 0), tf.equal(number % self._passes, self._passes - 1)
        # Variables are written outside of `tf.cond`, because TensorFlow refuses reference variables in its branches.
        remembered = [
            slot.assign(tf.where(is_first, variable.read_value(), slot.read_value()))
            for slot, variable in zip(slots, variables)
        ]
        with tf.control_dependencies(operations(remembered)):
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies(operations(applied)):
            values = [variable.read_value() for variable in variables]
            starts = [slot.read_value() for slot in slots]
        outputs = tf.cond(
            is_last,
            lambda: self._combined(values, starts, variables),
            lambda: [tf.identity(value) for value in values],
        )
        assigned = [variable.assign(value) for variable, value in zip(variables, as_list(outputs))]
        with tf.control_dependencies(operations(assigned)):
            return self._pass_count.assign_add(1)

    def _combined(self, values: Sequence[Any], starts: Sequence[Any], variables: list[Any]) -> list[Any]:
        """The old values plus the combined steps."""
        steps = self._reduction([value - start for value, start in zip(values, starts)], variables)
        return [start + step for start, step in zip(starts, steps)]

    def get_slot(self, var: Any, name: str) -> Any:
        """Its own slots, and those of the optimizer inside."""
        own = super().get_slot(var, name)
        return self._optimizer.get_slot(var, name) if own is None else own

    def get_slot_names(self) -> list[str]:
        """Its own slots' names, and those of the optimizer inside."""
        return list(super().get_slot_names()) + list(self._optimizer.get_slot_names())

    def variables(self) -> list[Any]:
        """Its own variables, and those of the optimizer inside."""
        own = super().variables() + ([] if self._pass_count is None else [self._pass_count])
        return list(own) + list(self._optimizer.variables())
