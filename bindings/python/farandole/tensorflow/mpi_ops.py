"""Collectives as TensorFlow ops: eagerly, in `tf.function`, in graphs and sessions of `tf.compat.v1`, in control flow
and in `tf.data`.

Importing this module registers the ops, with Horovod's names and attributes, and their gradients (`gradients.py`). The
kernels are in the native library and are asynchronous: an op that waits for other ranks blocks no thread of
TensorFlow's.

**Names.** Ranks match their operations by name. In a graph that is the node's name: as given, or made of the input's
name, with the name scope unless `ignore_name_scope`. In eager mode there is no node: it is `name`, or else the op type.
Eager operations are done when the call returns, so one name may be used again and again. TensorFlow keeps a kernel for
each name, so names should not be made up anew in every step.

**Errors.** What the ranks refuse is a `tf.errors.FailedPreconditionError`, wrong use a
`tf.errors.InvalidArgumentError`, as with Horovod. If the job cannot go on, eager calls raise a `HorovodInternalError`
that is a `tf.errors.UnknownError`, too; graphs raise the latter, and `internal_error` makes the former of it.

Invariant: there is one engine in the process, whichever front ends are imported. Not here: what is built of the ops
(`__init__.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as _context
from tensorflow.python.eager import core as _core
from tensorflow.python.eager import execute as _execute
from tensorflow.python.framework import op_def_library, op_def_registry, ops

from farandole import _native
from farandole.basics import basics as _basics
from farandole.exceptions import FarandoleError, MismatchError, RankLostError, StallError, named_in
from farandole.exports import *
from farandole.process_sets import _temp_process_set_object, ranks_of


def _register() -> bool:
    """Registers the ops with the TensorFlow that is loaded, and says whether their kernels are asynchronous."""
    if not getattr(_native, "_tensorflow_ops_are_ours", False) and op_def_registry.get("HorovodAllreduce") is not None:
        raise ImportError(
            "TensorFlow has an op HorovodAllreduce already, of another library: is Horovod imported in this process, "
            "too? Import either horovod.tensorflow of Horovod or farandole.tensorflow, not both."
        )
    library = os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2")
    asynchronous = _native.register_tensorflow_ops(library, tf.__version__)
    setattr(_native, "_tensorflow_ops_are_ours", True)
    return asynchronous


KERNELS_ARE_ASYNCHRONOUS = _register()
"""False with TensorFlow 2.12, and with one whose callbacks cannot be kept: then each op that is under way blocks a
thread of TensorFlow's. Functions run their ops one after the other then; sessions of `tf.compat.v1` need as many
inter-op threads as they have ops under way."""


class _JobFailed(FarandoleError, tf.errors.UnknownError):  # type: ignore[misc]
    """The job cannot go on: for those who catch our exceptions, and for those who catch TensorFlow's."""

    def __init__(self, message: str) -> None:
        tf.errors.UnknownError.__init__(self, None, None, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)


class _RankLost(_JobFailed, RankLostError):
    pass


class _Mismatch(_JobFailed, MismatchError):
    pass


class _Stall(_JobFailed, StallError):
    pass


_OF_CLASS: dict[type[FarandoleError], type[_JobFailed]] = {
    FarandoleError: _JobFailed,
    RankLostError: _RankLost,
    MismatchError: _Mismatch,
    StallError: _Stall,
}


def _job_failure(message: object) -> Optional[_JobFailed]:
    """The exception for what TensorFlow says, if that is the end of the job."""
    named = named_in(str(message))
    return None if named is None else _OF_CLASS[named[0]](named[1])


def internal_error(error: BaseException) -> Optional[HorovodInternalError]:
    """The `FarandoleError` that an error of TensorFlow's stands for, if it does."""
    if isinstance(error, HorovodInternalError):
        return error
    if isinstance(error, tf.errors.OpError):
        return _job_failure(error.message)
    return None


