"""`DistributedOptimizer` around optimizers of `tf.compat.v1`: training with it is training on the joined batch."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")

v1 = tf.compat.v1
STEPS = 4
ROWS = 5

OPTIMIZERS: dict[str, Callable[[], v1.train.Optimizer]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
}


def batches(rank: int, steps: int = STEPS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(100 + rank)
    for _ in range(steps):
        yield rng.normal(size=(ROWS, 3)).astype("float32"), rng.integers(0, 6, ROWS)


def joined_batches(steps: int = STEPS, ranks: list[int] | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for parts in zip(*(batches(rank, steps) for rank in ranks or range(hvd.size()))):
        yield tuple(np.concatenate(column) for column in zip(*parts))


class Model:
    """A table with a sparse gradient and a layer, in the graph that is the default, or eager."""

    def __init__(self, resource: bool = True) -> None:
        rng = np.random.default_rng(5)
        table = rng.normal(size=(6, 3)).astype("float32")
        weight = rng.normal(size=(3, 2)).astype("float32")
        self.table = v1.Variable(table, name="table", use_resource=resource)
        self.weight = v1.Variable(weight, name="weight", use_resource=resource)
        self.variables = [self.table, self.weight]

    def loss(self, inputs: object, indices: object) -> tf.Tensor:
        hidden = tf.nn.embedding_lookup(self.table, indices) * inputs
        return tf.reduce_mean(tf.square(tf.matmul(hidden, self.weight)))


def trained_in_session(
    make: Callable[[], object], data: Iterator[tuple[np.ndarray, np.ndarray]], resource: bool = True, step: bool = False
) -> list[np.ndarray]:
    """Variables after training in a graph; with `step`, the global step as well."""
    with tf.Graph().as_default(), v1.Session() as session:
        inputs, indices = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.int64, [None])
        model = Model(resource)
        global_step = v1.train.get_or_create_global_step() if step else None
        train = make().minimize(model.loss(inputs, indices), global_step=global_step, var_list=model.variables)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for batch in data:
            session.run(train, {inputs: batch[0], indices: batch[1]})
        return session.run(model.variables + ([global_step] if step else []))


def trained_eagerly(
    make: Callable[[], object], data: Iterator[tuple[np.ndarray, np.ndarray]], function: bool
) -> list[np.ndarray]:
    model, optimizer = Model(), make()

    def train(inputs: tf.Tensor, indices: tf.Tensor) -> None:
        optimizer.minimize(lambda: model.loss(inputs, indices), var_list=model.variables)

    run = tf.function(train) if function else train
    for inputs, indices in data:
        run(tf.constant(inputs), tf.constant(indices))
    return [variable.numpy() for variable in model.variables]


def assert_all_close(values: list, expected: list, rtol: float = 2e-5) -> None:
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("resource", [False, True])
def test_training_in_a_session_is_training_on_the_joined_batch(optimizer: str, resource: bool) -> None:
    make = OPTIMIZERS[optimizer]
    dense = optimizer == "adam"  # Adam decays what has no gradient, and slices of a rank do not tell what that is.
    values = trained_in_session(
        lambda: hvd.DistributedOptimizer(make(), sparse_as_dense=dense), batches(hvd.rank()), resource
    )
    assert_all_close(values, trained_in_session(make, joined_batches()))


@pytest.mark.parametrize("function", [False, True])
def test_training_without_a_session_is_training_on_the_joined_batch(function: bool) -> None:
    make = OPTIMIZERS["momentum"]
    values = trained_eagerly(lambda: hvd.DistributedOptimizer(make()), batches(hvd.rank()), function)
    assert_all_close(values, trained_in_session(make, joined_batches()))


@pytest.mark.parametrize(
    "options",
    [{"groups": 1, "sparse_as_dense": True}, {"gradient_predivide_factor": 3.0}, {"compression": hvd.Compression.fp16}],
)
def test_options(options: dict) -> None:
    make = OPTIMIZERS["sgd"]
    values = trained_in_session(lambda: hvd.DistributedOptimizer(make(), **options), batches(hvd.rank()))
    assert_all_close(values, trained_in_session(make, joined_batches()), 2e-3 if "compression" in options else 2e-5)


def test_only_ranks_of_the_process_set_train_together(sets: list) -> None:
    process_set = sets[1]
    make = OPTIMIZERS["sgd"]
    values = trained_in_session(lambda: hvd.DistributedOptimizer(make(), process_set=process_set), batches(hvd.rank()))
    assert_all_close(values, trained_in_session(make, joined_batches(ranks=process_set.ranks)))


PASSES = 3


def aggregating(make: Callable[[], v1.train.Optimizer], average: bool = True) -> object:
    return hvd.DistributedOptimizer(
        make(), backward_passes_per_step=PASSES, average_aggregated_gradients=average, sparse_as_dense=True
    )


def joined_over_passes(steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One batch of all ranks for each complete step. Passes that complete none are left out."""
    parts = list(joined_batches(steps))
    for begin in range(0, len(parts) - PASSES + 1, PASSES):
        yield tuple(np.concatenate(column) for column in zip(*parts[begin : begin + PASSES]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_several_passes_make_a_step_in_a_session(optimizer: str) -> None:
    make = OPTIMIZERS[optimizer]
    passes = 2 * PASSES + 1
    *values, step = trained_in_session(lambda: aggregating(make), batches(hvd.rank(), passes), step=True)
    assert step == passes
    assert_all_close(values, trained_in_session(make, joined_over_passes(passes)))


@pytest.mark.parametrize("function", [False, True])
def test_several_passes_make_a_step_without_a_session(function: bool) -> None:
    make = OPTIMIZERS["momentum"]
    passes = 2 * PASSES + 1
    values = trained_eagerly(lambda: aggregating(make), batches(hvd.rank(), passes), function)
    assert_all_close(values, trained_in_session(make, joined_over_passes(passes)))


def test_aggregated_gradients_are_added_up_unless_averaged() -> None:
    values = trained_in_session(lambda: aggregating(OPTIMIZERS["sgd"], average=False), batches(hvd.rank(), PASSES))
    expected = trained_in_session(lambda: v1.train.GradientDescentOptimizer(0.1 * PASSES), joined_over_passes(PASSES))
    assert_all_close(values, expected)


def test_slices_cannot_be_aggregated_as_such() -> None:
    with pytest.raises(ValueError, match="IndexedSlices are not supported"):
        trained_in_session(
            lambda: hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2), batches(hvd.rank(), 1)
        )


def test_gradients_that_are_none_pass_through_the_aggregation() -> None:
    used, unused = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    for _ in range(2):
        pairs = optimizer.compute_gradients(lambda: used * (hvd.rank() + 1.0), var_list=[unused, used])
        assert pairs[0][0] is None
        optimizer.apply_gradients(pairs)
    assert unused.numpy() == [1]
    np.testing.assert_allclose(used.numpy(), [1 - 2 * (hvd.size() + 1) / 2])


@pytest.mark.parametrize("passes", [1, 2])
def test_local_variables_keep_their_own_gradients(passes: int) -> None:
    own, shared = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes)
    optimizer.register_local_var(own)
    for _ in range(passes):
        optimizer.minimize(lambda: (own + shared) * (hvd.rank() + 1.0), var_list=[own, shared])
    np.testing.assert_allclose(own.numpy(), [1 - passes * (hvd.rank() + 1) / hvd.size()], rtol=1e-6)
    np.testing.assert_allclose(shared.numpy(), [1 - passes * (hvd.size() + 1) / 2], rtol=1e-6)


