"""The ops in functions that XLA compiles: `jit_compile=True` gives what the same function gives without."""


import keras
import numpy as np
import pytest
import tensorflow as tf
from waiting import lapse

import farandole.tensorflow as hvd
from farandole.tensorflow import mpi_ops

pytestmark = pytest.mark.usefixtures("job")

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
DTYPES = FLOATS + [tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64]


def own(shape: list[int], dtype: tf.DType = tf.float32, seed: int = 0) -> tf.Tensor:
    """A tensor that differs from rank to rank."""
    numbers = np.random.default_rng(100 * seed + hvd.rank()).integers(0, 5, shape)
    return tf.cast(tf.constant(numbers), dtype)


def compiled(function):
    return tf.function(function, jit_compile=True)


def assert_same_compiled(function, *tensors) -> None:
    """The same bits, compiled and not."""
    expected = tf.nest.flatten(tf.function(function)(*tensors))
    for result, value in zip(tf.nest.flatten(compiled(function)(*tensors)), expected, strict=True):
        assert result.dtype == value.dtype and result.shape == value.shape
        assert result.numpy().tobytes() == value.numpy().tobytes()


# --- each op ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_op_takes_every_element_type(dtype):
    size, root = hvd.size(), hvd.size() - 1
    rows = 2 * size

    def every_op(tensor):
        uneven = tf.concat([tensor, tensor[:1]], 0)
        reduction = mpi_ops.Max if dtype == tf.bool else mpi_ops.Sum
        return [
            mpi_ops._allreduce(tensor, op=reduction, name="reduced"),
            mpi_ops._grouped_allreduce([tensor, tensor[0]], op=reduction, name="group"),
            mpi_ops._allreduce_many([tensor, tensor[0]], ["many.0", "many.1"], op=reduction),
            mpi_ops._broadcast_many([tensor, tensor[0]], ["sent.0", "sent.1"], root),
            mpi_ops.allgather(tensor, name="gathered"),
            mpi_ops.grouped_allgather([tensor, uneven], name="gathered_group"),
            mpi_ops.broadcast(tensor, root, name="broadcast"),
            mpi_ops._reducescatter(uneven, op=reduction, name="scattered"),
            mpi_ops._grouped_reducescatter([uneven, tensor], op=reduction, name="scattered_group"),
            mpi_ops.alltoall(tensor, name="exchanged"),
            mpi_ops.alltoall(tensor, splits=[2] * size, name="exchanged_splits"),
        ]

    assert_same_compiled(every_op, own([rows, 3], dtype))


@pytest.mark.parametrize("op", ["Sum", "Average", "Min", "Max", "Product", "Adasum"])
def test_every_operation_and_the_factors(op):
    def reduced(*tensors):
        factors = {} if op in ("Min", "Max", "Product") else {"prescale_factor": 0.7, "postscale_factor": 3.0}
        reduction = getattr(mpi_ops, op)
        return [mpi_ops._allreduce(x, op=reduction, name=f"factors.{x.dtype.name}", **factors) for x in tensors]

    types = FLOATS if op == "Adasum" else FLOATS + [tf.int32, tf.uint8]
    assert_same_compiled(reduced, *[own([7, 5], dtype) for dtype in types])


def test_a_program_asks_for_ranks_and_sizes_when_it_runs():
    def numbers():
        return mpi_ops.rank_op(), mpi_ops.size_op(), mpi_ops.local_rank_op(), mpi_ops.local_size_op()

    found = [int(number) for number in compiled(numbers)()]
    assert found == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]


def test_barrier_and_join_are_taken_part_in():
    @compiled
    def last(tensor):
        mpi_ops.barrier()
        with tf.control_dependencies([mpi_ops._allreduce(tensor, name="before_join")]):
            return mpi_ops.join()

    assert 0 <= int(last(own([2]))) < hvd.size()


def test_process_sets(sets):
    for index, process_set in enumerate(sets):

        def in_set(tensor, index=index, process_set=process_set):
            reduced = mpi_ops._allreduce(tensor, name=f"set{index}", process_set=process_set)
            gathered = mpi_ops.allgather(tensor, name=f"set{index}_gathered", process_set=process_set)
            scattered = mpi_ops._reducescatter(tensor, name=f"set{index}_scattered", process_set=process_set)
            return reduced, gathered, scattered, mpi_ops.size_op(process_set.process_set_id)

        assert_same_compiled(in_set, own([5, 2]))


def test_scalars_empty_tensors_and_transposed_ones():
    def shapes(tensor):
        return [
            mpi_ops._allreduce(tensor[0, 0], name="scalar"),
            mpi_ops._allreduce(tensor[:0], name="empty"),
            mpi_ops._allreduce(tf.transpose(tensor), name="transposed"),
            mpi_ops.allgather(tensor[:0], name="gathered_empty"),
            mpi_ops.allgather(tf.transpose(tensor), name="gathered_transposed"),
        ]

    assert_same_compiled(shapes, own([4, 3]))


