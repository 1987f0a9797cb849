"""Submits requests when their data are in host memory, and waits for them.

A request whose data are in host memory is submitted at once. Copies from a GPU are waited for by a thread of their own,
in the order in which they were asked for; it submits each request when its copies are complete. So a backward pass goes
on queueing work while its first gradients are reduced. Results go back by `Loan.copy_back`, on the stream that is
current then.

Requests that are carried out on the device need no thread (`device_work`).

A thread that asks for the result before the data are there waits for the device. Reports must know why: as long as the
device computes what it was given, that is "device work", and once it only copies, "device copy", which is a loss. What
a device was given in a phase that is over for the host (`carry_over`) is waited for in that phase's name.

The order of requests is that of the calls, as far as it matters: ranks need not agree on one.

Not here: where the data are (`lent_memory`), and what requests ask for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional, Protocol, Union

import torch

from farandole import _native
from farandole.torch import device_times
from farandole.torch.lent_memory import Event, Loan, raise_moved

class Work:
    """Requests that the engine has."""

    __slots__ = ("handles",)

    def __init__(self, handles: Sequence[_native.Handle]) -> None:
        self.handles = handles

    def poll(self) -> bool:
        """Whether all are done."""
        return all(handle.poll() for handle in self.handles)

    def wait(self) -> list[_native.Result]:
        """Their results, when all are done."""
        return _native.wait_all(self.handles)

    def wait_for(self, seconds: float) -> bool:
        """Waits until all are done, or for so long, and says whether they are."""
        deadline = time.monotonic() + seconds
        return all(handle.wait_for(max(0.0, deadline - time.monotonic())) for handle in reversed(self.handles))


class BatchWork:
    """Requests that the engine has, with one handle for all of them; their results are in place."""

    __slots__ = ("batch",)

    def __init__(self, batch: _native.BatchHandle) -> None:
        self.batch = batch

    def poll(self) -> bool:
        """Whether all are done."""
        return self.batch.poll()

    def wait(self) -> list[_native.Result]:
        """Returns when all are done."""
        self.batch.wait()
        return []

    def wait_for(self, seconds: float) -> bool:
        """Waits until all are done, or for so long, and says whether they are."""
        return self.batch.wait_for(seconds)


def current_place(device: torch.device) -> tuple[int, int]:
    """The number of a device and the handle of its current stream. A backward pass asks for every gradient."""
    if device.type != "cuda":
        # Host memory stands in for a device's.
        return 0, 0
    index: int = device.index
    return index, torch._C._cuda_getCurrentRawStream(index)


class StagedWork:
    """Requests that are submitted as soon as their data are in host memory.

    Made by the thread that asks; settled by the staging thread, once.
    """

    def __init__(self, loans: Sequence[Loan], submit: Callable[[], Union[Work, BatchWork]]) -> None:
        self._loans = loans
        self._submit = submit
        self._computed = threading.Event()
        self._settled = threading.Event()
        self._work: Union[Work, BatchWork, None] = None
        self._error: Optional[BaseException] = None

    def settle(self) -> None:
        """Waits for the data and submits the requests."""
        try:
            for loan in self._loans:
                if loan.computed is not None:
                    loan.computed.synchronize()
            self._computed.set()
            for loan in self._loans:
                if loan.ready is not None:
                    loan.ready.synchronize()
            for loan in self._loans:
                # Not lent to the engine yet, so nobody has been kept from resizing it.
                if not loan.is_copy and loan.has_moved():
                    raise_moved("a member of a group")
            self._work = self._submit()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            self._error = error
        finally:
            self._computed.set()
            self._settled.set()

    def poll(self) -> bool:
        """Whether all are done, well or not."""
        return self._settled.is_set() and (self._work is None or self._work.poll())

    def wait(self) -> list[_native.Result]:
        """Their results, when all are done."""
        if not self._settled.is_set():
            self._wait_for_data()
        if self._work is None:
            assert self._error is not None, "invariant: what is settled has work or an error"
            raise self._error
        return self._work.wait()

    def wait_for(self, seconds: float) -> bool:
        """Waits until all are done, or for so long, and says whether they are."""
        begun = time.monotonic()
        # In slices, so that Ctrl-C is heard.
        while not self._settled.wait(min(0.1, max(0.0, begun + seconds - time.monotonic()))):
            if time.monotonic() >= begun + seconds:
                return False
        return self._work is None or self._work.wait_for(max(0.0, begun + seconds - time.monotonic()))

    def _wait_for_data(self) -> None:
        """Waits until the data are on the host, and marks why."""
        _wait_for_carried_over()
        _wait_in_phase("device work", self._computed)
        if not self._settled.is_set():
            # These data are computed. If later ones are not, the device works while it copies, and nothing is lost.
            computes = not _staging_thread.device_is_idle()
            _wait_in_phase("device work" if computes else "device copy", self._settled)


def wait_for_device(wait: Callable[[], None]) -> None:
    """Waits until a device has computed what it was given, by `wait`, and marks why."""
    _wait_for_carried_over()
    _native.phase_begin("device work")
    try:
        wait()
    finally:
        _native.phase_end("device work")


def _wait_in_phase(name: str, event: threading.Event) -> None:
    if event.is_set():
        return
    _native.phase_begin(name)
    try:
        # In slices, so that Ctrl-C is heard.
        while not event.wait(0.1):
            pass
    finally:
        _native.phase_end(name)


def unfinished_work() -> Optional[device_times.TimedEvent]:
    """When the current device has done everything that it was given so far by this thread; `None` if it has, or if
    there is none."""
    # A stream that is being captured executes nothing, and may not be asked.
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    done = device_times.mark()
    return None if done.query() else done


_carried_over: Optional[tuple[str, device_times.TimedEvent, int]] = None
"""A phase, when the device is done with it, and when the host was. Written and read by the thread that trains."""


def carry_over(phase: str, done: device_times.TimedEvent) -> None:
    """This phase is over for the host, but its device has work of it left until `done`."""
    global _carried_over
    _carried_over = phase, done, time.monotonic_ns()


def leave_carried_over() -> None:
    """Nobody waits for that on the host: reports learn from the device when it was over."""
    global _carried_over
    left, _carried_over = _carried_over, None
    if left is not None and not left[1].query():
        device_times.end_later(*left)


def _wait_for_carried_over() -> None:
    global _carried_over
    left, _carried_over = _carried_over, None
    if left is None or left[1].query():
        return
    phase, done, _ = left
    _native.phase_begin(phase)
    try:
        # In slices, so that Ctrl-C is heard. A millisecond is short beside whatever is worth a mark.
        while not done.query():
            time.sleep(0.001)
    finally:
        _native.phase_end(phase)


class AnyWork(Protocol):
    """Requests under way: `Work`, `BatchWork`, `StagedWork`, or those on a device (`device_work`)."""

    def poll(self) -> bool:
        """Whether all are done."""

    def wait(self) -> Sequence[Any]:
        """Their results, when all are done."""


class RequestWork(AnyWork, Protocol):
    """What can be waited for with a limit."""

    def wait_for(self, seconds: float) -> bool:
        """Waits until all are done, or for so long, and says whether they are."""


class _StagingThread:
    """The thread that submits requests when their data are there. It starts with the first request that needs it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[StagedWork] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._last_computed: Optional[Event] = None

    def device_is_idle(self) -> bool:
        """Whether the device has computed everything that it was to compute before the last request."""
        last = self._last_computed
        return last is None or last.query()

    def put(self, work: StagedWork, computed: Optional[Event]) -> None:
        with self._lock:
            self._last_computed = computed
            if self._thread is None or not self._thread.is_alive():
                # A daemon: a job that ends with copies under way is over all the same.
                self._thread = threading.Thread(target=self._run, name="farandole-staging", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def _run(self) -> None:
        while True:
            self._queue.get().settle()


_staging_thread = _StagingThread()


def submit(loans: Sequence[Loan], call: Callable[[], Sequence[_native.Handle]]) -> RequestWork:
    """Submits requests by `call`, now if all data are in host memory and otherwise as soon as they are. What is
    wrong with a request is raised here in the first case, and by `wait` in the second."""
    for loan in loans:
        if loan.ready is not None:
            return _stage(loans, lambda: Work(call()))
    return Work(call())


def submit_batch(loans: Sequence[Loan], call: Callable[[], _native.BatchHandle]) -> AnyWork:
    """As `submit`, for many requests with one handle."""
    if any(loan.ready is not None for loan in loans):
        return _stage(loans, lambda: BatchWork(call()))
    return BatchWork(call())


def _stage(loans: Sequence[Loan], call: Callable[[], Union[Work, BatchWork]]) -> StagedWork:
    work = StagedWork(loans, call)
    _staging_thread.put(work, next((last.computed for last in reversed(loans) if last.computed is not None), None))
    return work