def test_slots_and_variables_are_those_of_the_optimizer_inside() -> None:
    variable = tf.Variable([1.0])
    inner = v1.train.MomentumOptimizer(0.1, 0.9)
    optimizer = hvd.DistributedOptimizer(inner)
    optimizer.minimize(lambda: variable * 1.0, var_list=[variable])
    assert optimizer.get_slot_names() == ["momentum"]
    assert optimizer.get_slot(variable, "momentum") is inner.get_slot(variable, "momentum")
    assert len(optimizer.variables()) == len(inner.variables()) == 1
    assert isinstance(optimizer, v1.train.Optimizer)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("mode", ["session", "reference variables", "eager", "function"])
def test_adasum_combines_steps(passes: int, mode: str) -> None:
    """Steps into the same direction are averaged, and orthogonal ones added."""
    size, rank = hvd.size(), hvd.rank()
    same = np.float32([1.0, 2.0])
    own = np.zeros(size, np.float32)
    own[rank] = 1.0

    def make() -> tuple:
        terms = dict(use_resource=mode != "reference variables")
        variables = [v1.Variable(np.zeros(2, np.float32), **terms), v1.Variable(np.zeros(size, np.float32), **terms)]
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=passes
        )
        return variables, optimizer

    def loss(variables: list) -> tf.Tensor:
        return -tf.reduce_sum(variables[0] * same) - tf.reduce_sum(variables[1] * own)

    if mode in ("session", "reference variables"):
        with tf.Graph().as_default(), v1.Session() as session:
            variables, optimizer = make()
            train = optimizer.minimize(loss(variables), var_list=variables)
            session.run(v1.global_variables_initializer())
            for _ in range(passes):
                session.run(train)
            values = session.run(variables)
    else:
        variables, optimizer = make()

        def train() -> None:
            optimizer.minimize(lambda: loss(variables), var_list=variables)

        run = tf.function(train) if mode == "function" else train
        for _ in range(passes):
            run()
        values = [variable.numpy() for variable in variables]
    np.testing.assert_allclose(values[0], same * passes, rtol=1e-5)
    np.testing.assert_allclose(values[1], np.full(size, passes), rtol=1e-5)


def test_optimizers_of_keras_are_left_to_the_front_end_of_keras() -> None:
    weight = keras.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=1, gradient_predivide_factor=2.0)
    assert isinstance(optimizer, keras.optimizers.SGD)
    optimizer.apply([tf.constant([hvd.rank() + 1.0])], [weight])
    np.testing.assert_allclose(weight, [1 - (hvd.size() + 1) / 2])


def test_misuse_is_refused() -> None:
    sgd = OPTIMIZERS["sgd"]()
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="neither"):
        hvd.DistributedOptimizer(object())
