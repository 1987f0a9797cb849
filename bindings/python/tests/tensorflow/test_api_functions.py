"""Variables and objects from one rank to all; tensors of several kinds reduced together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")

DTYPES = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32", "bool"]


def test_variables_become_those_of_the_root() -> None:
    for root in {0, hvd.size() - 1}:
        mine = [tf.cast(tf.fill([3, 2], hvd.rank() + 1), dtype) for dtype in DTYPES]
        variables = [tf.Variable(value) for value in mine] + [keras.Variable(np.full(4, hvd.rank() + 1.0))]
        for inplace in (False, True):
            for variable, value in zip(variables, mine):
                variable.assign(value)
            hvd.broadcast_variables(variables, root_rank=root, inplace=inplace)
            for variable in variables:
                value = tf.cast(variable, tf.float64).numpy()
                np.testing.assert_array_equal(
                    value, np.full(value.shape, min(root + 1, 1 if variable.dtype == "bool" else 99))
                )


def test_values_that_were_read_before_stay_what_they_were() -> None:
    variable = tf.Variable([float(hvd.rank())])
    before = variable.read_value()
    hvd.broadcast_variables([variable], root_rank=0)
    assert before.numpy() == [hvd.rank()] and variable.numpy() == [0]


def test_variables_in_a_function() -> None:
    variables = [tf.Variable([float(hvd.rank())]), tf.Variable(hvd.rank())]

    @tf.function
    def broadcast() -> None:
        hvd.broadcast_variables(variables, root_rank=hvd.size() - 1)

    broadcast()
    assert [variable.numpy() for variable in variables] == [hvd.size() - 1] * 2


def test_variables_within_a_process_set(sets: list) -> None:
    process_set = sets[1]
    variable = tf.Variable([float(hvd.rank())])
    hvd.broadcast_variables([variable], root_rank=process_set.ranks[-1], process_set=process_set)
    assert variable.numpy() == [process_set.ranks[-1]]


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_variables_of_a_graph(resource: bool, inplace: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.Variable(tf.fill([2], float(hvd.rank() + place)), use_resource=resource) for place in range(3)
        ]
        broadcast = hvd.broadcast_variables(variables, root_rank=hvd.size() - 1, inplace=inplace)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(broadcast)
        for place, value in enumerate(session.run(variables)):
            np.testing.assert_array_equal(value, np.full(2, hvd.size() - 1 + place))


def test_hook_of_a_monitored_session() -> None:
    hook = hvd.BroadcastGlobalVariablesHook(0)
    for _ in range(2):  # It serves another graph, too.
        with tf.Graph().as_default():
            variable = tf.compat.v1.get_variable("weight", initializer=tf.fill([2], float(hvd.rank() + 1)))
            with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                np.testing.assert_array_equal(session.run(variable), [1, 1])


def test_global_variables_are_for_graphs() -> None:
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("weight", initializer=float(hvd.rank()))
        broadcast = hvd.broadcast_global_variables(hvd.size() - 1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(broadcast)
        assert session.run(variable) == hvd.size() - 1


def test_objects_in_eager_execution_and_beside_a_session() -> None:
    root = hvd.size() - 1
    obj = {"rank": hvd.rank(), "text": "x" * 1000 * hvd.rank(), "array": np.arange(hvd.rank() + 1)}

    def check() -> None:
        received = hvd.broadcast_object(obj, root_rank=root)
        assert received["rank"] == root and len(received["array"]) == root + 1
        assert hvd.broadcast_object_fn(root_rank=root, name="fn")(obj)["text"] == "x" * 1000 * root
        assert hvd.allgather_object([hvd.rank()] * hvd.rank()) == [[rank] * rank for rank in range(hvd.size())]

    check()
    with tf.Graph().as_default(), tf.compat.v1.Session():
        check()


def test_objects_within_a_process_set(sets: list) -> None:
    process_set = sets[1]
    assert hvd.allgather_object(hvd.rank(), process_set=process_set) == process_set.ranks
    assert hvd.broadcast_object(hvd.rank(), process_set.ranks[0], process_set=process_set) == process_set.ranks[0]


@pytest.mark.parametrize("function", [False, True])
def test_groups_of_mixed_kinds(function: bool) -> None:
    size, rank = hvd.size(), hvd.rank()

    def reduce() -> list:
        slices = tf.IndexedSlices(tf.fill([1, 2], rank + 1.0), tf.constant([rank % 3]), tf.constant([3, 2]))
        return hvd.grouped_allreduce(
            [tf.ones(2) * rank, slices, tf.constant([rank], tf.float64), tf.ones(3)], op=hvd.Sum
        )

    first, slices, second, third = (tf.function(reduce) if function else reduce)()
    np.testing.assert_array_equal(first, np.full(2, sum(range(size))))
    np.testing.assert_array_equal(second, [sum(range(size))])
    np.testing.assert_array_equal(third, np.full(3, size))
    assert second.dtype == tf.float64
    expected = np.zeros((3, 2))
    for other in range(size):
        expected[other % 3] += other + 1
    np.testing.assert_array_equal(tf.convert_to_tensor(slices), expected)


def test_slices_take_no_factors_and_integers_are_divided_as_tensorflow_does() -> None:
    slices = tf.IndexedSlices(tf.fill([1, 2], hvd.rank()), tf.constant([0]), tf.constant([1, 2]))
    for factor in ("prescale_factor", "postscale_factor"):
        with pytest.raises(NotImplementedError, match="Pre/postscale_factor"):
            hvd.allreduce(slices, op=hvd.Sum, **{factor: 0.5})
        with pytest.raises(NotImplementedError, match="Pre/postscale_factor"):
            hvd.grouped_allreduce([slices], op=hvd.Sum, **{factor: 0.5})
    average = tf.convert_to_tensor(hvd.allreduce(slices))
    assert average.dtype == tf.float64
    np.testing.assert_allclose(average, np.full((1, 2), (hvd.size() - 1) / 2))


def test_reducescatter_with_compression() -> None:
    size, rank = hvd.size(), hvd.rank()
    tensor = tf.reshape(tf.range(2.0 * (size + 1)), [size + 1, 2])
    outputs = [
        hvd.reducescatter(tensor, compression=hvd.Compression.fp16),
        *hvd.grouped_reducescatter([tensor, tf.cast(tensor, tf.float64)], op=hvd.Average),
    ]
    begin = 0 if rank == 0 else rank + 1
    rows = tensor.numpy()[begin : begin + (2 if rank == 0 else 1)]
    for output, dtype in zip(outputs, [tf.float32, tf.float32, tf.float64]):
        assert output.dtype == dtype
        np.testing.assert_allclose(output, rows)


def test_average_is_an_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(tf.constant(1.0), average=False).numpy() == hvd.size()
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(tf.constant(1.0), average=True, op=hvd.Sum)


def test_estimators_are_gone_and_it_says_so() -> None:
    with pytest.raises(AttributeError, match="tf.estimator left TensorFlow"):
        hvd.estimator
