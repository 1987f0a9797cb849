"""Broadcast of variables in their own memory."""

import numpy as np
import pytest
import tensorflow as tf
from cases import DTYPES, all_same, contribution, mine, same

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")

SHAPES = [(), (3,), (4, 2), (0, 3)]


def test_variables_get_the_roots_values(sets):
    for process_set in sets:
        for root in process_set.ranks:
            for dtype in DTYPES:
                variables = [tf.Variable(mine(shape, dtype)) for shape in SHAPES]
                returned = hvd.broadcast_(variables, root, name="in_place", process_set=process_set)
                expected = [contribution(root, shape, dtype) for shape in SHAPES]
                all_same(returned, expected)
                all_same(variables, expected)


def test_in_a_function(sets):
    for process_set in sets:
        variables = [tf.Variable(mine(shape)) for shape in SHAPES]

        @tf.function
        def compute():
            return hvd.broadcast_(variables, process_set.ranks[-1], process_set=process_set)

        compute()
        all_same(variables, [contribution(process_set.ranks[-1], shape) for shape in SHAPES])


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_in_a_session(resource):
    with tf.Graph().as_default():
        variables = [
            tf.compat.v1.get_variable(f"v{i}_{resource}", initializer=mine(shape), use_resource=resource)
            for i, shape in enumerate(SHAPES[:3])
        ]
        operation = hvd.broadcast_(variables, hvd.size() - 1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(operation)
            all_same(session.run(variables), [contribution(hvd.size() - 1, shape) for shape in SHAPES[:3]])


def test_readers_that_came_before_keep_what_they_read():
    """A value that was read is a tensor of its own; the broadcast must not write into it."""
    variable = tf.Variable(mine((500,)))
    before = variable.read_value()
    hvd.broadcast_([variable], 0)
    same(before, mine((500,)))
    same(variable, contribution(0, (500,)))


def test_variables_of_both_kinds_in_one_call():
    """Horovod refuses this; here it works."""
    with tf.Graph().as_default():
        new = tf.compat.v1.get_variable("new", initializer=mine((2,)), use_resource=True)
        old = tf.compat.v1.get_variable("old", initializer=mine((3,)), use_resource=False)
        operation = hvd.broadcast_([new, old], 0)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(operation)
            all_same(session.run([new, old]), [contribution(0, (2,)), contribution(0, (3,))])


def test_shapes_that_differ_are_refused():
    variable = tf.Variable(np.ones(2 + hvd.rank(), np.float32))
    with pytest.raises(tf.errors.OpError, match="Mismatched BROADCAST tensor shapes"):
        hvd.broadcast_([variable], 0, name="unequal")
    same(variable, np.ones(2 + hvd.rank(), np.float32))
