"""`DistributedGradientTape`: its gradients are those of the joined batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.tensorflow import gradient_reduction

pytestmark = pytest.mark.usefixtures("job")

ROWS = 6  # of each rank's batch


class Model:
    """Two layers, of one variable of TensorFlow and several of Keras 3, and a table whose gradient is sparse."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.table = tf.Variable(rng.normal(size=(8, 4)).astype("float32"), name="table")
        self.first = keras.Variable(rng.normal(size=(4, 5)).astype("float32"), name="first")
        self.second = tf.Variable(rng.normal(size=(5, 3)))
        self.unused = tf.Variable(1.0)
        self.variables = [self.table, self.first, self.unused, self.second]

    def loss(self, indices: tf.Tensor) -> tf.Tensor:
        hidden = tf.tanh(tf.gather(self.table, indices) @ self.first.value)
        return tf.reduce_mean(tf.square(tf.cast(hidden, tf.float64) @ self.second))


def batch_of(rank: int) -> np.ndarray:
    return np.random.default_rng(10 + rank).integers(0, 8, ROWS)


def own_batch() -> tf.Tensor:
    return tf.constant(batch_of(hvd.rank()))


def dense(grads: list) -> list:
    return [None if grad is None else tf.convert_to_tensor(grad).numpy() for grad in grads]


def joined(model: Model, ranks: range | None = None) -> list:
    """Gradients of the batches of some ranks together, by TensorFlow alone."""
    indices = np.concatenate([batch_of(rank) for rank in ranks or range(hvd.size())])
    with tf.GradientTape() as tape:
        loss = model.loss(tf.constant(indices))
    return dense(tape.gradient(loss, [tf_variable(variable) for variable in model.variables]))


def tf_variable(variable: object) -> object:
    return variable if isinstance(variable, tf.Variable) else variable.value


def assert_same(grads: list, expected: list, rtol: float = 1e-5) -> None:
    for grad, value in zip(dense(grads), expected, strict=True):
        assert (grad is None) == (value is None)
        if grad is not None:
            np.testing.assert_allclose(grad, value, rtol=rtol, atol=rtol)


def distributed_gradients(model: Model, function: bool, **options: object) -> list:
    def gradients(indices: tf.Tensor) -> list:
        with tf.GradientTape() as tape:
            loss = model.loss(indices)
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, model.variables)

    return (tf.function(gradients) if function else gradients)(own_batch())


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sparse_as_dense": True},
        {"groups": 2},
        {"groups": 2, "sparse_as_dense": True},
        {"gradient_predivide_factor": 4.0},
        {"gradient_predivide_factor": 4.0, "groups": 1},
        {"device_dense": "/cpu:0", "device_sparse": "/cpu:0"},
    ],
)
def test_gradients_are_those_of_the_joined_batch(function: bool, options: dict) -> None:
    model = Model()
    for _ in range(2):
        assert_same(distributed_gradients(model, function, **options), joined(model))


def test_small_gradients_of_a_graph_share_operations_and_large_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_reduction, "_SHARED_SPAN", 8)
    shapes = [[3]] * 10 + [[200, 200], [5], [300, 100], [7]]
    variables = [tf.Variable(tf.fill(shape, float(place))) for place, shape in enumerate(shapes)]
    variables.append(tf.Variable(tf.constant([1.0], tf.float64)))

    @tf.function
    def gradients() -> list:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.cast(variable, tf.float32) ** 2) for variable in variables]) * (
                hvd.rank() + 1.0
            )
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    for variable, grad in zip(variables, gradients()):
        np.testing.assert_allclose(grad, 2 * variable.numpy() * (hvd.size() + 1) / 2, rtol=1e-6)
    kinds = [node.type for node in gradients.get_concrete_function().graph.get_operations()]
    assert kinds.count("HorovodAllreduce") == 3  # The two large ones, and the only one of its type.
    assert kinds.count("HorovodGroupedAllreduce") == 2


@pytest.mark.parametrize("function", [False, True])
def test_groups_of_variables(function: bool) -> None:
    model = Model()
    groups = [[model.second, model.first], [model.unused]]
    assert_same(distributed_gradients(model, function, groups=groups), joined(model))


@pytest.mark.parametrize("function", [False, True])
def test_the_sum_is_that_of_all_ranks(function: bool) -> None:
    model = Model()
    expected = [None if grad is None else grad * hvd.size() for grad in joined(model)]
    assert_same(distributed_gradients(model, function, op=hvd.Sum), expected)


@pytest.mark.parametrize("compression, rtol", [(hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2)])
def test_compressed_gradients_lose_what_the_narrow_type_loses(compression: type, rtol: float) -> None:
    model = Model()
    for function in (False, True):
        grads = distributed_gradients(model, function, compression=compression)
        assert [grad.dtype for grad in grads if grad is not None] == [tf.float32, tf.float32, tf.float64]
        assert_same(grads, joined(model), rtol)


