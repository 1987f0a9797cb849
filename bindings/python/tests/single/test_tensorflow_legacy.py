"""TensorFlow as old scripts use it, on two ranks: Keras 2, and the behaviour of TensorFlow 1 with sessions and
reference variables.

Both are chosen for a whole process, so that each is a job of its own.
"""

import pytest
from jobs import run_job

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
}

KERAS_2 = """
    import numpy as np
    import tensorflow as tf
    import farandole.tensorflow as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert hvd.SyncBatchNormalization.__mro__[1].__module__.startswith("tf_keras"), hvd.SyncBatchNormalization.__mro__


    def run(layer, inputs, weights, function):
        def step(batch):
            with tf.GradientTape() as tape:
                tape.watch(batch)
                outputs = layer(batch, training=True)
                loss = tf.reduce_sum(tf.square(outputs) * weights)
            return outputs, *tape.gradient(loss, [batch, layer.gamma, layer.beta])

        results = (tf.function(step) if function else step)(tf.constant(inputs))
        return [*(value.numpy() for value in results), layer.moving_mean.numpy(), layer.moving_variance.numpy()]


    for shape in ((3,), (4, 5, 3)):
        for function in (False, True):
            inputs = np.random.default_rng(4).normal(3.0, size=(5, *shape)).astype("float32")
            weights = np.random.default_rng(6).normal(size=inputs.shape).astype("float32")
            # The layer of Keras has a fused implementation, which multiplies the variance by n / (n - 1), and one that
            # does not.
            plain = tf.keras.layers.BatchNormalization()
            plain.fused = False
            expected = run(plain, inputs, weights, False)
            own = slice(0, 2) if rank == 0 else slice(2, 5)
            layer = hvd.SyncBatchNormalization()
            values = run(layer, inputs[own], weights[own], function)
            for value, whole in zip(values[:2], expected[:2]):
                np.testing.assert_allclose(value, whole[own], rtol=2e-4, atol=2e-4)
            for value, whole in zip(values[2:4], expected[2:4]):
                np.testing.assert_allclose(hvd.allreduce(value, op=hvd.Sum), whole, rtol=2e-4, atol=2e-3)
            for value, whole in zip(values[4:], expected[4:]):
                np.testing.assert_allclose(value, whole, rtol=2e-4, atol=2e-4)
            wanted = plain(inputs, training=False)
            np.testing.assert_allclose(layer(inputs, training=False), wanted, rtol=2e-4, atol=2e-4)

    layer = tf.keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 3]) * (rank + 1.0)))
    [grad] = hvd.DistributedGradientTape(tape).gradient(loss, layer.trainable_weights)
    np.testing.assert_allclose(grad, np.full((3, 2), (size + 1) / 2))

    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
    state = hvd.elastic.TensorFlowKerasState(model, epoch=rank)
    state.sync()
    before = model.get_weights()
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    state.restore()
    assert state.epoch == 0 and all((mine == old).all() for mine, old in zip(model.get_weights(), before))
    print("done")
"""

KERAS_2_GRAPH = """
    import numpy as np
    import tensorflow as tf
    import farandole.tensorflow.keras as hvd

    tf.compat.v1.disable_eager_execution()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    random = np.random.default_rng(0)
    x = random.normal(size=(3, size, 4, 3)).astype(np.float32)
    y = random.normal(size=(3, size, 4, 2)).astype(np.float32)
    first = [random.normal(size=(3, 2)), np.zeros(2)]

    def trained(optimizer, x, y, batch_size, weights, callbacks=()):
        model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])
        model.compile(optimizer, "mse", metrics=["mae"])
        model.set_weights(weights)
        x, y = x.reshape(-1, 3), y.reshape(-1, 2)
        history = model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, callbacks=list(callbacks)).history
        return model.get_weights(), history

    optimizers = tf.keras.optimizers.legacy
    for make in (lambda: optimizers.SGD(0.05, momentum=0.9), lambda: optimizers.Adam(0.01)):
        joined, whole = trained(make(), x, y, 4 * size, first)
        others = [weight + rank for weight in first]
        distributed = hvd.DistributedOptimizer(make())
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        mine, history = trained(distributed, x[:, rank], y[:, rank], 4, others, callbacks)
        for left, right in zip(mine, joined):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(history["mae"], whole["mae"], rtol=1e-5)
    print("done")
"""

TENSORFLOW_1 = """
    import numpy as np
    import tensorflow.compat.v1 as tf
    import farandole.tensorflow as hvd

    tf.disable_v2_behavior()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    # Reference variables, control flow of TensorFlow 1, several passes in a step.
    target = np.float32([1.0, 2.0])
    for passes in (1, 2):
        with tf.Graph().as_default():
            weight = tf.get_variable("weight", initializer=np.float32([rank, rank]))
            assert weight.dtype._is_ref_dtype
            loss = tf.reduce_sum(tf.square(weight - target * (rank + 1)))
            optimizer = hvd.DistributedOptimizer(
                tf.train.MomentumOptimizer(0.05, 0.9),
                backward_passes_per_step=passes,
                average_aggregated_gradients=True,
            )
            step = tf.train.get_or_create_global_step()
            train = optimizer.minimize(loss, global_step=step)
            with tf.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
                for _ in range(3 * passes):
                    session.run(train)
                value, count = session.run([weight, step])
            expected, velocity = np.zeros(2), np.zeros(2)
            for _ in range(3):
                velocity = 0.9 * velocity + 2 * (expected - target * (size + 1) / 2)
                expected = expected - 0.05 * velocity
            np.testing.assert_allclose(value, expected, rtol=1e-5)
            assert count == 3 * passes

    # Adasum, whose steps are combined in the last pass.
    for passes in (1, 2):
        with tf.Graph().as_default(), tf.Session() as session:
            weight = tf.get_variable("weight", initializer=np.zeros(size, np.float32))
            loss = -weight[rank]
            optimizer = hvd.DistributedOptimizer(
                tf.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=passes
            )
            train = optimizer.minimize(loss)
            session.run(tf.global_variables_initializer())
            for _ in range(passes):
                session.run(train)
            np.testing.assert_allclose(session.run(weight), np.full(size, passes), rtol=1e-5)

    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(str(number), initializer=np.float32([rank + number])) for number in range(3)]
        for inplace in (False, True):
            session.run(tf.global_variables_initializer())
            session.run(hvd.broadcast_variables(variables, root_rank=1, inplace=inplace))
            assert [value[0] for value in session.run(variables)] == [1, 2, 3]
    print("done")
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_keras_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    job = run_job(2, KERAS_2, seconds=110)
    assert job.code == 0, job.errors
    assert [job.lines(rank) for rank in range(2)] == [["done"]] * 2


def test_keras_2_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    job = run_job(2, KERAS_2_GRAPH, seconds=110)
    assert job.code == 0, job.errors
    assert [job.lines(rank) for rank in range(2)] == [["done"]] * 2


def test_behaviour_of_tensorflow_1() -> None:
    job = run_job(2, TENSORFLOW_1, seconds=110)
    assert job.code == 0, job.errors
    assert [job.lines(rank) for rank in range(2)] == [["done"]] * 2
