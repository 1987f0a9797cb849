"""Checks of `farandole.keras` and `farandole.tensorflow.keras` that hold on every Keras and backend. Each is a function
that all ranks of a job call at once; `run` calls all of them, for jobs in an environment of their own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from farandole.exceptions import HorovodInternalError

if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
    import farandole.tensorflow.keras as hvd
    from tensorflow import keras

    BACKEND = "tensorflow"
    KERAS = 2
else:
    import farandole.keras as hvd
    import keras

    BACKEND = keras.backend.backend()
    KERAS = 3

STEPS = 3
BATCH = 4


def optimizers():
    """Makers of the optimizers that are tried."""
    makers = [lambda: keras.optimizers.SGD(0.05, momentum=0.9), lambda: keras.optimizers.Adam(0.01)]
    if KERAS == 2:
        makers += [
            lambda: keras.optimizers.legacy.SGD(0.05, momentum=0.9),
            lambda: keras.optimizers.legacy.Adam(0.01),
        ]
    return makers


def make_model(seed=1):
    """A small model with the weights of a seed, the same on all ranks for the same seed."""
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(5, activation="tanh", name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(hidden))
    generator = np.random.default_rng(seed)
    model.set_weights([generator.normal(size=weight.shape).astype(weight.dtype) for weight in model.get_weights()])
    return model


def data(ranks):
    """The batches of so many ranks, step after step: inputs and targets by step, rank and place."""
    generator = np.random.default_rng(7)
    shape = (STEPS, ranks, BATCH)
    return generator.normal(size=(*shape, 3)).astype("float32"), generator.normal(size=(*shape, 2)).astype("float32")


def own_batches():
    """This rank's inputs and targets, in the order of steps."""
    x, y = data(hvd.size())
    return x[:, hvd.rank()].reshape(-1, 3), y[:, hvd.rank()].reshape(-1, 2)


def compiled(model, optimizer, **options):
    """The model, ready to train."""
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError(), **options)
    return model


def fit(model, x, y, batch_size=BATCH, **options):
    """One pass in order."""
    return model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, **options)


_joined = {}
"""Weights by what they were trained with. Every model that is trained is compiled, which takes most of the time
here."""


def joined(make_optimizer, factor=1.0, epochs=1):
    """The weights of a single process that trains with the batches of all ranks joined."""
    optimizer = make_optimizer()
    key = (type(optimizer), factor, epochs)
    if key not in _joined:
        x, y = data(hvd.size())
        model = make_model()
        loss = keras.losses.MeanSquaredError()
        model.compile(optimizer=optimizer, loss=lambda true, pred: factor * loss(true, pred))
        fit(model, x.reshape(-1, 3), y.reshape(-1, 2), BATCH * hvd.size(), epochs=epochs)
        _joined[key] = model.get_weights()
    return _joined[key]


def assert_close(ours, expected, tolerance=2e-5):
    """Lists of arrays are equal, but for rounding."""
    assert len(ours) == len(expected)
    for left, right in zip(ours, expected):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=tolerance, atol=tolerance)


def gradients(model, x, y):
    """Gradients of the mean squared error, as the backend computes them."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        return tape.gradient(loss, model.trainable_weights)
    if BACKEND == "torch":
        for weight in model.trainable_weights:
            weight.value.grad = None
        keras.ops.mean(keras.ops.square(model(x) - keras.ops.convert_to_tensor(y))).backward()
        return [weight.value.grad for weight in model.trainable_weights]
    import jax


    def error(values):
        prediction, _ = model.stateless_call(values, [v.value for v in model.non_trainable_variables], x)
        return ((prediction - y) ** 2).mean()

    return jax.grad(error)([weight.value for weight in model.trainable_weights])


def check_fit_is_the_joined_batch():
    """`fit` on all ranks does what a single process does with all their batches."""
    x, y = own_batches()
    for make in optimizers():
        model = compiled(make_model(), hvd.DistributedOptimizer(make()))
        fit(model, x, y)
        assert_close(model.get_weights(), joined(make))


def check_loop_is_the_joined_batch():
    """So does a loop of the user's own."""
    x, y = own_batches()
    for make in optimizers():
        model, optimizer = make_model(), hvd.DistributedOptimizer(make())
        for step in range(STEPS):
            place = slice(step * BATCH, (step + 1) * BATCH)
            grads = gradients(model, x[place], y[place])
            optimizer.apply_gradients(list(zip(grads, model.trainable_weights)))
        assert_close(model.get_weights(), joined(make))


