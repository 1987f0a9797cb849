"""`DistributedOptimizer`: an optimizer whose gradients are those of all ranks' batches together.

Owns the wrapper of `tf.compat.v1.train.Optimizer` and its subclasses, in graphs with sessions and in eager execution. It reduces gradients in
`compute_gradients`, which `minimize` calls, and leaves everything else to the optimizer inside. Optimizers of Keras are wrapped by
`farandole.tensorflow.keras`.

Not here: Adasum, which reduces steps and not gradients (`delta_optimizer.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.delta_optimizer import DeltaOptimizer
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from farandole.tensorflow.gradient_reduction import (
    GradientReduction,
    Groups,
    check_predivide,
    checked_groups,
    reduce_but_local,
)
from farandole.tensorflow.mpi_ops import Adasum, Average, rank
from farandole.tensorflow.util import VariableSet, as_written

__all__ = ["DistributedOptimizer"]

_LegacyOptimizer = tf.compat.v1.train.Optimizer

_Aggregation = Union[LocalGradientAggregationHelper, LocalGradientAggregationHelperEager, None]


class _DistributedOptimizer(_LegacyOptimizer):  # type: ignore[misc, valid-type]
    """A `tf.compat.v1.train.Optimizer` around another. `DistributedOptimizer` describes the arguments."""

    def __init__(
        self,
        optimizer: Any,
        name: Optional[str] = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        name = name or f"Distributed{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = GradientReduction(
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            groups,
            process_set,
        )
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self._local_vars = VariableSet()
        self._agg_helper = self._aggregation(backward_passes_per_step, sparse_as_dense, average_aggregated_gradients)

    def _aggregation(self, passes: int, sparse_as_dense: bool, average: bool) -> _Aggregation:
        if passes <= 1:
            return None
        terms: dict[str, Any] = dict(
            backward_passes_per_step=passes,
            allreduce_func=self._reduction,
            sparse_as_dense=sparse_as_dense,
            average_aggregated_gradients=average,
            process_set=self.process_set,
            scale_local_gradients=self.scale_local_gradients,
        )
        if tf.compat.v1.executing_eagerly_outside_functions():
            return LocalGradientAggregationHelperEager(**terms)
        return LocalGradientAggregationHelper(
            rank=rank(),
            optimizer_type=LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY,
            name=self.get_name(),
            **terms,
        )

    def register_local_var(self, var: Any) -> None:
        """Has the gradient of a variable stay this rank's own."""
        self._local_vars.add(var)
        if self._agg_helper is not None:
            self._agg_helper.register_local_var(var)

    @as_written
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of reduced gradient and variable. The arguments are those of the optimizer inside."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads = [grad for grad, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._agg_helper is not None:
            reduced = self._agg_helper.compute_gradients(grads, variables)
        else:
            reduced = reduce_but_local(
                self._reduction, grads, variables, self._local_vars, self.scale_local_gradients, self.process_set
            )
        return list(zip(reduced, variables))

    @as_written
    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: Optional[str] = None
    ) -> Any:
        """Has the optimizer inside apply gradients; with `backward_passes_per_step`, only those that complete a step."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self._optimizer, pairs, global_step=global_step, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """That of the optimizer inside."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the optimizer inside."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the optimizer inside."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer distributed: `optimizer = hvd.DistributedOptimizer(optimizer)`.

    Arguments:
        optimizer: a `tf.compat.v1.train.Optimizer`, or an optimizer of Keras 2 or 3.
        name: of the new optimizer, and the scope of the gradients' names.
        use_locking: as for `tf.compat.v1.train.Optimizer`.
        device_dense, device_sparse: TensorFlow's names of devices on which to place the reduction. Empty: where TensorFlow places it.
        compression: how dense gradients travel: `Compression.none`, `.fp16`, `.bf16` or your own.
        sparse_as_dense: make `tf.IndexedSlices` dense first. Good if most rows have a gradient.
        backward_passes_per_step: gradients are added up over so many backward passes before they are reduced and applied.
        op: `Average`, `Sum`, or another reduction. With `Adasum`, ranks step on their own and their steps are combined.
        gradient_predivide_factor: with `Average`, divide by this before adding and multiply by it afterwards.
        average_aggregated_gradients: divide by `backward_passes_per_step`, too.
        num_groups: the old name of an integer in `groups`.
        groups: reduce gradients in groups that are complete before they leave: how many, or lists of variables; those in no list
            are on their own.
        process_set: reduce over these ranks only. Other ranks step on their own.
        scale_local_gradients: divide the gradients of variables that were passed to `register_local_var` by the number of ranks.
    """
    check_predivide(op, gradient_predivide_factor)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    groups = checked_groups(groups, num_groups)
    shared: dict[str, Any] = dict(
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        groups=groups,
        process_set=process_set,
    )
    if op == Adasum and isinstance(optimizer, _LegacyOptimizer):
        return DeltaOptimizer(optimizer, use_locking=use_locking, **shared)
    shared.update(
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients,
    )
    if isinstance(optimizer, _LegacyOptimizer):
        return _DistributedOptimizer(optimizer, use_locking=use_locking, **shared)
    if op == Adasum:
        raise ValueError("op == Adasum is not supported yet with Keras")
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(
            f"{type(optimizer).__name__} is neither a tf.compat.v1.train.Optimizer nor an optimizer of Keras, so that it "
            "cannot be made distributed"
        )
    # Imported here, because it imports this package, and Keras.
    farandole_keras = importlib.import_module("farandole.tensorflow.keras")
    return farandole_keras.DistributedOptimizer(optimizer, **shared)
