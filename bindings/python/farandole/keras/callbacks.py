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


class BroadcastGlobalVariablesCallback(_callbacks.BroadcastGlobalVariables, keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the weights and the optimizer state of a rank when training begins.

    BroadcastGlobalVariablesCallback(root_rank, device="", local_variables=None)
    """


class MetricAverageCallback(_callbacks.MetricAverage, keras.callbacks.Callback):  # type: ignore[misc]
    """Averages metrics over all ranks at the end of each epoch. Callbacks that use metrics come after it.

    MetricAverageCallback(device="")
    """


class LearningRateScheduleCallback(_callbacks.LearningRateSchedule, keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies an initial learning rate by a function of the epoch, or by a power of a constant.

    LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True,
    momentum_correction=True, steps_per_epoch=None)
    """


class LearningRateWarmupCallback(_callbacks.LearningRateWarmup, keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from `initial_lr / size` to `initial_lr` over the first epochs.

    LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0)
    """


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