def check_modes_of_execution():
    """So does `fit` step by step without a graph, and with several steps in one call."""
    x, y = own_batches()
    make = optimizers()[0]
    modes = [dict(run_eagerly=True)] + ([dict(steps_per_execution=2)] if BACKEND != "torch" else [])
    for mode in modes:
        model = compiled(make_model(), hvd.DistributedOptimizer(make()), **mode)
        fit(model, x, y)
        assert_close(model.get_weights(), joined(make))


def check_embedding():
    """Gradients of an embedding, which are sparse in TensorFlow: as they are, made dense, and added up."""
    words = np.array([[0, 1], [2, 3], [1, 1], [4, 0]]) + hvd.rank()
    targets = np.random.default_rng(3).normal(size=(4, 2, 3)).astype("float32")

    def trained(optimizer, x, y, passes=1):
        model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(9, 3)])
        model.set_weights([np.random.default_rng(1).normal(size=(9, 3)).astype("float32")])
        fit(compiled(model, optimizer), x, y, batch_size=len(x) // passes)
        return model.get_weights()

    everything = np.concatenate(hvd.allgather_object(words)), np.concatenate(hvd.allgather_object(targets))
    expected = trained(keras.optimizers.SGD(1.0), *everything)
    for options in (dict(), dict(sparse_as_dense=True)):
        assert_close(trained(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options), words, targets), expected)
    summing = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=True, sparse_as_dense=True
    )
    assert_close(trained(summing, words, targets, passes=2), expected)


def check_settings_of_the_reduction():
    """Groups, factors, compression and sums."""
    x, y = own_batches()
    make = optimizers()[0]
    expected = joined(make)
    for options, tolerance in (
        (dict(groups=2, name="Named"), 2e-5),
        (dict(gradient_predivide_factor=2.0), 2e-5),
        (dict(compression=hvd.Compression.fp16), 1e-2),
    ):
        model = compiled(make_model(), hvd.DistributedOptimizer(make(), **options))
        fit(model, x, y)
        assert_close(model.get_weights(), expected, tolerance)
    model = make_model()
    groups = [model.trainable_weights[:2], model.trainable_weights[2:3]]
    fit(compiled(model, hvd.DistributedOptimizer(make(), groups=groups)), x, y)
    assert_close(model.get_weights(), expected)
    model = compiled(make_model(), hvd.DistributedOptimizer(make(), op=hvd.Sum))
    fit(model, x, y)
    assert_close(model.get_weights(), joined(make, factor=float(hvd.size())))


def check_refusals():
    """Arguments that mean nothing are refused."""
    sgd = keras.optimizers.SGD(0.1)
    for options in (
        dict(op=hvd.Adasum),
        dict(op=hvd.Sum, gradient_predivide_factor=2.0),
        dict(groups=0),
        dict(backward_passes_per_step=0),
    ):
        try:
            hvd.DistributedOptimizer(sgd, **options)
        except ValueError:
            continue
        raise AssertionError(f"{options} should have been refused")
    for wrong in (hvd.DistributedOptimizer(sgd), "sgd"):
        try:
            hvd.DistributedOptimizer(wrong)
        except ValueError:
            continue
        raise AssertionError(f"{wrong} should have been refused")


def check_accumulation():
    """Gradients of several batches are added up before they are reduced: each update is that of the mean, or of the
    sum.

    With SGD, because every batch counts as an iteration, as with Horovod, which Adam's correction of its means looks
    at.
    """
    passes = 2
    x, y = data(hvd.size())
    x, y = np.concatenate([x, x[:1]]), np.concatenate([y, y[:1]])
    own = x[:, hvd.rank()].reshape(-1, 3), y[:, hvd.rank()].reshape(-1, 2)
    for make in optimizers()[::2]:
        for average in (True, False):
            optimizer = hvd.DistributedOptimizer(
                make(), backward_passes_per_step=passes, average_aggregated_gradients=average
            )
            model = compiled(make_model(), optimizer)
            fit(model, *own)
            reference = make_model()
            loss = keras.losses.MeanSquaredError()
            factor = 1.0 if average else float(passes)
            reference.compile(optimizer=make(), loss=lambda true, pred: factor * loss(true, pred))
            fit(reference, x.reshape(-1, 3), y.reshape(-1, 2), BATCH * hvd.size() * passes)
            assert_close(model.get_weights(), reference.get_weights())
            assert int(np.asarray(keras_numpy(optimizer.iterations))) == 4
            assert int(np.asarray(keras_numpy(optimizer._agg_helper.counter))) == 0


