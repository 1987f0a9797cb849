"""How all gradients of an optimizer are reduced: the arguments of `DistributedOptimizer`, checked."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from farandole.gradient_settings import check_predivide
from farandole.process_sets import ProcessSet, group_for
from farandole.torch.grouping import Groups
from farandole.torch.mpi_ops import rocm_built


@dataclass(frozen=True)
class ReduceOptions:
    """How all gradients of an optimizer are reduced."""

    op: int
    gradient_predivide_factor: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and rocm_built():
            raise ValueError("gradient_predivide_factor not supported yet with ROCm")
        check_predivide(self.op, self.gradient_predivide_factor)

    def reduction(self) -> tuple[int, float, float]:
        """Operation, prescale and postscale, as the engine takes them."""
        factor = self.gradient_predivide_factor
        return self.op, 1.0 / factor, factor

    def group(self) -> int:
        """The process set's number in the engine."""
        return group_for(self.process_set, "DistributedOptimizer")


def merge_num_groups(num_groups: int, groups: Groups) -> Groups:
    """The argument `groups`, which has replaced `num_groups`."""
    if num_groups == 0:
        return groups
    warnings.warn(
        "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
        DeprecationWarning,
        stacklevel=3,
    )
    return num_groups if groups is None else groups


def check_passes(passes: int) -> None:
    """Refuses a number of backward passes that no gradient is ready after."""
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
