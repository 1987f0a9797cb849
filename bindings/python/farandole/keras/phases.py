"""Finding out what a Keras script does, without its help: epochs, evaluation, checkpoints and steps, for traces and
reports.

Owns the marks of Keras 3 that depend on its backend; those that do not are in `farandole._keras.phases`, and
TensorFlow's own in `farandole.tensorflow.phases`.

| backend | marked for Keras | marked for the backend |
|---|---|---|
| all | an epoch: `fit` begins it; evaluation: `evaluate`, `predict` and their `…_on_batch`; checkpoint: `save`, `save_weights`, `load_weights`, `export` | |
| tensorflow (also Keras 2) | optimizer step: `apply`, `apply_gradients` in eager mode; models that are called to evaluate | `farandole.tensorflow.phases` |
| torch | optimizer step: `apply`; an iteration ends there | `farandole.torch.phases` |
| jax | training step: a call of the train function of `fit`, with which an iteration ends; input wait: the next batch | |

`watch` puts them there when a job is initialised; `FARANDOLE_PHASES=0` leaves Keras untouched.

Invariants: those of `farandole.phase_tracker`. No framework is imported that Keras does not use. A place that another
version of Keras has not is passed over, with a word in the log (level debug).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from farandole import _native, basics, phase_tracker
from farandole._keras import phases as shared
from farandole.phase_tracker import INPUT_WAIT, TRAINING_STEP

_tracker = phase_tracker.PhaseTracker()
"""For JAX. The other backends have one of their own."""

_stepping = threading.local()
"""Whether a thread is in a step already: one method of an optimizer may call another that is marked."""


def watch() -> None:
    """Begins to mark what this thread does, for the backend that Keras uses."""
    if not phase_tracker.is_wanted():
        return
    import keras

    backend = keras.backend.backend()
    if backend == "tensorflow":
        from farandole.tensorflow import phases as of_tensorflow

        of_tensorflow.watch()
        return
    if backend == "torch":
        _watch_torch(keras)
    elif _tracker.follow_this_thread():
        _watch_train_function(keras)
        shared.watch_models(keras, _tracker.marked, _tracker.epoch_begins)
    if backend != "torch":
        _native.note_setting("framework", backend)


def _watch_torch(keras: Any) -> None:
    """Marks what Keras knows where PyTorch computes, whose marks tell evaluation and input already."""
    from farandole.torch import phases as of_torch

    of_torch.watch()
    shared.mark_optimizers(keras, _step_of_torch)
    shared.watch_models(keras, of_torch.marked, _native.mark_epoch, evaluating=())


def _step_of_torch(applying: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an optimizer that updates the weights, marked, where PyTorch computes."""
    from farandole.torch import phases as of_torch

    @functools.wraps(applying)
    def marked(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_stepping, "now", False):
            return applying(optimizer, *args, **kwargs)
        _stepping.now = True
        of_torch.step_begins()
        try:
            return applying(optimizer, *args, **kwargs)
        finally:
            _stepping.now = False
            of_torch.step_ends(optimizer)

    return marked


def _watch_train_function(keras: Any) -> None:
    """Marks steps and input of `fit` where a whole step is one compiled function, and its batches are asked for in
    Python."""

    def making(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def marked(model: Any, *args: Any, **kwargs: Any) -> Any:
            before = model.train_function
            result = make(model, *args, **kwargs)
            if model.train_function is not None and model.train_function is not before:
                model.train_function = _training_step(model.train_function)
            return result

        return marked

    phase_tracker.replace(shared.owner_of(keras.Model, "make_train_function"), "make_train_function", making)


def _training_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """The train function, marked but for its first call, which compiles it."""
    in_phase = _tracker.marked(TRAINING_STEP, function)
    calling = function

    @functools.wraps(function)
    def marked(state: Any, iterator: Any) -> Any:
        nonlocal calling
        if not _tracker.on_training_thread():
            return function(state, iterator)
        result = calling(state, _Batches(iterator))
        calling = in_phase
        _tracker.step_done(function)
        return result

    return marked


class _Batches:
    """An iterator over batches; waiting for one is marked."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        _tracker.begin(INPUT_WAIT)
        try:
            return next(self._batches)
        finally:
            _tracker.end(INPUT_WAIT)


basics.on_init(watch)
