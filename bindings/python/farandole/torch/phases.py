"""Finding out what a training script does, without its help: phases and iterations for traces and reports.

Owns the marks that are made where PyTorch passes by anyway. `watch` puts them there, once per process, when the first
`DistributedOptimizer` of a job is made; `FARANDOLE_PHASES=0` leaves PyTorch untouched.

| phase | from | to |
|---|---|---|
| input wait | the script asks a `DataLoader` for a batch | it has it |
| evaluation | `model.eval()`, or a batch asked for where gradients are off | `model.train()`, backward, a step, or the end of those batches |
| forward | a batch has come, outside of evaluation; `optimizer.zero_grad()` in a script that asks no `DataLoader` for batches to train with | backward, or the next batch is asked for |
| backward | `loss.backward()` | its return |
| optimizer step | `optimizer.step()` of a `DistributedOptimizer` | its return; an iteration ends there |
| checkpoint | `torch.save`, `torch.load` | their return |
| input work | another thread than the one that trains asks a `DataLoader` for a batch; a worker makes one (`loader`) | it has it |

What lies between these, from the first forward to the last step, is the script's own code to reports.
`_native.watch_own_code` has it looked at while a trace is kept, so that reports can say where it is.

A GPU computes behind the thread's back, so what it was given in a phase may be done in the next. Where the thread has
to wait for it, `staging` marks why. Evaluation, which often asks a device for nothing before it is over, stays open
until the device has done its part, as far as the thread can see that before the next backward pass; after that, waiting
for the rest of it is marked as evaluation.

Invariants: phases of a thread nest, also with those that the script marks itself (`farandole.phase`). Marks are made by
the thread that trains, the one that called `watch`; of other threads only their work for the input is. A mark never
changes what PyTorch does and never raises. A script that marks iterations itself (`farandole.iteration`) is not
interfered with.

Not here: hooks in modules. They would cost something in every layer and keep compilers from seeing through; forward is
what lies between other marks, with everything the script does there.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.utils.data import dataloader

from farandole import _native, phases
from farandole.torch import loader, staging

EVALUATION, FORWARD = "evaluation", "forward"


class _Watch:
    """Which of *evaluation* and *forward* is open, on the thread that trains."""

    def __init__(self) -> None:
        self.thread: Optional[int] = None
        self.open: Optional[str] = None
        self.inside = 0
        """Phases that have begun since and must end first: the program's own, and those of calls."""
        self.tail: Optional[staging.Ready] = None
        """When a device has done its part of an evaluation that is over for the host and still open."""
        self.changing_mode = False
        self.has_batches = False
        """Whether the script has asked a `DataLoader` for a batch to train with."""
        self.iterations = 0
        self.pacemaker: Callable[[], object] = lambda: None
        """The optimizer whose steps are the iterations: of several, the one that made the first step."""

    def here(self) -> bool:
        """Whether this is the thread that trains."""
        return threading.get_ident() == self.thread

    def turn_to(self, name: Optional[str]) -> None:
        """Ends what is open and begins another phase, or none; unless something inside it is not over."""
        if self.open != name and self.inside == 0:
            if self.open is not None:
                _native.phase_end(self.open)
            if name is not None:
                _native.phase_begin(name)
            self.open = name

    def evaluates(self) -> bool:
        """Whether an evaluation is open and not over."""
        return self.open == EVALUATION and self.tail is None

    def end_evaluation(self) -> None:
        """Evaluation is over for the host."""
        if self.evaluates():
            self.tail = staging.promise()
            self.move_to(None)

    def move_to(self, name: Optional[str]) -> None:
        """As `turn_to`, unless a device still evaluates."""
        if self.tail is None or self.tail.query():
            self.tail = None
            self.turn_to(name)

    def close(self) -> None:
        """Whatever is open ends. What a device still has to do for an evaluation is left behind."""
        if self.tail is not None and self.inside == 0:
            staging.leave_behind(EVALUATION, self.tail)
            self.tail = None
        self.turn_to(None)

    def begin(self, name: str) -> None:
        """A call begins, which is a phase."""
        self.inside += 1
        _native.phase_begin(name)

    def end(self, name: str) -> None:
        """It returns."""
        _native.phase_end(name)
        self.inside -= 1

    def entered(self) -> None:
        """The program begins a phase of its own. If nothing is open, what opens later lies inside of it."""
        if self.here() and (self.open is not None or self.inside > 0):
            self.inside += 1

    def leaving(self) -> None:
        """The program ends a phase of its own, and with it what was opened there."""
        if self.here():
            if self.inside > 0:
                self.inside -= 1
            else:
                self.close()


