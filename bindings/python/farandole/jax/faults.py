"""From errors of XLA's to Horovod's exceptions.

Inside compiled functions an error of a collective is JAX's `JaxRuntimeError`, with our text: JAX raises it wherever the
result is first needed. Outside of them a call waits for its results, and raises what other front ends do: `ValueError`
for wrong use, `HorovodInternalError` for what the ranks refuse and for the end of the job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from farandole.exceptions import HorovodInternalError

__all__ = ["translated"]

_WRONG_USE = "INVALID_ARGUMENT: "
_OTHERS = ("FAILED_PRECONDITION: ", "UNKNOWN: ")
_INTERNAL = "HorovodInternalError: "


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
        for code in _OTHERS:
            if text.startswith(code):
                raise HorovodInternalError(text.removeprefix(code).removeprefix(_INTERNAL)) from None
        raise
