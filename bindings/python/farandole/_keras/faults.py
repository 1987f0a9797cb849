"""Errors of collectives that come back through a framework's graph.

A collective inside of a compiled function fails as an error of the framework: one of `tf.errors`, which
`farandole.tensorflow` can read, or `JaxRuntimeError`. `translate` finds out whether a collective was the cause and says
so with a `FarandoleError`.

Invariant: only errors of our operations are translated; others pass as they are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Optional

from farandole.exceptions import FarandoleError, HorovodInternalError, class_of

_callback_error: Optional[BaseException] = None
"""The first error of a collective inside of a JAX callback since the last translation. Written by threads of JAX, read
by the thread that sees JAX's error after it."""


def note(error: BaseException) -> None:
    """A collective failed where its exception will not arrive as it is."""
    global _callback_error
    if _callback_error is None:
        _callback_error = error


def translate(error: BaseException) -> Optional[FarandoleError]:
    """The error of a collective that is behind a framework's error, if one is and it is not that error itself."""
    global _callback_error
    if isinstance(error, HorovodInternalError):
        return None
    tensorflow_ops = sys.modules.get("farandole.tensorflow.mpi_ops")
    if tensorflow_ops is not None and (cause := tensorflow_ops.internal_error(error)) is not None:
        return class_of(cause)(str(cause))
    if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and _callback_error is not None:
        noted, _callback_error = _callback_error, None
        return noted if isinstance(noted, FarandoleError) else None
    return None


def translating(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with errors of collectives as `FarandoleError`."""

    @functools.wraps(function)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            cause = translate(error)
            if cause is None:
                raise
            raise cause from error

    return translated
