"""From errors of XLA's to our exceptions.

Inside compiled functions an error of a collective is JAX's `JaxRuntimeError`, with our text: JAX raises it wherever the
result is first needed. Outside of them a call waits for its results, and raises what other front ends do: `ValueError`
for wrong use, `FarandoleError` and its subclasses for what the ranks refuse and for the end of the job.

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
from farandole.exceptions import FarandoleError, MismatchError, named_in

__all__ = ["translated", "watch"]

_WRONG_USE, _REFUSED, _OTHER = "INVALID_ARGUMENT: ", "FAILED_PRECONDITION: ", "UNKNOWN: "

# What the ranks refuse begins with the name of the request; of the same code is what this process may not ask for.
_REQUEST = '"'

_REPEATED = re.compile(r"(Error \w+ computation: )\1+")
"""What XLA writes for each program that was to use the result of a failed one."""


def _once(shown: Callable[[Any], str]) -> Callable[[Any], str]:
    """How an error is shown, with XLA's words once."""

    def shown_once(error: Any) -> str:
        text = shown(error)
        return _REPEATED.sub(r"\1", text) if named_in(text) else text

    return shown_once


def watch() -> None:
    """Has errors of JAX say everything once."""
    phase_tracker.replace(jax.errors.JaxRuntimeError, "__str__", _once, purpose="faults")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises our exceptions in place of JAX's."""
    try:
        yield
    # JAX's dispatch in C++ raises some of XLA's errors as the latter.
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        text = str(error)
        if text.startswith(_WRONG_USE):
            raise ValueError(text.removeprefix(_WRONG_USE)) from None
        named = named_in(text)
        if named is not None:
            kind, cause = named
            raise kind(cause) from None
        if text.startswith(_REFUSED):
            cause = text.removeprefix(_REFUSED)
            raise (MismatchError if cause.startswith(_REQUEST) else FarandoleError)(cause) from None
        if text.startswith(_OTHER):
            raise FarandoleError(text.removeprefix(_OTHER)) from None
        raise


watch()
