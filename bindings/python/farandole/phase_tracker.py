"""Keeps the phases that a front end marks by itself nested, with each other and with the program's own.

`PhaseTracker` is the part that all frameworks share: which phase is open on the thread that trains, which calls have
begun inside of it, and which steps are iterations. Front ends decide what begins and ends where (`torch.phases`,
`tensorflow.phases`, `keras.phases`).

Invariants: phases of a thread nest, also with those of `farandole.phase`. Marks are made by one thread, the one that
trains. A mark never raises. A program that marks iterations itself (`farandole.iteration`) is not interfered with.

Not here: hooks in any framework.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Optional

from farandole import _native, phases

INPUT_WAIT, INPUT_WORK = "input wait", "input work"
FORWARD, BACKWARD, OPTIMIZER_STEP = "forward", "backward", "optimizer step"
TRAINING_STEP = "training step"
"""A whole step in one call, as compilers make it: forward, backward, collectives and the update of the weights."""
EVALUATION, CHECKPOINT = "evaluation", "checkpoint"

_log = logging.getLogger(__name__)


def is_wanted() -> bool:
    """Whether front ends may mark phases: `FARANDOLE_PHASES=0` says no."""
    return _native.switch_setting("FARANDOLE_PHASES")


class PhaseTracker:
    """What is open on the thread that trains. At most one outermost phase of ours, and calls inside of it."""

    def __init__(self) -> None:
        self.thread: Optional[int] = None
        self.open: Optional[str] = None
        self.inside = 0
        """Phases that have begun since and must end first: the program's own, and those of calls."""
        self.calls: dict[str, int] = {}
        """How often each phase of a call is open: a call inside of one of its kind is part of that."""
        self.iterations = 0
        self.iteration_owner: Callable[[], object] = lambda: None
        """Whose steps are the iterations: of several optimizers, or compiled functions that have one, the first that
        made a step."""

    def follow_this_thread(self) -> bool:
        """This thread trains from now on. Says whether none did before."""
        first = self.thread is None
        self.thread = threading.get_ident()
        phases.name_this_thread()
        _native.watch_own_code(self.thread)
        if first:
            phases.listeners.append(self)
        return first

    def on_training_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return threading.get_ident() == self.thread

    def switch_to(self, name: Optional[str]) -> None:
        """Ends what is open and begins another phase, or none; unless something inside it is not over."""
        if self.open != name and self.inside == 0:
            if self.open is not None:
                _native.phase_end(self.open)
            if name is not None:
                _native.phase_begin(name)
            self.open = name

    def close(self) -> None:
        """Ends the outermost phase, if one is open."""
        self.switch_to(None)

    def evaluates(self) -> bool:
        """Whether an evaluation is open: as the outermost phase, or as a call."""
        return self.open == EVALUATION or bool(self.calls.get(EVALUATION))

    def begin(self, name: str) -> None:
        """A call begins, which is a phase unless it is part of one of its kind."""
        depth = self.calls.get(name, 0)
        self.calls[name] = depth + 1
        if depth == 0:
            self.inside += 1
            _native.phase_begin(name)

    def end(self, name: str) -> bool:
        """It returns. Says whether the phase is over."""
        depth = self.calls.get(name, 1) - 1
        self.calls[name] = depth
        if depth == 0:
            _native.phase_end(name)
            self.inside -= 1
        return depth == 0

    def entered(self) -> None:
        """The program begins a phase of its own. If nothing is open, what opens later lies inside of it."""
        if self.on_training_thread() and (self.open is not None or self.inside > 0):
            self.inside += 1

    def leaving(self) -> None:
        """The program ends a phase of its own, and with it what was opened there."""
        if self.on_training_thread():
            if self.inside > 0:
                self.inside -= 1
            else:
                self.close()

    def step_done(self, maker: object) -> None:
        """A step of training is over, made by an optimizer or a function. If its steps are the iterations, one ends."""
        if self.iteration_owner() is None:
            self.iteration_owner = weakref.ref(maker)
        if self.iteration_owner() is maker and not phases.marked_by_program():
            self.iterations += 1
            _native.mark_step_done(self.iterations)

    def epoch_begins(self, number: int) -> None:
        """An epoch begins; optimizers and functions of earlier ones need not be those of this one."""
        if self.on_training_thread() and not phases.marked_by_program():
            self.switch_to(None)
            _native.mark_epoch(number)

    def marked(self, name: str, function: Callable[..., Any], *, outermost: bool = True) -> Callable[..., Any]:
        """The function as a phase: in place of the outermost phase that is open, or, if not `outermost`, inside it."""

        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if not self.on_training_thread():
                return function(*args, **kwargs)
            if outermost:
                self.close()
            self.begin(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(name)

        return marked


_MARKED = "_farandole_marked"
"""Set on what takes a method's place: for what it was replaced. So nothing is marked twice, whoever else comes by the
same class."""


def replace(owner: object, name: str, change: Callable[[Any], Any], purpose: str = "phases") -> bool:
    """Puts `change(original)` in the place of an attribute that the owner itself has, once for each purpose. Says
    whether it is there."""
    original = vars(owner).get(name) if owner is not None else None
    if isinstance(original, (staticmethod, classmethod)) or not callable(original):
        _log.debug(
            "%s: %s has no %s that could be watched; we go without it", purpose, getattr(owner, "__name__", owner), name
        )
        return False
    purposes: tuple[str, ...] = getattr(original, _MARKED, ())
    if purpose not in purposes:
        changed = change(original)
        setattr(changed, _MARKED, (*purposes, purpose))
        setattr(owner, name, changed)
    return True
