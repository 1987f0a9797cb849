"""The engine for Python front ends, written in Rust (bindings/python/src).

Memory is passed as address, shape, number of the element type, and owner. It must be contiguous host memory; the owner
is kept alive until the request is done, whatever becomes of the handle. Until then the memory belongs to the engine.
The owner is what the bytes belong to: of a torch tensor its storage, because a tensor outlives its bytes when it gets
another storage.

Element types: bool 0, uint8 1, int8 2, uint16 3, int16 4, uint32 5, int32 6, uint64 7, int64 8, float16 9, bfloat16 10,
float32 11, float64 12. Operations: Average 0, Sum 1, Adasum 2, Min 3, Max 4, Product 5.

Wrong use raises ValueError; what the ranks refuse, and whatever ends the job, raises FarandoleError or a subclass.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

__version__: str
"""Of the package, its command and its C library."""

class HorovodInternalError(RuntimeError):
    """What Horovod raises when a collective fails. Here it is the base class of FarandoleError."""

class FarandoleError(HorovodInternalError):
    """A collective was refused by the ranks, or the job cannot go on. The text names the first cause."""

class RankLostError(FarandoleError):
    """A rank died, was cut off or left while others needed it. An elastic job continues without it."""

class MismatchError(FarandoleError):
    """The requests of the ranks differ, or ask for something that cannot be done. The program needs a change."""

class StallError(FarandoleError):
    """A wait has passed its limit, and no rank is known to be lost. The text says who waited for what."""

def init(
    process_sets: Sequence[Sequence[int]],
    *,
    dynamic: bool,
    wire_protection: str | None = None,
    store_rank: tuple[int, int, str, str | None] | None = None,
    nccl_files: Sequence[str] = (),
    follow: Callable[[Joining], None] | None = None,
) -> None:
    """Makes this process a rank of its job, with these process sets; those that are there already are passed over. Does
    nothing while it is one; may be called again after shutdown. store_rank: rank, size, a word that all ranks of this
    job and no others have, and tcp:HOST:PORT for the meeting in rank 0 (None: all ranks are on this host), for a
    process that knows them from a store and not from a launcher. nccl_files: files in which NCCL may be. follow: called
    in a process that joins an elastic job whose members stream their states, before it is a candidate; what it raises
    is raised."""

def join_later() -> None:
    """This process is going to be a rank of its elastic job, and what needs its rank says so until then."""

def joins_later() -> bool:
    """Whether this process is going to be a rank of its elastic job, and is none yet."""

def nccl_version(files: Sequence[str]) -> int:
    """NCCL's version as a number, or 0 where there is none that can be used. files: files in which it may be."""

def has_cuda() -> bool:
    """Whether CUDA's driver is there and has a device."""

def launched() -> tuple[int, int, bool] | None:
    """Rank and size that a launcher has given this process, and whether it is a launcher of ours."""

def product() -> str:
    """What messages call this library: Farandole, or Horovod where scripts import it under that name."""

def set_imported_as_horovod(imported: bool) -> None:
    """Whether messages of this process are to call this library Horovod."""

def host_identity() -> str:
    """What processes of one host have in common, and of different hosts not."""

def abort(cause: str, *, stalled: bool = False) -> None:
    """Ends all collectives of this rank: requests under way fail with this cause, and the other ranks are told. It is
    the loss of this rank, or with `stalled` the end of a wait that has passed its limit."""

def shutdown() -> None:
    """Leaves the job: requests under way end with an error. Does nothing in forked children. Called at exit by
    itself."""

def text_setting(name: str) -> str | None:
    """What the environment says for the setting with this variable, or its default (docs/settings.md)."""

def switch_setting(name: str) -> bool:
    """Whether the setting with this variable is on; by default, what docs/settings.md says."""

def elastic_enabled() -> bool:
    """Whether this process is a member of an elastic job."""

def elastic_candidates() -> int:
    """How many processes wait to join, as far as this one knows."""

def elastic_generation() -> int | None:
    """The number of the generation that this process is in; None outside of one."""

def elastic_fence() -> int:
    """Raises on a rank that the job has replaced; otherwise the number of its generation, or 0 in a job of a fixed
    size."""

