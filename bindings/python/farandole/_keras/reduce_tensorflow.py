"""Reducing gradients of Keras 3 on its TensorFlow backend.

Gradients are reduced by the ops of `farandole.tensorflow`, eagerly or inside of a `tf.function`, where each one leaves
as soon as it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from farandole._keras.wrapping import REMEDY
from farandole.basics import basics
from farandole.gradient_settings import Settings
from farandole.tensorflow.gradient_reduction import GradientReduction
from farandole.tensorflow.reduce import allreduce

STATELESS = False


def unwrapped(variable: Any) -> Any:
    """TensorFlow's variable of a variable of Keras 3; others as they are."""
    value = getattr(variable, "_value", None)
    return value if isinstance(value, tf.Variable) else variable


def dense(grad: Any, sparse_as_dense: bool) -> Any:
    """A gradient that can be added to an accumulator."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    if not sparse_as_dense:
        raise ValueError(
            "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
        )
    return tf.convert_to_tensor(grad)


def divide(grad: Any, by: float) -> Any:
    """A gradient divided by a number."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / by, grad.indices, grad.dense_shape)
    return grad / by


def gradients(loss: Any, var_list: Any, tape: Any) -> tuple[list[Any], list[Any]]:
    """Gradients of a loss, or of a function that computes it, and their variables."""
    if callable(loss):
        with tape if tape is not None else tf.GradientTape() as tape:
            loss = loss()
    elif tape is None:
        raise ValueError("`tape` is required when a `Tensor` loss is passed.")
    variables = list(var_list() if callable(var_list) else var_list)
    return tape.gradient(loss, [unwrapped(variable) for variable in variables]), variables


class Reducer:
    """Reduces the gradients of one optimizer."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        groups = settings.groups
        if isinstance(groups, list):
            groups = [[unwrapped(variable) for variable in group] for group in groups]
        self._reduction = GradientReduction.of(name, replace(settings, groups=groups))
        self._reduction.remedy = REMEDY

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        """The gradients of all ranks, combined. `numbers` tell gradients apart, the same on all ranks."""
        if not grads:
            return []
        every: list[Any] = [None] * (max(numbers) + 1)
        owners = list(every)
        for number, grad, variable in zip(numbers, grads, variables):
            every[number], owners[number] = grad, unwrapped(variable)
        # Names of variables are left out unless groups need them: Keras numbers layers, and ranks may have made
        # different numbers of them.
        compared = [unwrapped(variable) for variable in variables]
        reduced = self._reduction(
            every, owners if isinstance(self.settings.groups, list) else None, compared=compared
        )
        return [reduced[number] for number in numbers]

    def all_true(self, flag: Any) -> Any:
        """Whether this is true on all ranks."""
        own = tf.cast(flag, tf.uint8)
        name = f"{self.name}_finite"
        return tf.cast(allreduce(own, op=basics.Min, name=name, process_set=self.settings.process_set), tf.bool)


def accumulate(
    optimizer: Any,
    grads: list[Any],
    variables: list[Any],
    accumulators: list[Any],
    update: Callable[[list[Any]], list[Any]],
    apply: Callable[[list[Any]], None],
) -> None:
    """Adds gradients up. Every so many calls the sums are reduced and applied."""
    del variables
    state = optimizer._farandole
    for accumulator, grad in zip(accumulators, grads):
        if grad is not None:
            accumulator.assign_add(tf.cast(grad, accumulator.dtype))
    state.counter.assign_add(1)

    def apply_sums() -> None:
        sums = [
            None if grad is None else tf.convert_to_tensor(accumulator.value)
            for accumulator, grad in zip(accumulators, grads)
        ]
        apply(update(sums))
        state.counter.assign(0)
        for accumulator in accumulators:
            accumulator.assign(tf.zeros_like(accumulator.value))

    def count() -> None:
        optimizer._iterations.assign_add(1)

    is_due = tf.greater_equal(state.counter.value, optimizer.farandole_settings.backward_passes_per_step)
    tf.cond(is_due, apply_sums, count)
