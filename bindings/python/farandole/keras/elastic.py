"""The elastic API for Keras 3. What works of it, and what not, is in `farandole._keras.elastic`."""

from __future__ import annotations

import keras

from farandole._keras import elastic as _elastic
from farandole._keras.elastic import KerasState, run
from farandole.elastic import fence

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "fence",
    "run",
]


class CommitStateCallback(_elastic.CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    """Commits a state every `batches_per_commit` batches and after each epoch.

    CommitStateCallback(state, batches_per_commit=1)
    """


class UpdateBatchStateCallback(_elastic.UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.batch` up to date.

    UpdateBatchStateCallback(state)
    """


class UpdateEpochStateCallback(_elastic.UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.epoch` up to date.

    UpdateEpochStateCallback(state)
    """
