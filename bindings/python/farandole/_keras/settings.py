"""What a distributed optimizer of Keras is asked to do: the arguments of `DistributedOptimizer`, checked once.

Not here: anything that depends on a framework. Groups of variables are kept as they were given; `places` says which gradients they mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from farandole.basics import basics
from farandole.process_sets import ProcessSet, global_process_set

Groups = Union[int, list[list[Any]], None]


@dataclass(frozen=True)
class Settings:
    """The arguments of `DistributedOptimizer`."""

    compression: Any
    name: Optional[str] = None
    device_dense: str = ""
    device_sparse: str = ""
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = basics.Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: Groups = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def factors(self) -> tuple[float, float]:
        """What gradients are multiplied by before and after they are added; the division by the number of ranks comes on top."""
        factor = float(self.gradient_predivide_factor)
        return 1.0 / factor, factor

    def places(self, variables: Sequence[Any], key: Callable[[Any], int]) -> list[list[int]]:
        """The places of gradients that are to be reduced together, for the gradients of these variables."""
        count = len(variables)
        if self.groups is None:
            return []
        if isinstance(self.groups, int):
            parts = min(self.groups, count)
            quotient, remainder = divmod(count, parts) if parts else (0, 0)
            ends = [(part + 1) * quotient + min(part + 1, remainder) for part in range(parts)]
            return [list(range(start, end)) for start, end in zip([0, *ends], ends)]
        place_of = {key(variable): place for place, variable in enumerate(variables)}
        listed = [[place_of.get(key(variable)) for variable in group] for group in self.groups]
        return [places for group in listed if (places := [place for place in group if place is not None])]


def check(num_groups: int = 0, **arguments: Any) -> Settings:
    """The settings that these arguments of `DistributedOptimizer` mean. Refuses what cannot be done."""
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.", DeprecationWarning, stacklevel=3
        )
        if arguments.get("groups") is None:
            arguments["groups"] = num_groups
    settings = Settings(**arguments)
    if settings.op not in (basics.Average, basics.Sum):
        raise ValueError("op currently only supports Average and Sum")
    if settings.gradient_predivide_factor != 1.0 and settings.op != basics.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not settings.gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor must be above 0, not {settings.gradient_predivide_factor}")
    if not isinstance(settings.backward_passes_per_step, int) or settings.backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    groups = settings.groups
    is_number = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    if groups is not None and not isinstance(groups, list) and not is_number:
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
    return settings
