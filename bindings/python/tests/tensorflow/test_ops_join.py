"""Ranks that run out of data join, and the others go on without them."""

import numpy as np
import pytest
import tensorflow as tf
from cases import contributions, mine, reduced, same

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")


def steps_of(rank):
    """Rank 0 has the fewest steps, the last one the most."""
    return 2 + rank


def check_steps(step):
    """Runs as many steps as this rank has; in each the ranks that are still there add up."""
    for number in range(steps_of(hvd.rank())):
        there = [rank for rank in range(hvd.size()) if steps_of(rank) > number]
        everybody = contributions(hvd.global_process_set, (4,), seed=number)
        same(step(tf.constant(mine((4,), seed=number))), reduced([everybody[rank] for rank in there], hvd.Sum))


def test_joined_ranks_contribute_nothing():
    def step(tensor):
        return hvd.allreduce(tensor, op=hvd.Sum, name="join.step")

    for compute in (step, tf.function(step)):
        check_steps(compute)
        last = hvd.join()
        assert np.asarray(last).shape == () and int(last) == hvd.size() - 1


def test_an_average_is_over_the_world():
    """As in Horovod, a rank that has joined still counts when the sum is divided."""
    if hvd.rank() != 0:
        same(hvd.allreduce(tf.ones(3), name="join.average"), np.full(3, (hvd.size() - 1) / hvd.size(), np.float32))
    hvd.join()


def test_join_in_a_function_and_in_a_session():
    @tf.function
    def join():
        return hvd.join()

    assert 0 <= int(join()) < hvd.size()
    with tf.Graph().as_default():
        operation = hvd.join()
        with tf.compat.v1.Session() as session:
            assert 0 <= int(session.run(operation)) < hvd.size()


def test_all_goes_on_after_everybody_has_joined():
    hvd.join()
    same(hvd.allgather(tf.constant(mine((2,)))), np.concatenate(contributions(hvd.global_process_set, (2,))))
