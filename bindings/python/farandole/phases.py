"""What the program does between collectives, as it says itself: phases, iterations, epochs.

Marks go to the recorder of this rank and are found in its trace and timeline. They never fail and cost next to nothing; before `init`, after
`shutdown` and in the processes of a data loader there is nobody to tell, and they do nothing.

What is deliberately not here: finding phases out without the program's help (`farandole.torch.phases`).
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Callable, Optional, TypeVar

from farandole import _native

_Function = TypeVar("_Function", bound=Callable[..., object])


class phase:
    """A phase of the program with a name, on this thread: `with farandole.phase("augment"):`, or as a decorator.

    Phases nest. "forward", "backward", "optimizer step", "input wait", "evaluation" and "checkpoint" mean to reports what they say.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> phase:
        _native.phase_begin(self.name)
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        _native.phase_end(self.name)

    def __call__(self, function: _Function) -> _Function:
        @functools.wraps(function)
        def in_phase(*args: object, **kwargs: object) -> object:
            with phase(self.name):
                return function(*args, **kwargs)

        return in_phase  # type: ignore[return-value]


def iteration(number: int) -> None:
    """An iteration of training begins."""
    _native.mark_iteration(number)


def epoch(number: int) -> None:
    """An epoch of training begins."""
    _native.mark_epoch(number)
