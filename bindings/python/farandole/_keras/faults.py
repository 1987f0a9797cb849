"""Errors of collectives that come back through a framework's graph.

A collective inside of a compiled function fails as an error of the framework: `tf.errors.OpError` with the name of the op, or `JaxRuntimeError`.
`translate` finds out whether a collective was the cause and says so with a `HorovodInternalError`.

Invariant: only errors of our operations are translated; others pass as they are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Optional

from farandole.exceptions import HorovodInternalError

_callback_error: Optional[BaseException] = None
"""The first error of a collective inside of a JAX callback since the last translation. Written by threads of JAX, read by the thread
that sees JAX's error after it."""


def note(error: BaseException) -> None:
    """A collective failed where its exception will not arrive as it is."""
    global _callback_error
    if _callback_error is None:
        _callback_error = error


def translate(error: BaseException) -> Optional[HorovodInternalError]:
    """The error of a collective that is behind a framework's error, if one is."""
    global _callback_error
    errors = sys.modules.get("tensorflow.python.framework.errors_impl")
    if errors is not None and isinstance(error, errors.OpError):
        text = str(error.message)
        op = getattr(error.op, "type", "") if error.op is not None else ""
        return HorovodInternalError(text) if any(mark in text + op for mark in ("Horovod", "Farandole")) else None
    if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and _callback_error is not None:
        noted, _callback_error = _callback_error, None
        return noted if isinstance(noted, HorovodInternalError) else None
    return None


def translating(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with errors of collectives as `HorovodInternalError`."""

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
