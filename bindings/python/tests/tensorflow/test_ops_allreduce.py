"""Allreduce: every operation, element type, shape, way of running and process set, against plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from cases import DTYPES, FLOATS, MODES, SHAPES, all_same, contributions, mine, reduced, run, same

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")

OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_every_type_shape_and_set(op, mode, sets):
    cases = [(shape, dtype) for dtype in DTYPES for shape in (SHAPES if dtype in FLOATS else SHAPES[1:4])]
    for process_set in sets:

        def compute(tensors):
            return [
                hvd.allreduce(tensor, op=op, process_set=process_set, name=f"every.{index}")
                for index, tensor in enumerate(tensors)
            ]

        actual = run(mode, compute, [mine(*case) for case in cases])
        all_same(actual, [reduced(contributions(process_set, *case), op) for case in cases])


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_groups_of_every_type(op, mode, sets):
    """Horovod's group is of one type; every type is a group of all shapes."""
    for process_set in sets:

        def compute(tensors):
            by_type = [tensors[start : start + len(SHAPES)] for start in range(0, len(tensors), len(SHAPES))]
            results = [hvd.grouped_allreduce(group, op=op, process_set=process_set) for group in by_type]
            return [result for group in results for result in group]

        cases = [(shape, dtype, 7) for dtype in DTYPES for shape in SHAPES]
        actual = run(mode, compute, [mine(*case) for case in cases])
        all_same(actual, [reduced(contributions(process_set, *case), op) for case in cases])


def test_factors_multiply_contributions_and_result(mode, sets):
    for process_set in sets:
        for op in (hvd.Sum, hvd.Average, hvd.Max):
            how = dict(op=op, prescale_factor=0.5, postscale_factor=4.0, process_set=process_set)

            def compute(tensors):
                single = [hvd.allreduce(tensor, **how) for tensor in tensors]
                return single + [hvd.grouped_allreduce([tensor, tensor], **how)[1] for tensor in tensors]

            actual = run(mode, compute, [mine((4, 3), dtype) for dtype in FLOATS])
            expected = [reduced(contributions(process_set, (4, 3), dtype), op, 0.5, 4.0) for dtype in FLOATS]
            all_same(actual, expected * 2)


def test_average_is_the_default_and_the_old_parameter_still_works():
    everybody = contributions(hvd.global_process_set, (5,))
    tensor = tf.constant(mine((5,)))
    same(hvd.allreduce(tensor), reduced(everybody, hvd.Average))
    with pytest.warns(DeprecationWarning):
        same(hvd.allreduce(tensor, False), reduced(everybody, hvd.Sum))
    with pytest.warns(DeprecationWarning):
        same(hvd.allreduce(tensor, average=True), reduced(everybody, hvd.Average))
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)


def test_adasum_of_orthogonal_gradients_is_their_sum_and_of_parallel_ones_their_mean(mode, sets):
    for process_set in sets:
        place, size = process_set.rank(), process_set.size()
        for dtype in FLOATS:
            orthogonal, expected = np.zeros(size + 3, dtype), np.zeros(size + 3, dtype)
            orthogonal[place], expected[:size] = 2, 2
            parallel = np.full(5, 3, dtype)

            def compute(tensors):
                return [hvd.allreduce(tensor, op=hvd.Adasum, process_set=process_set) for tensor in tensors]

            actual = run(mode, compute, [orthogonal, parallel])
            same(actual[0], expected)
            np.testing.assert_allclose(actual[1].astype(np.float64), 3, rtol=1e-2)


def test_the_input_keeps_its_value(mode):
    """The kernel may reduce in the memory of its input only if nobody else reads it."""

    def compute(tensors):
        doubled = tensors[0] * 2
        total = hvd.allreduce(doubled, op=hvd.Sum)
        with tf.control_dependencies([total]):
            after = tf.identity(doubled)
        return [total, after, tf.identity(tensors[0])]

    total, doubled, given = run(mode, compute, [mine((300,))])
    same(total, 2 * reduced(contributions(hvd.global_process_set, (300,)), hvd.Sum))
    same(doubled, 2 * mine((300,)))
    same(given, mine((300,)))


def test_constants_and_variables_keep_their_values():
    variable = tf.Variable(mine((300,)))
    constant = tf.constant(mine((300,)))
    expected = reduced(contributions(hvd.global_process_set, (300,)), hvd.Sum)

    @tf.function
    def compute():
        return hvd.allreduce(variable, op=hvd.Sum), hvd.allreduce(constant, op=hvd.Sum)

    for _ in range(3):
        all_same(compute(), [expected] * 2)
        same(hvd.allreduce(variable, op=hvd.Sum), expected)
        same(hvd.allreduce(constant, op=hvd.Sum), expected)
        same(variable, mine((300,)))
        same(constant, mine((300,)))


def test_large_tensors(mode):
    count = 3_000_001
    total = hvd.size() * (hvd.size() + 1) / 2
    given = np.full(count, hvd.rank() + 1, np.float32)
    [actual] = run(mode, lambda tensors: [hvd.allreduce(tensors[0], op=hvd.Sum)], [given])
    assert actual.shape == (count,) and np.all(actual == total)


def test_shapes_are_known_before_anything_runs():
    with tf.Graph().as_default():
        known = tf.compat.v1.placeholder(tf.float32, (4, 3))
        open_rows = tf.compat.v1.placeholder(tf.float32, (None, 3))
        unknown = tf.compat.v1.placeholder(tf.float32)
        assert hvd.allreduce(known).shape == (4, 3)
        assert hvd.allreduce(open_rows).shape.as_list() == [None, 3]
        assert hvd.allreduce(unknown).shape.rank is None
        assert [result.shape for result in hvd.grouped_allreduce([known, known[0]])] == [(4, 3), (3,)]
        assert hvd.allgather(known).shape.as_list() == [None, 3]
        assert hvd.broadcast(known, 0).shape == (4, 3)
        assert hvd.alltoall(known).shape.as_list() == [None, 3]
        assert hvd.reducescatter(known).shape.as_list() == [None, 3]


def test_many_at_once_are_right(mode):
    shapes = [(index % 37 + 1,) for index in range(200)]

    def compute(tensors):
        return [hvd.allreduce(tensor, op=hvd.Sum, name=f"many.{index}") for index, tensor in enumerate(tensors)]

    actual = run(mode, compute, [mine(shape, seed=index) for index, shape in enumerate(shapes)])
    expected = [contributions(hvd.global_process_set, shape, seed=index) for index, shape in enumerate(shapes)]
    all_same(actual, [reduced(everybody, hvd.Sum) for everybody in expected])