def elastic_stage(word: str) -> None:
    """This process has come so far in its generation: "synchronised" or "stepped". The first time counts."""

def elastic_step_lost(fate: str) -> None:
    """The step under way when the last generation ended was not made: it is "repeated" or "dropped"."""

def elastic_decide(
    standings: Sequence[tuple[int, int, int, bool]],
) -> tuple[int, bool, int, int, int, bool]:
    """Whose state all ranks continue with. A rank brings completed blocks (negative: none), epoch, position, and whether
    its state was streamed to it; the result is source, is_sent, completed, epoch, position, is_to_compare."""

def elastic_retry_pause(failed_before: int) -> float | None:
    """The seconds to wait before a block is computed again that has failed this often before; None: it is not."""

def elastic_step_end(position: int, length: int, batch: int, size: int) -> int:
    """Where the step ends that begins at `position` of `length` samples, if each rank takes `batch` of them."""

def elastic_step_count(length: int, batch: int, size: int) -> int:
    """How many steps `length` samples make."""

class StateSource:
    """The side of this process that sends the state of its training; there is one. Memory is passed as address, bytes
    and owner."""

    def __init__(self, *, least_bytes: int, most_log: int, bytes_per_second: int | None = None) -> None: ...
    def wants_snapshot(self) -> bool:
        """Whether processes want a copy of the state."""
    def is_followed(self) -> bool:
        """Whether processes want every update."""
    def give_snapshot(self, note: bytes, head: bytes, pieces: Sequence[tuple[int, int, object]]) -> None:
        """A copy of the state for those who want one: a head, and memory behind it, which is copied."""
    def give_update(self, note: bytes, head: bytes, pieces: Sequence[tuple[int, int, object]]) -> None:
        """What has led to the state with this note, for all who follow."""
    def begin_anew(self) -> None:
        """The state has changed without an update."""
    def note_boundary(self) -> None:
        """No steps are made until `note_training`."""
    def note_training(self) -> None:
        """The training goes on."""

def state_digests(pieces: Sequence[tuple[int, int, object]]) -> list[int]:
    """A number for each piece of memory (address, bytes, owner), which depends on all its bits."""

class ParameterCheck:
    """When and how an optimizer compares parameters with other ranks.

    after: steps before the first check. remedy: what gives all ranks the same parameters, for the warning. by_name:
    whether names are the same on all ranks; otherwise the order is."""

    def __new__(cls, after: int, remedy: str, by_name: bool) -> ParameterCheck: ...
    def next_step(self, group: int) -> bool | None:
        """A step begins. `None` if nothing is to be compared; otherwise whether all bits are, or a sample."""

    def compare(self, group: int, pieces: Sequence[tuple[str, int, int, int, object]]) -> tuple[str, list[int]] | None:
        """Compares, with all ranks of the group. Pieces: name, address, bytes, bytes of what it is the sample of (as
        many if it is all), owner. The first parameter that differs, and the ranks in the minority."""

def compare_parameters(name: str, pieces: Sequence[tuple[str, int, int, int, object]]) -> tuple[str, list[int]] | None:
    """Compares all bits with all ranks, by order: the first that differs, and the ranks in the minority."""

def sample_of(len_bytes: int) -> tuple[int, int, int]:
    """The sample of so many bytes: number of blocks, bytes of each, distance between their beginnings."""

class Joining:
    """A process that is about to join an elastic job."""

    @property
    def sources(self) -> int:
        """How many members can be asked for their state."""
    def connect(self, number: int) -> StateStream:
        """Asks one of them. OSError if it cannot be reached."""
    def go(self) -> None:
        """The process may become a candidate."""
    def is_over(self) -> bool:
        """Whether it was let in, or cannot be."""

class StateStream:
    """A state that comes from a member."""

    def receive(self, seconds: float) -> tuple[str, bytes, bytearray, int] | None:
        """What has come or comes within so many seconds: "wait", "again", "join_now" (and why), "lost" (and why),
        "snapshot" or "update" (note, content, and bytes that wait behind it)."""

def runs_ahead() -> bool:
    """Whether the host goes on when collectives in device memory are queued."""

