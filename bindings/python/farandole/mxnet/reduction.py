"""How the gradients of an optimizer or a trainer are reduced: `Reduction`.

Gradients that come first have the highest priority: those of the first layers, whose weights the next forward pass
needs first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from farandole.basics import basics
from farandole.mxnet import mpi_ops
from farandole.process_sets import ProcessSet


class Reduction:
    """The arguments that `DistributedOptimizer` and `DistributedTrainer` have in common."""

    def __init__(self, gradient_predivide_factor: float, num_groups: int, process_set: ProcessSet) -> None:
        if num_groups < 0:
            raise ValueError(f"num_groups is a number of groups, not {num_groups}")
        factor = float(gradient_predivide_factor)
        if factor == 0.0:
            raise ValueError("gradient_predivide_factor divides gradients, so it is not 0")
        self.num_groups = num_groups
        self.process_set = process_set
        self._arguments: dict[str, Any] = {
            "op": basics.Average,
            "prescale_factor": 1.0 / factor,
            "postscale_factor": factor,
            "process_set": process_set,
        }

    def applies(self) -> bool:
        """Whether this rank has others to reduce gradients with."""
        return bool(self.process_set.included()) and self.process_set.size() != 1

    def reduce(self, gradients: Sequence[Any], names: Sequence[str]) -> None:
        """Reduces gradients in place, under these names."""
        if not self.applies():
            return
        if self.num_groups == 0:
            for place, (gradient, name) in enumerate(zip(gradients, names)):
                mpi_ops.allreduce_(gradient, name=name, priority=-place, **self._arguments)
            return
        entries = list(zip(gradients, names))
        for place, group in enumerate(_parts(entries, self.num_groups)):
            for same_type in _by_type(group):
                tensors, members = zip(*same_type)
                name = f"{members[0]}:{members[-1]}"
                mpi_ops.grouped_allreduce_(list(tensors), name=name, priority=-place, **self._arguments)


def _parts(entries: list[Any], count: int) -> list[list[Any]]:
    """Consecutive parts whose lengths differ by one at most; none is empty."""
    count = min(count, len(entries))
    length, longer = divmod(len(entries), count) if count else (0, 0)
    ends = [part * length + min(part, longer) for part in range(count + 1)]
    return [entries[begin:end] for begin, end in zip(ends, ends[1:])]


def _by_type(entries: list[tuple[Any, str]]) -> list[list[tuple[Any, str]]]:
    """Gradients of one element type each: they share a buffer on the wire."""
    groups: dict[numpy.dtype[Any], list[tuple[Any, str]]] = {}
    for entry in entries:
        groups.setdefault(numpy.dtype(entry[0].dtype), []).append(entry)
    return list(groups.values())
