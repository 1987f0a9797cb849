"""States of training: committed, restored, made alike."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.exceptions import HorovodInternalError

pytestmark = pytest.mark.usefixtures("job")


def test_a_state_of_variables() -> None:
    variables = [tf.Variable([1.0 + hvd.rank()]), tf.Variable([[2, hvd.rank()]])]
    state = hvd.elastic.TensorFlowState(variables, batch=20 + hvd.rank(), seen=[])
    state.sync()
    assert variables[0].numpy() == [1] and variables[1].numpy().tolist() == [[2, 0]] and state.batch == 20
    variables[0].assign([7.0])
    state.batch = 21
    state.seen.append(1)
    state.restore()
    assert variables[0].numpy() == [1] and state.batch == 20 and state.seen == []
    variables[0].assign([7.0])
    state.batch = 21
    state.seen.append(1)
    state.commit()
    state.seen.append(2)
    state.restore()
    assert variables[0].numpy() == [7] and state.batch == 21 and state.seen == [1]


@pytest.mark.parametrize("resource", [False, True])
def test_a_state_of_a_graph(resource: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("weight", initializer=[1.0 + hvd.rank()], use_resource=resource)
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, epoch=hvd.rank())
        for _ in range(2):
            state.sync()
            assert session.run(variable) == [1] and state.epoch == 0
        variable.load([5.0], session)
        state.restore()
        assert session.run(variable) == [1]
        operations = len(session.graph.get_operations())
        state.commit()
        state.sync()
        assert len(session.graph.get_operations()) - operations < 5  # The broadcast is made once.


def test_a_state_of_a_model_of_keras() -> None:
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    state = hvd.elastic.TensorFlowKerasState(model, epoch=hvd.rank())
    state.sync()
    weights = model.get_weights()
    for theirs in hvd.allgather_object(weights):
        for mine, other in zip(weights, theirs):
            np.testing.assert_array_equal(mine, other)
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    assert model.optimizer.iterations.numpy() == 1
    state.restore()
    assert model.optimizer.iterations.numpy() == 0 and state.epoch == 0
    for mine, old in zip(model.get_weights(), weights):
        np.testing.assert_array_equal(mine, old)
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD())


def test_reset_callbacks() -> None:
    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)])
    called = []
    state.register_reset_callbacks([lambda: called.append(1)])
    state.on_reset()
    assert called == [1]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_function_begins_again_with_the_last_commit(compiled: bool) -> None:
    """All ranks raise what a lost rank would raise, and enter the next job."""
    variable = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([variable], batch=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    def add_up() -> None:
        variable.assign_add(hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="step"))

    step = tf.function(add_up) if compiled else add_up

    @hvd.elastic.run
    def train(state: object) -> str:
        while state.batch < 6:
            if state.batch == 3 and not resets:
                raise HorovodInternalError("a rank is lost")
            step()
            state.batch += 1
            if state.batch % 2 == 0:
                state.commit()
        return "done"

    assert train(state) == "done"
    assert resets == [hvd.size()] and state.batch == 6
    assert variable.numpy() == [6.0 * hvd.size()]


def test_errors_of_other_ops_end_the_function() -> None:
    """Horovod's wrapper swallows errors of TensorFlow that are not its own, and returns None."""

    @hvd.elastic.run
    def train(state: object) -> None:
        tf.debugging.assert_equal(1, 2)

    with pytest.raises(tf.errors.InvalidArgumentError):
        train(hvd.elastic.TensorFlowState([tf.Variable(1.0)]))
