"""What the program does between collectives, as it says itself: phases, iterations, epochs.

Marks go to the recorder of this rank and are found in its trace and timeline. They never fail and cost next to nothing;
before `init`, after `shutdown` and in the processes of a data loader there is nobody to tell, and they do nothing.

What is deliberately not here: finding phases out without the program's help (`farandole.torch.phases`).
"""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Callable, Optional, Protocol, TypeVar

from farandole import _native

_Function = TypeVar("_Function", bound=Callable[..., object])


class Listener(Protocol):
    """Somebody who marks phases of his own and must keep them nested with the program's."""

    def entered(self) -> None:
        """The program begins a phase."""

    def leaving(self) -> None:
        """The program ends one."""


listeners: list[Listener] = []
"""Filled by front ends."""


_named = threading.local()


def name_this_thread() -> None:
    """Has the row of this thread bear the thread's name."""
    if not getattr(_named, "done", False) and _native.is_initialized():
        _named.done = True
        thread = threading.current_thread()
        _native.name_thread("main" if thread is threading.main_thread() else thread.name)


class phase:
    """A phase of the program with a name, on this thread: `with farandole.phase("augment"):`, or as a decorator.

    Phases nest. "forward", "backward", "optimizer step", "input wait", "evaluation" and "checkpoint" mean to reports
    what they say.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> phase:
        for listener in listeners:
            listener.entered()
        name_this_thread()
        _native.phase_begin(self.name)
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        for listener in listeners:
            listener.leaving()
        _native.phase_end(self.name)

    def __call__(self, function: _Function) -> _Function:
        @functools.wraps(function)
        def in_phase(*args: object, **kwargs: object) -> object:
            with phase(self.name):
                return function(*args, **kwargs)

        return in_phase  # type: ignore[return-value]


_marked_by_program = False
"""Set by the first mark of the program's own, and never taken back."""


def iteration(number: int) -> None:
    """An iteration of training begins. Front ends that mark iterations by themselves leave it to the program from then
    on."""
    global _marked_by_program
    _marked_by_program = True
    _native.mark_iteration(number)


def marked_by_program() -> bool:
    """Whether the program marks its iterations itself."""
    return _marked_by_program


def epoch(number: int) -> None:
    """An epoch of training begins."""
    _native.mark_epoch(number)
