"""Operations of the backend whose tensors are in the memory of a GPU, and stay there.

As in the rest of the backend, ranks see tensors as one dimension. How large results are is known from the outputs, so
the engine puts them there; outputs that are not one contiguous piece are filled from one that is. If the ranks bring
something else, the engine makes memory of its own, and the operation is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from farandole import _native
from farandole.torch import device_memory, lent_memory
from farandole.torch.device_work import DeviceWork
from farandole.torch.distributed.membership import Membership
from farandole.torch.distributed.tensors import Tensor, as_travelling, check_size, fill, member
from farandole.torch.distributed.work import Finish, Work

__all__ = ["DeviceOperations"]


class Outputs:
    """The tensors that take one result, in order."""

    def __init__(self, targets: Sequence[Tensor], source: Tensor) -> None:
        self._views = [as_travelling(target) for target in targets]
        self.elements = sum(view.numel() for view in self._views)
        """How many they take."""
        if len(self._views) == 1 and self._takes_it(self._views[0], source):
            self.memory = self._views[0]
        else:
            self.memory = torch.empty(self.elements, dtype=source.dtype, device=source.device)
        """Where the engine puts the result."""

    @staticmethod
    def _takes_it(view: Tensor, source: Tensor) -> bool:
        # Callers of all-gather like to have the input in its place of the output; the engine needs them apart.
        apart = view.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()
        same = view.dtype == source.dtype and view.device == source.device
        return apart and same and view.is_contiguous() and not view.is_neg()

    def finish(self) -> None:
        """Sees to it that the targets hold the result, for the current stream."""
        if not self._views or self.memory is not self._views[0]:
            fill(self._views, self.memory)


class DeviceOperations:
    """Those of one process group."""

    def __init__(
        self,
        membership: Membership,
        name: Callable[..., str],
        begin: Callable[[str, Callable[[], DeviceWork], Finish, Any], Work],
    ) -> None:
        self._membership = membership
        self._name = name
        """Names the next call by its signature and the number of its requests."""
        self._begin = begin
        """Makes a `Work` of a name, what asks the engine, what is done at the end, and the options."""

    def takes(self, views: Sequence[Tensor], collective: device_memory.Collective) -> bool:
        """Whether this is carried out in the memory of the GPU that the tensors are on."""
        return device_memory.lies_there(views[0]) and device_memory.takes(views, collective, self._membership.group)

    def in_place(
        self,
        signature: tuple[Any, ...],
        collective: device_memory.Collective,
        views: Sequence[Tensor],
        tensors: Sequence[Tensor],
        opts: Any,
        only_on: Optional[int] = None,
    ) -> Work:
        """Results take the place of contributions: on all ranks, or on one."""
        writes = only_on is None or only_on == self._membership.rank
        if writes:
            for view in views:
                lent_memory.check_writable(view)
        name = self._name(*signature, requests=len(views))
        batch = (name, len(views)) if len(views) > 1 else None
        lent = _lend(name, batch, views)

        def ask() -> DeviceWork:
            return self._submit(lent, collective, batch)

        def finish(_results: Sequence[Any]) -> Sequence[Tensor]:
            if writes:
                for each in lent:
                    each.take_back()
            return tensors

        return self._begin(name, ask, finish, opts)

    def into(
        self,
        signature: tuple[Any, ...],
        collective: device_memory.Collective,
        views: Sequence[Tensor],
        targets: Sequence[Sequence[Tensor]],
        opts: Any,
        rows: int = 0,
        check: Optional[Callable[[_native.DeviceHandle], None]] = None,
    ) -> Work:
        """Results go to other tensors: for each contribution those that take its result, in order. Contributions are
        sent as `rows` rows where the ranks share these out. `check` looks at what came, besides its size."""
        name = self._name(*signature, requests=len(views))
        batch = (name, len(views)) if len(views) > 1 else None
        outputs = [Outputs(of_view, view) for of_view, view in zip(targets, views)]
        lent = _lend(name, batch, views, outputs, rows)

        def check_results(handle: _native.DeviceHandle) -> None:
            if check is not None:
                check(handle)
            for output, (shape, _) in zip(outputs, handle.results()):
                check_size(output.elements, math.prod(shape))

        def finish(_results: Sequence[Any]) -> Sequence[Tensor]:
            for output in outputs:
                output.finish()
            return list(itertools.chain.from_iterable(targets))

        return self._begin(name, lambda: self._submit(lent, collective, batch, check_results), finish, opts)

    def _submit(
        self,
        lent: Sequence[device_memory.Lent],
        collective: device_memory.Collective,
        batch: Optional[tuple[str, int]],
        check: Optional[Callable[[_native.DeviceHandle], None]] = None,
    ) -> DeviceWork:
        named = None if batch is None else batch[0]
        return device_memory.submit(lent, collective, self._membership.group, named, check)


def _lend(
    name: str,
    batch: Optional[tuple[str, int]],
    views: Sequence[Tensor],
    outputs: Optional[Sequence[Outputs]] = None,
    rows: int = 0,
) -> list[device_memory.Lent]:
    """Lends tensors as one dimension, or as so many rows."""
    lent = []
    for index, view in enumerate(views):
        elements = view.numel()
        shape = (rows, elements // rows) if rows else (elements,)
        memory = None if outputs is None else outputs[index].memory
        lent.append(device_memory.Lent(member(name, batch, index), view, memory, shape))
    return lent