def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def is_homogeneous() -> bool: ...
def add_process_set(ranks: Sequence[int]) -> int: ...
def remove_process_set(process_set_id: int) -> None: ...
def join_group(number: int, ranks: Sequence[int]) -> int:
    """Makes a group of these ranks of the world. Its members call this, each with the same number, which was not used
    before in this job. Returns the id for requests."""

def leave_group(group: int) -> None:
    """Leaves a group that was joined, which ends it for its other members."""

def process_sets() -> dict[int, list[int]]:
    """World ranks of every process set, by its number; zero is the world."""

class Result:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def received_splits(self) -> list[int]:
        """For alltoall: how many rows came from each rank."""
    @property
    def last_joined(self) -> int:
        """For join: the last rank (inside the process set) to join. Otherwise -1."""
    @property
    def source(self) -> int:
        """For a message between two ranks: the other one (inside the group). Otherwise -1."""
    @property
    def dtype(self) -> int | None:
        """Number of the element type of memory that the engine made; None where the result lies in the caller's
        tensor."""
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Memory that the engine made (allgather, alltoall, reducescatter), without a copy."""
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Handle:
    @property
    def name(self) -> str: ...
    def poll(self) -> bool:
        """Whether the request is done, well or not."""
    def wait(self) -> Result:
        """Waits until it is done. A second call gives the same. Ctrl-C ends the wait, not the request."""
    def wait_for(self, seconds: float) -> bool:
        """Waits until it is done or so many seconds have passed, and says whether it is done."""

def allreduce(
    name: str,
    address: int,
    shape: Sequence[int],
    dtype: int,
    owner: object,
    op: int,
    prescale: float,
    postscale: float,
    group: int,
    batch: tuple[str, int] | None,
    priority: int,
    output: tuple[int, object] | None,
) -> Handle:
    """The result goes to output (address, owner), or in place. batch: a key that is the same on all ranks, and how many
    requests have it; they run together or not at all."""

def allreduce_many(requests: Iterable[tuple[Any, ...]]) -> list[Handle]:
    """Tuples of allreduce's arguments."""

class GradientBatch:
    """Gradients that are submitted together in every iteration: what stays the same. Each is a request of its own."""

    def __init__(
        self,
        members: Sequence[tuple[str, Sequence[int], int]],
        op: int,
        prescale: float,
        postscale: float,
        group: int,
        batch: str | None,
        travel_type: int | None = None,
    ) -> None:
        """members: name, shape, dtype. With batch, a name that is the same on all ranks, they run together or not
        at all. travel_type: float16 or bfloat16, in which float32 gradients on a GPU travel."""

    def submit(self, addresses: list[int], owners: tuple[object, ...]) -> BatchHandle: ...
    def submit_on_device(
        self, addresses: list[int], owners: tuple[object, ...], device: tuple[int, int]
    ) -> DeviceHandle:
        """device: where the memory lies, with the stream in which its data are computed (see submit_on_device)."""
    def __len__(self) -> int: ...

class BatchHandle:
    """Allreduces that were submitted together and are waited for together."""

    def poll(self) -> bool:
        """Whether all are done, successfully or not."""
    def wait(self) -> None:
        """Waits until all are done; raises the first error. Ctrl-C ends the wait, not the requests."""
    def wait_for(self, seconds: float) -> bool:
        """Waits until all are done or for so many seconds, and says whether they are done."""
    def __len__(self) -> int: ...

class HostTensors:
    """Contiguous tensors in host memory."""

    def form(self) -> bytes:
        """What ranks must agree on: element type (one byte) and number of elements (eight, the least significant
        first) of each."""
    def allreduce(self, name: str, op: int, prescale: float, postscale: float, group: int) -> BatchHandle:
        """Reduces them in place. Several are named name_0, name_1, and so on, and run together or not at all."""
    def first_moved(self, tensors: list[Any]) -> int | None:
        """The place of the first of these tensors whose bytes are elsewhere by now."""

def host_tensors(tensors: list[Any]) -> HostTensors | None:
    """Reads tensors of PyTorch's; nothing if one of them cannot be worked on as it is."""

