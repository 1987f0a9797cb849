"""Finding out what a training script does, without its help: phases and iterations for traces and reports.

Owns the marks that are made where PyTorch passes by anyway. `watch` puts them there, once per process, when the first
`DistributedOptimizer` of a job is made, or the first process group (`optimizer_steps`); `FARANDOLE_PHASES=0` leaves
PyTorch untouched.

| phase | from | to |
|---|---|---|
| input wait | the script asks a `DataLoader` for a batch | it has it |
| evaluation | `model.eval()`, or a batch asked for where gradients are off | `model.train()`, backward, a step, or the end of those batches |
| forward | a batch has come, outside of evaluation; `optimizer.zero_grad()`, or the forward pass of DistributedDataParallel, in a script that asks no `DataLoader` for batches to train with | backward, or the next batch is asked for |
| backward | `loss.backward()` | its return |
| optimizer step | `optimizer.step()` of a `DistributedOptimizer`; with process groups, of any optimizer | its return; an iteration ends there |
| checkpoint | `torch.save`, `torch.load` | their return |
| input work | another thread than the one that trains asks a `DataLoader` for a batch; a worker makes one (`loader`) | it has it |

What lies between these, from the first forward to the last step, is the script's own code to reports.
`_native.watch_own_code` has it looked at while a trace is kept, so that reports can say where it is.

A GPU computes asynchronously, so what it was given in a phase may be done in the next. Where the thread has
to wait for it, `staging` marks why. Evaluation, which often asks a device for nothing before it is over, stays open
until the device has done its part, as far as the thread can see that before the next backward pass; after that, waiting
for the rest of it is marked as evaluation. Waits for input, checkpoints and the script's own code are losses only as
far as the device has nothing to do meanwhile, which `device_times` measures.

Invariants: phases of a thread nest, also with those that the script marks itself (`farandole.phase`). Marks are made by
the thread that trains, the one that called `watch`; of other threads only their work for the input is. A mark never
changes what PyTorch does and never raises. A script that marks iterations itself (`farandole.iteration`) is not
interfered with.

Not here: hooks in modules. They would cost something in every layer and keep compilers from seeing through; forward is
what lies between other marks, with everything the script does there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.utils.data import dataloader

from farandole import _native, phase_tracker, phases
from farandole.phase_tracker import EVALUATION, FORWARD, OPTIMIZER_STEP
from farandole.torch import device_times, loader, staging



class _PhaseTracker(phase_tracker.PhaseTracker):
    """Which of *evaluation* and *forward* is open, on the thread that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.tail: Optional[device_times.TimedEvent] = None
        """When a device has done its part of an evaluation that is over for the host and still open."""
        self.changing_mode = False
        self.has_batches = False
        """Whether the script has asked a `DataLoader` for a batch to train with."""

    def evaluates(self) -> bool:
        """Whether an evaluation is open and not over."""
        return self.open == EVALUATION and self.tail is None

    def end_evaluation(self) -> None:
        """Evaluation is over for the host."""
        if self.evaluates():
            self.tail = staging.unfinished_work()
            self.move_to(None)

    def move_to(self, name: Optional[str]) -> None:
        """As `switch_to`, unless a device still evaluates."""
        if self.tail is None or self.tail.query():
            self.tail = None
            self.switch_to(name)

    def close(self) -> None:
        """Ends what is open. What a device still has to do for an evaluation is carried over."""
        if self.tail is not None and self.inside == 0:
            staging.carry_over(EVALUATION, self.tail)
            self.tail = None
        self.switch_to(None)


_tracker = _PhaseTracker()


def watch() -> None:
    """Begins to mark what this thread does. Calling it again only changes the thread."""
    if not phase_tracker.is_wanted():
        return
    first = _tracker.follow_this_thread()
    device_times.follow_this_thread()
    note_threads()
    if first:
        loader.watch()
        _watch_batches()
        _watch_modes()
        torch.autograd.backward = _tracker.marked("backward", torch.autograd.backward)
        torch.save = marked("checkpoint", _pausing(torch.save))
        torch.load = marked("checkpoint", _pausing(torch.load))


def note_threads() -> None:
    """Notes with how many threads this rank computes: more than there are cores for push each other aside."""
    _native.note_setting("threads", str(torch.get_num_threads()))


