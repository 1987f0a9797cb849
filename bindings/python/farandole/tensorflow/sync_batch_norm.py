"""Batch normalisation over the batches of all ranks together.

Owns `SyncBatchNormalization`, a subclass of the `BatchNormalization` of `tf.keras`, which is Keras 3, or Keras 2 with
`TF_USE_LEGACY_KERAS=1`. Only the mean and the variance of a batch are computed differently; running statistics, scaling
and inference are those of Keras. The class is made when it is asked for first, because Keras takes seconds to import.

**Forward.** Every rank computes number, mean and variance of its own elements, for each channel. One allgather tells
them to all; each rank merges them in the order of ranks (the variance around the common mean is that around the own
means plus what the means differ by, weighted by counts), which is exact for batches of any sizes, also empty ones, and
does not lose digits as sums of squares would. 2 C + 1 numbers from each rank are sent.

**Backward.** The gradient of the input depends on the gradients with respect to mean and variance of all ranks' losses:
one allreduce of 2 C numbers. The gradients of gamma and beta are those of this rank's own batch: an optimizer reduces
them like any others.

Invariant: with the sum of all ranks' losses as the loss, outputs, running statistics and gradients are those of
`BatchNormalization` on the concatenated batch, up to rounding.

In inference nothing is exchanged. Gradients of gradients are not offered.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.process_sets import ProcessSet, global_process_set
from farandole.tensorflow import mpi_ops
from farandole.tensorflow.util import as_written, scope_of_set

__all__ = ["SyncBatchNormalization"]


@as_written
def synchronized_moments(inputs: Any, axes: list[int], weights: Any, process_set: ProcessSet) -> tuple[Any, Any]:
    """Mean and variance over some axes of the tensors of all ranks, without these axes.

    weights: `None`, or a tensor of the shape of `inputs` with 1 for elements that count and 0 for others.
    """

    scope = scope_of_set("SyncBatchNormalization", process_set)

    @tf.custom_gradient
    def moments(values: Any) -> Any:
        count, own_mean, own_variance = _own_moments(values, axes, weights)
        own = tf.concat([tf.reshape(part, [-1]) for part in (count, own_mean, own_variance)], axis=0)
        with tf.name_scope(scope):
            gathered = mpi_ops.allgather(own[tf.newaxis, :], name="HorovodAllgather_moments", process_set=process_set)
        channels = tf.size(own_mean)
        shape = tf.shape(own_mean)
        counts, means, variances = tf.split(gathered, [tf.size(count), channels, channels], axis=1)
        total = tf.reduce_sum(counts, axis=0)
        flat_mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, axis=0), total)
        spread = variances + tf.math.squared_difference(means, flat_mean)
        flat_variance = tf.math.divide_no_nan(tf.reduce_sum(counts * spread, axis=0), total)
        mean, variance = tf.reshape(flat_mean, shape), tf.reshape(flat_variance, shape)

        def backward(mean_gradient: Any, variance_gradient: Any) -> Any:
            both = tf.concat([tf.reshape(mean_gradient, [-1]), tf.reshape(variance_gradient, [-1])], axis=0)
            with tf.name_scope(scope):
                summed = mpi_ops._allreduce(
                    both, name="HorovodAllreduce_moments", op=mpi_ops.Sum, process_set=process_set
                )
            share = tf.math.divide_no_nan(tf.cast(1, values.dtype), total)
            by_mean, by_variance = (
                _expanded(tf.reshape(part * share, shape), axes) for part in tf.split(summed, [channels, channels])
            )
            gradient = by_mean + 2 * by_variance * (values - _expanded(mean, axes))
            return gradient if weights is None else gradient * weights

        return (mean, variance), backward

    mean, variance = moments(inputs)
    rest = [length for axis, length in enumerate(inputs.shape) if axis not in axes]
    return tf.ensure_shape(mean, rest), tf.ensure_shape(variance, rest)


def _own_moments(values: Any, axes: list[int], weights: Any) -> tuple[Any, Any, Any]:
    """How many elements count, their mean and their variance; zeros if there are none. Without weights all channels
    count the same elements, and the number is one for all."""
    if weights is None:
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(values), axes)), values.dtype)
        weighted: Any = values
    else:
        count = tf.reduce_sum(weights, axis=axes)
        weighted = values * weights
    mean = tf.math.divide_no_nan(tf.reduce_sum(weighted, axis=axes), count)
    squares = tf.math.squared_difference(values, _expanded(mean, axes))
    if weights is not None:
        squares = squares * weights
    return count, mean, tf.math.divide_no_nan(tf.reduce_sum(squares, axis=axes), count)


def _expanded(channels: Any, axes: list[int]) -> Any:
    """A tensor without some axes, with 1 for each of them."""
    for axis in sorted(axes):
        channels = tf.expand_dims(channels, axis)
    return channels


def _exchanges(process_set: ProcessSet) -> bool:
    return bool(process_set.included()) and process_set.size() != 1


def _for_keras_3(base: Any) -> Any:
    if tf.keras.config.backend() != "tensorflow":
        raise ImportError(
            f"SyncBatchNormalization works with TensorFlow's tensors, but Keras runs on {tf.keras.config.backend()}; "
            "set KERAS_BACKEND=tensorflow"
        )

    class SyncBatchNormalization(base):  # type: ignore[misc]
        """`BatchNormalization` with statistics over the batches of all ranks.

        Arguments:
            fused: `False`; there is no fused implementation.
            process_set: the ranks whose batches count together.
            kwargs: those of `BatchNormalization`.
        """

        def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
            _refuse_fused(fused)
            super().__init__(**kwargs)
            self._process_set = process_set

        def _moments(self, inputs: Any, mask: Any) -> Any:
            if not _exchanges(self._process_set):
                return super()._moments(inputs, mask)
            weights = None
            if mask is not None:
                weights = tf.broadcast_to(tf.cast(mask, inputs.dtype)[..., tf.newaxis], tf.shape(inputs))
            return synchronized_moments(inputs, list(self._reduction_axes), weights, self._process_set)

    return SyncBatchNormalization


def _for_keras_2(base: Any) -> Any:
    class SyncBatchNormalization(base):  # type: ignore[misc]
        """`BatchNormalization` with statistics over the batches of all ranks.

        Arguments:
            fused: `False`; there is no fused implementation.
            process_set: the ranks whose batches count together.
            kwargs: those of `BatchNormalization`.
        """

        def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
            _refuse_fused(fused)
            super().__init__(fused=False, **kwargs)
            self._process_set = process_set

        def _moments(self, inputs: Any, reduction_axes: Any, keep_dims: bool, **kwargs: Any) -> Any:
            if not _exchanges(self._process_set):
                return super()._moments(inputs, reduction_axes, keep_dims, **kwargs)
            axes = [axis % len(inputs.shape) for axis in reduction_axes]
            mask = kwargs.get("mask")
            weights = None
            if mask is not None:
                weights = tf.broadcast_to(tf.cast(mask, inputs.dtype)[..., tf.newaxis], tf.shape(inputs))
            mean, variance = synchronized_moments(tf.cast(inputs, self._param_dtype), axes, weights, self._process_set)
            mean, variance = tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
            return (_expanded(mean, axes), _expanded(variance, axes)) if keep_dims else (mean, variance)

    return SyncBatchNormalization


def _refuse_fused(fused: Any) -> None:
    if fused in (True, None):
        raise ValueError("SyncBatchNormalization does not support fused=True.")


_made: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _made:
        base = tf.keras.layers.BatchNormalization
        # Only the layer of Keras 2 has a fused implementation to choose.
        layer = _for_keras_2(base) if hasattr(base, "_fused_can_be_used") else _for_keras_3(base)
        layer.__module__, layer.__qualname__ = __name__, name
        _made[name] = layer
    return _made[name]
