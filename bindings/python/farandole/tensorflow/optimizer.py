"""`DistributedOptimizer`: an optimizer whose gradients are those of all ranks' batches together.

Owns the wrapper of `tf.compat.v1.train.Optimizer` and its subclasses, in graphs with sessions and in eager execution.
It reduces gradients in `compute_gradients`, which `minimize` calls, and leaves everything else to the optimizer inside.
Optimizers of Keras are wrapped by `farandole.tensorflow.keras`.

Not here: Adasum, which reduces steps and not gradients (`delta_optimizer.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from farandole.gradient_settings import Groups, Settings, checked
from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.delta_optimizer import DeltaOptimizer
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.gradient_aggregation_eager import aggregation_helper
from farandole.tensorflow.gradient_reduction import GradientReduction, reduce_but_local
from farandole.tensorflow.mpi_ops import Adasum, Average
from farandole.tensorflow.util import VariableSet, as_written

__all__ = ["DistributedOptimizer"]

_LegacyOptimizer = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_LegacyOptimizer):  # type: ignore[misc, valid-type]
    """A `tf.compat.v1.train.Optimizer` around another. `DistributedOptimizer` describes the settings."""

    def __init__(self, optimizer: Any, settings: Settings, use_locking: bool = False) -> None:
        name = settings.name or f"Distributed{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = GradientReduction.of(name, settings)
        self.process_set = settings.process_set
        self.scale_local_gradients = settings.scale_local_gradients
        self._local_vars = VariableSet()
        kind = LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY
        self._agg_helper = aggregation_helper(settings, self._reduction, kind, self.get_name())

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
        """Has the optimizer inside apply gradients; with `backward_passes_per_step`, only those that complete a
        step."""
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
        device_dense, device_sparse: TensorFlow's names of devices on which to place the reduction. Empty: where
            TensorFlow places it.
        compression: what is sent in place of dense gradients: `Compression.none`, `.fp16`, `.bf16` or your own.
        sparse_as_dense: make `tf.IndexedSlices` dense first. Good if most rows have a gradient.
        backward_passes_per_step: gradients are added up over so many backward passes before they are reduced and
            applied.
        op: `Average`, `Sum`, or another reduction. With `Adasum`, ranks step on their own and their steps are combined.
        gradient_predivide_factor: with `Average`, divide by this before adding and multiply by it afterwards.
        average_aggregated_gradients: divide by `backward_passes_per_step`, too.
        num_groups: the old name of an integer in `groups`.
        groups: reduce gradients in groups that are complete before they leave: how many, or lists of variables; those
            in no list are on their own.
        process_set: reduce over these ranks only. Other ranks step on their own.
        scale_local_gradients: divide the gradients of variables that were passed to `register_local_var` by the number
            of ranks.
    """
    return _distributed(**locals())


def _distributed(optimizer: Any, use_locking: bool, **arguments: Any) -> Any:
    settings = checked(**arguments, stacklevel=4)
    is_adasum = settings.op == Adasum
    if is_adasum and settings.average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if isinstance(optimizer, _LegacyOptimizer):
        kind = DeltaOptimizer if is_adasum else _DistributedOptimizer
        return kind(optimizer, settings, use_locking)
    if is_adasum:
        raise ValueError("op == Adasum is not supported yet with Keras")
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(
            f"{type(optimizer).__name__} is neither a tf.compat.v1.train.Optimizer nor an optimizer of Keras, so that "
            "it cannot be made distributed"
        )
    # Imported here, because it imports this package, and Keras.
    farandole_keras = importlib.import_module("farandole.tensorflow.keras")
    return farandole_keras.DistributedOptimizer(optimizer, **vars(settings))
