"""Training steps of `tf.compat.v1` sessions, marked for traces and reports.

A graph of v1 is run by `Session.run`. A run trains if what it fetches depends on an op that an optimizer's
`apply_gradients` has made: then it is a "training step", and an iteration ends with it. What else is run lies in no
phase, and so is the script's own code.

The graph is searched once for everything that is fetched; graphs that grow are searched again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.client import session as session_module

from farandole import phase_tracker
from farandole.phase_tracker import TRAINING_STEP


class _Updates:
    """Ops of one graph that update weights, and what was found out about others."""

    def __init__(self) -> None:
        self.ops: set[str] = set()
        self.known: dict[Any, bool] = {}

    def train(self, graph: Any, fetches: Any) -> bool:
        """Whether a run that fetches this trains."""
        names = tuple(_names(fetches))
        key = (names, graph.version)
        if key not in self.known:
            self.known[key] = self._depends(graph, names)
        return self.known[key]

    def _depends(self, graph: Any, names: tuple[str, ...]) -> bool:
        waiting, seen = [name.split(":")[0] for name in names], set()
        while waiting:
            name = waiting.pop()
            if name in self.ops:
                return True
            if name not in seen:
                seen.add(name)
                op = graph.get_operation_by_name(name)
                waiting.extend(tensor.op.name for tensor in op.inputs)
                waiting.extend(other.name for other in op.control_inputs)
        return False


_updates: WeakKeyDictionary[Any, _Updates] = WeakKeyDictionary()


def _names(fetches: Any) -> list[str]:
    """Names of all ops and tensors that are fetched, whatever structure they come in."""
    if isinstance(fetches, str):
        return [fetches]
    if isinstance(fetches, dict):
        return _names(list(fetches.values()))
    if isinstance(fetches, (list, tuple)):
        return [name for fetch in fetches for name in _names(fetch)]
    return [fetches.name] if isinstance(fetches, (tf.Operation, tf.Tensor)) else []


def note_update(update: Any) -> None:
    """An optimizer has added this op, which updates weights, to a graph of v1."""
    if isinstance(update, (tf.Operation, tf.Tensor)):
        _updates.setdefault(update.graph, _Updates()).ops.add(update.name.split(":")[0])


def watch(tracker: phase_tracker.PhaseTracker, step_done: Callable[[object], None]) -> None:
    """Marks runs that train."""

    def change(running: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(running)
        def marked(session: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
            updates = _updates.get(session.graph) if tracker.on_training_thread() else None
            if updates is None or not updates.train(session.graph, fetches):
                return running(session, fetches, *args, **kwargs)
            tracker.switch_to(None)
            tracker.begin(TRAINING_STEP)
            try:
                result = running(session, fetches, *args, **kwargs)
            finally:
                is_over = tracker.end(TRAINING_STEP)
            if is_over:
                step_done(updates)
            return result

        return marked

    phase_tracker.replace(session_module.BaseSession, "run", change)
