"""Gradients of the collectives, against TensorFlow's own of the joined computation.

In the joined computation one process has the tensors of all ranks, does with plain TensorFlow what the collective does,
and adds up the ranks' losses. Horovod's rules give, for some collectives, the gradient of the mean of the losses
(allgather, broadcast) or of the sum times the number of ranks (reducescatter); scripts are tuned to that, so it is
asked for here.
"""

import numpy as np
import pytest
import tensorflow as tf
from cases import MODES, all_same, mine, run, same

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


def weights(rank, shape):
    """What makes the loss of each rank a different one."""
    return np.random.default_rng([99, rank]).integers(1, 5, shape).astype(np.float32)


def loss_of(rank, output):
    """A loss whose gradient depends on the output itself."""
    return tf.reduce_sum(output * output * weights(rank, output.shape))


def given(rank, shape):
    return np.random.default_rng([7, rank]).integers(-4, 5, shape).astype(np.float32)


def own_gradients(collective, mode, shapes, process_set):
    """This rank's gradients through the real collective, of its own loss."""

    def compute(tensors):
        if mode == "graph":
            outputs = collective(tensors)
            return tf.gradients(sum(loss_at_run_time(output) for output in outputs), tensors)
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = sum(loss_at_run_time(output) for output in collective(tensors))
        return tape.gradient(loss, tensors)

    def loss_at_run_time(output):
        """As `loss_of`, where the number of rows is known only when it runs."""
        scale = tf.numpy_function(lambda shape: weights(hvd.rank(), tuple(shape)), [tf.shape(output)], tf.float32)
        return tf.reduce_sum(output * output * scale)

    return run(mode, compute, [given(hvd.rank(), shape) for shape in shapes[hvd.rank()]])


def joined_gradients(joined, shapes, process_set):
    """The gradients of the sum of all ranks' losses with respect to this rank's tensors.

    `joined` maps all ranks' tensors to all ranks' outputs.
    """
    tensors = {rank: [tf.constant(given(rank, shape)) for shape in shapes[rank]] for rank in process_set.ranks}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = joined(tensors)
        loss = sum(loss_of(rank, output) for rank, out in outputs.items() for output in out)
    return [gradient.numpy() for gradient in tape.gradient(loss, tensors[hvd.rank()])]


def check(mode, process_set, shapes, collective, joined, times=1.0):
    """Compares both, the joined one taken `times`."""
    actual = own_gradients(collective, mode, shapes, process_set)
    expected = joined_gradients(joined, shapes, process_set)
    assert any(np.any(gradient != 0) for gradient in expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, times * other, rtol=1e-5, atol=1e-4)


def total(tensors, index):
    return tf.add_n([one[index] for one in tensors.values()])


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["Sum", "Average"])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, 3.0)], ids=["plain", "scaled"])
def test_allreduce(mode, op, factors, sets):
    for process_set in sets:
        how = dict(op=op, prescale_factor=factors[0], postscale_factor=factors[1], process_set=process_set)
        share = factors[0] * factors[1] / (process_set.size() if op == hvd.Average else 1)
        shapes = {rank: [(4, 3), (5,)] for rank in process_set.ranks}

        def joined(tensors):
            return {rank: [total(tensors, index) * share for index in range(2)] for rank in tensors}

        check(mode, process_set, shapes, lambda tensors: [hvd.allreduce(t, **how) for t in tensors], joined)
        check(mode, process_set, shapes, lambda tensors: hvd.grouped_allreduce(tensors, **how), joined)


def test_allgather(mode, sets):
    for process_set in sets:
        shapes = {rank: [(rank + 1, 2), (3 - rank % 3, 2)] for rank in process_set.ranks}

        def joined(tensors):
            return {rank: [tf.concat([one[i] for one in tensors.values()], 0) for i in range(2)] for rank in tensors}

        times = 1 / process_set.size()
        own = dict(process_set=process_set)
        check(mode, process_set, shapes, lambda ts: [hvd.allgather(t, **own) for t in ts], joined, times)
        check(mode, process_set, shapes, lambda ts: hvd.grouped_allgather(ts, **own), joined, times)