class DeviceHandle:
    """Requests of tensors on a device, which are waited for together."""

    @property
    def names(self) -> list[str]: ...
    @property
    def runs_ahead(self) -> bool:
        """Whether the host goes on when they are queued."""
    def poll(self) -> bool:
        """Whether all are over, successfully or not: results are there, and names may be used again."""
    def is_computed(self) -> bool:
        """Whether the device has computed what was submitted."""
    def wait_until_computed(self) -> None:
        """Returns when it has."""
    def follow(self, stream: int) -> None:
        """Waits until all are queued, and makes what comes into a stream from now on wait until they are over. Raises
        the first error."""
    def is_queued_within(self, seconds: float) -> bool:
        """Waits until all are queued or so many seconds have passed; says whether they are."""
    def wait(self) -> None:
        """Waits until all are over; raises the first error. Ctrl-C ends the wait, not the requests."""
    def wait_within(self, seconds: float) -> bool:
        """Waits until all are over or so many seconds have passed; says whether they are."""
    def results(self) -> list[tuple[list[int], list[int]]]:
        """Shape and received splits of each result, once all are queued."""
    def is_made(self, index: int) -> bool:
        """Whether a result lies in memory of the engine's, from which it is to be copied."""
    def copy_result(self, index: int, address: int, len_bytes: int, stream: int) -> None:
        """Copies a result out of the engine's memory, in a stream."""
    def __len__(self) -> int: ...

def submit_on_device(
    collective: tuple[object, ...],
    tensors: Sequence[tuple[str, int, Sequence[int], int, object, tuple[int, int, object] | None]],
    group: int,
    batch: str | None,
    device: tuple[int, int],
    *,
    priority: int = 0,
) -> DeviceHandle:
    """Many tensors of one device, each a tuple of name, address, shape, element type, owner, and where its result goes
    (address, number of elements, owner) or None.
    collective: its name and arguments, as device_request.rs says.
    batch: a name that is the same on all ranks; they run together or not at all.
    device: the number of the device on which they lie, and the handle of the stream that computes their data."""

def submit_tensors_on_device(
    collective: tuple[object, ...],
    names: list[str],
    tensors: list[Any],
    group: int,
    batch: str | None,
    device: tuple[int, int],
    *,
    priority: int = 0,
) -> DeviceHandle | None:
    """The same for tensors of PyTorch's, which are asked here what they are and whose results replace them. None if
    one of them is not contiguous, on another device, or of a type that is not worked on there."""

def declare_gradients(group: int, names: Sequence[str]) -> None:
    """Says that an optimizer reduces gradients of these names in every step, from the step on whose gradients have just
    been submitted. One that an optimizer of another rank lacks is then refused instead of waited for."""

def works_on_devices(group: int, collective: tuple[object, ...], dtype: int) -> bool:
    """Whether a collective of device memory is carried out in this group where the tensors lie."""

def device_stands_in() -> bool:
    """Whether host memory stands in for that of a device: in tests."""

def allreduce_batch(
    tensors: Iterable[tuple[str, int, Sequence[int], int, object]],
    op: int,
    prescale: float,
    postscale: float,
    group: int,
    batch: str | None,
) -> BatchHandle:
    """Many tensors in place and with one reduction, each a tuple of name, address, shape, element type and owner.
    batch: a name that is the same on all ranks; they run together or not at all."""

def broadcast(
    name: str,
    address: int,
    shape: Sequence[int],
    dtype: int,
    owner: object,
    root: int,
    group: int,
    output: tuple[int, object] | None,
) -> Handle:
    """root is a rank of the world."""

def allgather(
    name: str,
    address: int,
    shape: Sequence[int],
    dtype: int,
    owner: object,
    group: int,
    batch: tuple[str, int] | None,
    output: tuple[int, int, object] | None = None,
) -> Handle: ...
def alltoall(
    name: str,
    address: int,
    shape: Sequence[int],
    dtype: int,
    owner: object,
    splits: Sequence[int] | None,
    group: int,
    output: tuple[int, int, object] | None = None,
) -> Handle: ...
def reducescatter(
    name: str,
    address: int,
    shape: Sequence[int],
    dtype: int,
    owner: object,
    op: int,
    prescale: float,
    postscale: float,
    group: int,
    batch: tuple[str, int] | None,
    output: tuple[int, int, object] | None = None,
) -> Handle: ...
def reduce(
    name: str,
    address: int,
    shape: Sequence[int],
    dtype: int,
    owner: object,
    root: int,
    op: int,
    prescale: float,
    postscale: float,
    group: int,
) -> Handle:
    """The result goes to the tensor of root, a rank inside the group. The others' stay as they are."""

