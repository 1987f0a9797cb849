"""From errors of XLA's to Horovod's exceptions.

Inside compiled functions an error of a collective is JAX's `JaxRuntimeError`, with our text: JAX raises it wherever the
result is first needed. Outside of them a call waits for its results, and raises what other front ends do: `ValueError`
for wrong use, `HorovodInternalError` for what the ranks refuse and for the end of the job.

An array that a failed collective should have made passes its error on to all that is computed from it, and XLA puts the
same words before the text for each program on the way. `JaxRuntimeError` shows them once where the text is ours.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from farandole import phase_tracker
from farandole.exceptions import HorovodInternalError

__all__ = ["translated", "watch"]

_WRONG_USE = "INVALID_ARGUMENT: "
_OTHERS = ("FAILED_PRECONDITION: ", "UNKNOWN: ")
_INTERNAL = "HorovodInternalError: "

_REPEATED = re.compile(r"(Error \w+ computation: )\1+")
"""What XLA writes for each program that was to use the result of a failed one."""


def _once(shown: Callable[[Any], str]) -> Callable[[Any], str]:
    """How an error is shown, with XLA's words once."""

    def shown_once(error: Any) -> str:
        text = shown(error)
        return _REPEATED.sub(r"\1", text) if _INTERNAL in text else text

    return shown_once


def watch() -> None:
    """Has errors of JAX say everything once."""
    phase_tracker.replace(jax.errors.JaxRuntimeError, "__str__", _once, purpose="faults")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises Horovod's exceptions in place of JAX's."""
    try:
        yield
    # JAX's dispatch in C++ raises some of XLA's errors as the latter.
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        text = str(error)
        if text.startswith(_WRONG_USE):
            raise ValueError(text.removeprefix(_WRONG_USE)) from None
        _, is_end, cause = text.partition(_INTERNAL)
        if is_end:
            raise HorovodInternalError(cause) from None
        for code in _OTHERS:
            if text.startswith(code):
                raise HorovodInternalError(text.removeprefix(code)) from None
        raise


watch()
