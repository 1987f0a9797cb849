"""`DistributedTrainer`: a trainer of Gluon that reduces gradients over all ranks before it uses them.

The gradients are reduced in place, by operations of MXNet's engine: `step` returns at once, and the update of the
weights follows when the gradients have come.

A rank trains on one device: on as many as there are, start as many ranks.
"""

from __future__ import annotations

import warnings
from typing import Any, Optional

import mxnet as mx

from farandole.mxnet import phases, reduction
from farandole.mxnet.compression import Compression
from farandole.mxnet.optimizer import DistributedOptimizer
from farandole.process_sets import ProcessSet, global_process_set


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """Averages gradients over all ranks, then updates the parameters.

    Arguments:
        params: the parameters to train: a dict, a `ParameterDict`, or a list in the same order on all ranks.
        optimizer: an optimizer of MXNet, or its name.
        optimizer_params: arguments for the optimizer, if a name is given.
        compression: what is sent in place of gradients, from `hvd.Compression`.
        gradient_predivide_factor: gradients are divided by this before they are added, and multiplied by it when they
            are divided by the number of ranks afterwards.
        prefix: put before the names of gradients. Several trainers of one program need different ones.
        num_groups: into how many groups the gradients are divided, each of which is reduced together. 0 leaves each on
            its own.
        process_set: the ranks that take part. On others, gradients stay as they are.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Optional[dict[str, Any]] = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: Optional[str] = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if prefix is not None and not isinstance(prefix, str):
            raise ValueError(f"prefix is a string, not {type(prefix).__name__}")
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warnings.warn(
                "DistributedTrainer does not take DistributedOptimizer as its optimizer. We have unwrapped it for you.",
                stacklevel=2,
            )
        self._compression = compression
        self._prefix = prefix or ""
        self._process_set = process_set
        self._reduction = reduction.Reduction(gradient_predivide_factor, num_groups, process_set)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if len(self._contexts) > 1:
            raise ValueError(
                f"the parameters are on {len(self._contexts)} devices: {self._contexts}. A rank trains on one; start "
                "a rank for each device"
            )

    def _allreduce_grads(self) -> None:
        if not self._reduction.applies():
            return
        trained = [(place, param) for place, param in enumerate(self._params) if param.grad_req != "null"]
        gradients = [param.list_grad()[0] for _, param in trained]
        compressed = [self._compression.compress(gradient) for gradient in gradients]
        names = [f"{self._prefix}{place}" for place, _ in trained]
        self._reduction.compare(names, lambda: [(param.name, param.list_data()[0]) for _, param in trained])
        self._reduction.reduce([tensor for tensor, _ in compressed], names)
        for gradient, (tensor, context) in zip(gradients, compressed):
            if tensor is not gradient:
                gradient[:] = self._compression.decompress(tensor, context)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Averages the gradients, divides them by the size of this rank's batch, and updates the parameters."""
        with phases.step(self):
            super().step(batch_size, ignore_stale_grad)
