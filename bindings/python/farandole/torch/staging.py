"""The host memory in which the engine finds a tensor, and the way of the result back.

The engine works on contiguous host memory. A tensor that is just that is lent as it is, and nothing is copied. Any
other one gets a *stand-in*, a contiguous copy in host memory:

- a strided tensor (transposed, sliced, expanded, channels last): an ordinary copy;
- a tensor on a GPU: a copy in pinned memory, made on a stream of its own after everything that was queued on the
  current stream when the operation was asked for. Nothing waits for it here. A thread, the *stager*, waits for the
  copies in the order in which they were asked for and hands each request to the engine when its copy is complete. So a
  backward pass goes on queueing work while its first gradients are on their way. Results go back by `give_back`, on the
  stream that is current then.

A thread that asks for the result before the data are on the host waits for the device. Reports must know why: as long
as the device computes what it was given, that is "device work", and once it only copies, "device copy", which is a
loss. What a device was given in a phase that is over for the host (`leave_behind`) is waited for in that phase's name.

Invariants: what a `Loan` holds lives until its request is done. That is a tensor's *storage*, because the bytes belong
to it and not to the tensor: after `t.data = other`, `t.set_(other)` or `module.half()` the tensor is there and its old
bytes would be gone. The engine then works on the old bytes, which nobody sees any more; `give_back` notices and says
so. What reallocates inside a storage is refused before (`guard`). The caller's tensor is written by the engine, if it
was lent as it is, or by `give_back`, and by nothing else. The order of requests is that of the calls, as far as it
matters: ranks need not agree on one.

Not here: names, operations, handles. This module neither knows what a request asks for nor what its result means.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Optional, Protocol, Union

import torch

from farandole import _native

DTYPE_CODES: dict[torch.dtype, int] = {
    torch.bool: 0,
    torch.uint8: 1,
    torch.int8: 2,
    torch.uint16: 3,
    torch.int16: 4,
    torch.uint32: 5,
    torch.int32: 6,
    torch.uint64: 7,
    torch.int64: 8,
    torch.float16: 9,
    torch.bfloat16: 10,
    torch.float32: 11,
    torch.float64: 12,
}
"""The engine's numbers of the element types it knows. Complex, quantised and 8-bit floating-point types are not among
them."""


class Ready(Protocol):
    """Something that comes to pass on a device: an event of its stream."""

    def synchronize(self) -> None:
        """Returns when it has."""

    def query(self) -> bool:
        """Whether it has."""


class Loan:
    """A tensor in the hands of the engine."""

    __slots__ = ("_address", "computed", "host", "ready", "tensor")

    def __init__(
        self,
        tensor: torch.Tensor,
        host: torch.Tensor,
        ready: Optional[Ready] = None,
        computed: Optional[Ready] = None,
    ) -> None:
        self.tensor = tensor
        """The caller's."""
        self.host = host
        """What the engine gets: the caller's tensor itself, or its stand-in."""
        self.ready = ready
        """When the stand-in holds the data; `None` if it does already."""
        self.computed = computed
        """When the device has computed them, and everything it was given before."""
        self._address: Optional[int] = None if host is tensor else address_of(tensor)
        """Where the caller's tensor lay when it was lent; `None` as long as nobody was told."""

    @property
    def is_stand_in(self) -> bool:
        """Whether the engine works on a copy."""
        return self.host is not self.tensor

    def native_arguments(self) -> tuple[int, tuple[int, ...], int, torch.UntypedStorage]:
        """Address, shape, element type and owner: the arguments of calls of the engine."""
        host = self.host
        address = host.data_ptr()
        if host is self.tensor:
            self._address = address
        return address, host.shape, DTYPE_CODES[host.dtype], host.untyped_storage()

    def has_moved(self) -> bool:
        """Whether the caller's tensor has got other memory since it was lent."""
        return self._address is not None and address_of(self.tensor) != self._address

    def give_back(self, name: str) -> torch.Tensor:
        """Puts a result that the engine wrote to the stand-in into the caller's tensor, and returns that."""
        tensor = self.tensor
        if tensor is self.host:
            if tensor.data_ptr() != self._address:
                refuse_moved(name)
            return tensor
        if self.has_moved():
            refuse_moved(name)
        # Through `data`: autograd is told as little of it as of what the engine writes by itself.
        tensor.data.copy_(self.host, non_blocking=True)
        return tensor

    def result(self) -> torch.Tensor:
        """A result that the engine wrote to the stand-in, as a new tensor on the caller's device."""
        return place(self.host, self.tensor.device)


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's elements lie, or zero if nobody can tell: some devices keep that to themselves."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def refuse_moved(name: str) -> NoReturn:
    """A tensor was given other memory while the engine had it."""
    raise ValueError(
        f"The memory of tensor {name!r} was replaced while the operation was under way (`.data = ...`, set_(), or a "
        "conversion such as Module.half() or Module.to()). The result is in the old memory and not in the tensor. Call "
        "synchronize() before you replace it."
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the engine can work on the tensor's own memory. Most tensors are like that; a training step asks for
    hundreds of them."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.dtype in DTYPE_CODES
        and not tensor.is_neg()
    )