_watch = _Watch()


def watch() -> None:
    """Begins to mark what this thread does. Calling it again only changes the thread."""
    if os.environ.get("FARANDOLE_PHASES", "1").lower() in ("0", "false", "no", "off"):
        return
    first = _watch.thread is None
    _watch.thread = threading.get_ident()
    phases.name_this_thread()
    note_threads()
    _native.watch_own_code(_watch.thread)
    if first:
        loader.watch()
        phases.listeners.append(_watch)
        _watch_batches()
        _watch_modes()
        torch.autograd.backward = marked("backward", torch.autograd.backward, alone=True)
        torch.save = marked("checkpoint", torch.save)
        torch.load = marked("checkpoint", torch.load)


def note_threads() -> None:
    """Notes with how many threads this rank computes: more than there are cores for push each other aside."""
    _native.note_setting("threads", str(torch.get_num_threads()))


def gradients_cleared() -> None:
    """`zero_grad` was called: where no loader says when a batch has come, forward begins here."""
    if _watch.here() and not _watch.has_batches and not _watch.evaluates():
        _watch.move_to(FORWARD)


def step_begins() -> None:
    """An optimizer's step begins."""
    if _watch.here():
        _watch.close()
        _watch.begin("optimizer step")


def step_ends(optimizer: object) -> None:
    """It is over, and with it an iteration."""
    if not _watch.here():
        return
    _watch.end("optimizer step")
    if _watch.pacemaker() is None:
        _watch.pacemaker = weakref.ref(optimizer)
    if _watch.pacemaker() is optimizer and not phases.marked_by_program():
        _watch.iterations += 1
        _native.mark_iteration(_watch.iterations)
        if _watch.iterations == 1:
            # By now a script has set what it wants to set.
            note_threads()


def marked(name: str, function: Callable[..., Any], alone: bool = False) -> Callable[..., Any]:
    """The function, in a phase; `alone` says that it ends whatever outermost phase is open."""

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if not _watch.here():
            return function(*args, **kwargs)
        if alone:
            _watch.close()
        _watch.begin(name)
        try:
            return function(*args, **kwargs)
        finally:
            _watch.end(name)

    return marked


def _watch_batches() -> None:
    """Marks waiting for batches. All iterators of all data loaders, with workers and without, are of one class."""
    kind: Any = dataloader._BaseDataLoaderIter
    following = kind.__next__

    @functools.wraps(following)
    def marked(iterator: Any) -> Any:
        if not _watch.here():
            with phases.phase("input work"):
                return following(iterator)
        evaluates = not torch.is_grad_enabled() or _watch.evaluates()
        if evaluates:
            _watch.tail = None
            _watch.turn_to(EVALUATION)
        else:
            _watch.move_to(None)
        _watch.begin("input wait")
        try:
            batch = following(iterator)
        except BaseException as end:
            _watch.end("input wait")
            loader.collect()
            if isinstance(end, StopIteration) and not torch.is_grad_enabled():
                _watch.end_evaluation()
            raise
        _watch.end("input wait")
        if iterator._num_workers:
            loader.collect()
        if not evaluates:
            _watch.has_batches = True
            _watch.move_to(FORWARD)
        return batch

    kind.__next__ = marked


def _watch_modes() -> None:
    """Marks evaluation. `eval()` is `train(False)`, and each calls itself for every module inside; the outermost call
    counts."""
    change = torch.nn.Module.train

    @functools.wraps(change)
    def marked(module: torch.nn.Module, mode: bool = True) -> Any:
        if _watch.changing_mode or not _watch.here():
            return change(module, mode)
        _watch.changing_mode = True
        try:
            return change(module, mode)
        finally:
            _watch.changing_mode = False
            if not mode:
                _watch.tail = None
                _watch.turn_to(EVALUATION)
            else:
                _watch.end_evaluation()

    torch.nn.Module.train = marked  # type: ignore[method-assign, assignment]
