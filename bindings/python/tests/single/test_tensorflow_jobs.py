"""TensorFlow's collectives where the environment matters: thread counts, TensorFlow 1's behaviour, dead ranks, two
frameworks.

Each test starts a job of its own; what needs no environment of its own is in `tests/tensorflow`.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from jobs import PACKAGE, run_job

pytestmark = pytest.mark.timeout(300)

# TensorFlow takes seconds to load, and longer where many processes do so at once.
SECONDS = 120


def test_one_thread_for_operations_is_enough_for_any_order() -> None:
    """A kernel that waited in its thread would wait for ever: the one thread of each rank is in a different
    operation."""
    job = run_job(
        2,
        """
        import numpy as np, tensorflow as tf
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        import farandole.tensorflow as hvd
        hvd.init()
        count = 200
        order = range(count) if hvd.rank() == 0 else range(count - 1, -1, -1)

        @tf.function
        def forwards_and_backwards(base):
            asked, before = {}, []
            for index in order:
                with tf.control_dependencies(before):
                    ready = base + float(index)
                asked[index] = hvd.allreduce(ready, op=hvd.Sum, name=f"turned_{index}")
                before = [ready]
            return tf.stack([asked[index] for index in range(count)])

        for _ in range(3):
            assert forwards_and_backwards(tf.zeros(())).numpy().tolist() == [2.0 * index for index in range(count)]
        print("function")

        with tf.Graph().as_default():
            asked = {i: hvd.allgather(tf.constant([[float(i)]]), name=f"gathered_{i}") for i in order}
            options = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
            with tf.compat.v1.Session(config=options) as session:
                for _ in range(3):
                    for index, value in session.run(asked).items():
                        assert value.tolist() == [[index], [index]]
        print("session")

        rows = tf.data.Dataset.range(20).map(lambda n: hvd.allreduce(n, op=hvd.Sum, name="mapped"))
        assert list(rows.as_numpy_iterator()) == [2 * n for n in range(20)]
        print("dataset")
        """,
        seconds=SECONDS,
    )
    assert job.code == 0, job
    for rank in range(2):
        assert job.lines(rank) == ["function", "session", "dataset"], job


def test_before_init_every_operation_says_what_to_call() -> None:
    script = """
    import tensorflow as tf
    import farandole.tensorflow as hvd
    asked = {
        "allreduce": lambda: hvd.allreduce(tf.ones(2)),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([tf.ones(2), tf.ones(3)], op=hvd.Sum),
        "allgather": lambda: hvd.allgather(tf.ones(2)),
        "broadcast": lambda: hvd.broadcast(tf.ones(2), 0),
        "broadcast_": lambda: hvd.broadcast_([tf.Variable(tf.ones(2))], 0),
        "alltoall": lambda: hvd.alltoall(tf.ones(2)),
        "reducescatter": lambda: hvd.reducescatter(tf.ones(2), op=hvd.Sum),
        "function": lambda: tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))(),
        "join": hvd.join,
    }
    for name, ask in asked.items():
        try:
            ask()
            print(name, "was not refused")
        except (ValueError, tf.errors.OpError) as error:
            if "has not been initialized" not in str(error):
                print(name, error)
    print("done")
    """
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    words = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["done", ""], done.stdout


@pytest.mark.alone
def test_survivors_of_a_killed_rank_are_told_who_it_was_within_a_second() -> None:
    job = run_job(
        3,
        """
        import os, signal, time
        import tensorflow as tf
        import farandole.tensorflow as hvd
        hvd.init()

        @tf.function
        def step(tensor):
            return hvd.allreduce(tensor, op=hvd.Sum, name="step")

        for _ in range(5):
            step(tf.ones(10))
        if hvd.rank() == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            step(tf.ones(10))
        except Exception as error:
            elapsed = time.monotonic() - begin
            print("caught in time:" if elapsed < 1.5 else f"caught after {elapsed} s:", str(error)[:500], flush=True)
        """,
        seconds=SECONDS,
    )
    assert job.code != 0
    for survivor in (0, 2):
        [line] = [line for line in job.lines(survivor) if line.startswith("caught")]
        assert line.startswith("caught in time:") and "rank 1" in line, job


def test_tensorflow_with_the_behaviour_of_version_1() -> None:
    job = run_job(
        2,
        """
        import numpy as np, tensorflow.compat.v1 as tf
        tf.disable_v2_behavior()
        import farandole.tensorflow as hvd
        hvd.init()
        given = tf.placeholder(tf.float32, (None,))
        weight = tf.get_variable("weight", initializer=float(hvd.rank() + 1))
        loss = tf.reduce_sum(hvd.allreduce(given, op=hvd.Sum) * weight)
        [gradient] = tf.gradients(loss, [weight])
        start = hvd.broadcast_global_variables(0)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(start)
            assert session.run(weight) == 1.0
            value, slope = session.run([loss, gradient], {given: [1.0, 2.0 + hvd.rank()]})
            assert (value, slope) == (7.0, 7.0), (value, slope)
        print("done")
        """,
        seconds=SECONDS,
    )
    assert job.code == 0, job
    assert [job.lines(rank)[-1] for rank in range(2)] == ["done"] * 2, job


def test_pytorch_and_tensorflow_share_one_job() -> None:
    job = run_job(
        2,
        """
        import torch
        import farandole.torch as hvd_torch
        import tensorflow as tf
        import farandole.tensorflow as hvd
        hvd.init()
        assert hvd_torch.is_initialized() and hvd_torch.size() == hvd.size() == 2
        handle = hvd_torch.allreduce_async(torch.ones(3), op=hvd_torch.Sum, name="shared")
        assert hvd.allreduce(tf.ones(3), op=hvd.Sum, name="shared_tf").numpy().tolist() == [2.0] * 3
        assert hvd_torch.synchronize(handle).tolist() == [2.0] * 3
        print("done")
        """,
        seconds=SECONDS,
    )
    assert job.code == 0, job
    assert [job.lines(rank)[-1] for rank in range(2)] == ["done"] * 2, job


def test_a_saved_model_of_one_process_runs_in_a_job(tmp_path: pathlib.Path) -> None:
    """Sizes are evaluated when the graph runs: what was saved by one process divides by two in a job of two."""
    save = """
    import sys, tensorflow as tf
    import farandole.tensorflow as hvd
    hvd.init()

    class Mean(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32)])
        def __call__(self, tensor):
            size, rank = tf.cast(hvd.size_op(), tf.float32), tf.cast(hvd.rank_op(), tf.float32)
            return hvd.allreduce(tensor, op=hvd.Sum, name="mean") / size + rank

    assert Mean()(tf.constant([5.0])).numpy().tolist() == [5.0]
    tf.saved_model.save(Mean(), sys.argv[1])
    """
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    words = [sys.executable, "-c", textwrap.dedent(save), str(tmp_path / "model")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    job = run_job(
        2,
        """
        import sys, tensorflow as tf
        import farandole.tensorflow as hvd
        hvd.init()
        loaded = tf.saved_model.load(sys.argv[1])
        print(loaded(tf.constant([float(hvd.rank()), 4.0])).numpy().tolist())
        """,
        arguments=[str(tmp_path / "model")],
        seconds=SECONDS,
    )
    assert job.code == 0, job
    assert [job.lines(rank)[-1] for rank in range(2)] == ["[0.5, 4.0]", "[1.5, 5.0]"], job
