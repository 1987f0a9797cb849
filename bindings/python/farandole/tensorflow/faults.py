"""Errors of collectives inside of compiled functions, as exceptions that name the cause.

A collective that fails inside of a `tf.function` fails the whole function, with one of TensorFlow's errors whose text
is long and has the cause at its end. `watch` has calls of compiled functions raise what `mpi_ops.internal_error` makes
of it: a `FarandoleError` that is a `tf.errors.UnknownError`, too. Elastic training and users who catch either go
on as they did.

Invariant: nothing but the exception changes, and only of calls in which one of our ops has failed because the job
cannot go on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from farandole import basics, phase_tracker
from farandole.tensorflow import mpi_ops


def translating(calling: Callable[..., Any]) -> Callable[..., Any]:
    """A function, with errors of collectives as `FarandoleError`."""

    @functools.wraps(calling)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return calling(*args, **kwargs)
        except tf.errors.OpError as error:
            cause = mpi_ops.internal_error(error)
            if cause is None or cause is error:
                raise
            raise cause from error

    return translated


def watch() -> None:
    """Has compiled functions raise exceptions that name the cause."""
    phase_tracker.replace(polymorphic_function.Function, "__call__", translating, purpose="faults")


basics.on_init(watch)
