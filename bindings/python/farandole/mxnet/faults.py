"""Errors of collectives in MXNet's terms.

An operation of MXNet's engine that fails leaves its error with the arrays that it would have written, and whoever waits
for one of them gets it: `wait_to_read`, `asnumpy`, `mx.nd.waitall`. MXNet makes the exception by the name that stands
before the text's first colon; this module registers ours: `CollectiveError` and its subclasses, for those who catch
the exceptions of `farandole.exceptions` and for those who catch MXNet's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mxnet.base import MXNetError, register_error

from farandole import _native
from farandole.exceptions import FarandoleError, MismatchError, RankLostError, StallError, class_of


class CollectiveError(FarandoleError, MXNetError):  # type: ignore[misc]
    """A collective was refused by the ranks, or the job cannot go on. The text names the first cause."""


class CollectiveRankLostError(CollectiveError, RankLostError):
    """A rank died, was cut off or left while others needed it."""


class CollectiveMismatchError(CollectiveError, MismatchError):
    """The requests of the ranks differ, or ask for something that cannot be done."""


class CollectiveStallError(CollectiveError, StallError):
    """A wait has passed its limit, and no rank is known to be lost."""


_OF_CLASS: dict[type[FarandoleError], type[CollectiveError]] = {
    FarandoleError: CollectiveError,
    RankLostError: CollectiveRankLostError,
    MismatchError: CollectiveMismatchError,
    StallError: CollectiveStallError,
}


def _register(kind: type[FarandoleError], made: type[CollectiveError]) -> None:
    """Has MXNet make an exception of a text that it has carried."""
    name = kind.__name__
    register_error(name, lambda text: made(text.removeprefix(f"{name}: ")))


for _kind, _made in _OF_CLASS.items():
    _register(_kind, _made)


def as_collective_error(error: FarandoleError) -> CollectiveError:
    """The same error for those who catch MXNet's."""
    return _OF_CLASS[class_of(error)](*error.args)


def wait(call: _native.MxnetCall, tensors: Iterable[Any]) -> None:
    """Waits for a call that depends on these arrays. Raises what went wrong."""
    try:
        call.wait()
    except FarandoleError as error:
        # An array that has an error of its own keeps the call from being run, and is the cause.
        for tensor in tensors:
            tensor.wait_to_read()
        raise as_collective_error(error) from None