def test_sparse_gradients_stay_sparse_and_those_of_no_rank_none() -> None:
    grads = distributed_gradients(Model(), function=False)
    assert isinstance(grads[0], tf.IndexedSlices) and grads[2] is None
    assert grads[0].values.shape[0] == ROWS * hvd.size()


def test_only_ranks_of_the_process_set_are_reduced_over(sets: list) -> None:
    model = Model()
    for process_set in sets[1:]:
        for function in (False, True):
            grads = distributed_gradients(model, function, process_set=process_set)
            assert_same(grads, joined(model, process_set.ranks))


def test_a_rank_outside_of_the_process_set_keeps_its_gradients(sets: list) -> None:
    others = hvd.add_process_set([hvd.size() - 1, 0]) if hvd.size() > 2 else sets[1]
    model = Model()
    grads = distributed_gradients(model, function=False, process_set=others)
    assert_same(grads, joined(model, others.ranks if others.included() else range(hvd.rank(), hvd.rank() + 1)))
    if hvd.size() > 2:
        hvd.remove_process_set(others)


def test_structures_of_sources_come_back_as_they_were() -> None:
    weight, bias = tf.Variable([2.0]), tf.Variable([1.0])

    def tape() -> tuple:
        with tf.GradientTape() as recorded:
            loss = tf.reduce_sum((hvd.rank() + 1.0) * weight + bias)
        return hvd.DistributedGradientTape(recorded), loss

    mean = (hvd.size() + 1) / 2
    distributed, loss = tape()
    assert distributed.gradient(loss, weight).numpy() == [mean]
    distributed, loss = tape()
    grads = distributed.gradient(loss, {"weight": weight, "rest": [bias, tf.Variable(1.0)]})
    assert grads["weight"].numpy() == [mean] and grads["rest"][0].numpy() == [1] and grads["rest"][1] is None
    distributed, loss = tape()
    zero = distributed.gradient(loss, [tf.Variable(1.0)], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zero[0].numpy() == 0


def test_the_tape_may_be_wrapped_before_in_and_after_its_block() -> None:
    weight = tf.Variable(3.0)
    before = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    with before:
        loss = weight * (hvd.rank() + 1.0)
    mean = (hvd.size() + 1) / 2
    assert before.gradient(loss, weight).numpy() == mean
    assert before.gradient(loss, weight).numpy() == mean  # It is persistent.
    with tf.GradientTape() as tape:
        inside = hvd.DistributedGradientTape(tape)
        loss = weight * (hvd.rank() + 1.0)
    assert inside.gradient(loss, weight).numpy() == mean
    assert isinstance(inside, tf.GradientTape)
    with tf.GradientTape() as tape:
        loss = weight * (hvd.rank() + 1.0)
        assert hvd.DistributedGradientTape(tape).gradient(loss, weight).numpy() == mean


def test_subclasses_of_tapes_keep_their_methods() -> None:
    class Tape(tf.GradientTape):
        def name(self) -> str:
            return "own"

    weight = tf.Variable(3.0)
    with Tape() as tape:
        loss = weight * 2.0
    distributed = hvd.DistributedGradientTape(tape)
    assert distributed.name() == "own" and isinstance(distributed, Tape)
    assert distributed.gradient(loss, [weight])[0].numpy() == 2


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_local_sources_keep_their_own_gradients(function: bool, scale: bool) -> None:
    own, shared = tf.Variable([1.0, 2.0]), tf.Variable([3.0])
    table = tf.Variable(tf.ones([4, 2]))

    def gradients() -> tuple:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(own * shared) * (hvd.rank() + 1.0) + tf.reduce_sum(tf.gather(table, [hvd.rank() % 4]))
        distributed = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        distributed.register_local_source(own)
        distributed.register_local_source(table)
        local, others = distributed.get_local_and_global_gradients(loss, [own, shared, table])
        return [grad for _, grad in local], [grad for _, grad in others]

    (own_grad, table_grad), (shared_grad,) = (tf.function(gradients) if function else gradients)()
    divisor = hvd.size() if scale else 1
    np.testing.assert_allclose(own_grad, np.full(2, 3.0 * (hvd.rank() + 1) / divisor), rtol=1e-6)
    np.testing.assert_allclose(shared_grad, [3.0 * (hvd.size() + 1) / 2], rtol=1e-6)
    assert table_grad.values.shape == [1, 2] and table_grad.values.numpy()[0, 0] == 1 / divisor


def test_local_layers_of_a_partial_tape() -> None:
    keras.utils.set_random_seed(1)
    local, shared = keras.layers.Dense(2, use_bias=False), keras.layers.Dense(2, use_bias=False)
    model = keras.Sequential([keras.Input((3,)), local, shared])
    inputs = tf.ones([2, 3]) * (hvd.rank() + 1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs))
    expected = [grad.numpy() for grad in tape.gradient(loss, [weight.value for weight in model.trainable_weights])]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs))
    partial = hvd.PartialDistributedGradientTape(tape, local_layers=local)
    grads = partial.gradient(loss, model.trainable_weights)
    np.testing.assert_allclose(grads[0], expected[0] / hvd.size(), rtol=1e-6)
    mean = expected[1] / (hvd.rank() + 1) * (hvd.size() + 1) / 2
    np.testing.assert_allclose(grads[1], mean, rtol=1e-5)
    with pytest.raises(ValueError, match="local layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[1])


@pytest.mark.parametrize("function", [False, True])
def test_a_rank_that_made_more_layers_than_others_is_understood(function: bool) -> None:
    """Keras numbers layers; a rank that makes a model to evaluate counts further than the others."""
    if hvd.rank() == 0:
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    for weight in model.weights:
        weight.assign(tf.ones(weight.shape))
    inputs = tf.ones([2, 3]) * (hvd.rank() + 1.0)

    def gradients() -> list:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs))
        return hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)

    grads = (tf.function(gradients) if function else gradients)()
    np.testing.assert_allclose(grads[0], np.full((3, 2), (hvd.size() + 1) / 2), rtol=1e-6)
    hvd.broadcast_variables(model.variables, root_rank=0)


