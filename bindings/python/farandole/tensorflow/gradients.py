"""Gradients of the ops, as Horovod defines them.

That of an allreduce is the allreduce of the gradient with the same operation and factors, and that of a grouped one
likewise. The gradient of an allgather is this rank's rows of the averaged gradient, of a broadcast the averaged
gradient on the root and zero elsewhere, of an alltoall the way back, of a reducescatter the gathered gradients times
the factors, and times the number of ranks for a sum.

Invariant: all ranks make the same nodes. A node more on one rank would change the names of those that come after it,
and ranks would wait for each other's.

Imported by `mpi_ops.py`, when its functions are there.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.process_sets import ProcessSet, _temp_process_set_object
from farandole.tensorflow import mpi_ops


def _set_of(op: Any) -> ProcessSet:
    return _temp_process_set_object(op.get_attr("process_set_id"))


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_grad(op: Any, grad: Any) -> Any:
    return mpi_ops._allreduce(
        grad,
        op=op.get_attr("reduce_op"),
        prescale_factor=op.get_attr("prescale_factor"),
        postscale_factor=op.get_attr("postscale_factor"),
        ignore_name_scope=op.get_attr("ignore_name_scope"),
        process_set=_set_of(op),
    )


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce_grad(op: Any, *grads: Any) -> list[Any]:
    return mpi_ops._grouped_allreduce(
        list(grads),
        op=op.get_attr("reduce_op"),
        prescale_factor=op.get_attr("prescale_factor"),
        postscale_factor=op.get_attr("postscale_factor"),
        ignore_name_scope=op.get_attr("ignore_name_scope"),
        process_set=_set_of(op),
    )


@tf.RegisterGradient("FarandoleAllreduceMany")
def _allreduce_many_grad(op: Any, *grads: Any) -> list[Any]:
    return mpi_ops._allreduce_many(
        list(grads),
        _names_of_grads(op),
        op=op.get_attr("reduce_op"),
        prescale_factor=op.get_attr("prescale_factor"),
        postscale_factor=op.get_attr("postscale_factor"),
        process_set=_set_of(op),
    )


@tf.RegisterGradient("FarandoleBroadcastMany")
def _broadcast_many_grad(op: Any, *grads: Any) -> list[Any]:
    averaged = mpi_ops._allreduce_many(
        list(grads), _names_of_grads(op), op=mpi_ops.Average, process_set=_set_of(op)
    )
    is_root = tf.constant(mpi_ops.rank() == op.get_attr("root_rank"))
    return [tf.where(is_root, grad, tf.zeros_like(grad)) for grad in averaged]


def _names_of_grads(op: Any) -> list[str]:
    return [f"{tf.compat.as_str(name)}_grad" for name in op.get_attr("tensor_names")]


def _own_rows(op: Any, tensor: Any, grad: Any) -> Any:
    """The rows of an averaged gradient that come from this rank's input."""
    process_set, ignore_name_scope = _set_of(op), op.get_attr("ignore_name_scope")
    averaged = mpi_ops._allreduce(
        grad, op=mpi_ops.Average, ignore_name_scope=ignore_name_scope, process_set=process_set
    )
    with tf.device("/cpu:0"):
        own = tf.reshape(tf.shape(tensor)[0], [1])
        rows = mpi_ops.allgather(own, ignore_name_scope=ignore_name_scope, process_set=process_set)
        before = tf.reduce_sum(rows[: process_set.rank()], keepdims=True)
        begin = tf.concat([before, tf.zeros([tf.rank(tensor) - 1], tf.int32)], 0)
    # XLA compiles slices that begin anywhere, but not those that end anywhere.
    return tf.slice(averaged, begin, tf.shape(tensor))


@tf.RegisterGradient("HorovodAllgather")
def _allgather_grad(op: Any, grad: Any) -> Any:
    return _own_rows(op, op.inputs[0], grad)


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather_grad(op: Any, *grads: Any) -> list[Any]:
    # One by one: TensorFlow passes zeros of float32 for outputs that nobody uses, whatever the others are.
    return [_own_rows(op, tensor, grad) for tensor, grad in zip(op.inputs, grads)]


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_grad(op: Any, grad: Any) -> Any:
    averaged = mpi_ops._allreduce(
        grad, op=mpi_ops.Average, ignore_name_scope=op.get_attr("ignore_name_scope"), process_set=_set_of(op)
    )
    is_root = tf.constant(mpi_ops.rank() == op.get_attr("root_rank"))
    return tf.where(is_root, averaged, tf.zeros_like(averaged))


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_grad(op: Any, grad: Any, _received_splits_grad: Any) -> list[Any]:
    back, _ = mpi_ops.alltoall(
        grad, splits=op.outputs[1], ignore_name_scope=op.get_attr("ignore_name_scope"), process_set=_set_of(op)
    )
    return [back, None]


def _gathered(op: Any, grad: Any) -> Any:
    process_set = _set_of(op)
    factor = op.get_attr("prescale_factor") * op.get_attr("postscale_factor")
    if op.get_attr("reduce_op") == mpi_ops.Sum:
        factor *= process_set.size()
    scaled = grad if factor == 1.0 else grad * tf.cast(factor, grad.dtype)
    return mpi_ops.allgather(scaled, ignore_name_scope=op.get_attr("ignore_name_scope"), process_set=process_set)


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_grad(op: Any, grad: Any) -> Any:
    return _gathered(op, grad)


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _grouped_reducescatter_grad(op: Any, *grads: Any) -> list[Any]:
    # One by one, for the same reason as above.
    return [_gathered(op, grad) for grad in grads]


for _op_type in (
    "HorovodSize",
    "HorovodProcessSetIncluded",
    "HorovodLocalSize",
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodJoin",
    "HorovodBarrier",
):
    tf.no_gradient(_op_type)