def _normalize_name(name: str) -> str:
    """A name with nothing in it that TensorFlow does not allow."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def _executing_eagerly() -> bool:
    return _context.executing_eagerly()


def _as_tensor(tensor: Any) -> Any:
    """A tensor, or what can become one."""
    return tensor if isinstance(tensor, ops.EagerTensor) else ops.convert_to_tensor(tensor)


def _set_id(process_set: ProcessSet) -> int:
    process_set_id = process_set.process_set_id
    if process_set_id is None:
        raise ValueError(
            f"{process_set} is not registered. Pass it to hvd.init(process_sets=[...]) or to hvd.add_process_set() "
            "first; sets of before a hvd.shutdown() are to be registered again."
        )
    if process_set_id != 0:
        # A number that stands for no set is a `ValueError`, as in Horovod, also where the op runs later.
        ranks_of(process_set_id)
    return process_set_id


def _name_of(tensor: Any) -> str:
    """What a tensor or variable is called in its graph. What comes from outside the graph has no name there."""
    try:
        return str(tensor.name)
    except (AttributeError, ValueError):
        return "captured"


def _run_eagerly(op_type: str, name: Optional[str], inputs: Sequence[Any], attrs: tuple[Any, ...]) -> Any:
    try:
        return pywrap_tfe.TFE_Py_FastPathExecute(_context.context(), op_type, name, *inputs, *attrs)
    except _core._NotOkStatusException as error:
        failed = _job_failure(error.message)
        if failed is not None:
            raise failed from None
        ops.raise_from_not_ok_status(error, name)


def _add_to_graph(op_type: str, name: Optional[str], inputs: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """Makes a node, and tells tapes of it, as TensorFlow's own wrappers do. Returns the operation."""
    _, _, node, outputs = op_def_library._apply_op_helper(op_type, name=name, **inputs, **attrs)
    dependencies = getattr(node.graph, "experimental_acd_manager", None)
    if dependencies is not None and outputs and KERNELS_ARE_ASYNCHRONOUS:
        # The ops are stateful, so that each of them runs. Ranks match them by name: they need not run in order. Where
        # each would block a thread, they do run in order, the same on all ranks: otherwise ranks could wait for each
        # other with all their threads.
        dependencies.run_independently(node)
    if outputs and _execute.must_record_gradient():
        recorded = dict(attrs)
        if inputs:
            recorded["T"] = node._get_attr_type("T")
        flat = tuple(word for pair in recorded.items() for word in pair)
        _execute.record_gradient(op_type, node.inputs, flat, outputs)
    return node


def _flat(attrs: dict[str, Any], eager_name: str) -> tuple[Any, ...]:
    return (*(word for pair in attrs.items() for word in pair), "eager_name", eager_name)


def _collective(op_type: str, tensor: Any, name: Optional[str], attrs: dict[str, Any]) -> Any:
    """Runs an op on one tensor, or makes a node of it. Returns its output."""
    if _context.executing_eagerly():
        return _run_eagerly(op_type, name, (_as_tensor(tensor),), _flat(attrs, name or op_type))
    if name is None:
        name = f"{op_type}_{_normalize_name(_name_of(tensor))}"
    return _add_to_graph(op_type, name, {"tensor": tensor}, {**attrs, "eager_name": ""}).outputs[0]


def _grouped(op_type: str, tensors: Sequence[Any], name: Optional[str], attrs: dict[str, Any]) -> list[Any]:
    """The same for a list of tensors of one type, which are submitted together."""
    tensors = list(tensors)
    if not tensors:
        return []
    if _context.executing_eagerly():
        inputs = [_as_tensor(tensor) for tensor in tensors]
        return list(_run_eagerly(op_type, name, (inputs,), _flat(attrs, name or op_type)))
    if name is None:
        name = _normalize_name(f"{op_type}_{_name_of(tensors[0])}_{_name_of(tensors[-1])}")
    return list(_add_to_graph(op_type, name, {"tensors": tensors}, {**attrs, "eager_name": ""}).outputs)


def _scalar(op_type: str, name: Optional[str], attrs: dict[str, Any]) -> Any:
    """Asks this rank for a number, when the op runs."""
    if _context.executing_eagerly():
        return _run_eagerly(op_type, name, (), tuple(word for pair in attrs.items() for word in pair))
    return _add_to_graph(op_type, name, {}, attrs).outputs[0]


