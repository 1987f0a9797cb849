"""Errors of collectives in MXNet's terms.

An operation of MXNet's engine that fails leaves its error with the arrays that it would have written, and whoever waits
for one of them gets it: `wait_to_read`, `asnumpy`, `mx.nd.waitall`. MXNet makes the exception by the name that stands
before the text's first colon; this module registers ours: `CollectiveError`, for those who catch Horovod's exception
and for those who catch MXNet's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mxnet.base import MXNetError, register_error

from farandole import _native
from farandole.exceptions import HorovodInternalError

_NAME = "HorovodInternalError"


class CollectiveError(HorovodInternalError, MXNetError):  # type: ignore[misc]
    """A collective was refused by the ranks, or the job cannot go on. The text names the first cause."""


def _made_of(text: str) -> CollectiveError:
    """The exception for a text that MXNet has carried."""
    return CollectiveError(text.removeprefix(f"{_NAME}: "))


register_error(_NAME, _made_of)


def wait(call: _native.MxnetCall, tensors: Iterable[Any]) -> None:
    """Waits for a call that depends on these arrays. Raises what went wrong."""
    try:
        call.wait()
    except HorovodInternalError as error:
        # An array that has an error of its own keeps the call from being run, and is the cause.
        for tensor in tensors:
            tensor.wait_to_read()
        raise CollectiveError(*error.args) from None