def gather(
    name: str, address: int, shape: Sequence[int], dtype: int, owner: object, root: int, group: int
) -> Handle:
    """root is a rank inside the group. The others' results have no rows."""

def scatter(
    name: str,
    address: int,
    shape: Sequence[int],
    dtype: int,
    owner: object,
    root: int,
    splits: Sequence[int] | None,
    group: int,
) -> Handle:
    """root is a rank inside the group. The others' tensors have no rows, and no splits."""

def send(
    what: str, address: int, shape: Sequence[int], dtype: int, owner: object, to: int, tag: int, group: int
) -> Handle:
    """Sends to a rank of the group, by its number there. It must receive the same number of elements of this type.
    what: names the memory while it is lent."""

def recv(
    what: str, address: int, shape: Sequence[int], dtype: int, owner: object, source: int | None, tag: int, group: int
) -> Handle:
    """Receives what a rank of the group, or any, sends with this tag. Result.source says which."""

def barrier(name: str, group: int) -> Handle: ...
def join(group: int) -> Handle: ...
def lent(address: int, len_bytes: int) -> str | None:
    """The name of a request that has memory in this range, if one is under way or its result has not been fetched."""

def wait_all(handles: Iterable[Handle]) -> list[Result]:
    """Waits until all are done; raises the first error, and the others keep their results."""

def start_timeline(path: str, mark_cycles: bool) -> None:
    """Rank 0 writes a timeline from now on. ValueError unless HOROVOD_TIMELINE was set when the job began."""

def stop_timeline() -> None:
    """Everything that has happened is in the file when this returns."""

def phase_begin(name: str) -> None:
    """A phase of the program begins on this thread; phases nest. "forward", "backward", "optimizer step", "input wait",
    "evaluation", "checkpoint", "training step", "input work", "device work" and "device copy" are known, any other name
    is the user's own. Never fails."""

def phase_end(name: str) -> None: ...
def phase_of(row: str, name: str, begin_ns: int, end_ns: int) -> None:
    """A phase of somebody outside of this process, on the clock of `time.monotonic_ns()`, in a row of its own. Never
    fails."""

def wants_device_times() -> bool:
    """Whether what devices do is to be timed: only while a trace is kept. Never fails."""

def device_idle(since_ns: int, until_ns: int, ns: int) -> None:
    """This thread gave its device nothing to do between two moments of `time.monotonic_ns()`, and the device was idle
    for the last `ns` of that. Never fails."""

def device_waited(request: str, since_ns: int, until_ns: int) -> None:
    """The device of this thread has waited for the result of a request between two moments of `time.monotonic_ns()`.
    Never fails."""

def name_thread(name: str) -> None:
    """What the row of this thread is called. Never fails."""

def watch_own_code(ident: int) -> None:
    """Looks where this thread (`threading.get_ident()`) is while it is in no phase, if a trace is kept. Never fails."""

def act_for_program() -> None:
    """What this thread does counts as done by the thread that trains, until `act_for_itself`."""

def act_for_itself() -> None:
    """What this thread does counts as its own."""

def note_setting(name: str, value: str) -> None:
    """A setting for the trace that has become known, or has changed. Never fails."""

def mark_iteration(number: int) -> None: ...
def mark_step_done(number: int) -> None: ...
def mark_epoch(number: int) -> None: ...

def jax_handler() -> object:
    """The function that compiled programs of JAX call, in a capsule for `jax.ffi.register_ffi_target`."""

def jax_device_handler() -> object:
    """The same for programs that are compiled for a GPU."""

def calls_under_way() -> int:
    """How many calls of TensorFlow, JAX and MXNet wait for other ranks."""

def jax_finish_comparing() -> None:
    """Waits until parameters that programs have handed over are compared."""

def jax_raise_late() -> None:
    """Waits for the collectives of programs on GPUs, and raises what went wrong."""

def register_tensorflow_ops(library: str, version: str) -> bool:
    """Registers Horovod's ops with the TensorFlow in this library, which is loaded already. Says whether kernels are
    asynchronous."""