def _reduction(
    op: int, prescale_factor: float, postscale_factor: float, ignore_name_scope: bool, process_set: ProcessSet
) -> dict[str, Any]:
    return {
        "reduce_op": int(op),
        "prescale_factor": float(prescale_factor),
        "postscale_factor": float(postscale_factor),
        "ignore_name_scope": bool(ignore_name_scope),
        "process_set_id": _set_id(process_set),
    }


def _scope(ignore_name_scope: bool, process_set: ProcessSet) -> dict[str, Any]:
    return {"ignore_name_scope": bool(ignore_name_scope), "process_set_id": _set_id(process_set)}


def _allreduce(
    tensor: Any,
    name: Optional[str] = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The combination of all ranks' tensors, which have one type and shape."""
    attrs = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
    return _collective("HorovodAllreduce", tensor, name, attrs)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As `_allreduce`, for tensors of one type that are reduced together."""
    attrs = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
    return _grouped("HorovodGroupedAllreduce", tensors, name, attrs)


def _allreduce_many(
    tensors: Sequence[Any],
    names: Sequence[str],
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As `_allreduce` for each of the tensors, of any types, under its name. In eager mode all are submitted with one
    call.

    They are independent of each other: other ranks may reduce them in any other way under the same names.
    """
    tensors, names = _matched(tensors, names)
    if not tensors:
        return []
    if not _context.executing_eagerly():
        attrs = (op, prescale_factor, postscale_factor, False, process_set)
        return [_allreduce(tensor, name, *attrs) for tensor, name in zip(tensors, names)]
    attributes = _reduction(op, prescale_factor, postscale_factor, False, process_set)
    del attributes["ignore_name_scope"]
    return _many("FarandoleAllreduceMany", tensors, names, attributes)


def _broadcast_many(
    tensors: Sequence[Any], names: Sequence[str], root_rank: int, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As `broadcast` for each of the tensors, of any types, under its name. In eager mode all are submitted with one
    call."""
    tensors, names = _matched(tensors, names)
    if not tensors:
        return []
    if not _context.executing_eagerly():
        return [
            broadcast(tensor, root_rank, name=name, process_set=process_set) for tensor, name in zip(tensors, names)
        ]
    attrs = {"root_rank": int(root_rank), "process_set_id": _set_id(process_set)}
    return _many("FarandoleBroadcastMany", tensors, names, attrs)


def _matched(tensors: Sequence[Any], names: Sequence[str]) -> tuple[list[Any], list[str]]:
    tensors, names = list(tensors), list(names)
    if len(tensors) != len(names):
        raise ValueError(f"there are {len(tensors)} tensors and {len(names)} names")
    return tensors, names


def _many(op_type: str, tensors: list[Any], names: list[str], attrs: dict[str, Any]) -> list[Any]:
    inputs = [_as_tensor(tensor) for tensor in tensors]
    return list(_run_eagerly(op_type, None, (inputs,), ("tensor_names", names, *_flat(attrs, op_type))))


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """All ranks' tensors one after the other along the first dimension, in which alone they may differ."""
    return _collective("HorovodAllgather", tensor, name, _scope(ignore_name_scope, process_set))


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As `allgather`, for tensors of one type that are gathered together."""
    return _grouped("HorovodGroupedAllgather", tensors, name, _scope(ignore_name_scope, process_set))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of the root, which is named by its rank in the world, also in a process set."""
    attrs = {"root_rank": int(root_rank), **_scope(ignore_name_scope, process_set)}
    return _collective("HorovodBroadcast", tensor, name, attrs)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    variable_names: Optional[Sequence[str]] = None,
) -> list[Any]:
    """Gives variables the values that they have on the root, and returns these values.

    Requests are named after `name`, position and variable: `variable_names` where the variables have other names on
    other ranks. TensorFlow's C API does not reach the memory of variables, so this is a broadcast of their values and
    an assignment.
    """
    variables = list(variables)
    labels = [_name_of(variable) for variable in variables] if variable_names is None else list(variable_names)
    if len(labels) != len(variables):
        raise ValueError(f"there are {len(variables)} variables and {len(labels)} names")
    base = name or "HorovodBroadcastInplace"
    names = [f"{base}_{index}_{_normalize_name(label)}" for index, label in enumerate(labels)]
    received = _broadcast_many(variables, names, root_rank, process_set)
    assigned = [variable.assign(value) for variable, value in zip(variables, received)]
    if _context.executing_eagerly():
        return received
    with tf.control_dependencies([value for value in assigned if value is not None]):
        return [tf.identity(variable) for variable in variables]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows to each rank `r`, and returns the rows that came; with `splits` also how many came from
    each rank.

    Without `splits` every rank gets the same number of rows.
    """
    attrs = _scope(ignore_name_scope, process_set)
    rows = tf.constant([], dtype=tf.int32) if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int32)
    if _context.executing_eagerly():
        pair = (_as_tensor(tensor), rows)
        outputs = _run_eagerly("HorovodAlltoall", name, pair, _flat(attrs, name or "HorovodAlltoall"))
    else:
        node_name = name or f"HorovodAlltoall_{_normalize_name(_name_of(tensor))}"
        inputs = {"tensor": tensor, "splits": rows}
        outputs = _add_to_graph("HorovodAlltoall", node_name, inputs, {**attrs, "eager_name": ""}).outputs
    received, received_splits = outputs
    return received if splits is None else (received, received_splits)


def _reducescatter(
    tensor: Any,
    name: Optional[str] = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's part, along the first dimension, of the combination of all ranks' tensors."""
    attrs = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
    return _collective("HorovodReducescatter", tensor, name, attrs)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As `_reducescatter`, for tensors of one type that are reduced together."""
    attrs = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set)
    return _grouped("HorovodGroupedReducescatter", tensors, name, attrs)


def join(name: Optional[str] = None) -> Any:
    """Says that this rank has no more data. The others' allreduces go on without it. Returns the last rank that
    joined."""
    if _context.executing_eagerly():
        return _run_eagerly("HorovodJoin", name, (), ("eager_name", "join"))
    return _add_to_graph("HorovodJoin", name, {}, {"eager_name": ""}).outputs[0]


def barrier(process_set: ProcessSet = global_process_set, name: Optional[str] = None) -> Any:
    """Done when all ranks of the set have come to it: at once in eager mode, an operation to run in a graph."""
    attrs = _scope(False, process_set)
    if _context.executing_eagerly():
        _run_eagerly("HorovodBarrier", name, (), _flat(attrs, name or "HorovodBarrier"))
        return None
    return _add_to_graph("HorovodBarrier", name, {}, {**attrs, "eager_name": ""})


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """The number of ranks in a process set, found out when the op runs: a graph may be built before the job exists."""
    return _scalar("HorovodSize", name, {"process_set_id": int(process_set_id)})


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """1 if this rank is a member of a process set and 0 if it is not, found out when the op runs."""
    return _scalar("HorovodProcessSetIncluded", name, {"process_set_id": int(process_set_id)})


def local_size_op(name: Optional[str] = None) -> Any:
    """The number of ranks on this host, found out when the op runs."""
    return _scalar("HorovodLocalSize", name, {})


def rank_op(name: Optional[str] = None) -> Any:
    """This rank, found out when the op runs."""
    return _scalar("HorovodRank", name, {})


def local_rank_op(name: Optional[str] = None) -> Any:
    """This rank's number on its host, found out when the op runs."""
    return _scalar("HorovodLocalRank", name, {})


def _leave_to_python(*functions: Any) -> None:
    """Marks functions that AutoGraph need not translate: nothing in them depends on a tensor's value."""
    for function in functions:
        setattr(function, "autograph_info__", None)


_leave_to_python(
    _allreduce,
    _allreduce_many,
    _broadcast_many,
    _grouped_allreduce,
    allgather,
    grouped_allgather,
    broadcast,
    broadcast_,
    alltoall,
    _reducescatter,
    _grouped_reducescatter,
    join,
    barrier,
    size_op,
    process_set_included_op,
    local_size_op,
    rank_op,
    local_rank_op,
)

from farandole.tensorflow import gradients as _gradients  # noqa: E402,F401
