"""Local aggregation of gradients in eager execution and in `tf.function`: several backward passes, then one reduction.

`LocalGradientAggregationHelperEager` has Horovod's name and methods, and does what `gradient_aggregation.py` describes,
with variables of its own that are made outside of any graph when a gradient is seen first. `aggregation_helper` chooses
between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import tensorflow as tf

from farandole.gradient_settings import Settings
from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper, as_list, dense_to_aggregate
from farandole.tensorflow.gradient_reduction import AllreduceGrads, reduce_but_local
from farandole.tensorflow.mpi_ops import rank
from farandole.tensorflow.util import VariableSet, as_written, tf_variable

__all__ = ["LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager:
    """Adds up gradients over several calls. The arguments are those of `LocalGradientAggregationHelper`."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: AllreduceGrads,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.allreduce_grads = allreduce_func
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.locally_aggregated_grads: dict[int, Any] = {}
        """The sums, by the place of the gradient."""
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, name="aggregation_counter")
        """Passes since the last reduction: 0 right after one."""
        self._local_vars = VariableSet()

    def register_local_var(self, var: Any) -> None:
        """Has the gradient of a variable stay this rank's own."""
        self._local_vars.add(var)

    @as_written
    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds gradients to the sums. Returns the reduced sums in the pass that completes them, and the sums so far in
        others."""
        grads = dense_to_aggregate(grads, self.sparse_as_dense)
        places = [place for place, grad in enumerate(grads) if grad is not None]
        variables = [vars[place] for place in places]
        sums = [self._sum_at(place, grads[place], vars[place]) for place in places]
        added = [total.assign_add(grads[place]) for place, total in zip(places, sums)]
        with tf.control_dependencies(added):
            counted = self.counter.assign_add(1)
            values = [total.read_value() for total in sums]

        def reduce_and_clear() -> list[Any]:
            reduced = self._reduced(values, variables)
            self._clear(sums)
            return reduced

        outputs = tf.cond(
            tf.equal(counted, self.backward_passes_per_step),
            reduce_and_clear,
            lambda: [tf.identity(value) for value in values],
        )
        results: list[Any] = [None] * len(grads)
        for place, output in zip(places, as_list(outputs)):
            results[place] = output
        return results

    def _sum_at(self, place: int, grad: Any, variable: Any) -> Any:
        """The variable that sums up the gradients at this place."""
        total = self.locally_aggregated_grads.get(place)
        if total is None:
            shape = grad.shape if grad.shape.is_fully_defined() else tf_variable(variable).shape
            with tf.init_scope():
                total = tf.Variable(tf.zeros(shape, grad.dtype), trainable=False, name=f"aggregated_gradient_{place}")
            self.locally_aggregated_grads[place] = total
        return total

    def _reduced(self, values: list[Any], variables: list[Any]) -> list[Any]:
        reduced = reduce_but_local(
            self.allreduce_grads, values, variables, self._local_vars, self.scale_local_gradients, self.process_set
        )
        if self.average_aggregated_gradients:
            return [grad / self.backward_passes_per_step for grad in reduced]
        return reduced

    def _clear(self, sums: Sequence[Any]) -> None:
        self.counter.assign(0)
        for total in sums:
            total.assign(tf.zeros_like(total))

    @as_written
    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the closure when a step is complete. Otherwise counts what counts steps: the optimizer's `iterations`,
        and `global_step`. Optimizers of Keras 2 that reduce gradients within `apply_gradients` get to add up theirs,
        too; for these the first of `args` is the list of pairs of gradients and variables."""

        def count() -> Any:
            if hasattr(optimizer, "_aggregate_gradients") and args:
                pairs = args[0]
                if hasattr(optimizer, "_transform_unaggregated_gradients"):
                    pairs = optimizer._transform_unaggregated_gradients(pairs)
                optimizer._aggregate_gradients(pairs)
            for counter in (getattr(optimizer, "iterations", None), kwargs.get("global_step")):
                if counter is not None:
                    counter.assign_add(tf.ones([], tf_variable(counter).dtype))
            return tf.constant(False)

        def apply() -> Any:
            apply_grads_closure()
            return tf.constant(True)

        return tf.cond(tf.equal(self.counter, 0), apply, count)


Helper = Union[LocalGradientAggregationHelper, LocalGradientAggregationHelperEager, None]


def aggregation_helper(settings: Settings, reduce: AllreduceGrads, optimizer_type: str, name: str = "") -> Helper:
    """The helper for an optimizer with these settings, for graphs or for eager execution; `None` with one pass per
    step."""
    if settings.backward_passes_per_step <= 1:
        return None
    terms: dict[str, Any] = dict(
        backward_passes_per_step=settings.backward_passes_per_step,
        allreduce_func=reduce,
        sparse_as_dense=settings.sparse_as_dense,
        average_aggregated_gradients=settings.average_aggregated_gradients,
        process_set=settings.process_set,
        scale_local_gradients=settings.scale_local_gradients,
    )
    if tf.compat.v1.executing_eagerly_outside_functions():
        return LocalGradientAggregationHelperEager(**terms)
    return LocalGradientAggregationHelper(rank=rank(), optimizer_type=optimizer_type, name=name, **terms)