def keras_numpy(value):
    """A tensor or variable as an array."""
    return value.numpy() if hasattr(value, "numpy") else keras.ops.convert_to_numpy(value)


def check_local_variables():
    """Gradients of local layers stay on their rank, divided by the number of ranks unless told otherwise."""
    x, y = own_batches()
    x, y = x[:BATCH], y[:BATCH]
    for scale in (True, False):
        model = make_model()
        before = model.get_weights()
        own = [np.asarray(keras_numpy(grad)).copy() for grad in map(detached, gradients(model, x, y))]
        optimizer = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), local_layers=model.get_layer("last"), scale_local_gradients=scale
        )
        optimizer.apply_gradients(list(zip(gradients(model, x, y), model.trainable_weights)))
        steps = [left - right for left, right in zip(before, model.get_weights())]
        divisor = hvd.size() if scale else 1
        assert_close(steps[2:], [grad / divisor for grad in own[2:]])
        average = [np.asarray(keras_numpy(hvd.allreduce(grad))) for grad in own[:2]]
        assert_close(steps[:2], average)


def detached(grad):
    """A gradient that numpy may look at."""
    return grad.detach() if hasattr(grad, "detach") else grad


def check_values():
    """Collectives on values."""
    rank, size = hvd.rank(), hvd.size()
    assert float(hvd.allreduce(float(rank))) == (size - 1) / 2
    summed = hvd.allreduce(np.full((2, 2), rank, dtype="float32"), op=hvd.Sum, name="values")
    assert_close([keras_numpy(summed)], [np.full((2, 2), size * (size - 1) / 2)])
    gathered = keras_numpy(hvd.allgather(np.full((rank + 1, 2), rank, dtype="int32")))
    assert gathered.shape == (size * (size + 1) // 2, 2) and gathered[-1, 0] == size - 1
    assert keras_numpy(hvd.broadcast(np.arange(3, dtype="float32") + rank, 1)).tolist() == [1.0, 2.0, 3.0]
    part = keras_numpy(hvd.reducescatter(np.arange(2 * size, dtype="float32")))
    assert part.tolist() == [2.0 * rank, 2.0 * rank + 1]


def check_broadcast():
    """All ranks have the root's weights and optimizer state before the first batch."""
    x, y = own_batches()
    for make in optimizers():
        # The joined batch is trained from the weights of seed 1.
        model = compiled(make_model(seed=hvd.rank() + 1), hvd.DistributedOptimizer(make()))
        fit(model, x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        assert_close(model.get_weights(), joined(make))


def check_late_broadcast():
    """A model that knows its weights only after the first batch is broadcast then."""
    x, y = own_batches()

    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs)

    model = compiled(Late(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    fit(model, x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    mine = model.get_weights()
    assert_close(mine, [keras_numpy(hvd.broadcast(weight, 0)) for weight in mine], 0)


def check_metrics():
    """Metrics are averages over the ranks, for later callbacks and in the history; different ones are refused."""
    x, y = own_batches()
    model = compiled(make_model(), keras.optimizers.SGD(0.0), metrics=["mae"])
    plain = fit(model, x, y).history
    averaged = fit(model, x, y, callbacks=[hvd.callbacks.MetricAverageCallback()]).history
    for name in ("loss", "mae"):
        expected = float(hvd.allreduce(np.float32(plain[name][0])))
        assert abs(averaged[name][0] - expected) < 1e-5, (name, averaged, expected)
    callback = hvd.callbacks.MetricAverageCallback()
    try:
        callback.on_epoch_end(0, {"loss": 1.0, **({"val_loss": 1.0} if hvd.rank() == 0 else {})})
    except ValueError as error:
        assert "val_loss" in str(error)
    else:
        raise AssertionError("different metrics should have been refused")


def check_learning_rates():
    """Warm-up and schedule; velocities are multiplied when the rate changes."""
    x, y = own_batches()
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(keras_numpy(self.model.optimizer.learning_rate)))

    size = hvd.size()
    model = compiled(make_model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=2),
        Note(),
    ]
    history = fit(model, x, y, epochs=4, callbacks=callbacks).history
    warm = [0.1 / size * ((step + 1) / STEPS * (size - 1) / 2 + 1) for step in range(2 * STEPS)]
    assert_close([rates], [[*warm, *[0.1] * STEPS, *[0.05] * STEPS]], 1e-5)
    assert_close([history["lr"]], [[warm[STEPS - 1], 0.1, 0.1, 0.05]], 1e-5)
    assert abs(rates[2 * STEPS - 1] - 0.1) < 1e-6


def check_momentum_correction():
    """With the correction, a step of changed rate has the velocity of the new rate."""
    x, y = own_batches()
    x, y = np.tile(x[:BATCH], (2, 1)), np.tile(y[:BATCH], (2, 1))
    makers = [lambda: keras.optimizers.SGD(0.1, momentum=0.5)]
    if KERAS == 2:
        makers.append(lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.5))
    for make in makers:
        for correct in (True, False):
            model = compiled(make_model(), make())
            schedule = hvd.callbacks.LearningRateScheduleCallback(
                0.1, lambda epoch: 1.0 if epoch < 0.5 else 0.5, staircase=False, momentum_correction=correct
            )
            fit(model, x, y, callbacks=[schedule])
            expected, velocity = make_model(), None
            for rate in (0.1, 0.05):
                grads = [np.asarray(keras_numpy(detached(grad))) for grad in gradients(expected, x[:BATCH], y[:BATCH])]
                if velocity is None:
                    velocity = [-rate * grad for grad in grads]
                else:
                    factor = 0.5 * (0.5 if correct else 1.0)
                    velocity = [factor * v - rate * grad for v, grad in zip(velocity, grads)]
                expected.set_weights([w + v for w, v in zip(expected.get_weights(), velocity)])
            assert_close(model.get_weights(), expected.get_weights())


def check_best_model_checkpoint():
    """The best model is saved, once there is a path."""
    x, y = own_batches()
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    model = compiled(make_model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    try:
        fit(model, x, y, callbacks=[callback])
    except ValueError as error:
        assert "filepath" in str(error)
    else:
        raise AssertionError("a checkpoint without a path should have been refused")
    with tempfile.TemporaryDirectory() as folder:
        callback.filepath = str(Path(folder) / "best.keras")
        fit(model, x, y, epochs=2, callbacks=[callback])
        assert_close(keras.models.load_model(callback.filepath).get_weights(), model.get_weights())


def check_load_model():
    """A saved model can be loaded with and without Farandole, and goes on as the one that was saved.

    Keras 2 itself keeps no state of optimizers in SavedModel, nor that of legacy ones in `.keras`.
    """
    x, y = own_batches()
    endings = [".keras", ".h5"] + ([""] if KERAS == 2 else [])
    for make in optimizers():
        kind = type(make())
        model = compiled(make_model(), hvd.DistributedOptimizer(make()))
        assert isinstance(model.optimizer, kind) and type(model.optimizer).__name__ == kind.__name__
        fit(model, x, y)
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"model{ending}" for ending in endings]
            for path in paths:
                model.save(path)
            loaded = [hvd.load_model(path) for path in paths]
            plain = [keras.models.load_model(path) for path in paths]
        assert all(type(other.optimizer) is kind for other in plain), [type(other.optimizer) for other in plain]
        saved = model.get_weights()
        fit(model, x, y)
        for path, other in zip(paths, loaded):
            assert isinstance(other.optimizer, kind) and hasattr(other.optimizer, "register_local_var")
            assert_close(other.get_weights(), saved, 0)
            fit(other, x, y)
            if path.suffix == ".h5" or (path.suffix == ".keras" and "legacy" not in kind.__module__):
                assert_close(other.get_weights(), model.get_weights())


def check_from_config():
    """An optimizer made of a configuration is like the one that it is from."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    config = optimizer.get_config()
    for copy in (optimizer.from_config(dict(config)), type(optimizer).from_config(dict(config))):
        assert copy.get_config() == config and hasattr(copy, "register_local_var")


def check_optimizer_with_state():
    """An optimizer that has trained keeps its state when it becomes distributed."""
    x, y = own_batches()
    model = compiled(make_model(), keras.optimizers.Adam(0.01))
    whole_x, whole_y = (part.reshape(-1, part.shape[-1]) for part in data(hvd.size()))
    fit(model, whole_x, whole_y, BATCH * hvd.size())
    compiled(model, hvd.DistributedOptimizer(model.optimizer))
    fit(model, x, y)
    assert_close(model.get_weights(), joined(lambda: keras.optimizers.Adam(0.01), epochs=2))


def check_loss_scale():
    """Ranks agree on skipping a step that is not finite on one of them, whoever wraps whom.

    Keras 2 counts a skipped step as an iteration, which Adam looks at.
    """
    x, y = own_batches()
    x = x.copy()
    if hvd.rank() == hvd.size() - 1:
        x[BATCH] = np.inf
    scaled = keras.mixed_precision.LossScaleOptimizer
    for make in optimizers():
        wrapped = [hvd.DistributedOptimizer(scaled(make())), scaled(hvd.DistributedOptimizer(make()))]
        expected = None
        for optimizer in wrapped if type(make()).__name__ == "SGD" else wrapped[:1]:
            model = compiled(make_model(), optimizer)
            fit(model, x, y)
            weights = model.get_weights()
            assert all(np.isfinite(weight).all() for weight in weights)
            assert_close(weights, [keras_numpy(hvd.broadcast(weight, 0)) for weight in weights], 0)
            if KERAS == 2 and type(make()).__name__ == "Adam":
                continue
            if expected is None:
                plain = compiled(make_model(), hvd.DistributedOptimizer(make()))
                keep = [*range(BATCH), *range(2 * BATCH, 3 * BATCH)]
                fit(plain, x[keep], y[keep])
                expected = plain.get_weights()
            assert_close(weights, expected)


def check_mixed_precision():
    """A model that computes in half precision, whose loss Keras scales by itself, trains alike on all ranks.

    Its weights are not those of single precision: Keras skips steps until it has found its scale.
    """
    x, y = own_batches()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = compiled(make_model(), hvd.DistributedOptimizer(optimizers()[0]()))
        before = model.get_weights()
        fit(model, x, y, epochs=3)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model.layers[-1].compute_dtype == "float16"
    assert "LossScale" in type(model.optimizer).__name__, type(model.optimizer)
    weights = model.get_weights()
    assert all(np.isfinite(weight).all() for weight in weights)
    assert any((weight != first).any() for weight, first in zip(weights, before))
    assert_close(weights, [keras_numpy(hvd.broadcast(weight, 0)) for weight in weights], 0)


def check_state():
    """A state is the same on all ranks after `sync`, and what it was after `restore`."""
    rank = hvd.rank()
    model = compiled(make_model(seed=rank), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    state = hvd.elastic.KerasState(model, batch=20 + rank, epoch=10 + rank)
    state.sync()
    assert_close(model.get_weights(), make_model(seed=0).get_weights(), 0)
    assert (state.batch, state.epoch) == (20, 10)
    x, y = own_batches()
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    state.batch = 0
    fit(model, x, y, callbacks=callbacks)
    committed = model.get_weights()
    assert state.batch == 0 and state.epoch == 11
    state.epoch = 50
    model.set_weights(make_model(seed=5).get_weights())
    state.restore()
    assert_close(model.get_weights(), committed, 0)
    assert state.epoch == 11
    begun = []

    @hvd.elastic.run
    def train(state):
        begun.append(state.epoch)
        if len(begun) == 1:
            state.epoch = 60
            raise HorovodInternalError("a rank is lost, as all find out by themselves")
        return state.epoch

    assert train(state) == 11 and begun == [11, 11]
    assert_close(model.get_weights(), committed, 0)


def check_process_set():
    """Ranks of a process set train with each other alone."""
    evens = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    x, y = own_batches()
    optimizer = keras.optimizers.SGD(0.1)
    if evens.included():
        optimizer = hvd.DistributedOptimizer(optimizer, process_set=evens)
    model = compiled(make_model(), optimizer)
    fit(model, x, y)
    everybody = hvd.allgather_object(model.get_weights())
    for even in range(2, hvd.size(), 2):
        assert_close(everybody[even], everybody[0], 0)
    assert not np.allclose(everybody[0][0], everybody[1][0])
    hvd.remove_process_set(evens)


def die_in_fit(victim=1, after=6):
    """A rank is killed inside of `fit`. The others' `fit` raises and names it. Files say when that was."""
    import signal

    from farandole.exceptions import RankLostError

    x, y = own_batches()
    model = compiled(make_model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    board = Path(os.environ["FARANDOLE_TEST_BOARD"])

    class Die(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if hvd.rank() == victim and self.batches == after:
                board.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        fit(model, x, y, epochs=1_000_000, callbacks=[Die()])
    except RankLostError as error:
        board.with_suffix(".survived").touch()
        assert f"rank {victim}" in str(error), error
        print(f"survived: {error}", flush=True)


CHECKS = {name: function for name, function in list(globals().items()) if name.startswith("check_")}


def run(*names):
    """Runs checks, all if none is named, and says which went well."""
    hvd.init(process_sets="dynamic")
    for name in names or CHECKS:
        CHECKS[name]()
        if hvd.rank() == 0:
            print(f"passed {name}", flush=True)
