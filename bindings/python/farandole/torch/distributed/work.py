"""What an operation of the backend returns: `Work`.

A `Work` stands for requests of the engine. Whoever waits for it drives the engine. Results that the engine could not
put into the caller's tensors are put there by *finishing*, once, by the first thread that finds the requests done.

A future is made when somebody asks for it, and completed by a thread of the process group (`FutureThread`), in the
order in which futures were asked for. DistributedDataParallel asks for one for each bucket; so its backward pass goes
on while buckets are reduced. At its end it waits for them, inside of torch, and takes the gradients out of each while
the next is reduced. So that traces show what it waits for, the thread waits for the request of the first bucket itself
(`wait_at_end_of_backward`): a late rank is late for that one.

**Errors in futures.** `torch.futures.Future.set_exception` stores the exception as the future's value and has Python's
`wait` raise it. C++ code takes the value for tensors: the reducer of DistributedDataParallel dereferences the first of
none. So futures that C++ code may read, those of a backward pass, fail in C++: they follow the first by `then`, which
turns an exception of its callback into a C++ error. That error has only the text of the exception.
`raise_errors_of_futures` has `torch.autograd.backward` raise the exception itself.

The same thread finishes an operation whose `Work` was dropped: its outputs are filled all the same.

An operation on a GPU (`DeviceWork`) is *followed* by whoever waits first: when the ranks have queued it, his stream
waits for it and fills the outputs, and the host goes on. Others have their streams wait for an event behind that. Its
future is complete then, with the streams of a future of torch's. What goes wrong later is raised by a later call
(`farandole.torch.run_ahead`).

An operation that takes longer than its timeout ends the job's collectives with that cause on all ranks: its tensors are
still in use, and the ranks no longer agree on what comes next. Those that nobody waits for are watched by a thread
(`_watch`).

C++ code that is given a `Work` by Python code keeps the C++ half alone, which waits without end once the Python half is
gone. torch has one such place, `Reducer._set_forward_pass_work_handle`; `keep_forward_pass_works` keeps both halves.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Optional, Protocol, Union

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as _TorchWork

from farandole import _native
from farandole.exceptions import FarandoleError, MismatchError, RankLostError, StallError, class_of
from farandole.torch import staging
from farandole.torch.device_work import DeviceWork

__all__ = [
    "DistBackendError",
    "DistMismatchError",
    "DistRankLostError",
    "DistStallError",
    "Finish",
    "FutureThread",
    "Work",
    "as_backend_error",
    "keep_forward_pass_works",
    "raise_errors_of_futures",
    "side_stream",
    "timeout_of",
    "wait_at_end_of_backward",
]

Finish = Callable[[Any], Sequence[torch.Tensor]]


class DistBackendError(dist.DistBackendError, FarandoleError):
    """An error of the engine, as callers of `torch.distributed` expect it."""

    __module__ = "farandole.torch.distributed"


class DistRankLostError(DistBackendError, RankLostError):
    """A rank died, was cut off or left while others needed it."""

    __module__ = "farandole.torch.distributed"


class DistMismatchError(DistBackendError, MismatchError):
    """The requests of the ranks differ, or ask for something that cannot be done."""

    __module__ = "farandole.torch.distributed"


class DistStallError(DistBackendError, StallError):
    """A wait has passed its limit, and no rank is known to be lost."""

    __module__ = "farandole.torch.distributed"


_OF_CLASS: dict[type[FarandoleError], type[DistBackendError]] = {
    FarandoleError: DistBackendError,
    RankLostError: DistRankLostError,
    MismatchError: DistMismatchError,
    StallError: DistStallError,
}


_locks = itertools.cycle([threading.RLock() for _ in range(64)])
"""Each operation takes one of these to be finished once. What is done under it waits for no other operation."""


class Work(_TorchWork):
    """An operation under way."""

    # A program may have thousands of these in flight, and Python's garbage collector visits every container: no
    # dictionary and no lock of their own.
    __slots__ = (
        "_error",
        "_filled",
        "_finish",
        "_future",
        "_futures",
        "_lock",
        "_name",
        "_outcome",
        "_queued",
        "_requests",
        "_tensors",
        "_timeout",
        "source",
    )

    def __init__(
        self,
        name: str,
        requests: staging.RequestWork,
        finish: Finish,
        timeout: timedelta,
        futures: FutureThread,
    ) -> None:
        super().__init__()
        self._name = name
        self._requests: Optional[staging.RequestWork] = requests
        self._finish: Optional[Finish] = finish
        """Holds the tensors until they are finished."""
        self._timeout = timeout
        self._futures = futures
        self._lock = next(_locks)
        self._tensors: Sequence[torch.Tensor] = ()
        self._error: Optional[BaseException] = None
        self._queued: Optional[DeviceWork] = None
        """An operation that streams wait for, and the host does not."""
        self._filled: Optional[torch.cuda.Event] = None
        """Behind what fills the outputs of a queued operation."""
        self._outcome: Optional[torch.futures.Future[list[torch.Tensor]]] = None
        """Completed by a thread; `_future` is it, or follows it."""
        self._future: Optional[torch.futures.Future[Any]] = None
        self.source = -1
        """Of a message that was received: who sent it."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns when the operation is complete, or on a GPU when the current stream waits for it; raises what went
        wrong. timeout: zero for the operation's own; another one has the host wait."""
        requests = self._requests
        if isinstance(requests, DeviceWork) and timeout <= timedelta(0) and requests.runs_ahead():
            if not requests.is_queued_within(self._timeout.total_seconds()):
                _abort(self._name, self._timeout)
            self._queue(requests)
        elif requests is not None:
            limit = timeout if timeout > timedelta(0) else self._timeout
            if not requests.wait_for(limit.total_seconds()):
                _abort(self._name, limit)
            self._settle(requests)
        if self._queued is not None and timeout > timedelta(0):
            self._wait_for_queued(self._queued, timeout)
        if self._filled is not None:
            self._filled.wait()
        if self._error is not None:
            # Without the lines of threads that have raised it before.
            raise self._error.with_traceback(None)
        return True

    def _queue(self, requests: DeviceWork) -> None:
        """Has the current stream wait for the operation and fill the outputs."""
        self._settle(requests)
        with self._lock:
            if self._queued is None and self._error is None:
                self._queued = requests
                _watch.put(self._name, requests, self._timeout)

    def _wait_for_queued(self, queued: DeviceWork, limit: timedelta) -> None:
        if not queued.wait_for(limit.total_seconds()):
            _abort(self._name, limit)
        try:
            queued.wait_on_host()
        except FarandoleError as error:
            self._error = as_backend_error(error)

    def is_completed(self) -> bool:
        """Whether the operation is complete, well or not."""
        requests = self._requests
        if requests is not None and requests.poll():
            self._settle(requests)
        return self._requests is None and (self._queued is None or self._queued.poll())

    def is_success(self) -> bool:
        """Whether the operation is complete and nothing went wrong."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """What went wrong, if the operation is complete."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        self.wait()
        return list(self._tensors)

    def source_rank(self) -> int:
        """Who sent a message that was received."""
        self.wait()
        return self.source

    _source_rank = source_rank

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def get_future(self, part: Optional[Callable[[list[torch.Tensor]], Any]] = None) -> torch.futures.Future[Any]:
        """A future of the output tensors, or of a part of them; a complete one if the operation is."""
        with self._lock:
            if self._future is not None:
                return self._future
            requests = self._requests
            future = self._outcome = torch.futures.Future(devices=_devices_of(requests or self._queued))
            if part is not None or _in_backward() or self._futures.is_this_thread():
                future = future.then(lambda outcome: part(outcome.value()) if part else outcome.value())
            self._future = future
        if requests is None or self._futures.is_this_thread():
            # Called by what was to be done after another future (PowerSGD): nobody else would complete this one.
            self.complete_future()
        else:
            self._futures.put(self)
            wait_at_end_of_backward(requests, self._timeout)
        return future

    def then(self, finish: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]) -> Work:
        """The same operation with another end: `finish` makes the output of this one's. This one is given up."""
        assert self._requests is not None and self._finish is not None, "invariant: nobody has waited for it yet"
        requests, first = self._requests, self._finish
        self._requests = self._finish = None
        return Work(self._name, requests, lambda results: finish(first(results)), self._timeout, self._futures)

    def __del__(self) -> None:
        """Nobody waits for the operation, but its outputs must be filled."""
        if self._requests is not None and self._future is None and not sys.is_finalizing():
            self._futures.put(self)

    def complete_future(self) -> None:
        """For the thread that completes futures, and operations that nobody waits for."""
        try:
            with side_stream(_device_of(self._requests or self._queued)):
                self.wait()
        except BaseException as error:  # noqa: BLE001 - it is raised again by whoever waits for the future
            if self._outcome is not None:
                if self._future is not self._outcome:
                    _errors_of_futures[_as_text(error)] = error
                # Without its frames, which hold tensors. torch's stub has the wrong type here.
                self._outcome.set_exception(error.with_traceback(None))  # type: ignore[arg-type]
        else:
            if self._outcome is not None:
                with side_stream(_device_of(self._queued)):
                    self._outcome.set_result(list(self._tensors))

    def _settle(self, requests: staging.RequestWork) -> None:
        """Finishes the operation, whose requests are done or about to fail. Once, whichever thread comes first."""
        with self._lock:
            if self._requests is None:
                return
            assert self._finish is not None, "invariant: what is not settled can be finished"
            try:
                self._tensors = self._finish(requests.wait())
                if isinstance(requests, DeviceWork) and requests.device.type == "cuda":
                    self._filled = torch.cuda.current_stream(requests.device).record_event()
            except KeyboardInterrupt:
                raise
            except FarandoleError as error:
                self._error = as_backend_error(error)
            except BaseException as error:  # noqa: BLE001 - it is raised by whoever waits
                self._error = error
            self._requests = self._finish = None


