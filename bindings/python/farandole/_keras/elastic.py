"""The state of training with Keras that survives a change of the ranks, and callbacks that keep it up to date.

`KerasState` keeps copies of the weights and of the optimizer's state in host memory, on any backend. `commit` takes
them, `restore` puts them back, `sync` gives all ranks those of rank 0. This works in jobs of a fixed size, too. `run`
has a function begin again with its state when the job has changed (`farandole.elastic.loop`); errors of collectives
inside of compiled functions, which frameworks wrap in errors of their own, count as what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from farandole import _native, objects
from farandole import elastic as _elastic
from farandole._keras import faults, variables
from farandole.elastic import ObjectState


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function whose first argument is a state, so that it survives changes of the job."""
    return _elastic.run(faults.translating(func))


class KerasState(ObjectState):
    """A model, its optimizer, and further values, which are attributes of the state.

    model: built, so that it has its weights.
    optimizer: the one that the model was compiled with, if none is given.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self._backend = variables.backend_of(model)
        self._save_model()
        super().__init__(bcast_object=objects.broadcast_object, get_rank=_native.rank, **kwargs)

    def _variables(self) -> tuple[list[Any], list[Any]]:
        variables.settled(self.model)
        return variables.of_model(self.model), variables.of_optimizer(self.optimizer)

    def _save_model(self) -> None:
        weights, state = self._variables()
        self._saved_weights = variables.values(weights, self._backend)
        self._saved_optimizer = variables.values(state, self._backend)

    def save(self) -> None:
        """Copies the state."""
        self._save_model()
        super().save()

    def restore(self) -> None:
        """Puts the copies back. Variables that the optimizer has made since are left as they are."""
        weights, state = self._variables()
        variables.assign(weights, self._saved_weights, self._backend)
        known = len(self._saved_optimizer)
        variables.assign(state[:known], self._saved_optimizer, self._backend)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        weights, state = self._variables()
        variables.broadcast(weights + state, 0, self._backend, name="state")
        self._save_model()
        super().sync()


class CommitState:
    """Commits a state every so many batches, and at the end of each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts anew, on all ranks alike."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.state.commit()


class UpdateBatchState:
    """Keeps `state.batch` at the number of the batch; 0 at the end of an epoch.

    If the number of steps is known, the first epoch after a restart is shorter by the batches that were done.
    """

    params: dict[str, Any]

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: Optional[int] = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets the number of steps."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tells how many steps are left."""
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins again."""
        self.state.batch = 0


class UpdateEpochState:
    """Keeps `state.epoch` at the number of epochs done, also over restarts."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras counts from 0 again."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch. It is done, so a restart is not to repeat it."""
        self.state.epoch = self.initial_epoch + epoch + 1