def test_broadcast(mode, sets):
    for process_set in sets:
        shapes = {rank: [(4, 2)] for rank in process_set.ranks}
        for root in process_set.ranks:

            def collective(tensors):
                return [hvd.broadcast(tensors[0], root, process_set=process_set)]

            actual = own_gradients(collective, mode, shapes, process_set)[0]
            value = tf.constant(given(root, (4, 2)))
            with tf.GradientTape() as tape:
                tape.watch(value)
                loss = sum(loss_of(rank, tf.identity(value)) for rank in process_set.ranks)
            at_root = tape.gradient(loss, value).numpy() / process_set.size()
            expected = at_root if hvd.rank() == root else np.zeros((4, 2))
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


def test_alltoall(mode, sets):
    for process_set in sets:
        ranks = process_set.ranks
        splits = {rank: [1 + (rank + target) % 2 for target in ranks] for rank in ranks}
        shapes = {rank: [(sum(splits[rank]), 2)] for rank in ranks}

        def joined(tensors):
            parts = {rank: tf.split(tensors[rank][0], splits[rank]) for rank in ranks}
            received = [tf.concat([parts[source][place] for source in ranks], 0) for place in range(len(ranks))]
            return {rank: [output] for rank, output in zip(ranks, received)}

        def collective(tensors):
            return [hvd.alltoall(tensors[0], splits=splits[hvd.rank()], process_set=process_set)[0]]

        check(mode, process_set, shapes, collective, joined)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["Sum", "Average"])
def test_reducescatter(mode, op, sets):
    for process_set in sets:
        size = process_set.size()
        shapes = {rank: [(2 * size + 1, 2), (size, 3)] for rank in process_set.ranks}
        share = 0.5 / (size if op == hvd.Average else 1)

        def joined(tensors):
            outputs = {rank: [] for rank in process_set.ranks}
            for index in range(2):
                whole = total(tensors, index) * share
                few, more = divmod(whole.shape[0], size)
                counts = [few + (place < more) for place in range(size)]
                for rank, part in zip(process_set.ranks, tf.split(whole, counts)):
                    outputs[rank].append(part)
            return outputs

        how = dict(op=op, process_set=process_set, postscale_factor=0.5)
        check(mode, process_set, shapes, lambda ts: [hvd.reducescatter(t, **how) for t in ts], joined, size)
        check(mode, process_set, shapes, lambda ts: hvd.grouped_reducescatter(ts, **how), joined, size)


def test_types_of_gradients_are_those_of_the_tensors():
    for dtype in (tf.float16, tf.bfloat16, tf.float64):
        tensor = tf.ones((3, 2), dtype)
        for collective in (hvd.allreduce, hvd.allgather, hvd.reducescatter, lambda t: hvd.broadcast(t, 0)):
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                loss = tf.reduce_sum(collective(tensor))
            assert tape.gradient(loss, tensor).dtype == dtype


def test_gradients_of_gradients():
    tensor = tf.constant(mine((4,)) + 1.0)
    with tf.GradientTape() as outer:
        outer.watch(tensor)
        with tf.GradientTape() as inner:
            inner.watch(tensor)
            loss = tf.reduce_sum(hvd.allreduce(tensor, op=hvd.Sum) ** 3)
        first = inner.gradient(loss, tensor)
    size = hvd.size()
    reduced = hvd.allreduce(tensor, op=hvd.Sum)
    same(first, (3 * size * reduced**2).numpy())
    same(outer.gradient(first, tensor), (6 * size * size * reduced).numpy())


def test_a_group_of_which_one_output_is_not_used():
    def compute(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = tf.reduce_sum(hvd.grouped_allreduce(tensors, op=hvd.Sum)[1])
        return tape.gradient(loss, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    size = float(hvd.size())
    for mode in ("eager", "function"):
        all_same(run(mode, compute, [mine((3,)), mine((2,))]), [np.zeros(3, np.float32), np.full(2, size, np.float32)])


def test_ranks_may_ask_for_gradients_in_any_order():
    """The names of gradients' operations are the graph's, so backward passes meet whatever the order of execution."""

    @tf.function
    def compute(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = [hvd.allreduce(tensor, op=hvd.Sum, name=f"mixed.{i}") for i, tensor in enumerate(tensors)]
            loss = tf.add_n([tf.reduce_sum(output * float(i + 1)) for i, output in enumerate(outputs)])
        return tape.gradient(loss, tensors)

    gradients = compute([tf.constant(mine((i + 1,))) for i in range(20)])
    all_same(gradients, [np.full(i + 1, hvd.size() * (i + 1), np.float32) for i in range(20)])
