"""Keras 3 on its TensorFlow backend, in jobs of several ranks. The checks are those of `keras_checks`, which other
environments run, too."""

from __future__ import annotations

import keras_checks
import numpy as np
import pytest
import tensorflow as tf

import farandole.keras
import farandole.tensorflow.keras as hvd

keras = keras_checks.keras


@pytest.mark.parametrize("name", keras_checks.CHECKS)
def test_keras_3_on_tensorflow(job, name):
    keras_checks.CHECKS[name]()


def test_the_module_for_tf_keras_makes_the_same_optimizers(job):
    x, y = keras_checks.own_batches()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05, momentum=0.9), backward_passes_per_step=1)
    model = keras_checks.compiled(keras_checks.make_model(), optimizer)
    keras_checks.fit(model, x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    keras_checks.assert_close(model.get_weights(), keras_checks.joined(keras_checks.optimizers()[0]))


def test_computed_gradients_are_reduced_once(job):
    variable = keras.Variable(np.zeros(3, dtype="float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    own = np.full(3, hvd.rank() + 1, dtype="float32")

    @tf.function
    def step():
        pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(variable.value * own), [variable])
        optimizer.apply_gradients(pairs)
        return pairs[0][0]

    total = hvd.size() * (hvd.size() + 1) / 2
    for number in range(1, 3):
        np.testing.assert_allclose(step().numpy(), total)
        np.testing.assert_allclose(keras_checks.keras_numpy(variable), -number * total)


def test_jit_compile_auto_does_not_choose_xla(job, monkeypatch):
    model = keras_checks.make_model()
    # As on a machine with a GPU, where Keras compiles with XLA unless told otherwise.
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [tf.config.LogicalDevice("/GPU:0", "GPU")])
    assert keras_checks.compiled(model, keras.optimizers.SGD(0.1)).jit_compile
    assert not keras_checks.compiled(model, farandole.keras.DistributedOptimizer(keras.optimizers.SGD(0.1))).jit_compile


def test_fit_compiled_by_xla_is_the_joined_batch(job):
    x, y = keras_checks.own_batches()
    make = keras_checks.optimizers()[0]
    optimizer = farandole.keras.DistributedOptimizer(make())
    model = keras_checks.compiled(keras_checks.make_model(), optimizer, jit_compile=True)
    keras_checks.fit(model, x, y)
    assert model.jit_compile
    keras_checks.assert_close(model.get_weights(), keras_checks.joined(make))


def test_global_variables_are_refused_where_there_are_none(job):
    for module in (hvd, farandole.keras):
        with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
            module.broadcast_global_variables(0)