def test_nodes_of_a_set_that_some_ranks_make_do_not_shift_the_names_of_others(sets: list) -> None:
    """TensorFlow numbers nodes of one name, and ranks that are not in a set make none for it."""
    first = hvd.add_process_set([0, 1]) if hvd.size() > 2 else sets[1]
    weight = tf.Variable(1.0)

    @tf.function
    def gradients() -> list:
        results = []
        for process_set in (first, hvd.global_process_set):
            with tf.name_scope(f"model_{hvd.rank()}"), tf.GradientTape() as tape:
                loss = weight * (hvd.rank() + 1.0)
                results.append(hvd.DistributedGradientTape(tape, process_set=process_set).gradient(loss, weight))
        return results

    alone, together = gradients()
    assert together.numpy() == (hvd.size() + 1) / 2
    average = sum(rank + 1 for rank in first.ranks) / len(first.ranks)
    assert alone.numpy() == (average if first.included() else hvd.rank() + 1)
    if hvd.size() > 2:
        hvd.remove_process_set(first)


def test_generic_names_need_no_names_of_variables() -> None:
    weight = tf.Variable(1.0, name=f"of_rank_{hvd.rank()}")
    for function in (False, True):

        def gradient() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = weight * (hvd.rank() + 1.0)
            return hvd.DistributedGradientTape(tape).gradient(loss, [weight], use_generic_names=True)[0]

        assert (tf.function(gradient) if function else gradient)().numpy() == (hvd.size() + 1) / 2


def test_gradients_of_reduced_gradients() -> None:
    weight = tf.Variable(2.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = weight**3 * (hvd.rank() + 1.0)
        grad = hvd.DistributedGradientTape(inner).gradient(loss, weight)
    second = hvd.DistributedGradientTape(outer).gradient(grad, weight)
    # The average of averages: 6 w (n + 1) / 2.
    np.testing.assert_allclose(second, 12.0 * (hvd.size() + 1) / 2, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"groups": 2}])
def test_graphs_of_an_elastic_job_ask_for_its_size_when_they_run(
    monkeypatch: pytest.MonkeyPatch, options: dict
) -> None:
    monkeypatch.setattr("farandole.elastic.native.enabled", lambda: True)
    model = Model()
    assert_same(distributed_gradients(model, True, **options), joined(model))


@pytest.mark.parametrize("function", [False, True])
def test_a_rank_with_fewer_batches_joins(function: bool) -> None:
    weights = [tf.Variable(1.0), tf.Variable(tf.ones([200, 200]))]

    def gradients() -> list:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(weight) for weight in weights]) * (hvd.rank() + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, weights)

    run = tf.function(gradients) if function else gradients
    for number in range(2 if hvd.rank() == 0 else 1):
        expected = (hvd.size() + 1) / 2 if number == 0 else 1 / hvd.size()
        for grad in run():
            np.testing.assert_allclose(grad, np.full(grad.shape, expected), rtol=1e-6)
    assert int(hvd.join()) == 0


def test_a_compiled_step_has_the_gradients_of_the_joined_batch() -> None:
    weights = [tf.Variable(tf.fill([3], float(place))) for place in range(4)] + [tf.Variable(tf.ones([200, 200]))]

    @tf.function(jit_compile=True)
    def gradients() -> list:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(weight**2) for weight in weights]) * (hvd.rank() + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, weights)

    for weight, grad in zip(weights, gradients()):
        np.testing.assert_allclose(grad, weight.numpy() * (hvd.size() + 1), rtol=1e-6)


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), groups=-1)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    for op in (hvd.Adasum, hvd.Max):
        with pytest.raises(NotImplementedError):
            hvd.allreduce(slices, op=op)
