"""How the gradients of a model are reduced: the arguments that tapes and optimizers of TensorFlow and Keras have in
common.

Owns `Settings`, which a front end makes of its arguments once and everything behind it takes as one value, and the
checks that hold for all.

Not here: anything that depends on a framework. Groups of variables are kept as they were given; `places` says which
gradients they mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from farandole.basics import basics
from farandole.process_sets import ProcessSet, global_process_set

Groups = Union[int, list[Sequence[Any]], None]


@dataclass(frozen=True)
class Settings:
    """The arguments of `DistributedOptimizer`, and of `DistributedGradientTape`, which has fewer."""

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
        """What gradients are multiplied by before and after they are added; the division by the number of ranks comes
        on top."""
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


def checked(num_groups: int = 0, *, stacklevel: int = 3, **arguments: Any) -> Settings:
    """The settings that these arguments mean. Refuses what nobody can do.

    num_groups: the old name of an integer in `groups`.
    stacklevel: how far up the script is, as for `warnings.warn`.
    """
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
        if arguments.get("groups") is None:
            arguments["groups"] = num_groups
    groups = arguments.get("groups")
    if isinstance(groups, tuple):
        arguments["groups"] = groups = list(groups)
    if groups is not None and not isinstance(groups, list) and not (isinstance(groups, int) and groups > 0):
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
    settings = Settings(**arguments)
    check_predivide(settings.op, settings.gradient_predivide_factor)
    return settings


def check_predivide(op: int, gradient_predivide_factor: float) -> None:
    """Refuses a factor that has nothing to split."""
    if gradient_predivide_factor != 1.0 and op != basics.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
