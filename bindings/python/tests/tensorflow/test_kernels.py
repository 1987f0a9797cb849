"""What only the kernels know: names, memory that outputs take over, callbacks, and the texts of errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from farandole import _native
from farandole.exceptions import HorovodInternalError, RankLostError
from farandole.tensorflow import mpi_ops as hvd

pytestmark = pytest.mark.usefixtures("job")


def in_threads(*calls):
    """Runs each call in a thread of its own and returns what it returned or raised."""
    results = [None] * len(calls)

    def run(place, call):
        try:
            results[place] = call()
        except Exception as error:  # noqa: BLE001
            results[place] = error

    threads = [threading.Thread(target=run, args=(place, call)) for place, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "an operation hangs"
    return results


def test_kernels_do_not_block_threads_with_this_tensorflow():
    assert hvd.KERNELS_ARE_ASYNCHRONOUS


def test_eager_operations_are_matched_by_name_whatever_their_order():
    first, second = ("a", "b") if hvd.rank() == 0 else ("b", "a")
    begun = threading.Event()

    def ahead():
        begun.set()
        return hvd._allreduce(tf.constant(1.0 if first == "a" else 10.0), name=f"kernels_{first}")

    def behind():
        begun.wait()
        return hvd._allreduce(tf.constant(1.0 if second == "a" else 10.0), name=f"kernels_{second}")

    one, other = in_threads(ahead, behind)
    sums = {first: float(one), second: float(other)}
    assert sums == {"a": 1.0 * hvd.size(), "b": 10.0 * hvd.size()}


def test_a_name_scope_counts_unless_it_is_ignored():
    @tf.function
    def in_a_scope_of_its_own(x):
        with tf.name_scope(f"of_rank_{hvd.rank()}"):
            return hvd._allreduce(x, name="kernels_without_scope", ignore_name_scope=True)

    assert in_a_scope_of_its_own(tf.ones(3)).numpy().tolist() == [hvd.size()] * 3


def test_an_input_that_others_read_keeps_its_value():
    @tf.function
    def shared(x):
        doubled = x * 2.0
        return hvd._allreduce(doubled, name="kernels_shared"), doubled, tf.reduce_sum(doubled)

    @tf.function
    def taken_over(x):
        return hvd._allreduce(x * 2.0, name="kernels_taken_over")

    x = tf.range(5.0)
    total, doubled, summed = shared(x)
    assert np.array_equal(total, doubled * hvd.size())
    assert doubled.numpy().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0] and float(summed) == 20.0
    assert np.array_equal(taken_over(x), total)
    assert np.array_equal(hvd._allreduce(x, name="kernels_eager"), x * hvd.size())
    assert x.numpy().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def peak_of(call):
    """How many bytes of memory the process has more at its peak while this runs than before."""

    def status(line):
        with open("/proc/self/status") as lines:
            return next(int(words.split()[1]) << 10 for words in lines if words.startswith(line))

    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = status("VmRSS:")
    call()
    return status("VmHWM:") - before


@pytest.mark.parametrize("size", [1, 3])
def test_an_output_takes_over_memory_that_nobody_else_needs(size):
    elements, name = 8 << 20, f"kernels_memory_{size}"

    @tf.function
    def reduced(x):
        made = [tf.fill([elements], x + index) for index in range(size)]
        results = [hvd._allreduce(made[0], name=name)] if size == 1 else hvd._grouped_allreduce(made, name=name)
        return tf.stack([result[0] for result in results])

    expected = (np.arange(size) + 2.0) * hvd.size()
    assert np.array_equal(reduced(tf.constant(2.0)), expected)
    taken = min(peak_of(lambda: reduced(tf.constant(2.0))) for _ in range(3))
    # Inputs and outputs apart are twice as much.
    assert taken < 1.5 * size * elements * 4, f"{taken >> 20} MB for {size * elements * 4 >> 20} MB of inputs"


def test_tensorflow_merges_no_collectives_and_computes_none_in_advance():
    for op_type in ("HorovodAllreduce", "HorovodAllgather", "HorovodBroadcast", "HorovodSize", "HorovodJoin"):
        assert op_def_registry.get(op_type).is_stateful, op_type

    @tf.function
    def same_inputs():
        asked = [hvd._allreduce(tf.ones(2), name=f"kernels_same_{index}") for index in range(4)]
        return tf.stack(asked)

    # A merged or precomputed node would be missing on some rank in some step.
    for _ in range(3):
        assert np.array_equal(same_inputs(), np.full((4, 2), hvd.size()))


def test_collectives_of_a_function_need_no_order():
    @tf.function
    def independent(x):
        return [hvd._allreduce(x, name=f"kernels_free_{index}") for index in range(3)]

    graph = independent.get_concrete_function(tf.TensorSpec([2])).graph
    nodes = [node for node in graph.get_operations() if node.type == "HorovodAllreduce"]
    assert len(nodes) == 3 and all(not node.control_inputs for node in nodes)


def test_iterations_of_a_loop_that_are_under_way_together_have_names_of_their_own():
    @tf.function
    def loop(x):
        def body(index, total):
            return index + 1, total + hvd._allreduce(x * tf.cast(index, tf.float32), name="kernels_loop")

        return tf.while_loop(lambda index, _: index < 100, body, (0, tf.zeros_like(x)), parallel_iterations=10)[1]

    assert loop(tf.ones(2)).numpy().tolist() == [4950.0 * hvd.size()] * 2


def test_many_tensors_of_any_type_in_one_call():
    tensors = [tf.ones(3), tf.constant([[1, 2]], tf.int64), tf.constant(True), tf.ones((2, 0), tf.float64)]
    names = [f"kernels_many_{index}" for index in range(len(tensors))]
    sums = hvd._allreduce_many(tensors, names)
    assert [value.dtype for value in sums] == [tensor.dtype for tensor in tensors]
    assert sums[0].numpy().tolist() == [hvd.size()] * 3 and sums[1].numpy().tolist() == [[hvd.size(), 2 * hvd.size()]]
    assert bool(sums[2]) and sums[3].shape == (2, 0)
    # The same names one by one: they are requests like any other.
    again = [hvd._allreduce(tensor, name=name) for tensor, name in zip(tensors, names)]
    assert all(np.array_equal(one, other) for one, other in zip(sums, again))
    with pytest.raises(ValueError, match="4 tensors and 1 names"):
        hvd._allreduce_many(tensors, names[:1])


def test_many_tensors_have_gradients():
    x = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    with tf.GradientTape() as tape:
        sums = hvd._allreduce_many(x, ["kernels_grad_a", "kernels_grad_b"], op=hvd.Average)
        loss = tf.add_n([tf.reduce_sum(value) for value in sums])
    assert [grad.numpy().tolist() for grad in tape.gradient(loss, x)] == [[1.0, 1.0], [1.0]]


def test_variables_get_the_values_of_the_root():
    root = hvd.size() - 1
    variables = [tf.Variable([float(hvd.rank())] * 3), tf.Variable(hvd.rank()), tf.Variable(hvd.rank() == root)]
    values = hvd.broadcast_(variables, root)
    assert [value.numpy().tolist() for value in values] == [[root] * 3, root, True]
    assert [variable.numpy().tolist() for variable in variables] == [[root] * 3, root, True]


def test_wrong_splits_are_wrong_use_and_disagreement_is_a_precondition():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Sum of splits entries"):
        hvd.alltoall(tf.ones(2), splits=[5] * hvd.size(), name="kernels_splits")
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched ALLREDUCE tensor shapes"):
        hvd._allreduce(tf.ones(2 + hvd.rank()), name="kernels_shapes")
    assert hvd._allreduce(tf.constant(1.0), name="kernels_after").numpy() == hvd.size()


def test_registration_is_done_once_and_names_what_is_missing():
    library = tf.sysconfig.get_lib() + "/libtensorflow_framework.so.2"
    assert _native.register_tensorflow_ops(library, tf.__version__) == hvd.KERNELS_ARE_ASYNCHRONOUS
    with pytest.raises(ImportError, match="no_such_library.so is not loaded"):
        _native.register_tensorflow_ops("/no_such_library.so", tf.__version__)


def test_an_error_of_a_graph_tells_whether_the_job_can_go_on():
    refused = tf.errors.FailedPreconditionError(None, None, "shapes differ")
    assert hvd.internal_error(refused) is None and hvd.internal_error(ValueError("farandole.StallError: no")) is None
    other = tf.errors.UnknownError(None, None, "MismatchError: of another library")
    assert hvd.internal_error(other) is None
    ended = tf.errors.UnknownError(None, None, "Graph execution error: farandole.RankLostError: rank 1 was killed")
    converted = hvd.internal_error(ended)
    assert isinstance(converted, RankLostError) and isinstance(converted, tf.errors.UnknownError)
    assert isinstance(converted, HorovodInternalError)
    assert "rank 1 was killed" in str(converted)


# The last: the job is over after it.
def test_operations_that_are_under_way_at_shutdown_end_with_an_error():
    @tf.function
    def never_done():
        return [hvd._allreduce(tf.ones(2), name=f"kernels_never_{hvd.rank()}_{index}") for index in range(50)]

    @tf.function
    def same_name_twice():
        asked = []
        for scope in ("one", "other"):
            with tf.name_scope(scope):
                name = f"kernels_twice_{hvd.rank()}"
                asked.append(hvd._allreduce(tf.ones(2), name=name, ignore_name_scope=True))
        return asked

    never_done.get_concrete_function()
    same_name_twice.get_concrete_function()
    hvd.barrier(name="kernels_before_shutdown")

    def leave():
        threading.Event().wait(0.5)
        hvd.shutdown()

    eager = lambda: hvd._allreduce(tf.ones(2), name=f"kernels_never_{hvd.rank()}")  # noqa: E731
    graph, twice, single, _ = in_threads(never_done, same_name_twice, eager, leave)
    # Whichever rank is first has shut down itself; the others wait for one that has left.
    ended = ("has been shut down by this rank", "left the job")
    assert isinstance(graph, tf.errors.UnknownError) and any(words in graph.message for words in ended), graph
    assert isinstance(hvd.internal_error(graph), HorovodInternalError)
    assert isinstance(twice, tf.errors.InvalidArgumentError), twice
    assert "with the same name as another tensor" in twice.message, twice
    assert isinstance(single, HorovodInternalError) and any(words in str(single) for words in ended), single
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized; use hvd.init()"):
        hvd._allreduce(tf.ones(2))
