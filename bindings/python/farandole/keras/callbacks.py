"""Callbacks for `fit` of Keras 3. What they do is in `farandole._keras.callbacks`."""

from __future__ import annotations

from typing import Any

import keras

from farandole._keras import callbacks as _callbacks

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(  # type: ignore[misc]
    _callbacks.BroadcastGlobalVariables, keras.callbacks.Callback
):
    __doc__ = _callbacks.BroadcastGlobalVariables.__doc__


class MetricAverageCallback(_callbacks.MetricAverage, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.MetricAverage.__doc__


class LearningRateScheduleCallback(_callbacks.LearningRateSchedule, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(_callbacks.LearningRateWarmup, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.LearningRateWarmup.__doc__


class BestModelCheckpoint(_callbacks.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model when a metric is better than ever before. For one rank.

    The arguments stand in the order of `horovod.keras`, which is not that of `horovod.tensorflow.keras`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        save_weights_only: bool = False,
        filepath: Any = None,
    ) -> None:
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq, filepath)
