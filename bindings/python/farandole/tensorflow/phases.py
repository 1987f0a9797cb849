"""Finding out what a TensorFlow script does, without its help: phases and iterations for traces and reports.

Owns the marks that are made where TensorFlow passes by anyway. `watch` puts them there, once per process, when a job is
initialised; `FARANDOLE_PHASES=0` leaves TensorFlow untouched. What Keras knows (epochs, `evaluate`, `save`, its
optimizers) is in `farandole._keras.phases`, which this module calls for the Keras that TensorFlow uses.

| phase | from | to |
|---|---|---|
| input wait | the script makes an iterator of `tf.data`; it, or a compiled function, asks one for a batch | it has it |
| forward | a `GradientTape` is entered, or a batch has come in a script that has trained before | the tape is left, backward, the next batch |
| backward | `tape.gradient` | its return |
| optimizer step | `apply_gradients` of an optimizer | its return; an iteration ends there |
| training step | a `tf.function` is called that has `apply_gradients` or `tape.gradient` in it | its return; with `apply_gradients` an iteration ends there |
| evaluation | a Keras model is called without a tape and `training`; a `tf.function` that does so; the third batch of an iterator that nothing was trained with | a tape, a training step, a batch of an iterator that was trained with |
| checkpoint | `tf.train.Checkpoint` and its manager, `tf.saved_model`, v1's `Saver` | their return |
| input work | another thread than the one that trains asks an iterator for a batch | it has it |

A compiled function runs outside of Python. What is inside of it is known from tracing it: TensorFlow then calls the
same tapes, optimizers and iterators as in eager mode, and the function that is being traced is remembered as one that
trains, or evaluates. Its first call is part of no phase: it is not known yet, and mostly spent on tracing. Inside of a
compiled function forward and backward cannot be told from each other. Waiting for input can: an op before and one
behind `IteratorGetNext` mark it. What a compiled function waits for in collectives is known from the engine's records.

Invariants: those of `farandole.phase_tracker`. What a mark is put on keeps its signature, its result and its errors. A
place that another version of TensorFlow has not is passed over, with a word in the log (level debug).

Not here: a loop over a data set that is inside of a compiled function is one training step. `tf.compat.v1` sessions are
in `sessions`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, Optional
from weakref import ReferenceType, ref

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import op_def_library, op_def_registry

from farandole import _native, basics, phase_tracker, phases
from farandole._keras import phases as of_keras
from farandole.phase_tracker import (
    BACKWARD,
    CHECKPOINT,
    EVALUATION,
    FORWARD,
    INPUT_WAIT,
    INPUT_WORK,
    OPTIMIZER_STEP,
    TRAINING_STEP,
)
from farandole.tensorflow import parameter_check, sessions, tape

_TRAINS, _DIFFERENTIATES, _EVALUATES = "trains", "differentiates", "evaluates"

_log = logging.getLogger(__name__)

_FUNCTION_KIND = "_farandole_kind"
"""Attribute of a `tf.function` that was traced: one of the three above."""

_FUNCTION_OPTIMIZER = "_farandole_optimizer"
"""Attribute of one that trains: a weak reference to the optimizer whose steps it makes, the first one if there are
several."""

_ITERATOR_NOTES = "_farandole_batches"
"""Attribute of an iterator: how many batches it has given that nothing was trained with, or -1 once something was."""

_BATCHES_WITHOUT_TRAINING = 2
"""Steps may take two batches at once; an iterator that has given more than that with no step in between is there to
evaluate."""


_MARK_OP = "FarandoleMark"


class _PhaseTracker(phase_tracker.PhaseTracker):
    """Beside what is open: which compiled function is being called, and which iterator has given the last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.function: Optional[Any] = None
        """The outermost `tf.function` that this thread is in: while it is traced, what is met belongs to it."""
        self.tapes = 0
        """Tapes that are entered, in eager mode and while tracing."""
        self.model_calls = 0
        self.has_trained = False
        self.batch_source: Optional[ReferenceType[Any]] = None

    def training_begins(self) -> None:
        """A step of training begins: whatever was evaluated is over, and the last batch was one to train with."""
        self.has_trained = True
        source = self.batch_source() if self.batch_source is not None else None
        if source is not None:
            setattr(source, _ITERATOR_NOTES, -1)
            self.batch_source = None

    def traced(self, kind: str) -> None:
        """Something was met while a function is traced. Training counts more than differentiating, that more than
        evaluating."""
        known = getattr(self.function, _FUNCTION_KIND, None)
        order = (None, _EVALUATES, _DIFFERENTIATES, _TRAINS)
        if self.function is not None and order.index(kind) > order.index(known):
            setattr(self.function, _FUNCTION_KIND, kind)


_tracker = _PhaseTracker()


