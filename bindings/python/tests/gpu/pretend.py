"""A device that is not there: it computes behind the program's back, for as long as it is told, and its results are
ready when it has.

With it the marks of waiting for a GPU are tested on machines without one. The device is a moment on the clock at which
it has done all that it was given; an event is such a moment. What tensors hold is computed on the host at once, and the
front end is made to believe that it comes later.
"""

from __future__ import annotations

import time

import torch

from farandole.torch import device_times, gradients, lent_memory, staging

COPY_SECONDS = 0.002
"""How long a gradient takes to the host."""


class Moment:
    """An event of the device."""

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return time.monotonic() >= self.at

    def synchronize(self) -> None:
        while not self.query():
            time.sleep(max(0.0, self.at - time.monotonic()))


class Timed(Moment):
    """An event of the device that knows when it happens."""

    def elapsed_time(self, end_event: Timed) -> float:
        return 1e3 * (end_event.at - self.at)


class Device:
    """The device. Making it puts it in the place of a GPU."""

    def __init__(self) -> None:
        self.done_at = 0.0
        lent_memory.is_plain = lambda tensor: False
        lent_memory.lend = self._lend
        lent_memory.lend_together = lambda tensors: [self._lend(tensor) for tensor in tensors]
        lent_memory.is_on_device = lambda tensor: True
        staging.unfinished_work = self._promise
        device_times.can_record = lambda: True
        device_times.record = lambda: Timed(max(self.done_at, time.monotonic()))
        device_times.record_now = lambda: Timed(time.monotonic())
        gradients.Gradient.reduces_in_place = lambda gradient, grad: False

    def compute(self, seconds: float) -> None:
        """Gives it work, and returns at once."""
        self.done_at = max(self.done_at, time.monotonic()) + seconds

    def _lend(self, tensor: torch.Tensor) -> lent_memory.Loan:
        host = tensor.detach().clone(memory_format=torch.contiguous_format)
        return lent_memory.Loan(tensor, host, Moment(self.done_at + COPY_SECONDS), Moment(self.done_at))

    def _promise(self) -> Timed | None:
        done = Timed(self.done_at)
        return None if done.query() else done