def lend(tensor: torch.Tensor) -> Loan:
    """Lends a tensor that the engine reads."""
    if is_plain(tensor):
        return Loan(tensor, tensor)
    _check(tensor)
    if tensor.is_cpu:
        return Loan(tensor, tensor.detach().resolve_neg().contiguous())
    return _lend_from_device(tensor)


def lend_to_write(tensor: torch.Tensor) -> Loan:
    """Lends a tensor that the engine reads and writes."""
    if is_plain(tensor):
        return Loan(tensor, tensor)
    _check_writable(tensor)
    return lend(tensor)


def lend_together(tensors: Sequence[torch.Tensor]) -> list[Loan]:
    """Lends tensors that the engine reads and writes and that are ready together. Those on one GPU share the events
    that say when they are on the host."""
    on_gpus: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_cuda:
            _check_writable(tensor)
            on_gpus.setdefault(tensor.device, []).append(tensor)
    copied = {id(loan.tensor): loan for on_gpu in on_gpus.values() for loan in _lend_from_gpu(on_gpu)}
    return [copied.get(id(tensor)) or lend_to_write(tensor) for tensor in tensors]


def lend_for_copy(tensor: torch.Tensor) -> tuple[Loan, Optional[torch.Tensor]]:
    """Lends a tensor whose result goes elsewhere. The second value is where, if the loan is the caller's own memory;
    otherwise the stand-in takes the result."""
    loan = lend(tensor)
    if loan.is_stand_in:
        return loan, None
    return loan, torch.empty_like(loan.host, memory_format=torch.contiguous_format, requires_grad=False)


def place(result: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A result in host memory, on the device where the caller wants it."""
    return result if device.type == "cpu" else result.to(device, non_blocking=True)


def adopt(result: _native.Result, device: torch.device) -> torch.Tensor:
    """Memory that the engine made for a result, as a tensor; on the host without a copy."""
    return place(torch.from_dlpack(result), device)


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory that the engine cannot work on."""
    return not tensor.is_cpu


def _check(tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"A tensor was expected, not {type(tensor).__name__}.")
    if tensor.dtype not in DTYPE_CODES or tensor.layout != torch.strided or tensor.device.type == "meta":
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")


def _check_writable(tensor: torch.Tensor) -> None:
    _check(tensor)
    if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape)):
        raise ValueError(
            f"A tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} cannot be written in place: "
            "several of its elements share one place in memory. Use a copy (clone()), or the variant that returns a "
            "new tensor."
        )


_copy_streams: dict[torch.device, Any] = {}
"""One stream for copies to the host on each device. Filled under the interpreter's lock; a stream too many does no
harm."""


def _lend_from_device(tensor: torch.Tensor) -> Loan:
    if tensor.device.type != "cuda":
        # Other accelerators: correct, and the caller waits.
        return Loan(tensor, tensor.detach().to("cpu").contiguous())
    [loan] = _lend_from_gpu([tensor])
    return loan


def _lend_from_gpu(tensors: Sequence[torch.Tensor]) -> list[Loan]:
    """Copies tensors of one GPU to the host, on the stream for copies."""
    device = tensors[0].device
    stream = _copy_streams.get(device)
    if stream is None:
        stream = _copy_streams[device] = torch.cuda.Stream(device)
    computed = torch.cuda.current_stream(device).record_event()
    stream.wait_event(computed)
    hosts = []
    with torch.cuda.stream(stream):
        for tensor in tensors:
            data = tensor.detach()
            host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
            host.copy_(data, non_blocking=True)
            # The allocator must not give the tensor's memory to somebody else before the copy is complete.
            data.record_stream(stream)
            hosts.append(host)
        ready = torch.cuda.Event()
        ready.record(stream)
    return [Loan(tensor, host, ready, computed) for tensor, host in zip(tensors, hosts)]


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