def watch() -> None:
    """Begins to mark what this thread does. Calling it again only changes the thread."""
    if not phase_tracker.is_wanted():
        return
    first = _tracker.follow_this_thread()
    _native.note_setting("framework", "tensorflow")
    _note_threads()
    if first:
        _watch_batches()
        _watch_functions()
        _watch_tapes()
        _watch_checkpoints()
        phase_tracker.replace(tf.compat.v1.train.Optimizer, "apply_gradients", optimizer_step)
        sessions.watch(_tracker, _step_done)
    _watch_keras()


def _note_threads() -> None:
    """Notes with how many threads this rank computes: more than there are cores for push each other aside."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    _native.note_setting("threads", str(threads or len(os.sched_getaffinity(0))))


def _watch_keras() -> None:
    """Marks what Keras knows, in the Keras that TensorFlow uses."""
    try:
        keras = tf.keras
        keras.Model
    except (ImportError, AttributeError) as reason:
        _log.debug("phases: there is no Keras that could be marked: %s", reason)
        return
    of_keras.watch_tensorflow(keras, _tracker, optimizer_step, model_call)


def optimizer_step(applying: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an optimizer that updates the weights, marked."""

    @functools.wraps(applying)
    def marked(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not _tracker.on_training_thread():
            return applying(optimizer, *args, **kwargs)
        if not tf.executing_eagerly():
            _tracker.traced(_TRAINS)
            if _tracker.function is not None and not hasattr(_tracker.function, _FUNCTION_OPTIMIZER):
                setattr(_tracker.function, _FUNCTION_OPTIMIZER, ref(optimizer))
            update = applying(optimizer, *args, **kwargs)
            if _tracker.function is None:
                sessions.note_update(update)
            return update
        if not _tracker.calls.get(OPTIMIZER_STEP):
            _tracker.training_begins()
            _tracker.switch_to(None)
        _tracker.begin(OPTIMIZER_STEP)
        try:
            result = applying(optimizer, *args, **kwargs)
        finally:
            is_over = _tracker.end(OPTIMIZER_STEP)
        if is_over:
            _step_done(optimizer)
        return result

    return marked


def _step_done(maker: object) -> None:
    _tracker.step_done(maker)
    if _tracker.iterations == 1:
        # By now a script has set what it wants to set.
        _note_threads()


def model_call(calling: Callable[..., Any]) -> Callable[..., Any]:
    """`__call__` of a Keras model, marked: without a tape nothing can be trained, so it evaluates."""

    @functools.wraps(calling)
    def marked(model: Any, *args: Any, **kwargs: Any) -> Any:
        if _tracker.model_calls or _tracker.tapes or not _tracker.on_training_thread():
            return calling(model, *args, **kwargs)
        if not kwargs.get("training"):
            if not tf.executing_eagerly():
                _tracker.traced(_EVALUATES)
            elif _tracker.has_trained and _tracker.function is None:
                _tracker.switch_to(EVALUATION)
        _tracker.model_calls += 1
        try:
            return calling(model, *args, **kwargs)
        finally:
            _tracker.model_calls -= 1

    return marked


def _watch_functions() -> None:
    """Marks calls of compiled functions, by what was met when they were traced."""

    def change(calling: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(calling)
        def marked(function: Any, *args: Any, **kwargs: Any) -> Any:
            if _tracker.function is not None or not _tracker.on_training_thread() or not tf.executing_eagerly():
                return calling(function, *args, **kwargs)
            parameter_check.before_call(function)
            kind = getattr(function, _FUNCTION_KIND, None)
            is_step = kind in (_TRAINS, _DIFFERENTIATES)
            if is_step:
                _tracker.training_begins()
                _tracker.switch_to(None)
                _tracker.begin(TRAINING_STEP)
            elif kind == _EVALUATES and _tracker.has_trained and not _tracker.tapes:
                _tracker.switch_to(EVALUATION)
            _tracker.function = function
            parameter_check.tracing(function)
            try:
                result = calling(function, *args, **kwargs)
            finally:
                _tracker.function = None
                parameter_check.tracing(None)
                if is_step:
                    _tracker.end(TRAINING_STEP)
            if getattr(function, _FUNCTION_KIND, None) == _TRAINS:
                if not is_step:
                    _tracker.training_begins()
                _step_done(getattr(function, _FUNCTION_OPTIMIZER)() or function)
            return result

        return marked

    phase_tracker.replace(polymorphic_function.Function, "__call__", change)


def _watch_tapes() -> None:
    """Marks forward and backward passes of eager mode, and notes those of functions that are traced."""

    def entering(enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(enter)
        def marked(tape: Any) -> Any:
            if _tracker.on_training_thread():
                if tf.executing_eagerly() and not _tracker.tapes:
                    _tracker.training_begins()
                    _tracker.switch_to(FORWARD)
                _tracker.tapes += 1
            return enter(tape)

        return marked

    def leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def marked(tape: Any, *error: Any) -> Any:
            if _tracker.on_training_thread():
                _tracker.tapes = max(0, _tracker.tapes - 1)
                if not _tracker.tapes and _tracker.open == FORWARD and tf.executing_eagerly():
                    _tracker.switch_to(None)
            return leave(tape, *error)

        return marked

    phase_tracker.replace(tf.GradientTape, "__enter__", entering)
    phase_tracker.replace(tf.GradientTape, "__exit__", leaving)
    phase_tracker.replace(tf.GradientTape, "gradient", backward_pass)
    # Its collectives belong to the backward pass.
    phase_tracker.replace(tape._DistributedGradientTape, "gradient", backward_pass)


def backward_pass(differentiating: Callable[..., Any]) -> Callable[..., Any]:
    """`gradient` of a tape, marked; of a distributed one with its collectives."""
    in_phase = _tracker.marked(BACKWARD, differentiating)

    @functools.wraps(differentiating)
    def marked(tape: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return in_phase(tape, *args, **kwargs)
        if _tracker.on_training_thread():
            _tracker.traced(_DIFFERENTIATES)
        return differentiating(tape, *args, **kwargs)

    return marked


def _watch_batches() -> None:
    """Marks waiting for batches. Every iterator that is made in eager mode is of one class, and asks for batches in one
    method."""

    def change(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(following)
        def marked(iterator: Any) -> Any:
            if not tf.executing_eagerly():
                return _batch_in_graph(following, iterator)
            if not _tracker.on_training_thread():
                with phases.phase(INPUT_WORK):
                    return following(iterator)
            return _batch(following, iterator)

        return marked

    def making(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def marked(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if not _tracker.on_training_thread() or not tf.executing_eagerly():
                return make(iterator, *args, **kwargs)
            if not _tracker.evaluates():
                _tracker.switch_to(None)
            _tracker.begin(INPUT_WAIT)
            try:
                return make(iterator, *args, **kwargs)
            finally:
                _tracker.end(INPUT_WAIT)

        return marked

    phase_tracker.replace(iterator_ops.OwnedIterator, "_next_internal", change)
    phase_tracker.replace(iterator_ops.OwnedIterator, "__init__", making)


def _batch(following: Callable[[Any], Any], iterator: Any) -> Any:
    """Asks for a batch in eager mode."""
    untrained: int = getattr(iterator, _ITERATOR_NOTES, 0)
    if untrained >= _BATCHES_WITHOUT_TRAINING and _tracker.has_trained:
        _tracker.switch_to(EVALUATION)
    elif untrained < 0 or not _tracker.evaluates():
        _tracker.switch_to(None)
    _tracker.begin(INPUT_WAIT)
    try:
        batch = following(iterator)
    finally:
        _tracker.end(INPUT_WAIT)
    if untrained >= 0:
        setattr(iterator, _ITERATOR_NOTES, untrained + 1)
    if not _tracker.evaluates():
        _tracker.batch_source = ref(iterator)
        if _tracker.has_trained:
            _tracker.switch_to(FORWARD)
    return batch


def _batch_in_graph(following: Callable[[Any], Any], iterator: Any) -> Any:
    """Asks for a batch in a function that is being traced: with an op before and one behind it. What computes with the
    batch comes behind both: a graph with few threads would run the second one last of all that is ready."""
    if _tracker.function is None or not _tracker.on_training_thread() or op_def_registry.get(_MARK_OP) is None:
        return following(iterator)
    with tf.control_dependencies([_mark(INPUT_WAIT, begins=True)]):
        batch = following(iterator)
    tensors = [tensor for tensor in tf.nest.flatten(batch, expand_composites=True) if isinstance(tensor, tf.Tensor)]
    with tf.control_dependencies(tensors):
        end = _mark(INPUT_WAIT, begins=False)
    with tf.control_dependencies([end]):
        return tf.nest.map_structure(_passed_on, batch, expand_composites=True)


def _passed_on(part: Any) -> Any:
    return tf.identity(part) if isinstance(part, tf.Tensor) else part


def _mark(phase: str, begins: bool) -> Any:
    """An op in the graph of the function that is being traced, which marks a phase of the thread that trains."""
    _, _, node, _ = op_def_library._apply_op_helper(_MARK_OP, phase=phase, begins=begins)
    dependencies = getattr(node.graph, "experimental_acd_manager", None)
    if dependencies is not None:
        # It comes before or behind what control dependencies say, and in no order with anything else.
        dependencies.run_independently(node)
    return node


def _watch_checkpoints() -> None:
    """Marks what writes and reads files of weights."""
    writers: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (tf.train.Checkpoint, ("save", "write", "read", "restore")),
        (tf.train.CheckpointManager, ("save", "restore_or_initialize")),
        (tf.saved_model, ("save", "load")),
        (tf.compat.v1.train.Saver, ("save", "restore")),
    )
    for owner, methods in writers:
        for method in methods:
            phase_tracker.replace(owner, method, functools.partial(_tracker.marked, CHECKPOINT))


basics.on_init(watch)
