"""Collectives inside graphs: names, orders, many at once, control flow, `tf.data`, saved models."""

import numpy as np
import pytest
import tensorflow as tf
from cases import all_same, contributions, mine, reduced, same

import farandole.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("job")


def total(shape=(3,), seed=0):
    return reduced(contributions(hvd.global_process_set, shape, seed=seed), hvd.Sum)


def turned(count):
    """The numbers below `count` in an order of this rank's own."""
    return sorted(range(count), key=lambda index: (index * 7919 + hvd.rank() * 104_729) % 10_007)


def test_names_are_the_graphs():
    with tf.Graph().as_default():
        tensor = tf.ones(3, name="weights/kernel")
        assert hvd.allreduce(tensor, op=hvd.Sum).op.name == "HorovodAllreduce_weights_kernel_0"
        with tf.name_scope("layer"):
            assert hvd.allgather(tensor).op.name == "layer/HorovodAllgather_weights_kernel_0"
        assert hvd.broadcast(tensor, 0, name="mine").op.name == "mine"


def test_types_of_operations_are_horovods():
    """Saved graphs carry over because their nodes have the same types and attributes."""
    with tf.Graph().as_default() as graph:
        tensor = tf.ones((4, 2))
        hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0)
        hvd.grouped_allreduce([tensor, tensor])
        hvd.allgather(tensor)
        hvd.grouped_allgather([tensor, tensor])
        hvd.broadcast(tensor, 0)
        hvd.alltoall(tensor)
        hvd.reducescatter(tensor)
        hvd.grouped_reducescatter([tensor, tensor])
        hvd.join()
        nodes = {node.op: node for node in graph.as_graph_def().node if node.op.startswith("Horovod")}
    wanted = {
        "HorovodAllreduce": {"T", "reduce_op", "prescale_factor", "postscale_factor", "ignore_name_scope"},
        "HorovodGroupedAllreduce": {"T", "num_tensors", "reduce_op", "prescale_factor", "postscale_factor"},
        "HorovodAllgather": {"T", "ignore_name_scope", "process_set_id"},
        "HorovodGroupedAllgather": {"T", "num_tensors", "process_set_id"},
        "HorovodBroadcast": {"T", "root_rank", "process_set_id"},
        "HorovodAlltoall": {"T", "ignore_name_scope", "process_set_id"},
        "HorovodReducescatter": {"T", "reduce_op", "prescale_factor", "postscale_factor", "process_set_id"},
        "HorovodGroupedReducescatter": {"T", "num_tensors", "reduce_op", "process_set_id"},
        "HorovodJoin": set(),
    }
    for kind, attributes in wanted.items():
        assert attributes <= set(nodes[kind].attr), kind
    assert nodes["HorovodAllreduce"].attr["prescale_factor"].f == 2.0


def test_ranks_may_have_operations_in_any_order_in_their_graphs():
    count = 60
    with tf.Graph().as_default():
        given = [tf.constant(mine((i + 1,), seed=i)) for i in range(count)]
        asked = {i: hvd.allreduce(given[i], op=hvd.Sum, name=f"order_{i}") for i in turned(count)}
        with tf.compat.v1.Session() as session:
            for _ in range(4):
                for index, result in session.run(asked).items():
                    same(result, total((index + 1,), index))


def test_ranks_may_run_independent_operations_in_any_order():
    """Control dependencies have every rank start at another operation; none waits for the result of the one before."""
    count = 30

    @tf.function
    def compute(tensors):
        results, before = {}, []
        for index in turned(count):
            with tf.control_dependencies(before):
                ready = tf.identity(tensors[index])
            results[index] = hvd.allreduce(ready, op=hvd.Sum, name=f"ready_{index}")
            before = [ready]
        return [results[index] for index in range(count)]

    for _ in range(3):
        given = [tf.constant(mine((i + 1,), seed=i)) for i in range(count)]
        all_same(compute(given), [total((i + 1,), i) for i in range(count)])