# --- programs ---------------------------------------------------------------------------------------------------------


def test_many_collectives_in_one_program_whatever_the_ranks_do_meanwhile():
    count = 120

    def program(tensors):
        # Long enough for XLA to run calls at the same time, and with a chain in it whose memory XLA uses again.
        chain, results = tf.ones([16, 16]), []
        for index, tensor in enumerate(tensors):
            results.append(mpi_ops._allreduce(tensor, name=f"many.{index}"))
            if index % 20 == 0:
                chain = tf.linalg.matmul(chain, tf.reshape(tensor[:256], [16, 16])) / 16
                results.append(mpi_ops._allreduce(chain, name=f"chain.{index}"))
        return results

    tensors = [own([256 + 7 * index], seed=index) for index in range(count)]
    expected = [result.numpy() for result in tf.function(program)(tensors)]
    function = compiled(program)
    rng = np.random.default_rng(hvd.rank())
    for _ in range(8):
        lapse("a rank that is late", rng.uniform(0, 0.01))
        for result, value in zip(function(tensors), expected, strict=True):
            np.testing.assert_allclose(result.numpy(), value, rtol=1e-5)


def test_ranks_whose_programs_differ_take_turns_in_the_same_order():
    mine, others = float(hvd.rank() == 0), float(hvd.rank() != 0)

    def program(first, second):
        # XLA finds that one of them is not needed, another one on each rank, and would come to them in another order.
        first = mpi_ops._allreduce(first, name="first_turn")
        second = mpi_ops._allreduce(second, name="second_turn")
        third = mpi_ops.allgather(tf.where(tf.constant(mine > 0), first, second), name="third_turn")
        return tf.where(tf.constant(others > 0), first, second), third, mpi_ops._allreduce(third, name="fourth_turn")

    for _ in range(3):
        assert_same_compiled(program, own([2], tf.int32), own([2], tf.int32, seed=1))


def test_loops_conditions_and_functions_inside():
    @tf.function
    def inner(tensor):
        return mpi_ops._allreduce(tensor, op=mpi_ops.Average, name="inner")

    def program(tensor, wanted):
        for step in tf.range(3):
            tensor = mpi_ops._allreduce(tensor, op=mpi_ops.Average, name="in_loop") + tf.cast(step, tf.float32)
        if wanted:
            tensor = mpi_ops._allreduce(tensor, name="in_condition")
        return inner(tensor) + inner(2 * tensor)

    for wanted in (True, False):
        assert_same_compiled(program, own([3]), tf.constant(wanted))


def test_shapes_that_are_known_when_a_program_runs():
    function = tf.function(
        lambda tensor: (
            mpi_ops._allreduce(tensor, name="any_rows"), mpi_ops.allgather(tensor, name="any_rows_gathered")
        ),
        jit_compile=True,
        input_signature=[tf.TensorSpec([None, 2])],
    )
    for rows in (1, 4):
        reduced, gathered = function(tf.ones([rows, 2]))
        assert reduced.numpy().tolist() == [[hvd.size()] * 2] * rows and gathered.shape == [rows * hvd.size(), 2]


def test_ranks_with_and_without_compilation_meet_and_unused_results_are_not_dropped():
    def program(tensor):
        mpi_ops._allreduce(tensor, name="nobody_wants_this")
        return tensor + 1

    function = tf.function(program, jit_compile=hvd.rank() == 0)
    for _ in range(2):
        assert function(tf.zeros([3])).numpy().tolist() == [1, 1, 1]


def test_a_compiled_function_survives_the_job_and_serves_the_next():
    function = compiled(lambda tensor: mpi_ops._allreduce(tensor, name="next_job"))
    assert float(function(tf.constant(1.0))) == hvd.size()
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
        function(tf.constant(1.0))
    hvd.init(process_sets="dynamic")
    assert float(function(tf.constant(2.0))) == 2 * hvd.size()


# --- gradients and training -------------------------------------------------------------------------------------------


def test_gradients_are_those_of_the_ops():
    def gradients(tensor):
        results = []
        for name, op in {
            "reduced": lambda x: mpi_ops._allreduce(x, op=mpi_ops.Average, prescale_factor=2.0, name="g.reduced"),
            "group": lambda x: tf.concat(mpi_ops._grouped_allreduce([x, 2 * x], name="g.group"), 0),
            "gathered": lambda x: mpi_ops.allgather(x, name="g.gathered"),
            "broadcast": lambda x: mpi_ops.broadcast(x, 0, name="g.broadcast"),
            "scattered": lambda x: mpi_ops._reducescatter(x, name="g.scattered"),
            "exchanged": lambda x: mpi_ops.alltoall(x, name="g.exchanged")[0],
        }.items():
            with tf.GradientTape() as tape, tf.name_scope(name):
                tape.watch(tensor)
                loss = tf.reduce_sum(tf.square(op(tensor * tensor)))
            results.append(tape.gradient(loss, tensor))
        return results

    assert_same_compiled(gradients, own([2 * hvd.size(), 2]))