def on_training_thread() -> bool:
    """Whether this is the thread that trains."""
    return _tracker.on_training_thread()


def forward_begins() -> None:
    """`zero_grad` was called, or a parallel model: where no loader says when a batch has come, forward begins here."""
    if _tracker.on_training_thread() and not _tracker.has_batches and not _tracker.evaluates():
        device_times.end_pause()
        _tracker.move_to(FORWARD)


def step_begins() -> None:
    """An optimizer's step begins."""
    if _tracker.on_training_thread():
        device_times.discard_pause()
        _tracker.close()
        _tracker.begin(OPTIMIZER_STEP)


def step_ends(optimizer: object) -> None:
    """It is over, and with it an iteration, unless it is part of another one's step."""
    if not _tracker.on_training_thread() or not _tracker.end(OPTIMIZER_STEP):
        return
    _tracker.step_done(optimizer)
    device_times.begin_pause()
    if _tracker.iterations == 1:
        # By now a script has set what it wants to set.
        note_threads()


def outside_of_step(closure: Callable[[], Any]) -> Callable[[], Any]:
    """A closure that an optimizer calls in its step. What it does is not part of the step."""

    @functools.wraps(closure)
    def marked() -> Any:
        # Something else is open in between, as in a step inside of a step: phases must nest.
        if not _tracker.on_training_thread() or _tracker.inside != 1 or _tracker.calls.get(OPTIMIZER_STEP) != 1:
            return closure()
        _tracker.end(OPTIMIZER_STEP)
        _tracker.move_to(FORWARD)
        try:
            return closure()
        finally:
            _tracker.close()
            _tracker.begin(OPTIMIZER_STEP)

    return marked


def marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a phase, inside of whatever is open."""
    return _tracker.marked(name, function, outermost=False)


def _pausing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a time in which the device gets nothing to do."""

    @functools.wraps(function)
    def pausing(*args: Any, **kwargs: Any) -> Any:
        if not _tracker.on_training_thread():
            return function(*args, **kwargs)
        device_times.end_pause()
        device_times.begin_pause()
        try:
            return function(*args, **kwargs)
        finally:
            device_times.end_pause()

    return pausing


def _watch_batches() -> None:
    """Marks waiting for batches. All iterators of all data loaders, with workers and without, are of one class."""
    kind: Any = dataloader._BaseDataLoaderIter
    following = kind.__next__

    @functools.wraps(following)
    def marked(iterator: Any) -> Any:
        if not _tracker.on_training_thread():
            with phases.phase("input work"):
                return following(iterator)
        evaluates = not torch.is_grad_enabled() or _tracker.evaluates()
        if evaluates:
            _tracker.tail = None
            _tracker.switch_to(EVALUATION)
        else:
            _tracker.move_to(None)
        device_times.end_pause()
        device_times.begin_pause()
        _tracker.begin("input wait")
        try:
            batch = following(iterator)
        except BaseException as end:
            _tracker.end("input wait")
            device_times.end_pause()
            loader.collect()
            if isinstance(end, StopIteration) and not torch.is_grad_enabled():
                _tracker.end_evaluation()
            raise
        _tracker.end("input wait")
        device_times.end_pause()
        if iterator._num_workers:
            loader.collect()
        if not evaluates:
            _tracker.has_batches = True
            _tracker.move_to(FORWARD)
        return batch

    kind.__next__ = marked


def _watch_modes() -> None:
    """Marks evaluation. `eval()` is `train(False)`, and each calls itself for every module inside; the outermost call
    counts."""
    change = torch.nn.Module.train

    @functools.wraps(change)
    def marked(module: torch.nn.Module, mode: bool = True) -> Any:
        if _tracker.changing_mode or not _tracker.on_training_thread():
            return change(module, mode)
        _tracker.changing_mode = True
        try:
            return change(module, mode)
        finally:
            _tracker.changing_mode = False
            if not mode:
                device_times.end_pause()
                _tracker.tail = None
                _tracker.switch_to(EVALUATION)
            else:
                _tracker.end_evaluation()

    torch.nn.Module.train = marked  # type: ignore[method-assign, assignment]
