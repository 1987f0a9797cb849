"""How the gradients of an optimizer or a trainer are reduced: `Reduction`.

Gradients that come first have the highest priority: those of the first layers, whose weights the next forward pass
needs first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy

from farandole import _native, array_pieces
from farandole.basics import basics
from farandole.mxnet import arrays, mpi_ops
from farandole.process_sets import ProcessSet, group_for

REMEDY = "hvd.broadcast_parameters(net.collect_params(), root_rank=0)"
"""By what scripts give all ranks the same parameters."""


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
        self._checks: dict[tuple[str, ...], _native.ParameterCheck] = {}
        self._arguments: dict[str, Any] = {
            "op": basics.Average,
            "prescale_factor": 1.0 / factor,
            "postscale_factor": factor,
            "process_set": process_set,
        }

    def applies(self) -> bool:
        """Whether this rank has others to reduce gradients with."""
        return bool(self.process_set.included()) and self.process_set.size() != 1

    def compare(self, names: Sequence[str], parameters: Callable[[], Sequence[tuple[str, Any]]]) -> None:
        """Compares the parameters with these names of gradients with those of all ranks, if that is due. All ranks call
        this before they reduce these gradients."""
        if not names or not self.applies():
            return
        check = self._checks.get(tuple(names))
        if check is None:
            check = self._checks[tuple(names)] = _native.ParameterCheck(0, REMEDY, False)
        group = group_for(self.process_set, "Allreduce")
        if check.next_step(group) is not None:
            check.compare(group, [_piece(name, parameter) for name, parameter in parameters()])

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


def _piece(name: str, parameter: Any) -> array_pieces.Piece:
    """The memory of a parameter, when what MXNet's engine does with it is done; a copy of one that is on a device."""
    if parameter.stype != "default" or not arrays.is_on_host(parameter):
        return array_pieces.pieces([(name, parameter.asnumpy())])[0]
    parameter.wait_to_read()
    data = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(parameter.handle, ctypes.byref(data)))
    size_bytes = parameter.size * numpy.dtype(parameter.dtype).itemsize
    return name, data.value or 0, size_bytes, size_bytes, parameter


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
