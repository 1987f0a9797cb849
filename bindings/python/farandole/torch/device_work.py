"""Requests of tensors on one GPU, from submission to their results: `DeviceWork`.

`DeviceWork.wait` waits until the results are there; or, where the host may run ahead (`run_ahead`), until the ranks
have queued the requests on their devices, and has the current stream wait for the results. `CollectingWork` is for
results whose size the ranks have to agree on: its results are tensors that the current stream fills.

Where the host waits for the device to compute, reports call it "device work" (`staging`); where the stream waits for
the ranks, `device_times` measures for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from farandole import _native
from farandole.torch import device_times, run_ahead, staging

__all__ = ["CollectingWork", "DeviceResult", "DeviceWork"]


class DeviceWork:
    """Requests that the engine has; their results go to memory of the caller's."""

    __slots__ = ("_check", "device", "handle")

    def __init__(
        self,
        handle: _native.DeviceHandle,
        device: torch.device,
        check: Optional[Callable[[_native.DeviceHandle], None]] = None,
    ) -> None:
        self.handle = handle
        self.device = device
        self._check = check
        """Raises if the results are not what was asked for, once they are known."""

    def poll(self) -> bool:
        """Whether all are over, well or not; the results are there, on the device."""
        return self.handle.poll()

    is_over = poll

    def runs_ahead(self) -> bool:
        """Whether `wait` does not wait until the results are there."""
        return self.handle.runs_ahead and not self.handle.poll()

    def wait(self) -> Sequence[Any]:
        """What comes into the current stream from now on sees the results. Returns when they are there, or when all are
        queued where the host may run ahead."""
        if self.runs_ahead():
            self._follow()
        else:
            self.end()
        return []

    def _follow(self) -> None:
        staging.leave_carried_over()
        device_times.follow(self.handle, staging.current_place(self.device)[1])
        if self._check is not None:
            self._check(self.handle)
        run_ahead.add(self)

    def end(self) -> None:
        """Waits until all are over, and raises what went wrong. The results are there then, for every stream."""
        if not self.handle.is_computed():
            staging.wait_for_device(self.handle.wait_until_computed)
        self.handle.wait()
        if self._check is not None:
            self._check(self.handle)

    def wait_on_host(self) -> Sequence[Any]:
        """As `wait`, but returns when the results are there."""
        self.end()
        return []

    def wait_for(self, seconds: float) -> bool:
        """Waits until all are over, or for so long, and says whether they are."""
        return self.handle.wait_within(seconds)

    def is_queued_within(self, seconds: float) -> bool:
        """Waits until all are queued, over or refused, or for so long, and says whether they are."""
        return self.handle.is_queued_within(seconds)


class DeviceResult:
    """A result of a size that the ranks had to agree on."""

    __slots__ = ("_index", "_work", "received_splits", "shape")

    def __init__(
        self, work: CollectingWork, index: int, shape: Sequence[int], received_splits: Sequence[int]
    ) -> None:
        self._work = work
        self._index = index
        self.shape = shape
        self.received_splits = received_splits

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor that holds it, for the current stream."""
        work = self._work
        target = torch.empty(self.shape, dtype=dtype, device=work.device)
        self.copy_to(target)
        return target

    def copy_to(self, target: torch.Tensor) -> None:
        """Puts it into a contiguous tensor of its size."""
        stream = staging.current_place(self._work.device)[1]
        self._work.handle.copy_result(self._index, target.data_ptr(), target.nbytes, stream)

    @property
    def is_made(self) -> bool:
        """Whether it lies in memory of the engine's, and not where the caller wanted it."""
        return self._work.handle.is_made(self._index)


class CollectingWork(DeviceWork):
    """Requests whose results lie in memory of the engine's."""

    __slots__ = ()

    def wait(self) -> list[DeviceResult]:
        """The results, for the current stream."""
        super().wait()
        return [DeviceResult(self, index, *result) for index, result in enumerate(self.handle.results())]

    def wait_on_host(self) -> list[DeviceResult]:
        """The same; the ranks have carried the requests out."""
        self.end()
        return self.wait()
