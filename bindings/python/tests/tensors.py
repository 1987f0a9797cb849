"""Tensors without a framework, for tests of the native module: memory of ctypes and the arguments that describe it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from farandole import _native

FLOAT32 = 11
SUM = 1


class Floats:
    """Contiguous single-precision numbers. It is the owner of its memory: when it is gone, so is that."""

    def __init__(self, values: Iterable[float], shape: tuple[int, ...] | None = None) -> None:
        numbers = list(values)
        self.memory = (ctypes.c_float * len(numbers))(*numbers)
        self.shape = (len(numbers),) if shape is None else shape

    @property
    def address(self) -> int:
        return ctypes.addressof(self.memory)

    def values(self) -> list[float]:
        return list(self.memory)

    def words(self, name: str) -> tuple[str, int, tuple[int, ...], int, "Floats"]:
        """The arguments with which every collective begins."""
        return (name, self.address, self.shape, FLOAT32, self)


def allreduce_words(name: str, tensor: Floats, group: int = 0, op: int = SUM) -> tuple[object, ...]:
    """All arguments of an allreduce in place."""
    return (*tensor.words(name), op, 1.0, 1.0, group, None, 0, None)


def allreduce(name: str, tensor: Floats, group: int = 0, op: int = SUM) -> _native.Handle:
    """Asks for the sum of all ranks' tensors, in place."""
    return _native.allreduce(*allreduce_words(name, tensor, group, op))
