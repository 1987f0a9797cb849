"""Requests of tensors on one GPU, from submission to their results: `DeviceWork`.

When a request is over, its results are there. `DeviceWork.wait` waits for that on the host; or, where nobody has to
know more (`run_ahead`), it makes the current stream wait and returns at once. `CollectingWork` is for results whose
size the ranks have to agree on: it waits for the agreement on the host, and its results are tensors that the current
stream fills.

Where the host waits for the device to compute, reports call it "device work" (`staging`); where the stream waits for
the ranks, `device_times` measures for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from farandole import _native
from farandole.torch import device_times, run_ahead, staging
from farandole.torch.run_ahead import Repeated

__all__ = ["CollectingWork", "DeviceResult", "DeviceWork"]


class DeviceWork:
    """Requests that the engine has; their results go to memory of the caller's."""

    __slots__ = ("_check", "_repeated", "device", "handle")

    def __init__(
        self,
        handle: _native.DeviceHandle,
        device: torch.device,
        repeated: Optional[Repeated] = None,
        check: Optional[Callable[[_native.DeviceHandle], None]] = None,
    ) -> None:
        self.handle = handle
        self.device = device
        self._repeated = repeated
        """What comes again under the same names, if anything."""
        self._check = check
        """Raises if the results are not what was asked for, once they are known."""

    def poll(self) -> bool:
        """Whether all are over, well or not; the results are there, on the device."""
        return self.handle.poll()

    is_over = poll

    def runs_ahead(self) -> bool:
        """Whether `wait` does not wait on the host."""
        return run_ahead.is_allowed(self._repeated) and not self.handle.poll()

    def wait(self) -> Sequence[Any]:
        """What comes into the current stream from now on sees the results. Does not wait on the host where nobody has
        to know more."""
        if self.runs_ahead():
            staging.leave_carried_over()
            device_times.follow(self.handle, staging.current_place(self.device)[1])
            if self._repeated is not None:
                self._repeated.note(self)
            run_ahead.add(self)
        else:
            self.end()
        return []

    def end(self) -> None:
        """Waits until all are over, and raises what went wrong. The results are there then, for every stream."""
        if not self.handle.is_computed():
            staging.wait_for_device(self.handle.wait_until_computed)
        self.handle.wait()
        if self._check is not None:
            self._check(self.handle)
        if self._repeated is not None and self._repeated is not run_ahead.WAITED_FOR:
            self._repeated.has_gone_well = True

    def wait_on_host(self) -> Sequence[Any]:
        """As `wait`, but returns when the results are there."""
        self.end()
        return []

    def wait_for(self, seconds: float) -> bool:
        """Waits until all are over, or for so long, and says whether they are."""
        return self.handle.wait_within(seconds)


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
        """The results, when the ranks have carried the requests out."""
        self.end()
        return [DeviceResult(self, index, *result) for index, result in enumerate(self.handle.results())]

    wait_on_host = wait
