"""`DistributedOptimizer`, as scripts call it: a user's optimizer, with gradients that are those of all ranks.

Not here: what the returned optimizer does (`gradient_optimizer`; with Adasum, which combines what optimizers did and
not what they were given, `delta_optimizer`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from farandole.elastic import native as elastic
from farandole.torch.compression import Compression
from farandole.torch.delta_optimizer import DeltaOptimizer
from farandole.torch.gradient_optimizer import _DistributedOptimizer
from farandole.torch.grouping import Groups, check_groups
from farandole.torch.mpi_ops import Adasum, Average, ProcessSet, global_process_set, size
from farandole.torch.reduce_options import ReduceOptions, check_passes, merge_num_groups
from farandole.torch.wrapping import as_subclass


def DistributedOptimizer(  # noqa: N802 -- the name that scripts use
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wraps an optimizer so that every rank steps with the gradients of all.

    Gradients are reduced while backward still computes others; `step` waits for the last ones. Between backward and
    step they may or may not be reduced yet: call `synchronize` before looking at them or changing them (see
    `skip_synchronize`).

    Arguments:
        optimizer: any optimizer of torch. The result is an instance of its class, with its state.
        named_parameters: names of the parameters, usually `model.named_parameters()`; they must be the same on all
            ranks. Without them parameters are numbered.
        compression: what is sent in place of gradients: `Compression.none`, `.fp16`, `.bf16` or your own.
        backward_passes_per_step: gradients are accumulated over so many backward passes. Fewer before `step` are
            fine, more are an error. See also `no_sync`.
        op: `Average`, `Sum`, or another reduction. With `Adasum`, ranks step on their own and their steps are combined.
        gradient_predivide_factor: with `Average`, divide by this before adding and multiply by it afterwards.
        num_groups: the old name of an integer in `groups`.
        groups: reduce gradients in groups, each when all of its gradients are ready: how many, or lists of parameters;
            those in no list are on their own. With `Adasum`, the steps of a group's parameters are combined together.
            Sparse gradients cannot be in a group unless `sparse_as_dense` is set; they are reduced on their own, with
            a warning.
        sparse_as_dense: reduce sparse gradients as dense ones, and make them sparse again.
        process_set: reduce over these ranks only. Other ranks step on their own.
    """
    options = ReduceOptions(
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    groups = merge_num_groups(num_groups, groups)
    check_passes(backward_passes_per_step)
    kind = DeltaOptimizer if op == Adasum and (elastic.enabled() or size() > 1) else _DistributedOptimizer
    wrapped = as_subclass(optimizer, kind, __name__)
    check_groups(groups)
    wrapped._begin(named_parameters, options, backward_passes_per_step, groups)
    return wrapped
