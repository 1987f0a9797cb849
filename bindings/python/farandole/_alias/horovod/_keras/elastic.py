"""`horovod._keras.elastic`: the parts of elastic callbacks that know no Keras, under Horovod's names."""

from farandole._keras.elastic import CommitState as CommitStateCallbackImpl
from farandole._keras.elastic import UpdateBatchState as UpdateBatchStateCallbackImpl
from farandole._keras.elastic import UpdateEpochState as UpdateEpochStateCallbackImpl

__all__ = ["CommitStateCallbackImpl", "UpdateBatchStateCallbackImpl", "UpdateEpochStateCallbackImpl"]