class BatchWork:
    """Requests that the engine has, with one promise for all of them; their results are where they came from."""

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


class StagedWork:
    """Requests that the engine gets as soon as their data are in host memory.

    Made by the thread that asks, settled by the stager, once.
    """

    def __init__(self, loans: Sequence[Loan], submit: Callable[[], Union[Work, BatchWork]]) -> None:
        self._loans = loans
        self._submit = submit
        self._computed = threading.Event()
        self._settled = threading.Event()
        self._work: Union[Work, BatchWork, None] = None
        self._error: Optional[BaseException] = None

    def settle(self) -> None:
        """Waits for the data and hands the requests over."""
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
                if not loan.is_stand_in and loan.has_moved():
                    refuse_moved("a member of a group")
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

    def _wait_for_data(self) -> None:
        """Waits until the data are on the host, and marks why."""
        _wait_for_what_was_left()
        _wait_in_phase("device work", self._computed)
        if not self._settled.is_set():
            # These data are computed. If later ones are not, the device works while it copies, and nothing is lost.
            computes = not _stager.device_is_idle()
            _wait_in_phase("device work" if computes else "device copy", self._settled)


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


def promise() -> Optional[Ready]:
    """When the current device has done everything that it was given so far by this thread; `None` if it has, or if
    there is none."""
    # A stream that is being captured executes nothing, and may not be asked.
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    done = torch.cuda.current_stream().record_event()
    return None if done.query() else done


_left_behind: Optional[tuple[str, Ready]] = None
"""Written and read by the thread that trains."""


def leave_behind(phase: str, done: Ready) -> None:
    """This phase is over for the host, but its device has work of it left until `done`."""
    global _left_behind
    _left_behind = phase, done


def _wait_for_what_was_left() -> None:
    global _left_behind
    left, _left_behind = _left_behind, None
    if left is None or left[1].query():
        return
    phase, done = left
    _native.phase_begin(phase)
    try:
        # In slices, so that Ctrl-C is heard. A millisecond is short beside whatever is worth a mark.
        while not done.query():
            time.sleep(0.001)
    finally:
        _native.phase_end(phase)


AnyWork = Union[Work, BatchWork, StagedWork]


class _Stager:
    """The thread that hands requests over when their data are there. It starts with the first request that needs it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[StagedWork] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._last_computed: Optional[Ready] = None

    def device_is_idle(self) -> bool:
        """Whether the device has computed everything that it was to compute before the last request."""
        last = self._last_computed
        return last is None or last.query()

    def put(self, work: StagedWork, computed: Optional[Ready]) -> None:
        with self._lock:
            self._last_computed = computed
            if self._thread is None or not self._thread.is_alive():
                # A daemon: a job that ends with copies under way is over all the same.
                self._thread = threading.Thread(target=self._run, name="farandole-stager", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def _run(self) -> None:
        while True:
            self._queue.get().settle()


_stager = _Stager()


def submit(loans: Sequence[Loan], call: Callable[[], Sequence[_native.Handle]]) -> AnyWork:
    """Has the engine asked by `call`, now if all data are in host memory and otherwise as soon as they are. What is
    wrong with a request is raised here in the first case, and by `wait` in the second."""
    for loan in loans:
        if loan.ready is not None:
            return _stage(loans, lambda: Work(call()))
    return Work(call())


def submit_batch(loans: Sequence[Loan], call: Callable[[], _native.BatchHandle]) -> AnyWork:
    """As `submit`, for many requests with one promise."""
    if any(loan.ready is not None for loan in loans):
        return _stage(loans, lambda: BatchWork(call()))
    return BatchWork(call())


def _stage(loans: Sequence[Loan], call: Callable[[], Union[Work, BatchWork]]) -> StagedWork:
    work = StagedWork(loans, call)
    _stager.put(work, next((last.computed for last in reversed(loans) if last.computed is not None), None))
    return work