def test_kinds_of_operations_may_be_mixed_in_any_order():
    makers = {
        "allreduce": lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, name="mixed_a"),
        "allgather": lambda tensor: hvd.allgather(tensor, name="mixed_b"),
        "broadcast": lambda tensor: hvd.broadcast(tensor, 0, name="mixed_c"),
        "alltoall": lambda tensor: hvd.alltoall(tensor, splits=[4] + [0] * (hvd.size() - 1), name="mixed_d")[1],
        "reducescatter": lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum, name="mixed_e"),
        "grouped": lambda tensor: hvd.grouped_allreduce([tensor, tensor], op=hvd.Sum, name="mixed_f")[1],
    }
    kinds = list(makers)
    kinds = kinds[hvd.rank() :] + kinds[: hvd.rank()]

    @tf.function
    def compute(tensor):
        return {kind: makers[kind](tensor) for kind in kinds}

    for _ in range(3):
        results = compute(tf.constant(mine((4,))))
        same(results["allreduce"], total((4,)))
        same(results["grouped"], total((4,)))
        same(results["allgather"], np.concatenate(contributions(hvd.global_process_set, (4,))))
        same(results["broadcast"], contributions(hvd.global_process_set, (4,))[0])
        same(results["alltoall"], np.full(hvd.size(), 4 if hvd.rank() == 0 else 0, np.int32))


def test_two_thousand_operations_in_one_graph():
    count = 2000

    @tf.function
    def compute(base):
        asked = {i: hvd.allreduce(base + float(i), op=hvd.Sum, name=f"thousands_{i}") for i in turned(count)}
        return tf.stack([asked[index] for index in range(count)])

    base = total((2,))
    expected = np.stack([base + hvd.size() * index for index in range(count)]).astype(np.float32)
    for _ in range(3):
        same(compute(tf.constant(mine((2,)))), expected)


def test_a_while_loop_sums_in_every_round():
    @tf.function
    def compute(tensor):
        return tf.while_loop(
            lambda number, _: number < 5,
            lambda number, value: (number + 1, hvd.allreduce(value, name="round") + 1.0),
            (0, tensor),
        )[1]

    expected = mine((3,))
    average = reduced(contributions(hvd.global_process_set, (3,)), hvd.Average)
    expected = average + 5
    np.testing.assert_allclose(compute(tf.constant(mine((3,)))), expected, rtol=1e-6)


def test_autograph_makes_loops_and_branches_of_python():
    @tf.function
    def compute(tensor, rounds):
        for number in tf.range(rounds):
            if number % 2 == 0:
                tensor = hvd.allreduce(tensor, name="even")
            else:
                tensor = hvd.allreduce(tensor * 2.0, op=hvd.Max, name="odd")
        return tensor

    average = reduced(contributions(hvd.global_process_set, (3,)), hvd.Average)
    np.testing.assert_allclose(compute(tf.constant(mine((3,))), 4), average * 4, rtol=1e-6)


def test_cond_runs_one_branch():
    @tf.function
    def compute(which, tensor):
        return tf.cond(
            which,
            lambda: hvd.allreduce(tensor, op=hvd.Sum),
            lambda: hvd.allreduce(tensor, op=hvd.Max) * 100.0,
        )

    same(compute(tf.constant(True), tf.constant(mine((3,)))), total())
    largest = reduced(contributions(hvd.global_process_set, (3,)), hvd.Max)
    same(compute(tf.constant(False), tf.constant(mine((3,)))), largest * 100)


