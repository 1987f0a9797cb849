"""Allreduce and reducescatter as scripts call them: compression, `tf.IndexedSlices`, devices, several tensors at once.

The operations of `mpi_ops` take one element type at a time and dense tensors. Here, a group may mix element types and
sparse tensors; what is of one kind is reduced together.

**Sparse tensors.** The sum of `tf.IndexedSlices` is all of their slices, one after another: values and indices are
gathered, and what follows adds up slices with the same index. So `Sum` and `Average` are possible, and no factors. The
average of integers is a floating-point number, as TensorFlow divides them.

Arguments that all functions share:
    average: deprecated; use `op`. device_dense, device_sparse: TensorFlow's names of devices on which to place the
    operation. Empty: where TensorFlow places it. compression: what is sent in place of dense tensors, from
    `hvd.Compression`. op: `Average` (also if not given), `Sum`, `Min`, `Max`, `Product` or `Adasum`. prescale_factor,
    postscale_factor: contributions and result are multiplied by these. name: ranks find each other's requests by it.
    process_set: the ranks that take part; all, if not given. ignore_name_scope: whether the name is used without the
    name scopes around it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from farandole.basics import handle_average_backwards_compatibility
from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow import mpi_ops
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.mpi_ops import Adasum, Average, Sum
from farandole.tensorflow.util import as_written, is_keras_variable, static_size


# Between the functions of this module and their caller stands the wrapper of `as_written`.
_SCRIPT = 4


def on_device(device: str) -> Any:
    """`tf.device`, if there is a name of one."""
    return tf.device(device) if device else contextlib.nullcontext()


def size_for(process_set: ProcessSet, dtype: tf.DType) -> Any:
    """The number of ranks of a set as a number to divide by; in elastic jobs, what it is when the graph runs."""
    number = static_size(process_set)
    if number is None:
        return tf.cast(mpi_ops.size_op(mpi_ops._set_id(process_set)), dtype)
    return tf.cast(number, dtype)


def _tensor(value: Any) -> Any:
    """What operations take. Variables of TensorFlow stay themselves, because their names serve as names of requests."""
    if isinstance(value, (tf.Tensor, tf.Variable)):
        return value
    return value.value if is_keras_variable(value) else tf.convert_to_tensor(value)


@as_written
def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combines the tensors that all ranks of a process set submit under one name. They have the same shape and type.

    tensor: a `tf.Tensor`, a variable, or `tf.IndexedSlices`, of which every rank may have another number of slices. The
        module's text describes the other arguments. Differentiable.
    """
    op = handle_average_backwards_compatibility(op, average, _SCRIPT)
    if isinstance(tensor, tf.IndexedSlices):
        check_sparse(op, prescale_factor, postscale_factor)
        with on_device(device_sparse):
            values, indices = (
                mpi_ops.allgather(
                    part,
                    name=None if name is None else f"{name}_{which}",
                    ignore_name_scope=ignore_name_scope,
                    process_set=process_set,
                )
                for part, which in ((tensor.values, "values"), (tensor.indices, "indices"))
            )
            return gathered_slices(values, indices, tensor, op, process_set)
    with on_device(device_dense):
        compressed, context = compression.compress(_tensor(tensor))
        reduced = mpi_ops._allreduce(
            compressed,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(reduced, context)


def check_sparse(op: int, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> None:
    """Refuses what cannot be done with slices."""
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass "
            "sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")


def gathered_slices(
    values: Any, indices: Any, own: tf.IndexedSlices, op: int, process_set: ProcessSet
) -> tf.IndexedSlices:
    """All ranks' slices as the reduction of the tensors that they stand for."""
    if op == Average:
        values = values / size_for(process_set, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=own.dense_shape)


def by_dtype(
    tensors: Sequence[Any], name: Optional[str], run: Callable[[list[Any], Optional[str]], Sequence[Any]]
) -> list[Any]:
    """Runs an operation on the tensors of each element type together; `run` gets them and their name."""
    kinds = [tensor.dtype for tensor in tensors]
    if kinds.count(kinds[0]) == len(kinds):
        return list(run(list(tensors), name))
    positions: dict[Any, list[int]] = {}
    for position, kind in enumerate(kinds):
        positions.setdefault(kind.base_dtype, []).append(position)
    results: list[Any] = [None] * len(tensors)
    for dtype, places in positions.items():
        part_name = None if name is None else f"{name}_{dtype.name}"
        outputs = run([tensors[place] for place in places], part_name)
        for place, output in zip(places, outputs):
            results[place] = output
    return results


@as_written
def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> Any:
    """As `allreduce`, for tensors that are reduced together: none of one element type before all of it are there on all
    ranks. Dense and sparse tensors and element types may be mixed. Returns a list. Differentiable."""
    if not tensors:
        return tensors
    op = handle_average_backwards_compatibility(op, average, _SCRIPT)
    results: list[Any] = [None] * len(tensors)
    sparse = [place for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [place for place, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if sparse:
        check_sparse(op, prescale_factor, postscale_factor)
        with on_device(device_sparse):
            slices = grouped_allgather_slices(
                [tensors[place] for place in sparse], op, name, process_set, ignore_name_scope
            )
        for place, reduced in zip(sparse, slices):
            results[place] = reduced
    if dense:
        with on_device(device_dense):
            pairs = [compression.compress(_tensor(tensors[place])) for place in dense]
            outputs = by_dtype(
                [compressed for compressed, _ in pairs],
                name,
                lambda part, part_name: mpi_ops._grouped_allreduce(
                    part,
                    name=part_name,
                    op=op,
                    prescale_factor=prescale_factor,
                    postscale_factor=postscale_factor,
                    ignore_name_scope=ignore_name_scope,
                    process_set=process_set,
                ),
            )
            for place, output, (_, context) in zip(dense, outputs, pairs):
                results[place] = compression.decompress(output, context)
    return results


def grouped_allgather_slices(
    slices: Sequence[tf.IndexedSlices],
    op: int,
    name: Optional[str],
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> list[tf.IndexedSlices]:
    """`tf.IndexedSlices` reduced together."""

    def gathered(parts: list[Any], which: str) -> list[Any]:
        return by_dtype(
            parts,
            None if name is None else f"{name}_{which}",
            lambda part, part_name: mpi_ops.grouped_allgather(
                part, name=part_name, ignore_name_scope=ignore_name_scope, process_set=process_set
            ),
        )

    values = gathered([entry.values for entry in slices], "values")
    indices = gathered([entry.indices for entry in slices], "indices")
    return [gathered_slices(*parts, op, process_set) for parts in zip(values, indices, slices)]


@as_written
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combines tensors and gives every rank its part of the result: rows of the first dimension, one more for the first
    ranks if they cannot be shared out equally. `Sum` and `Average`. Differentiable."""
    with on_device(device_dense):
        compressed, context = compression.compress(_tensor(tensor))
        reduced = mpi_ops._reducescatter(
            compressed,
            name=name,
            op=op,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return compression.decompress(reduced, context)


@as_written
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """As `reducescatter`, for tensors that are reduced together. Returns a list. Differentiable."""
    if not tensors:
        return tensors
    with on_device(device_dense):
        pairs = [compression.compress(_tensor(tensor)) for tensor in tensors]
        outputs = by_dtype(
            [compressed for compressed, _ in pairs],
            None,
            lambda part, _name: mpi_ops._grouped_reducescatter(
                part,
                op=op,
                process_set=process_set,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
            ),
        )
        return [compression.decompress(output, context) for output, (_, context) in zip(outputs, pairs)]
