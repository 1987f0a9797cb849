"""`DistributedOptimizer`: an optimizer of MXNet that reduces gradients over all ranks before it uses them.

For the Module API, and for whoever calls `update` himself. With Gluon, `DistributedTrainer` does the same.

The gradients are reduced in place, by operations of MXNet's engine: `update` returns at once, and the update of the
weights follows when the gradients have come.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from farandole.mxnet import reduction
from farandole.process_sets import ProcessSet, global_process_set


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Averages gradients over all ranks, then updates with an optimizer that you have made.

    Arguments:
        optimizer: any optimizer of MXNet.
        gradient_predivide_factor: gradients are divided by this before they are added, and multiplied by it when they
            are divided by the number of ranks afterwards.
        num_groups: into how many groups the gradients of one call are divided, each of which is reduced together.
            0 leaves each on its own.
        process_set: the ranks that take part. On others, gradients stay as they are.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # What `Optimizer.__init__` sets belongs to the optimizer inside; see `__getattr__`.
        self._optimizer = optimizer
        self._reduction = reduction.Reduction(gradient_predivide_factor, num_groups, process_set)
        self._process_set = process_set

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":
            # A copy that is being made has none yet.
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def create_state(self, index: Any, weight: Any) -> Any:
        """The state of the optimizer inside."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The state of the optimizer inside."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def _do_allreduce(self, index: Any, weight: Any, grad: Any) -> None:
        several = isinstance(index, (tuple, list))
        names = [str(number) for number in index] if several else [str(index)]
        weights = list(weight) if several else [weight]
        self._reduction.compare(names, lambda: list(zip(names, weights)))
        self._reduction.reduce(list(grad) if several else [grad], names)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Reduces one gradient, or a list of them, and updates the weights."""
        self._do_allreduce(index, weight, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As `update`, for weights of which the optimizer keeps copies of higher precision."""
        self._do_allreduce(index, weight, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Sets that of the optimizer inside."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Sets those of the optimizer inside."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Sets those of the optimizer inside."""
        self._optimizer.set_wd_mult(args_wd_mult)