def test_a_step_with_the_tape_and_a_sparse_gradient_trains_like_the_joined_batch():
    def train(step_of, jit, batches):
        table, weights = tf.Variable(tf.ones([6, 4]) / 3), tf.Variable(tf.ones([4, 1]) / 2)

        @tf.function(jit_compile=jit)
        def step(rows):
            with step_of(tf.GradientTape()) as tape:
                loss = tf.reduce_mean(tf.square(tf.gather(table, rows) @ weights - 1))
            for variable, grad in zip((table, weights), tape.gradient(loss, [table, weights])):
                variable.assign_sub(0.1 * tf.convert_to_tensor(grad))
            return loss

        for rows in batches:
            step(tf.constant(rows))
        return table.numpy(), weights.numpy()

    everyone = np.random.default_rng(5).integers(0, 6, (5, hvd.size(), 4))
    got = train(hvd.DistributedGradientTape, True, everyone[:, hvd.rank()])
    expected = train(lambda tape: tape, False, everyone.reshape(5, -1))
    for result, value in zip(got, expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-5)


def test_variables_are_broadcast():
    variables = [tf.Variable(own([3, 2])), tf.Variable(own([2], tf.int64, seed=1))]
    compiled(lambda: mpi_ops.broadcast_(variables, hvd.size() - 1, name="variables"))()
    for variable in variables:
        values = mpi_ops.allgather(variable[tf.newaxis], name="everyone").numpy()
        assert (values == values[-1]).all()


def test_keras_fit_with_jit_compile():
    class Reducing(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            reduced = [hvd.allreduce(grad, op=hvd.Average, name=f"fit.{i}") for i, grad in enumerate(grads)]
            return super().apply(reduced, trainable_variables)

    def weights_after(optimizer, jit, rows):
        keras.utils.set_random_seed(7)
        layers = [keras.layers.Input([4]), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(optimizer, "mse", jit_compile=jit)
        model.fit(rows, rows.sum(1), batch_size=len(rows), epochs=3, shuffle=False, verbose=0)
        return model.get_weights()

    rows = np.random.default_rng(8).normal(size=(hvd.size(), 8, 4)).astype("float32")
    got = weights_after(Reducing(0.1), True, rows[hvd.rank()])
    expected = weights_after(keras.optimizers.SGD(0.1), False, rows.reshape(-1, 4))
    for result, value in zip(got, expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_ranks_refuse_names_the_tensor_and_the_job_goes_on():
    shape = [2 + hvd.rank(), 3]
    with pytest.raises(tf.errors.FailedPreconditionError, match='"other_shapes": Mismatched ALLREDUCE tensor shapes'):
        compiled(lambda tensor: mpi_ops._allreduce(tensor, name="other_shapes"))(tf.ones(shape))
    assert_same_compiled(lambda tensor: mpi_ops._allreduce(tensor, name="afterwards"), own([2]))


@pytest.mark.parametrize("op", ["HorovodAllgather", "HorovodAlltoall"])
def test_unequal_rows_are_refused_with_the_op_and_what_to_do(op):
    size, rank = hvd.size(), hvd.rank()

    def program(tensor):
        if op == "HorovodAllgather":
            return mpi_ops.allgather(tensor[: 1 + rank], name="unequal")
        return mpi_ops.alltoall(tensor[:size], splits=[size] + [0] * (size - 1), name="unequal")

    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        compiled(program)(tf.ones([size, 2]))
    text = str(caught.value)
    assert f'{op} "unequal"' in text and "outside of functions with jit_compile=True" in text
    assert_same_compiled(lambda tensor: mpi_ops._allreduce(tensor, name="after_unequal"), own([2]))


def test_what_cannot_be_compiled_names_the_op_and_says_what_to_do():
    signature = [tf.TensorSpec(None, tf.float32)]
    scatter = tf.function(lambda tensor: mpi_ops._reducescatter(tensor, name="no_rows"), signature, jit_compile=True)
    with pytest.raises(tf.errors.UnimplementedError) as caught:
        scatter(tf.constant(1.0))
    assert 'HorovodReducescatter "no_rows" cannot be compiled: it needs a first dimension' in str(caught.value)
    assert "outside of functions with jit_compile=True" in str(caught.value)


def test_an_op_of_another_process_set_is_refused(sets):
    others = [hvd.ProcessSet([rank]) for rank in range(hvd.size())]
    for process_set in others:
        hvd.add_process_set(process_set)
    try:
        foreign = others[(hvd.rank() + 1) % hvd.size()]
        function = compiled(lambda tensor: mpi_ops.allgather(tensor, name="foreign", process_set=foreign))
        with pytest.raises(tf.errors.InvalidArgumentError, match='HorovodAllgather "foreign".*process set'):
            function(tf.ones([2]))
    finally:
        for process_set in others:
            hvd.remove_process_set(process_set)
