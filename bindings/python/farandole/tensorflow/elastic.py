"""States of training with TensorFlow: variables beside Python objects, saved, restored and made alike on all ranks.

`TensorFlowState` tracks a list of variables, `TensorFlowKerasState` a model of Keras and its optimizer. Both work in
jobs of a fixed size, too: `commit` and `restore` undo a bad batch, and `sync` is a broadcast. `run` has a function
begin again with its state when the job has changed (`farandole.elastic.loop`). An error of TensorFlow's that one of our
ops has caused counts as `HorovodInternalError`; every other error ends the function as it is.

Variables of an optimizer that come to be after a commit, as those of Keras 2 do in the first step, have no value to go
back to and are left alone by `restore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from farandole import elastic as _elastic
from farandole.elastic import ObjectState, fence
from farandole.tensorflow import faults
from farandole.tensorflow.functions import broadcast_object, broadcast_variables
from farandole.tensorflow.mpi_ops import rank
from farandole.tensorflow.util import _executing_eagerly, tf_variables, variables_of

__all__ = ["TensorFlowKerasState", "TensorFlowState", "fence", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function whose first argument is a state, so that it survives changes of the job."""
    return _elastic.run(faults.translating(func))


class _SavedVariables:
    """Values of variables, kept in memory. In graphs, a session reads and writes them."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._values: list[Any] = []
        self._broadcast: Any = None
        self._broadcast_of: list[Any] = []

    def _current_session(self) -> Any:
        session = self._session() if callable(self._session) else self._session
        session = session or tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError(
                "Variables of a graph need a session to be saved and restored: pass session=... or enter "
                "`with session.as_default():`"
            )
        return session

    def save(self, variables: Sequence[Any]) -> None:
        """Keeps the values of these variables."""
        inner = tf_variables(variables)
        if _executing_eagerly():
            self._values = [variable.numpy() for variable in inner]
        else:
            self._values = self._current_session().run([variable.read_value() for variable in inner]) if inner else []

    def restore(self, variables: Sequence[Any]) -> None:
        """Gives these variables, the same ones in the same order, the values that were kept."""
        session = None if _executing_eagerly() else self._current_session()
        for variable, value in zip(tf_variables(variables), self._values):
            if session is None:
                variable.assign(value)
            else:
                variable.load(value, session)

    def sync(self, variables: Sequence[Any]) -> None:
        """Gives all ranks rank 0's values."""
        if _executing_eagerly():
            broadcast_variables(variables, root_rank=0)
            return
        session = self._current_session()
        # One operation for all calls: a graph only grows, and names of operations count up.
        if self._broadcast is None or [*map(id, variables)] != [*map(id, self._broadcast_of)]:
            with session.graph.as_default():
                self._broadcast = broadcast_variables(variables, root_rank=0)
            self._broadcast_of = list(variables)
        session.run(self._broadcast)


class TensorFlowState(ObjectState):
    """A state of variables and objects.

    Arguments:
        variables: by default, all global variables of the default graph.
        session: for graphs, the session that has the variables; by default, the default session.
        kwargs: objects to track, as attributes.
    """

    def __init__(self, variables: Optional[Iterable[Any]] = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(variables) if variables is not None else tf.compat.v1.global_variables()
        self.session = session
        self._saved = _SavedVariables(session)
        self._saved.save(self.variables)
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def save(self) -> None:
        """Keeps variables and objects."""
        self._saved.save(self.variables)
        super().save()

    def restore(self) -> None:
        """Goes back to what was kept."""
        self._saved.restore(self.variables)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks rank 0's variables, and the objects that it kept."""
        self._saved.sync(self.variables)
        self._saved.save(self.variables)
        super().sync()


class TensorFlowKerasState(ObjectState):
    """A state of a model of Keras 2 or 3, its optimizer, and objects.

    Arguments:
        model: built already, so that it has its variables.
        optimizer: by default, the one that the model is compiled with.
        backend: for Keras 2 in graphs, the module `backend` that has the session.
        kwargs: objects to track, as attributes.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or model.optimizer
        self.backend = backend
        session = None if backend is None or _executing_eagerly() else backend.get_session
        self._saved_model = _SavedVariables(session)
        self._saved_optimizer = _SavedVariables(session)
        self._save_model()
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def save(self) -> None:
        """Keeps model, optimizer and objects."""
        self._save_model()
        super().save()

    def restore(self) -> None:
        """Goes back to what was kept."""
        self._saved_model.restore(self.model.variables)
        self._saved_optimizer.restore(self._optimizer_variables())
        super().restore()

    def sync(self) -> None:
        """Gives all ranks rank 0's model and optimizer, and the objects that it kept."""
        self._saved_model.sync(self.model.variables)
        self._saved_optimizer.sync(self._optimizer_variables())
        self._save_model()
        super().sync()

    def _save_model(self) -> None:
        self._saved_model.save(self.model.variables)
        self._saved_optimizer.save(self._optimizer_variables())

    def _optimizer_variables(self) -> list[Any]:
        return [] if self.optimizer is None else variables_of(self.optimizer)
