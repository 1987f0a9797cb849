"""What does not fit together is refused on every rank, with Horovod's words, and the job goes on. Needs two ranks or
more."""

import numpy as np
import pytest
import tensorflow as tf
from cases import MODES, by_parity, contributions, mine, reduced, run, same

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture(autouse=True)
def the_job_goes_on():
    yield
    expected = reduced(contributions(hvd.global_process_set, (3,)), hvd.Sum)
    same(hvd.allreduce(tf.constant(mine((3,))), op=hvd.Sum), expected)


def refused(words):
    """Horovod's TensorFlow ops fail with this error of TensorFlow's when ranks do not agree."""
    return pytest.raises(tf.errors.FailedPreconditionError, match=words)


ASKED = {
    "allreduce": lambda t: hvd.allreduce(t, name="asked"),
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([t, t + t], name="asked"),
    "broadcast": lambda t: hvd.broadcast(t, 0, name="asked"),
    "reducescatter": lambda t: hvd.reducescatter(t, name="asked"),
    "allgather": lambda t: hvd.allgather(t, name="asked"),
    "alltoall": lambda t: hvd.alltoall(t, name="asked"),
}


@pytest.mark.parametrize("kind", ["allreduce", "grouped_allreduce", "broadcast", "reducescatter"])
def test_shapes(kind, mode):
    for even, odd in [((4, 3), (4, 2)), ((12,), (3, 4))]:
        with refused("Mismatched [A-Z]+ tensor shapes: One rank sent a tensor of shape"):
            run(mode, lambda tensors: ASKED[kind](tensors[0]), [np.ones(by_parity(even, odd), np.float32)])


@pytest.mark.parametrize("kind", ASKED)
def test_types(kind, mode):
    given = np.ones(4 * hvd.size(), by_parity(np.float32, np.int32))
    with refused("Mismatched data types: One rank had type"):
        run(mode, lambda tensors: ASKED[kind](tensors[0]), [given])


@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
def test_rows_of_what_is_gathered_or_sent(kind, mode):
    with refused("tensor shapes: One rank sent a tensor with dimension 1 equal to"):
        run(mode, lambda tensors: ASKED[kind](tensors[0]), [np.ones((hvd.size(), by_parity(2, 3)), np.float32)])
    with refused("tensor shapes: One rank sent a tensor of rank"):
        shape = by_parity((hvd.size(),), (hvd.size(), 2))
        run(mode, lambda tensors: ASKED[kind](tensors[0]), [np.ones(shape, np.float32)])


def test_operations_factors_and_roots(mode):
    given = [np.ones(2, np.float32)]
    with refused("Mismatched reduce operations"):
        run(mode, lambda tensors: hvd.allreduce(tensors[0], op=by_parity(hvd.Sum, hvd.Max)), given)
    with refused("Mismatched prescale and/or postscale factors"):
        run(mode, lambda tensors: hvd.allreduce(tensors[0], prescale_factor=by_parity(1.0, 2.0)), given)
    with refused("Mismatched prescale and/or postscale factors"):
        run(mode, lambda tensors: hvd.reducescatter(tensors[0], postscale_factor=by_parity(1.0, 2.0)), given)
    with refused("Mismatched BROADCAST root ranks: One rank specified root rank"):
        run(mode, lambda tensors: hvd.broadcast(tensors[0], by_parity(0, 1)), given)


@pytest.mark.parametrize("kind", ["allgather", "alltoall", "reducescatter"])
def test_scalars_have_no_rows(kind):
    with pytest.raises((tf.errors.OpError, ValueError)) as failure:
        ASKED[kind](tf.constant(1.0))
    assert "rank-zero" in str(failure.value) or "at least rank 1" in str(failure.value)


def test_splits(mode):
    size = hvd.size()
    for count, splits, words in [
        (size + 1, None, "splits not provided, but first dimension of tensor is not an even multiple"),
        (size - 1, [1] * size, "Sum of splits entries is greater than the first dimension"),
        (size, [1] * (size + 1), "Number of entries in splits does not equal"),
    ]:
        with pytest.raises(tf.errors.OpError, match=words):
            run(mode, lambda tensors: hvd.alltoall(tensors[0], splits=splits), [np.ones(count, np.float32)])


def test_a_root_outside_of_the_set(sets):
    own = sets[1]
    other = next(rank for rank in range(hvd.size()) if rank not in own.ranks)
    for root in (other, hvd.size(), -1):
        with pytest.raises((tf.errors.OpError, ValueError), match="root rank"):
            hvd.broadcast(tf.ones(2), root, process_set=own)


def test_types_that_no_rank_can_send():
    for tensor in (tf.constant(["text"]), tf.ones(2, tf.complex64)):
        for ask in (hvd.allreduce, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter):
            with pytest.raises((tf.errors.OpError, TypeError, ValueError)):
                ask(tensor)


def test_one_failure_ends_the_session_run_and_names_the_operation():
    with tf.Graph().as_default():
        fine = hvd.allreduce(tf.ones(3), op=hvd.Sum, name="fine")
        wrong = hvd.allreduce(tf.ones(by_parity(2, 4)), name="wrong")
        with tf.compat.v1.Session() as session:
            with refused("wrong"):
                session.run(wrong)
            same(session.run(fine), np.full(3, hvd.size(), np.float32))


def test_one_member_of_a_group_that_does_not_fit_takes_the_others_along(mode):
    given = [np.ones(3, np.float32), np.ones(by_parity(2, 4), np.float32), np.ones(1, np.float32)]
    with refused("Mismatched ALLREDUCE tensor shapes"):
        run(mode, lambda tensors: hvd.grouped_allreduce(tensors), given)


def test_a_number_that_stands_for_no_set(mode):
    process_set = hvd.ProcessSet([0])
    process_set.process_set_id = 4711
    with pytest.raises(ValueError, match="does not exist or has not been registered"):
        run(mode, lambda tensors: hvd.allreduce(tensors[0], process_set=process_set), [np.ones(2, np.float32)])
