"""`horovod._keras.callbacks`: the parts of callbacks that know no Keras, under Horovod's names.

Every callback of `horovod.keras` and `horovod.tensorflow.keras` is an instance of one of them; code that looks for
callbacks of either package asks for these. They take no backend, because they find it at the model.
"""

from farandole._keras.callbacks import BroadcastGlobalVariables as BroadcastGlobalVariablesCallbackImpl
from farandole._keras.callbacks import LearningRateSchedule as LearningRateScheduleCallbackImpl
from farandole._keras.callbacks import LearningRateWarmup as LearningRateWarmupCallbackImpl
from farandole._keras.callbacks import MetricAverage as MetricAverageCallbackImpl

__all__ = [
    "BroadcastGlobalVariablesCallbackImpl",
    "LearningRateScheduleCallbackImpl",
    "LearningRateWarmupCallbackImpl",
    "MetricAverageCallbackImpl",
]