class MxnetCall:
    """A call of one collective on arrays of MXNet, for one array or several that go together."""

    def wait(self) -> None:
        """Waits until the call is over; raises what went wrong. Ctrl-C ends the wait, not the call."""
    def shape(self, place: int) -> list[int]:
        """Dimensions of the result for the array at this place."""
    def received_splits(self, place: int) -> list[int]:
        """For alltoall: how many rows came from each rank."""
    def copy_to(self, place: int, array: Any) -> None:
        """Copies the result for the array at this place from the engine's memory to a new array of MXNet, of the same
        shape and element type."""

_MxnetArray = tuple[str, Sequence[int], int, Any, tuple[Any, int] | None]
"""Name, shape, element type, the array, and where the result goes: None for the engine's memory, otherwise an array
(the same one, in place) and its number of elements."""

def load_mxnet(library: str, version: str, array: Any, part: Any, other: Any) -> None:
    """Finds MXNet's functions in this library, which is loaded already. An array, a part of it and another one show
    that we tell their variables apart."""

def mxnet_allreduce(
    arrays: list[_MxnetArray],
    op: int,
    prescale: float,
    postscale: float,
    group: int,
    batch: str | None,
    priority: int,
) -> MxnetCall: ...
def mxnet_broadcast(arrays: list[_MxnetArray], root: int, group: int, priority: int) -> MxnetCall:
    """root is a rank of the world."""

def mxnet_allgather(arrays: list[_MxnetArray], group: int, batch: str | None, priority: int) -> MxnetCall: ...
def mxnet_alltoall(
    arrays: list[_MxnetArray], splits: Sequence[int] | None, group: int, priority: int
) -> MxnetCall: ...
def mxnet_reducescatter(
    arrays: list[_MxnetArray],
    op: int,
    prescale: float,
    postscale: float,
    group: int,
    batch: str | None,
    priority: int,
) -> MxnetCall: ...

class DataArray:
    """Memory of a batch, for DLPack: it goes back to its loader when the last that has taken it lets it go."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class DataRecords:
    """Samples by number, before they are decoded."""

    @staticmethod
    def open(
        source: str,
        *,
        image: str | None = None,
        label: str | None = None,
        kind: str = "found",
        class_names: Sequence[str] = (),
        classes: int | None = None,
        split: str | None = None,
        index: str | None = None,
        threads: int = 0,
    ) -> DataRecords:
        """What lies at a path. OSError if nothing does that is understood. split: "train" or "test" of what is divided.
        index: a folder; "" is nowhere, None beside the shards."""
    def __len__(self) -> int: ...
    @property
    def class_names(self) -> list[str]: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def fingerprint(self) -> int: ...
    def describe(self) -> str: ...
    def name(self, index: int) -> str: ...
    def read(self, index: int) -> tuple[bytes, int | float | list[float]]: ...

class DataBatch:
    """Samples of one step."""

    @property
    def step(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def global_count(self) -> int: ...
    @property
    def replaced(self) -> int: ...
    def take(self) -> tuple[DataArray | list[bytes], DataArray]:
        """Images and labels; once."""
    def take_indices(self) -> DataArray:
        """The numbers of the records; once."""

class DataFeed:
    """A rank's batches, made by threads."""

    def __init__(
        self,
        records: DataRecords,
        *,
        content: tuple[list[tuple[str, dict[str, Any]]], int, str, str] | None,
        batch: int,
        global_batch: int | None,
        rank: int,
        world_size: int,
        drop_last: bool,
        workers: int,
        prefetch: int,
        seed: int,
        shuffle: bool,
        nearby: tuple[int, int] | None,
        skip_broken: bool,
        mixup: float,
        cutmix: float,
    ) -> None: ...
    def __len__(self) -> int:
        """Steps of an epoch."""
    @property
    def samples(self) -> int: ...
    @property
    def global_batch(self) -> int: ...
    def start(self, epoch: int, step: int) -> None:
        """Begins an epoch at a step. RuntimeError in a child of a fork."""
    def stop(self) -> None:
        """Ends the threads."""
    def next_batch(self) -> DataBatch | None:
        """The next batch; none when the epoch is over. OSError names a sample that cannot be read."""
    def take_notices(self) -> list[str]: ...
    def stats(self) -> dict[str, Any]: ...
