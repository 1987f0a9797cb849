"""`SyncBatchNormalization` of Keras 3 on the batches of all ranks is `BatchNormalization` on the joined batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")


def rows_of(rank: int) -> int:
    """Ranks have batches of different sizes, the last one none."""
    return 0 if rank == hvd.size() - 1 and hvd.size() > 2 else 2 + rank


def joined_inputs(shape: tuple) -> np.ndarray:
    rows = sum(map(rows_of, range(hvd.size())))
    return np.random.default_rng(4).normal(loc=3.0, size=(rows, *shape)).astype("float32")


def own_rows() -> slice:
    begin = sum(rows_of(rank) for rank in range(hvd.rank()))
    return slice(begin, begin + rows_of(hvd.rank()))


def run(layer: keras.Layer, inputs: np.ndarray, weights: np.ndarray, mask: np.ndarray | None, function: bool) -> tuple:
    """Output, gradients of the input, gamma and beta, and running statistics."""

    def step(batch: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            tape.watch(batch)
            outputs = layer(batch, training=True, mask=mask)
            loss = tf.reduce_sum(tf.square(outputs) * weights)
        return outputs, *tape.gradient(loss, [batch, layer.gamma, layer.beta])

    outputs, inputs_grad, gamma_grad, beta_grad = (tf.function(step) if function else step)(tf.constant(inputs))
    means, variances = layer.moving_mean.numpy(), layer.moving_variance.numpy()
    return outputs.numpy(), inputs_grad.numpy(), gamma_grad, beta_grad, means, variances


@pytest.mark.parametrize(
    "function, shape, axis, masked",
    [
        (False, (3,), -1, False),
        (False, (3, 4), 1, False),
        (False, (4, 3), -1, True),
        (True, (4, 5, 3), -1, False),
        (True, (4, 3), -1, True),
    ],
)
def test_training_is_that_of_the_joined_batch(function: bool, shape: tuple, axis: int, masked: bool) -> None:
    inputs = joined_inputs(shape)
    weights = np.random.default_rng(6).normal(size=inputs.shape).astype("float32")
    mask = np.random.default_rng(7).random(inputs.shape[:-1]) < 0.6 if masked else None
    expected = run(keras.layers.BatchNormalization(axis=axis), inputs, weights, mask, function=False)
    own = own_rows()
    layer = hvd.SyncBatchNormalization(axis=axis)
    values = run(layer, inputs[own], weights[own], None if mask is None else mask[own], function)
    tolerance = dict(rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(values[0], expected[0][own], **tolerance)
    np.testing.assert_allclose(values[1], expected[1][own], **tolerance)
    for value, whole in zip(values[2:4], expected[2:4]):  # The ranks' parts add up.
        np.testing.assert_allclose(hvd.allreduce(value, op=hvd.Sum), whole, rtol=2e-4, atol=2e-3)
    for value, whole in zip(values[4:], expected[4:]):
        np.testing.assert_allclose(value, whole, **tolerance)
    # Inference exchanges nothing, so that one rank may do it alone.
    if hvd.rank() == 0:
        np.testing.assert_allclose(layer(inputs, training=False), (inputs - _along(values[4], inputs, axis)) / np.sqrt(
            _along(values[5], inputs, axis) + layer.epsilon), **tolerance)


def _along(channels: np.ndarray, inputs: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * inputs.ndim
    shape[axis] = -1
    return channels.reshape(shape)


def test_a_rank_that_is_alone_in_its_set_normalises_its_own_batch(sets: list) -> None:
    mine = next((process_set for process_set in sets if process_set.size() == 1), None)
    if hvd.size() > 2:
        assert mine is None
        return
    inputs = np.random.default_rng(hvd.rank()).normal(size=(4, 3)).astype("float32")
    layer = hvd.SyncBatchNormalization(process_set=mine)
    np.testing.assert_allclose(
        layer(inputs, training=True), keras.layers.BatchNormalization()(inputs, training=True), rtol=1e-5, atol=1e-5
    )


def test_a_rank_that_made_more_layers_than_others_is_understood() -> None:
    if hvd.rank() == 0:
        hvd.SyncBatchNormalization()
    inputs = keras.Input((3,))
    branches = [hvd.SyncBatchNormalization()(hvd.SyncBatchNormalization()(inputs)) for _ in range(2)]
    model = keras.Model(inputs, keras.layers.Add()(branches))
    batch = tf.fill([2, 3], float(hvd.rank()))

    @tf.function
    def step() -> tuple:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch, training=True) * batch)
        return loss, *tape.gradient(loss, model.trainable_variables)

    loss, *grads = step()
    assert np.isfinite(loss) and len(grads) == 8
    np.testing.assert_allclose(model.layers[1].moving_mean, np.full(3, 0.01 * (hvd.size() - 1) / 2), rtol=1e-4)


def test_the_layer_survives_its_configuration() -> None:
    layer = hvd.SyncBatchNormalization(momentum=0.5, name="norm")
    again = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert (again.momentum, again.name) == (0.5, "norm")
    assert isinstance(layer, keras.layers.BatchNormalization)
    for fused in (True, None):
        with pytest.raises(ValueError, match="fused"):
            hvd.SyncBatchNormalization(fused=fused)
