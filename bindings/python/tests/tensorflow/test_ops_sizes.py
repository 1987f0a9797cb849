"""Sizes and ranks as operations, evaluated when the graph runs."""

import numpy as np
import pytest
import tensorflow as tf
from cases import MODES, run

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


def test_sizes_and_ranks(mode):
    operations = {
        hvd.size_op: hvd.size,
        hvd.rank_op: hvd.rank,
        hvd.local_size_op: hvd.local_size,
        hvd.local_rank_op: hvd.local_rank,
    }
    actual = run(mode, lambda _: [operation() for operation in operations], [])
    assert [value.dtype for value in actual] == [np.int32] * 4
    assert [int(value) for value in actual] == [function() for function in operations.values()]


def test_process_sets(mode, sets):
    for process_set in sets:
        number = process_set.process_set_id
        actual = run(mode, lambda _: [hvd.size_op(number), hvd.process_set_included_op(number)], [])
        assert [int(value) for value in actual] == [process_set.size(), 1]


def test_sets_that_this_rank_is_in_and_others(mode, sets):
    ranks_of = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    assert any(hvd.rank() not in ranks for ranks in ranks_of.values())
    actual = run(mode, lambda _: [hvd.process_set_included_op(number) for number in ranks_of], [])
    assert [int(value) for value in actual] == [int(hvd.rank() in ranks) for ranks in ranks_of.values()]


def test_a_set_that_does_not_exist():
    # Horovod's error codes: -3 stands for an unknown set.
    assert int(hvd.process_set_included_op(4711)) == -3


def test_the_name_of_an_operation_is_the_callers():
    with tf.Graph().as_default():
        assert hvd.size_op(name="how_many").op.name == "how_many"
        assert hvd.rank_op(name="who").op.type == "HorovodRank"
