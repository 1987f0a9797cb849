"""Trains with Keras on TensorFlow and `fit`, until the fault of `faults.py` strikes."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import farandole.keras as hvd
import farandole.tensorflow as hvd_tf
import faults


class Batches(keras.utils.PyDataset):
    """A batch for each step."""

    def __len__(self) -> int:
        return faults.batches()

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        faults.load(step)
        return np.full((4, 8), float(step), dtype="float32"), np.zeros((4, 2), dtype="float32")


class Faults(keras.callbacks.Callback):
    """Strikes between steps, and writes the checkpoint of rank 0."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        faults.strike(batch)
        if batch == faults.STEP:
            faults.call_back()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch != faults.STEP:
            return
        name, shape, dtype = faults.metric()
        hvd_tf.allreduce(tf.ones(shape, dtype=dtype), name=name, op=hvd_tf.Sum)
        if faults.is_struck("extra collective"):
            hvd_tf.allreduce(tf.ones([2]), name="extra")
        if faults.is_struck("disk full"):
            self.model.save(faults.checkpoint(".keras"))


def main() -> None:
    faults.strike_before_init()
    hvd.init()
    keras.utils.set_random_seed(1 + (hvd.rank() if faults.FAULT == "no broadcast" else 0))
    layers = [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)]
    if faults.is_struck("other model"):
        layers.append(keras.layers.Dense(2))
    model = keras.Sequential(layers)
    if faults.is_struck("frozen parameter"):
        model.layers[0].trainable = False
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    callbacks: list[keras.callbacks.Callback] = [Faults()]
    if faults.FAULT not in ("no broadcast", "other model"):
        root = 1 if faults.is_struck("other root") else 0
        callbacks.insert(0, hvd.callbacks.BroadcastGlobalVariablesCallback(root))
    model.fit(Batches(), epochs=1, callbacks=callbacks, shuffle=False, verbose=0)


if __name__ == "__main__":
    main()
