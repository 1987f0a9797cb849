"""Finding out what a Keras script does, without its help: epochs, evaluation, checkpoints and steps, for traces and reports.

Owns the marks in Keras. What is trained with is marked by the front end of the backend:

| backend | marked here | marked elsewhere |
|---|---|---|
| all | an epoch: `fit` begins it; evaluation: `evaluate`, `predict` and their `…_on_batch`; checkpoint: `save`, `save_weights`, `load_weights`, `export` | |
| tensorflow (also Keras 2) | optimizer step: `apply`, `apply_gradients` in eager mode; models that are called to evaluate | `farandole.tensorflow.phases` |
| torch | optimizer step: `apply`; an iteration ends there | `farandole.torch.phases` |
| jax | training step: a call of the train function of `fit`, with which an iteration ends; input wait: the next batch | |

`watch` puts them there when a job is initialised; `FARANDOLE_PHASES=0` leaves Keras untouched.

Invariants: those of `farandole.marks`. No framework is imported that Keras does not use. A place that another version of Keras has not is
passed over, with a word in the log (level debug).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from farandole import _native, basics, marks
from farandole.marks import CHECKPOINT, EVALUATION, INPUT_WAIT, TRAINING_STEP

_Change = Callable[[Callable[..., Any]], Callable[..., Any]]

_watch = marks.Watch()
"""For backends other than TensorFlow, which has one of its own."""


def watch() -> None:
    """Begins to mark what this thread does, for the backend that Keras uses."""
    if not marks.is_wanted():
        return
    import keras

    backend = keras.backend.backend()
    if backend == "tensorflow":
        from farandole.tensorflow import phases as of_tensorflow

        of_tensorflow.watch()
        return
    if backend == "torch":
        _watch_torch(keras)
    elif _watch.follow_this_thread():
        _watch_train_function(keras)
        _watch_models(keras, _watch.marked, _watch.epoch_begins)
    if backend != "torch":
        _native.note_setting("framework", backend)


def watch_tensorflow(keras: Any, watch: marks.Watch, optimizer_step: _Change, model_call: _Change) -> None:
    """Marks what a Keras on TensorFlow knows: Keras 3, or Keras 2."""
    _watch_models(keras, watch.marked, watch.epoch_begins)
    _mark_optimizers(keras, optimizer_step)
    if "__call__" not in vars(keras.Model):
        # Layers have it. A model's own does the same, for models alone.
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            return super(keras.Model, model).__call__(*args, **kwargs)

        keras.Model.__call__ = call
    marks.replace(keras.Model, "__call__", model_call)


def _watch_torch(keras: Any) -> None:
    """Marks what Keras knows where PyTorch computes, whose marks tell evaluation and input already."""
    from farandole.torch import phases as of_torch

    of_torch.watch()
    _mark_optimizers(keras, _step_of_torch)
    _watch_models(keras, of_torch.marked, _native.mark_epoch, evaluating=())


def _watch_models(
    keras: Any,
    marked: Callable[[str, Callable[..., Any]], Callable[..., Any]],
    epoch_begins: Callable[[int], None],
    evaluating: Sequence[str] = ("evaluate", "predict", "test_on_batch", "predict_on_batch"),
) -> None:
    """Marks epochs, evaluation and checkpoints with what is given for that."""
    writing = ("save", "save_weights", "load_weights", "export")
    for name, methods in ((EVALUATION, evaluating), (CHECKPOINT, writing)):
        for method in methods:
            marks.replace(_owner(keras.Model, method), method, functools.partial(marked, name))

    def epoch(beginning: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(beginning)
        def marked(callbacks: Any, epoch: int, *args: Any, **kwargs: Any) -> Any:
            epoch_begins(int(epoch))
            return beginning(callbacks, epoch, *args, **kwargs)

        return marked

    marks.replace(keras.callbacks.CallbackList, "on_epoch_begin", epoch)


def _owner(kind: Any, method: str) -> Any:
    """The class that defines what a class inherits."""
    return next((owner for owner in kind.__mro__ if method in vars(owner)), kind)


def _mark_optimizers(keras: Any, step: _Change) -> None:
    """Marks the updates of weights: every class that optimizers inherit them from, since one may call the other."""
    legacy = getattr(getattr(keras.optimizers, "legacy", None), "Optimizer", None)
    for kind in (keras.optimizers.Optimizer, legacy):
        for owner in getattr(kind, "__mro__", ()):
            for method in ("apply", "apply_gradients"):
                if method in vars(owner):
                    marks.replace(owner, method, step)


def _step_of_torch(applying: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an optimizer that updates the weights, marked, where PyTorch computes."""
    from farandole.torch import phases as of_torch

    depth = 0

    @functools.wraps(applying)
    def marked(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        if depth == 1:
            of_torch.step_begins()
        try:
            return applying(optimizer, *args, **kwargs)
        finally:
            depth -= 1
            if depth == 0:
                of_torch.step_ends(optimizer)

    return marked


def _watch_train_function(keras: Any) -> None:
    """Marks steps and input of `fit` where a whole step is one compiled function, and its batches are asked for in Python."""

    def making(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def marked(model: Any, *args: Any, **kwargs: Any) -> Any:
            before = model.train_function
            result = make(model, *args, **kwargs)
            if model.train_function is not None and model.train_function is not before:
                model.train_function = _training_step(model.train_function)
            return result

        return marked

    marks.replace(_owner(keras.Model, "make_train_function"), "make_train_function", making)


def _training_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """The train function, marked but for its first call, which compiles it."""
    in_phase = _watch.marked(TRAINING_STEP, function)
    calling = function

    @functools.wraps(function)
    def marked(state: Any, iterator: Any) -> Any:
        nonlocal calling
        if not _watch.here():
            return function(state, iterator)
        result = calling(state, _Batches(iterator))
        calling = in_phase
        _watch.step_done(function)
        return result

    return marked


class _Batches:
    """An iterator over batches; waiting for one is marked."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        _watch.begin(INPUT_WAIT)
        try:
            return next(self._batches)
        finally:
            _watch.end(INPUT_WAIT)


basics.on_init(watch)
