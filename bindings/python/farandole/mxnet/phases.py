"""Finding out what an MXNet script does, without its help: phases and iterations for traces and reports.

Owns the marks that are made where MXNet passes by anyway. `watch` puts them there, once per process, when a job is
initialised; `FARANDOLE_PHASES=0` leaves MXNet untouched.

| phase | from | to |
|---|---|---|
| input wait | the script asks a `DataLoader` of Gluon or a `DataIter` for a batch | it has it |
| training step | `autograd.record()`, or `forward_backward` of a module | `DistributedTrainer.step` or `Module.update` returns |
| training step | after the first of these, the script waits for an array, outside of other phases | it has it |
| evaluation | a block is called, and nothing is recorded | `autograd.record()` |
| checkpoint | parameters or states of a trainer are saved or loaded | they are |

An iteration ends with `DistributedTrainer.step`, or with `Module.update`.

MXNet's engine computes asynchronously: calls return at once, and the script waits somewhere, often where it looks at
the loss. So forward, backward and the update of the weights cannot be told from each other on the script's thread: all
of it is the training step, and so is waiting for it. What the step waits for in collectives is known from the engine's
records. What lies between these is the script's own code to reports.

Invariants: those of `farandole.phase_tracker`. A place that another version of MXNet has not is passed over, with a
word in the log (level debug).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx

from farandole import _native, basics, phase_tracker
from farandole.phase_tracker import CHECKPOINT, EVALUATION, INPUT_WAIT, TRAINING_STEP

_tracker = phase_tracker.PhaseTracker()


def watch() -> None:
    """Begins to mark what this thread does. Calling it again only changes the thread."""
    if not phase_tracker.is_wanted():
        return
    if _tracker.follow_this_thread():
        _watch_input()
        _watch_steps()
        _watch_blocks()
        _watch_waits()
        _watch_checkpoints()
    _native.note_setting("framework", "mxnet")


@contextmanager
def step(trainer: object) -> Iterator[None]:
    """A step of a trainer, with which an iteration ends."""
    _begin_step()
    yield
    if _tracker.on_training_thread():
        _tracker.close()
        _tracker.step_done(trainer)


def _begin_step() -> None:
    if _tracker.on_training_thread():
        _tracker.switch_to(TRAINING_STEP)


class _Batches:
    """An iterator over batches; waiting for one is marked."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return _waiting(next)(self._batches)


def _waiting(asking: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives the next batch, marked. It ends a training step; evaluation goes on."""

    @functools.wraps(asking)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if not _tracker.on_training_thread():
            return asking(*args, **kwargs)
        if not _tracker.evaluates():
            _tracker.close()
        _tracker.begin(INPUT_WAIT)
        try:
            return asking(*args, **kwargs)
        finally:
            _tracker.end(INPUT_WAIT)

    return marked


def _watch_input() -> None:
    """Marks waiting for batches."""

    def iterating(iterate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(iterate)
        def marked(loader: Any) -> Any:
            return _Batches(iterate(loader))

        return marked

    phase_tracker.replace(mx.gluon.data.DataLoader, "__iter__", iterating)
    for kind in (mx.io.DataIter, mx.io.NDArrayIter, mx.io.MXDataIter, mx.io.PrefetchingIter):
        phase_tracker.replace(kind, "next", _waiting)


def _watch_steps() -> None:
    """Marks where training steps begin, and iterations of modules."""

    def beginning(begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def marked(*args: Any, **kwargs: Any) -> Any:
            _begin_step()
            return begin(*args, **kwargs)

        return marked

    def updating(update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def marked(module: Any, *args: Any, **kwargs: Any) -> Any:
            with step(module):
                return update(module, *args, **kwargs)

        return marked

    phase_tracker.replace(mx.autograd, "record", beginning)
    phase_tracker.replace(mx.module.base_module.BaseModule, "forward_backward", beginning)
    phase_tracker.replace(mx.module.Module, "update", updating)


def _watch_blocks() -> None:
    """Marks evaluation: blocks that are called while nothing is recorded."""

    def calling(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def marked(block: Any, *args: Any, **kwargs: Any) -> Any:
            if not mx.autograd.is_recording() and _tracker.on_training_thread():
                _tracker.switch_to(EVALUATION)
            return call(block, *args, **kwargs)

        return marked

    phase_tracker.replace(mx.gluon.Block, "__call__", calling)


def _watch_waits() -> None:
    """Marks waiting for what the last step has not done yet."""

    def waiting(wait: Callable[..., Any]) -> Callable[..., Any]:
        in_phase = _tracker.marked(TRAINING_STEP, wait)

        @functools.wraps(wait)
        def marked(*args: Any, **kwargs: Any) -> Any:
            is_apart = _tracker.iterations > 0 and _tracker.open is None and _tracker.inside == 0
            return (in_phase if is_apart else wait)(*args, **kwargs)

        return marked

    for name in ("asnumpy", "wait_to_read"):
        phase_tracker.replace(mx.nd.NDArray, name, waiting)
    phase_tracker.replace(mx.nd, "waitall", waiting)


def _watch_checkpoints() -> None:
    """Marks saving and loading, inside of whatever is open."""
    for owner, names in (
        (mx.gluon.Block, ("save_parameters", "load_parameters")),
        (mx.gluon.Trainer, ("save_states", "load_states")),
        (mx.model, ("save_checkpoint", "load_checkpoint")),
    ):
        for name in names:
            phase_tracker.replace(owner, name, lambda saving: _tracker.marked(CHECKPOINT, saving, outermost=False))


basics.on_init(watch)
