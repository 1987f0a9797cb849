"""Collectives on MXNet's arrays.

Each is an operation of MXNet's dependency engine: it begins when the arrays that it reads are ready, and whatever reads
its result waits for it. So `allreduce`, `broadcast` and `reducescatter` return at once, and so do they in place.
`allgather` and `alltoall` return when they are done, because only then the size of the result is known.

**Names.** Ranks find each other's requests by name; see `farandole.request_names`.

**Errors.** What is wrong with a call is a `ValueError`. What the ranks refuse, and the end of the job, is a
`FarandoleError` that is an `MXNetError`, too: raised by whatever waits for the result, and if the job has ended
also by the next call (`faults`).

**Priority.** Among operations that are ready, MXNet's engine begins those of higher priority first, and so does the
engine among requests that all ranks have made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import mxnet as mx

from farandole import _native, request_names
from farandole import exports as _exports
from farandole.basics import handle_average_backwards_compatibility
from farandole.exceptions import FarandoleError
from farandole.exports import *
from farandole.mxnet import arrays, faults
from farandole.process_sets import group_for, ranks_of

__all__ = [
    *_exports.__all__,
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


def _push(push: Callable[..., _native.MxnetCall], *arguments: Any) -> _native.MxnetCall:
    """Hands a call to MXNet's engine."""
    try:
        call = push(*arguments)
        if arrays.IS_SYNCHRONOUS:
            call.wait()
    except FarandoleError as error:
        raise faults.as_collective_error(error) from None
    return call


def _named(kind: str, name: Optional[str], group: int, count: int) -> tuple[list[str], Optional[str]]:
    """The names of the members of a call, and of their batch if there are several."""
    base_name = request_names.name_of(kind, name, group)
    if count == 1:
        return [base_name], None
    return [request_names.member_name(base_name, count, index) for index in range(count)], base_name


def _allreduce(
    tensors: list[Any],
    outputs: Optional[list[Any]],
    kind: str,
    name: Optional[str],
    reduction: tuple[int, float, float],
    process_set: ProcessSet,
    priority: int,
) -> None:
    """Reduces arrays to others, or in place."""
    group = group_for(process_set, "Allreduce")
    names, batch = _named(kind, name, group, len(tensors))
    sources = [arrays.on_host(tensor) for tensor in tensors]
    targets = sources if outputs is None else outputs
    described = [arrays.describe(*member) for member in zip(names, sources, targets)]
    _push(_native.mxnet_allreduce, described, *reduction, group, batch, priority)
    if outputs is None:
        for tensor, source in zip(tensors, sources):
            if source is not tensor:
                source.copyto(tensor)


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[int] = None,
) -> Any:
    """The combination of the arrays that all ranks of a process set submit under one name, as a new array. They have
    the same shape and type.

    Arguments:
        average: deprecated; use `op`.
        name: ranks find each other's requests by it. Without one, nameless calls are matched in order.
        priority: operations of higher priority are begun first; see the module's text.
        prescale_factor, postscale_factor: contributions and result are multiplied by these.
        process_set: the ranks that take part; all, if not given.
        op: `Average` (also if not given), `Sum`, `Min`, `Max`, `Product` or `Adasum`.
    """
    op = handle_average_backwards_compatibility(op, average)
    arrays.check(tensor, "allreduce")
    output = arrays.new(tensor.shape, tensor)
    reduction = (op, prescale_factor, postscale_factor)
    _allreduce([tensor], [output], "allreduce", name, reduction, process_set, priority)
    return arrays.beside(output, tensor)


def allreduce_(
    tensor: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[int] = None,
) -> Any:
    """As `allreduce`, in place. Returns the array."""
    op = handle_average_backwards_compatibility(op, average)
    arrays.check(tensor, "allreduce_")
    reduction = (op, prescale_factor, postscale_factor)
    _allreduce([tensor], None, "allreduce", name, reduction, process_set, priority)
    return tensor


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[int] = None,
) -> Sequence[Any]:
    """As `allreduce`, for arrays that are reduced together: none of them before all are there on all ranks. They may
    differ in shape and type."""
    op = handle_average_backwards_compatibility(op, average)
    if not tensors:
        return tensors
    for tensor in tensors:
        arrays.check(tensor, "grouped_allreduce")
    outputs = [arrays.new(tensor.shape, tensor) for tensor in tensors]
    reduction = (op, prescale_factor, postscale_factor)
    _allreduce(list(tensors), outputs, "grouped_allreduce", name, reduction, process_set, priority)
    return [arrays.beside(output, tensor) for output, tensor in zip(outputs, tensors)]


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[int] = None,
) -> Sequence[Any]:
    """As `grouped_allreduce`, in place. Returns the arrays."""
    op = handle_average_backwards_compatibility(op, average)
    if not tensors:
        return tensors
    for tensor in tensors:
        arrays.check(tensor, "grouped_allreduce_")
    reduction = (op, prescale_factor, postscale_factor)
    _allreduce(list(tensors), None, "grouped_allreduce", name, reduction, process_set, priority)
    return tensors


def _fetch(call: _native.MxnetCall, tensors: Sequence[Any]) -> list[Any]:
    """Waits for a call whose results are in the engine's memory, and makes arrays of them."""
    faults.wait(call, tensors)
    outputs = []
    for place, tensor in enumerate(tensors):
        output = arrays.new(call.shape(place), tensor)
        call.copy_to(place, output)
        outputs.append(arrays.beside(output, tensor))
    return outputs