def test_control_flow_of_tensorflow_1():
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default():
            start = tf.constant(mine((3,)))
            looped = tf.while_loop(
                lambda number, _: number < 3,
                lambda number, value: (number + 1, hvd.allreduce(value, name="old_round")),
                (0, start),
                parallel_iterations=1,
            )[1]
            branched = tf.cond(
                tf.compat.v1.placeholder_with_default(True, ()),
                lambda: hvd.allreduce(start, op=hvd.Sum, name="old_branch"),
                lambda: start,
            )
            with tf.compat.v1.Session() as session:
                average = reduced(contributions(hvd.global_process_set, (3,)), hvd.Average)
                np.testing.assert_allclose(session.run(looped), average, rtol=1e-6)
                same(session.run(branched), total())
    finally:
        tf.compat.v1.enable_control_flow_v2()


def test_a_dataset_maps_with_a_collective():
    """`tf.data` runs functions on threads of its own."""
    rows = np.stack([mine((3,), seed=index) for index in range(6)])
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    dataset = dataset.map(lambda row: hvd.allreduce(row, op=hvd.Sum, name="mapped")).prefetch(2)
    all_same(list(dataset.as_numpy_iterator()), [total(seed=index) for index in range(6)])


class Summing(tf.Module):
    """What is saved: a variable, a collective with its size as an operation, and a gather."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32)])
    def __call__(self, tensor):
        summed = hvd.allreduce(tensor * self.weight, op=hvd.Sum, name="saved_sum")
        return {"mean": summed / tf.cast(hvd.size_op(), tf.float32), "all": hvd.allgather(tensor, name="saved_all")}


def test_a_saved_model_is_loaded_and_runs(tmp_path):
    tf.saved_model.save(Summing(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for call in (loaded, lambda tensor: loaded.signatures["serving_default"](tensor=tensor)):
        results = call(tf.constant(mine((2, 3))))
        everybody = contributions(hvd.global_process_set, (2, 3))
        np.testing.assert_allclose(results["mean"], 2 * reduced(everybody, hvd.Average), rtol=1e-6)
        same(results["all"], np.concatenate(everybody))


def test_a_graph_definition_is_imported_under_its_own_names():
    with tf.Graph().as_default() as first:
        hvd.allreduce(tf.compat.v1.placeholder(tf.float32, (3,), name="given"), op=hvd.Sum, name="imported_sum")
        definition = first.as_graph_def()
    with tf.Graph().as_default():
        given = tf.compat.v1.placeholder(tf.float32, (3,))
        [result] = tf.import_graph_def(definition, {"given": given}, ["imported_sum:0"], name="")
        with tf.compat.v1.Session() as session:
            same(session.run(result, {given: mine((3,))}), total())


def test_name_scopes_count_unless_they_are_ignored():
    """Ranks whose scopes differ meet if they say that scopes do not count."""

    @tf.function
    def compute(tensor):
        with tf.name_scope(f"of_rank_{hvd.rank()}"):
            return hvd.allreduce(tensor, op=hvd.Sum, name="scoped", ignore_name_scope=True)

    same(compute(tf.constant(mine((3,)))), total())


def test_operations_are_never_folded_or_merged():
    """Two equal collectives on constants stay two: if they were merged on one rank, the others would wait for it."""

    @tf.function
    def compute():
        same_input = tf.ones(3)
        first = hvd.allreduce(same_input, op=hvd.Sum, name="twin_1")
        if hvd.rank() % 2:
            return first + hvd.allreduce(same_input, op=hvd.Sum, name="twin_2")
        return hvd.allreduce(same_input, op=hvd.Sum, name="twin_2") + first

    for _ in range(2):
        same(compute(), np.full(3, 2 * hvd.size(), np.float32))


def test_threads_may_run_functions_at_the_same_time():
    import threading

    results = {}

    def work(number):
        @tf.function
        def compute(tensor):
            return hvd.allreduce(tensor, op=hvd.Sum, name=f"thread_{number}")

        results[number] = [compute(tf.constant(mine((3,), seed=number + step))) for step in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads if hvd.rank() % 2 == 0 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(4):
        all_same(results[number], [total(seed=number + step) for step in range(5)])
