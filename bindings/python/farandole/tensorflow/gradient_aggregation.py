"""Local aggregation of gradients in graphs: several backward passes, then one reduction (`backward_passes_per_step`).

`LocalGradientAggregationHelper` has Horovod's name and methods. It adds the gradients of each pass to variables of its
own, counts passes, and when the last one is counted, reduces the sums and clears them. What `compute_gradients` returns
in other passes is not to be applied, and `apply_gradients` does not.

The variables are local ones (`tf.compat.v1.local_variables_initializer` initializes them): each rank has its own sums,
which neither a broadcast of global variables nor a checkpoint touches.

Not here: eager execution and `tf.function` (`gradient_aggregation_eager.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.gradient_reduction import AllreduceGrads, reduce_but_local
from farandole.tensorflow.util import VariableSet, as_written

__all__ = ["LocalGradientAggregationHelper", "dense_to_aggregate"]


def dense_to_aggregate(grads: Sequence[Any], sparse_as_dense: bool) -> list[Any]:
    """Gradients that can be added to a variable. `ValueError` for sparse ones that shall stay sparse."""
    if not sparse_as_dense and any(isinstance(grad, tf.IndexedSlices) for grad in grads):
        raise ValueError(
            "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
        )
    return [tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]


def present(values: Sequence[Any]) -> list[Any]:
    """Those that are not `None`."""
    return [value for value in values if value is not None]


def as_list(outputs: Any) -> list[Any]:
    """The outputs of `tf.cond`, which unwraps a list of one."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


class LocalGradientAggregationHelper:
    """Adds up gradients over several runs of a graph. Arguments:

    backward_passes_per_step: how many.
    allreduce_func: reduces a list of gradients, given them and their variables.
    sparse_as_dense: whether `tf.IndexedSlices` are made dense; otherwise they are refused.
    average_aggregated_gradients: whether the result is divided by the number of passes.
    rank: this rank, part of the names of the variables.
    optimizer_type: for Keras 2, variables are initialized in its session at once.
    process_set: the ranks that take part.
    scale_local_gradients: whether the gradients of local variables are divided by the number of ranks.
    name: part of the names of the variables.
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: AllreduceGrads,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._allreduce_grads = allreduce_func
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.rank = rank
        self.optimizer_type = optimizer_type
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.name = name
        self.counter: Any = None
        """Passes since the last reduction: 0 right after one."""
        self.locally_aggregated_grads: list[Any] = []
        """The sums, of the gradients that are not `None`."""
        self._local_vars = VariableSet()

    def register_local_var(self, var: Any) -> None:
        """Has the gradient of a variable stay this rank's own."""
        self._local_vars.add(var)

    @as_written
    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds gradients to the sums. Returns the reduced sums in the pass that completes them, and the gradients in
        others."""
        grads = dense_to_aggregate(grads, self.sparse_as_dense)
        places = [place for place, grad in enumerate(grads) if grad is not None]
        values = [grads[place] for place in places]
        variables = [vars[place] for place in places]
        self._make_variables(values)
        added = [total.assign_add(value) for total, value in zip(self.locally_aggregated_grads, values)]
        with tf.control_dependencies(added):
            counted = self.counter.assign_add(1, read_value=True)
        outputs = tf.cond(
            tf.equal(counted, self.backward_passes_per_step),
            lambda: self._reduce_and_clear(variables),
            lambda: [tf.identity(value) for value in values],
        )
        results: list[Any] = [None] * len(grads)
        for place, output in zip(places, as_list(outputs)):
            results[place] = output
        return results

    def _make_variables(self, values: Sequence[Any]) -> None:
        collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
        # Resource variables: what was read from one stays as it was when the sum is cleared.
        terms = dict(trainable=False, use_resource=True, initializer=tf.compat.v1.zeros_initializer())
        scope = f"aggregation_variables_{self.name}{self.rank}"
        with tf.compat.v1.variable_scope(scope, reuse=tf.compat.v1.AUTO_REUSE):
            self.counter = tf.compat.v1.get_variable(
                "aggregation_counter", shape=(), dtype=tf.int32, collections=collections, **terms
            )
            self.locally_aggregated_grads = [
                tf.compat.v1.get_variable(
                    str(place),
                    shape=value.shape,
                    dtype=value.dtype,
                    collections=[*collections, "aggregating_collection"],
                    **terms,
                )
                for place, value in enumerate(values)
            ]
        if self.optimizer_type == self._OPTIMIZER_TYPE_KERAS:
            # Keras 2 initializes the variables that it knows, which these are not among.
            session = tf.compat.v1.keras.backend.get_session(op_input_list=())
            session.run(tf.compat.v1.variables_initializer([self.counter, *self.locally_aggregated_grads]))

    def _reduce_and_clear(self, variables: Sequence[Any]) -> list[Any]:
        sums = [total.read_value() for total in self.locally_aggregated_grads]
        with tf.control_dependencies(sums):
            cleared = [
                total.assign(tf.zeros_like(value)).op for total, value in zip(self.locally_aggregated_grads, sums)
            ]
            cleared.append(self.counter.assign(0).op)
        reduced = reduce_but_local(
            self._allreduce_grads, sums, variables, self._local_vars, self.scale_local_gradients, self.process_set
        )
        if self.average_aggregated_gradients:
            reduced = [grad / self.backward_passes_per_step for grad in reduced]
        with tf.control_dependencies(cleared):
            return [tf.identity(grad) for grad in reduced]

    @as_written
    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the closure in the passes that complete a step. In others, counts what counts steps: the optimizer's
        `iterations` and the `global_step` of `tf.compat.v1`. The first of `args` is the list of pairs of gradients and
        variables."""
        with tf.control_dependencies(present([grad for grad, _ in args[0]])):
            step_is_complete = tf.equal(self.counter.read_value(), 0)

        def apply() -> Any:
            with tf.control_dependencies(operations(apply_grads_closure())):
                return tf.no_op()

        def count() -> Any:
            counters = [getattr(optimizer, "iterations", None), kwargs.get("global_step")]
            added = [counter.assign_add(tf.ones([], counter.dtype.base_dtype)) for counter in present(counters)]
            with tf.control_dependencies(operations(added)):
                return tf.no_op()

        return tf.cond(step_is_complete, apply, count)


def operations(results: Any) -> list[Any]:
    """The operations behind what an update returned: an operation, a tensor, a variable, several of them, or
    nothing."""
    return present(tf.nest.flatten(results))