def _allgather(
    tensors: Sequence[Any], kind: str, name: Optional[str], priority: int, process_set: ProcessSet
) -> list[Any]:
    for tensor in tensors:
        arrays.check(tensor, kind)
    group = group_for(process_set, "Allgather")
    names, batch = _named(kind, name, group, len(tensors))
    sources = [arrays.on_host(tensor) for tensor in tensors]
    described = [arrays.describe(*member) for member in zip(names, sources)]
    return _fetch(_push(_native.mxnet_allgather, described, group, batch, priority), tensors)


def allgather(
    tensor: Any, name: Optional[str] = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """All ranks' arrays, one after the other along the first dimension, in which they may differ. The other arguments
    are those of `allreduce`."""
    [output] = _allgather([tensor], "allgather", name, priority, process_set)
    return output


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As `allgather`, for arrays that are gathered together."""
    if not tensors:
        return []
    return _allgather(tensors, "grouped_allgather", name, priority, process_set)


def _broadcast(
    tensor: Any, output: Any, root_rank: int, name: Optional[str], priority: int, process_set: ProcessSet
) -> None:
    group = group_for(process_set, "Broadcast")
    full_name = request_names.name_of("broadcast", name, group)
    described = arrays.describe(full_name, tensor, output)
    _push(_native.mxnet_broadcast, [described], root_rank, group, priority)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The array of one rank, numbered in the world, as a new array on all ranks of the process set. The other arguments
    are those of `allreduce`."""
    arrays.check(tensor, "broadcast")
    output = arrays.new(tensor.shape, tensor)
    _broadcast(arrays.on_host(tensor), output, root_rank, name, priority, process_set)
    return arrays.beside(output, tensor)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `broadcast`, in place. Returns the array."""
    arrays.check(tensor, "broadcast_")
    source = arrays.on_host(tensor)
    _broadcast(source, source, root_rank, name, priority, process_set)
    if source is not tensor:
        source.copyto(tensor)
    return tensor


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows of the array to each rank `r` of the process set, and returns the rows that they send
    here.

    Arguments:
        splits: a list or an array of whole numbers. Without it, each rank gets the same number of rows.

    Returns:
        The rows; with `splits`, a pair of these and an array (int32) of how many came from each rank.
    """
    arrays.check(tensor, "alltoall")
    group = group_for(process_set, "Alltoall")
    numbers = None if splits is None else _read_splits(splits)
    described = arrays.describe(request_names.name_of("alltoall", name, group), arrays.on_host(tensor))
    call = _push(_native.mxnet_alltoall, [described], numbers, group, priority)
    [output] = _fetch(call, [tensor])
    if splits is None:
        return output
    return output, mx.nd.array(call.received_splits(0), ctx=mx.cpu(), dtype="int32")


def _read_splits(splits: Any) -> list[int]:
    """Whole numbers from zero."""
    if isinstance(splits, mx.nd.NDArray):
        splits = splits.asnumpy()
    if getattr(splits, "dtype", None) is not None and splits.dtype.kind not in "iu":
        raise ValueError(f"alltoall expects splits to contain 32-bit integer elements, not {splits.dtype}")
    return [int(number) for number in splits]


def _reducescatter(
    tensors: Sequence[Any],
    kind: str,
    name: Optional[str],
    reduction: tuple[int, float, float],
    process_set: ProcessSet,
    priority: int,
) -> list[Any]:
    for tensor in tensors:
        arrays.check(tensor, kind)
        if arrays.has_no_dimensions(tensor):
            raise ValueError(f"{kind} does not support scalar inputs")
    group = group_for(process_set, "Reducescatter")
    members = ranks_of(group)
    place, count = members.index(_native.rank()), len(members)
    names, batch = _named(kind, name, group, len(tensors))
    outputs = []
    for tensor in tensors:
        rows, more = divmod(tensor.shape[0], count)
        outputs.append(arrays.new((rows + (place < more), *tensor.shape[1:]), tensor))
    sources = [arrays.on_host(tensor) for tensor in tensors]
    described = [arrays.describe(*member) for member in zip(names, sources, outputs)]
    _push(_native.mxnet_reducescatter, described, *reduction, group, batch, priority)
    return [arrays.beside(output, tensor) for output, tensor in zip(outputs, tensors)]


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's part, along the first dimension, of the combination of all ranks' arrays. Parts differ by one row at
    most; those of the first ranks are longer. The arguments are those of `allreduce`."""
    reduction = (op, prescale_factor, postscale_factor)
    [output] = _reducescatter([tensor], "reducescatter", name, reduction, process_set, priority)
    return output


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As `reducescatter`, for arrays that are reduced together."""
    if not tensors:
        return []
    reduction = (op, prescale_factor, postscale_factor)
    return _reducescatter(tensors, "grouped_reducescatter", name, reduction, process_set, priority)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the process set have called it, and this rank's operations on arrays are over.
    (Horovod's MXNet front end has none.)"""
    group = group_for(process_set, "Barrier")
    mx.nd.waitall()
    _native.barrier(request_names.name_of("barrier", None, group), group).wait()


def join(process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data, and returns when all ranks of the process set have said so: the rank that
    said it last. Until then it takes part in what the others do, without data of its own. (Horovod's MXNet front end
    has none.)"""
    group = group_for(process_set, "Join")
    mx.nd.waitall()
    result = _native.join(group).wait()
    request_names.count_anew(group)
    return ranks_of(group)[result.last_joined]
