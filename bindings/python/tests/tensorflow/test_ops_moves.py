"""Allgather, broadcast, alltoall and reducescatter: every element type, way of running and process set, against
NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from cases import DTYPES, FLOATS, MODES, SHAPES, all_same, by_parity, contribution, contributions, mine, reduced
from cases import rows_of, run, same

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


def rows(rank):
    """How many rows a rank has where they may differ; one rank has none."""
    return (2 * rank + 3) % 5


def test_allgather(mode, sets):
    for process_set in sets:

        def compute(tensors):
            return [hvd.allgather(t, name=f"gather.{i}", process_set=process_set) for i, t in enumerate(tensors)]

        actual = run(mode, compute, [mine((rows(hvd.rank()), 3), dtype) for dtype in DTYPES])
        expected = [
            np.concatenate([contribution(rank, (rows(rank), 3), dtype) for rank in process_set.ranks])
            for dtype in DTYPES
        ]
        all_same(actual, expected)


def test_grouped_allgather(mode, sets):
    for process_set in sets:

        def compute(tensors):
            pairs = [tensors[start : start + 2] for start in range(0, len(tensors), 2)]
            return [result for pair in pairs for result in hvd.grouped_allgather(pair, process_set=process_set)]

        cases = [case for dtype in DTYPES for case in ((1, dtype), (2, dtype))]
        actual = run(mode, compute, [mine((rows(hvd.rank()) + more, 2), dtype) for more, dtype in cases])
        expected = [
            np.concatenate([contribution(rank, (rows(rank) + more, 2), dtype) for rank in process_set.ranks])
            for more, dtype in cases
        ]
        all_same(actual, expected)


def test_broadcast_from_every_root(mode, sets):
    for process_set in sets:
        for root in process_set.ranks:

            def compute(tensors):
                how = dict(process_set=process_set)
                return [hvd.broadcast(t, root, name=f"from.{i}", **how) for i, t in enumerate(tensors)]

            cases = [(shape, dtype) for dtype in DTYPES for shape in ((), (0, 3), (5, 2))]
            actual = run(mode, compute, [mine(*case) for case in cases])
            all_same(actual, [contribution(root, *case) for case in cases])


def sent(source, target):
    """How many rows a rank sends to another."""
    return (source + 2 * target) % 3


def test_alltoall_with_splits(mode, sets):
    for process_set in sets:
        ranks = process_set.ranks
        splits = np.array([sent(hvd.rank(), target) for target in ranks], np.int32)
        everybody = {rank: sum(sent(rank, target) for target in ranks) for rank in ranks}

        def compute(tensors):
            results = [
                hvd.alltoall(t, splits=splits, name=f"all.{i}", process_set=process_set) for i, t in enumerate(tensors)
            ]
            return [part for result in results for part in result]

        actual = run(mode, compute, [mine((everybody[hvd.rank()], 2), dtype) for dtype in DTYPES])
        received = np.array([sent(source, hvd.rank()) for source in ranks], np.int32)
        for dtype, output, counts in zip(DTYPES, actual[0::2], actual[1::2]):
            parts = []
            for source in ranks:
                start = sum(sent(source, target) for target in ranks if target < hvd.rank())
                theirs = contribution(source, (everybody[source], 2), dtype)
                parts.append(theirs[start : start + sent(source, hvd.rank())])
            same(output, np.concatenate(parts))
            same(counts, received)


def test_alltoall_in_equal_parts(mode, sets):
    for process_set in sets:
        size, place = process_set.size(), process_set.rank()

        def compute(tensors):
            return [hvd.alltoall(t, name=f"equal.{i}", process_set=process_set) for i, t in enumerate(tensors)]

        actual = run(mode, compute, [mine((2 * size,), dtype) for dtype in DTYPES])
        expected = [
            np.concatenate([one[2 * place : 2 * place + 2] for one in contributions(process_set, (2 * size,), dtype)])
            for dtype in DTYPES
        ]
        all_same(actual, expected)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
def test_reducescatter(op, mode, sets):
    for process_set in sets:
        shapes = [(process_set.size(), 2), (2 * process_set.size() + 1,), (1, 2)]
        cases = [(shape, dtype) for dtype in DTYPES for shape in shapes]

        def compute(tensors):
            return [
                hvd.reducescatter(t, op=op, name=f"scatter.{i}", process_set=process_set) for i, t in enumerate(tensors)
            ]

        actual = run(mode, compute, [mine(*case) for case in cases])
        expected = [rows_of(process_set, reduced(contributions(process_set, *case), op)) for case in cases]
        all_same(actual, expected)


def test_grouped_reducescatter_and_factors(mode, sets):
    for process_set in sets:
        how = dict(op=hvd.Sum, process_set=process_set, prescale_factor=0.5, postscale_factor=4.0)

        def compute(tensors):
            pairs = [tensors[start : start + 2] for start in range(0, len(tensors), 2)]
            grouped = [result for pair in pairs for result in hvd.grouped_reducescatter(pair, **how)]
            return grouped + [hvd.reducescatter(tensors[0], **how)]

        cases = [case for dtype in FLOATS for case in (((5, 2), dtype), ((7,), dtype))]
        actual = run(mode, compute, [mine(*case) for case in cases])
        expected = [
            rows_of(process_set, reduced(contributions(process_set, *case), hvd.Sum, 0.5, 4.0)) for case in cases
        ]
        all_same(actual, expected + expected[:1])


def test_sizes_that_only_one_rank_knows_at_run_time():
    """Rows are a matter of values: nothing of the shape is known when the function is traced."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def gather(tensor):
        return hvd.allgather(tensor)

    for count in range(3):
        given = mine((count + rows(hvd.rank()), 2))
        expected = [contribution(rank, (count + rows(rank), 2)) for rank in range(hvd.size())]
        same(gather(given), np.concatenate(expected))


def test_a_strided_slice_and_a_transposed_tensor():
    given = tf.constant(mine((6, 4)))
    everybody = contributions(hvd.global_process_set, (6, 4))
    same(hvd.allgather(given[::2, 1]), np.concatenate([one[::2, 1] for one in everybody]))
    same(hvd.allreduce(tf.transpose(given), op=hvd.Sum), reduced(everybody, hvd.Sum).T)


def test_broadcast_of_what_differs_in_value_only_takes_the_roots():
    for root in range(hvd.size()):
        given = tf.fill((3,), float(by_parity(1, 2) + hvd.rank()))
        same(hvd.broadcast(given, root), np.full(3, root + 1 + root % 2, np.float32))


def test_empty_groups_are_nothing_to_do():
    assert list(hvd.grouped_allreduce([])) == []
    assert list(hvd.grouped_allgather([])) == []
    assert list(hvd.grouped_reducescatter([])) == []


def test_all_shapes_of_a_reduction_are_gathered_back():
    """What reducescatter takes apart allgather puts together."""
    for shape in SHAPES[1:]:
        parts = hvd.reducescatter(tf.constant(mine(shape)), op=hvd.Sum)
        same(hvd.allgather(parts), reduced(contributions(hvd.global_process_set, shape), hvd.Sum))
