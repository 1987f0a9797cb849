"""Adasum for `tf.compat.v1.train.Optimizer`: each rank steps on its own, and what the steps changed is combined.

**Step.** At the first of `backward_passes_per_step` passes the variables are remembered. The optimizer inside applies the gradients of this
rank in every pass. In the last one, the difference to what was remembered is reduced with Adasum, and the variables become
what was remembered plus the result. So optimizers that scale gradients by their history, such as Adam, see gradients of
one batch size whatever the number of ranks.

With one pass per step, nothing is remembered between runs of the graph. Otherwise, slots `delta_start` are.

Invariant: after a last pass the variables are the same on all ranks, if they were before the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.gradient_aggregation import operations
from farandole.tensorflow.gradient_reduction import GradientReduction, Groups
from farandole.tensorflow.mpi_ops import Adasum

_START = "delta_start"


class DeltaOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """A `tf.compat.v1.train.Optimizer` around another. `DistributedOptimizer` describes the arguments."""

    def __init__(
        self,
        optimizer: Any,
        name: Optional[str] = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        name = name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._passes = backward_passes_per_step
        self._reduction = GradientReduction(
            name, device_dense, device_sparse, compression, op=Adasum, groups=groups, process_set=process_set
        )
        self._pass_count: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """What the optimizer inside computes: gradients of this rank's batch."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: Optional[str] = None
    ) -> Any:
        """Applies gradients and, in the last pass of a step, combines the ranks' steps."""
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        variables = [variable for _, variable in pairs]
        if self._passes == 1:
            starts = [tf.identity(variable.read_value()) for variable in variables]
            with tf.control_dependencies(starts):
                applied = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            with tf.control_dependencies(operations(applied)):
                return self._combine(variables, starts)
        return self._apply_pass(pairs, variables, global_step, name)

    def _apply_pass(self, pairs: list[tuple[Any, Any]], variables: list[Any], global_step: Any, name: Optional[str]) -> Any:
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

        def remember() -> Any:
            with tf.control_dependencies(operations([slot.assign(variable) for slot, variable in zip(slots, variables)])):
                return tf.no_op()

        def combine() -> Any:
            with tf.control_dependencies(operations(self._combine(variables, slots))):
                return tf.no_op()

        with tf.control_dependencies(operations(tf.cond(tf.equal(number % self._passes, 0), remember, tf.no_op))):
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies(operations(applied)):
            combined = tf.cond(tf.equal(number % self._passes, self._passes - 1), combine, tf.no_op)
        with tf.control_dependencies(operations(combined)):
            return self._pass_count.assign_add(1)

    def _combine(self, variables: list[Any], starts: Sequence[Any]) -> Any:
        """Gives variables their old values plus the combined steps."""
        deltas = [variable.read_value() - start for variable, start in zip(variables, starts)]
        combined = self._reduction(deltas, variables)
        assigned = [variable.assign(start + delta) for variable, start, delta in zip(variables, starts, combined)]
        return tf.group(*assigned)

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
