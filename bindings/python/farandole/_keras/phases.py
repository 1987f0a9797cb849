"""Marks that every Keras has the same places for: epochs, evaluation, checkpoints, and the updates of weights.

What is put there differs by backend: `farandole.tensorflow.phases` and `farandole.keras.phases` bring it along.

Invariants: those of `farandole.phase_tracker`. A place that another version of Keras has not is passed over, with a
word in the log (level debug).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from farandole import phase_tracker
from farandole.phase_tracker import CHECKPOINT, EVALUATION

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


def watch_tensorflow(
    keras: Any, tracker: phase_tracker.PhaseTracker, optimizer_step: Change, model_call: Change
) -> None:
    """Marks what a Keras on TensorFlow knows: Keras 3, or Keras 2."""
    watch_models(keras, tracker.marked, tracker.epoch_begins)
    mark_optimizers(keras, optimizer_step)
    if "__call__" not in vars(keras.Model):
        # Layers have it. A model's own does the same, for models alone.
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            return super(keras.Model, model).__call__(*args, **kwargs)

        keras.Model.__call__ = call
    phase_tracker.replace(keras.Model, "__call__", model_call)


def watch_models(
    keras: Any,
    marked: Callable[[str, Callable[..., Any]], Callable[..., Any]],
    epoch_begins: Callable[[int], None],
    evaluating: Sequence[str] = ("evaluate", "predict", "test_on_batch", "predict_on_batch"),
) -> None:
    """Marks epochs, evaluation and checkpoints with what is given for that."""
    writing = ("save", "save_weights", "load_weights", "export")
    for name, methods in ((EVALUATION, evaluating), (CHECKPOINT, writing)):
        for method in methods:
            phase_tracker.replace(owner_of(keras.Model, method), method, functools.partial(marked, name))

    def epoch(beginning: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(beginning)
        def marked(callbacks: Any, epoch: int, *args: Any, **kwargs: Any) -> Any:
            epoch_begins(int(epoch))
            return beginning(callbacks, epoch, *args, **kwargs)

        return marked

    phase_tracker.replace(keras.callbacks.CallbackList, "on_epoch_begin", epoch)


def mark_optimizers(keras: Any, step: Change) -> None:
    """Marks the updates of weights: every class that optimizers inherit them from, since one may call the other."""
    legacy = getattr(getattr(keras.optimizers, "legacy", None), "Optimizer", None)
    for kind in (keras.optimizers.Optimizer, legacy):
        for owner in getattr(kind, "__mro__", ()):
            for method in ("apply", "apply_gradients"):
                if method in vars(owner):
                    phase_tracker.replace(owner, method, step)


def owner_of(kind: Any, method: str) -> Any:
    """The class that defines what a class inherits."""
    return next((owner for owner in kind.__mro__ if method in vars(owner)), kind)