def _device_of(requests: Any) -> Optional[torch.device]:
    """The GPU that an operation is carried out on."""
    return requests.device if isinstance(requests, DeviceWork) and requests.device.type == "cuda" else None


def _devices_of(requests: Any) -> Optional[list[Union[int, str, torch.device]]]:
    """Where the streams are that a future of the results has to do with."""
    device = _device_of(requests)
    return None if device is None else [device]


_side_streams: dict[torch.device, torch.cuda.Stream] = {}
"""For what completes futures, on each device. Filled under the interpreter's lock."""


def side_stream(device: Optional[torch.device]) -> contextlib.AbstractContextManager[Any]:
    """Within it, the current stream is one that holds nobody up who does not wait for the future."""
    if device is None or device.type != "cuda":
        return contextlib.nullcontext()
    stream = _side_streams.get(device)
    if stream is None:
        stream = _side_streams[device] = torch.cuda.Stream(device)
    return torch.cuda.stream(stream)


def _abort(name: str, limit: timedelta) -> None:
    _native.abort(f"{name} has exceeded its timeout of {limit.total_seconds():g} s", stalled=True)


class _Watch:
    """A thread that ends the job's collectives if one takes longer than its timeout and nobody waits for it on the
    host. It starts with the first, and sleeps while there are none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: list[tuple[float, str, DeviceWork, timedelta]] = []
        self._thread: Optional[threading.Thread] = None

    def put(self, name: str, work: DeviceWork, limit: timedelta) -> None:
        """Watches an operation from now on."""
        with self._changed:
            self._watched.append((time.monotonic() + limit.total_seconds(), name, work, limit))
            if len(self._watched) == 1:
                self._changed.notify()
            if self._thread is None or not self._thread.is_alive():
                # A daemon: a process that ends with operations under way is over all the same.
                self._thread = threading.Thread(target=self._run, name="farandole-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watched)
                self._watched = [entry for entry in self._watched if not entry[2].is_over()]
                late = next((entry for entry in self._watched if time.monotonic() > entry[0]), None)
                if late is not None:
                    self._watched.clear()
            if late is not None and _native.is_initialized():
                _abort(late[1], late[3])
            # Short beside any timeout that is meant.
            time.sleep(0.2)


_watch = _Watch()


class HasFuture(Protocol):
    """What a `FutureThread` takes: a `Work`, or a bucket of gradients (`farandole.torch.ddp_hook`)."""

    def complete_future(self) -> None:
        """Waits for the result, or what went wrong, and puts it into the future. Called once."""


class FutureThread:
    """A thread that completes futures, in order: of one process group. It starts with the first future."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Optional[HasFuture]] = queue.SimpleQueue()
        # A thread that starts ours may collect garbage, and so come to the end of a work here again.
        self._lock = threading.RLock()
        self._thread: Optional[threading.Thread] = None

    def put(self, work: HasFuture) -> None:
        """Has the future of a work completed when the work is."""
        with self._lock:
            if self._thread is None:
                # A daemon: a process that ends with operations under way is over all the same.
                self._thread = threading.Thread(target=self._run, name="farandole-futures", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def is_this_thread(self) -> bool:
        """Whether the thread that asks is this one."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Lets the thread end when all futures are complete."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.complete_future()
            # Not kept until the next one comes.
            del work


def keep_forward_pass_works() -> None:
    """Has a reducer of DistributedDataParallel keep the `Work` that it will wait for in its backward pass. A context of
    `join` gives it one."""
    of_torch = dist.Reducer._set_forward_pass_work_handle
    kept: weakref.WeakKeyDictionary[dist.Reducer, Work] = weakref.WeakKeyDictionary()

    def set_forward_pass_work_handle(reducer: dist.Reducer, work: Any, use_static_world_size: bool) -> None:
        of_torch(reducer, work, use_static_world_size)
        if isinstance(work, Work):
            kept[reducer] = work

    dist.Reducer._set_forward_pass_work_handle = set_forward_pass_work_handle  # type: ignore


def _in_backward() -> bool:
    """Whether a backward pass of this thread is under way."""
    return torch._C._current_graph_task_id() != -1


_errors_of_futures: dict[str, BaseException] = {}
"""Exceptions of which C++ code may have the text, by that text. Changed under the interpreter's lock."""


def _as_text(error: BaseException) -> str:
    """What a C++ error made of this exception contains."""
    return f"{type(error).__name__}: {error}"


def raise_errors_of_futures() -> None:
    """Has a backward pass raise the exception itself where C++ code has waited for a future and kept its text."""
    of_torch = torch.autograd.backward

    @functools.wraps(of_torch)
    def backward(*arguments: Any, **options: Any) -> None:
        try:
            of_torch(*arguments, **options)
        except RuntimeError as raised:
            text = str(raised)
            # A copy: the thread that completes futures may add another one meanwhile.
            error = next((error for words, error in list(_errors_of_futures.items()) if words in text), None)
            if error is None:
                raise
            _errors_of_futures.clear()
            raise error.with_traceback(None) from None

    torch.autograd.backward = backward


_last_backward = -1
"""Number of the backward pass that has been told to wait last. Read and written with the interpreter's lock."""


def wait_at_end_of_backward(requests: staging.RequestWork, limit: timedelta) -> None:
    """If these are the first requests of a backward pass, has its thread wait for them when it has computed everything.
    Their errors are raised by whoever waits for the future.

    Callbacks at the end run in the order in which they were queued, and DistributedDataParallel queues its own after
    the last bucket.
    """
    global _last_backward

    def wait() -> None:
        with contextlib.suppress(FarandoleError, ValueError):
            requests.wait_for(limit.total_seconds())

    backward = torch._C._current_graph_task_id()
    if backward not in (-1, _last_backward):
        _last_backward = backward
        torch.autograd.Variable._execution_engine.queue_callback(wait)


def as_backend_error(error: FarandoleError) -> DistBackendError:
    """What callers of `torch.distributed` expect in place of an error of the engine."""
    return _OF_CLASS[class_of(error)](f"Farandole: {error}")


def timeout_of(timeout: Any, default: timedelta) -> timedelta:
    """The timeout of an operation's options, or the group's where they have none."""
    return timeout if isinstance(timeout, timedelta) and timeout > timedelta(0) else default
