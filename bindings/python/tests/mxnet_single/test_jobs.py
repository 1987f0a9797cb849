"""MXNet's collectives where the process matters: before init, at the end, killed ranks, other frameworks, engines.

Each test starts processes of its own; what needs none is in `tests/mxnet`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from jobs import environment, run_job

pytestmark = pytest.mark.timeout(120)

SECONDS = 90

HEAD = """
    import os, signal, sys
    import mxnet as mx
    import farandole.mxnet as hvd
    from farandole.exceptions import HorovodInternalError, RankLostError
    from waiting import lapse
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script as a process of its own, outside of a job."""
    words = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(words, env=environment(**variables), capture_output=True, text=True, timeout=SECONDS)


def test_importing_it_imports_no_other_framework() -> None:
    done = run(
        """
        import sys
        import farandole.mxnet
        print(sorted({"torch", "tensorflow", "keras", "jax"} & {name.split(".")[0] for name in sys.modules}))
        """
    )
    assert done.stdout == "[]\n", done
    other = run("import sys, farandole; print('mxnet' in sys.modules)")
    assert other.stdout == "False\n", other


def test_a_numpy_that_is_too_new_is_named_with_what_to_install() -> None:
    done = run(
        """
        import numpy

        def without_bool(name):
            raise AttributeError(f"module 'numpy' has no attribute {name!r}")

        numpy.__getattr__ = without_bool
        import farandole.mxnet
        """
    )
    assert done.returncode == 1 and "pip install mxnet==1.9.1 'numpy<1.24'" in done.stderr, done


def test_before_init_every_operation_says_what_to_call() -> None:
    done = run(
        HEAD
        + """
    array = mx.nd.ones((2,))
    asked = {
        "allreduce": lambda: hvd.allreduce(array),
        "allreduce_": lambda: hvd.allreduce_(array),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([array]),
        "allgather": lambda: hvd.allgather(array),
        "broadcast": lambda: hvd.broadcast(array, 0),
        "broadcast_": lambda: hvd.broadcast_(array, 0),
        "alltoall": lambda: hvd.alltoall(array),
        "reducescatter": lambda: hvd.reducescatter(array),
        "barrier": hvd.barrier,
        "join": hvd.join,
    }
    for name, ask in asked.items():
        try:
            ask()
            print(name, "was not refused")
        except ValueError as error:
            if "has not been initialized" not in str(error):
                print(name, error)
    print("done")
    """
    )
    assert done.stdout == "done\n", done


def test_alone_every_operation_gives_back_what_it_got() -> None:
    done = run(
        HEAD
        + """
    hvd.init()
    array = mx.nd.array([[1.0, 2.0]])
    for result in (hvd.allreduce(array), hvd.allgather(array), hvd.broadcast(array, 0), hvd.reducescatter(array)):
        assert result.asnumpy().tolist() == [[1.0, 2.0]]
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    hvd.broadcast_parameters(net.collect_params())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 3))).sum()
    loss.backward()
    trainer.step(2)
    mx.nd.waitall()
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(array).asnumpy().tolist() == [[1.0, 2.0]]
    print("done")
    """
    )
    assert done.stdout == "done\n", done


def test_survivors_of_a_killed_rank_are_told_who_it_was() -> None:
    job = run_job(
        3,
        HEAD
        + """
    hvd.init()
    array = mx.nd.ones((1000,))
    for _ in range(5):
        hvd.allreduce_(array)
    array.wait_to_read()
    if hvd.rank() == 1:
        lapse("rank 1, which is killed while the others wait", 0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hvd.allreduce_(array).wait_to_read()
    except mx.base.MXNetError as error:
        assert isinstance(error, RankLostError)
        print("waiting:", error, flush=True)
    try:
        hvd.allreduce_(array)
        print("was not refused", flush=True)
    except RankLostError as error:
        print("next call:", error, flush=True)
        raise
    """,
        seconds=SECONDS,
    )
    assert job.code != 0, job
    for rank in (0, 2):
        waiting, later = job.lines(rank)
        assert waiting.startswith("waiting: ") and "rank 1" in waiting, job
        assert later.startswith("next call: ") and "rank 1" in later, job
    assert "rank 1" in job.errors and "SIGKILL" in job.errors, job


def test_a_script_that_never_waits_learns_of_a_killed_rank_from_its_next_step() -> None:
    job = run_job(
        2,
        HEAD
        + """
    hvd.init()
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for step in range(100_000):
        if step == 20 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 3))).sum()
        loss.backward()
        trainer.step(2)
        lapse("a step", 0.01)
    """,
        seconds=SECONDS,
    )
    assert job.code != 0 and "SIGKILL" in job.errors, job
    of_rank_0 = [line for line in job.errors.splitlines() if line.startswith("[0]")]
    raised = [line for line in of_rank_0 if "CollectiveRankLostError: " in line]
    assert raised and "rank 1" in raised[-1], job


@pytest.mark.parametrize("leaves", ["hvd.shutdown()", "pass"], ids=["shutdown", "end of the script"])
def test_the_job_ends_in_peace_while_operations_are_under_way(leaves: str) -> None:
    """Rank 0 asks for what the other never asks for, and both leave."""
    job = run_job(
        2,
        HEAD
        + f"""
    hvd.init()
    hvd.allreduce(mx.nd.ones((10,))).wait_to_read()
    rank = hvd.rank()
    if rank == 0:
        kept = [hvd.allreduce(mx.nd.ones((1000,)), name=f"lonely.{{number}}") for number in range(50)]
        hvd.allreduce_(mx.nd.ones((1000,)), name="lonely and forgotten")
        chained = kept[0] + 1
    # Rank 1 stays until rank 0 has asked.
    hvd.allgather_object(None)
    {leaves}
    if rank == 0 and not hvd.is_initialized():
        try:
            kept[1].wait_to_read()
            print("was not refused", flush=True)
        except HorovodInternalError as error:
            print("shut down" in str(error) or "left the job" in str(error), flush=True)
    print("done", flush=True)
    """,
        seconds=SECONDS,
    )
    assert job.code == 0, job
    assert job.lines(0) == (["True", "done"] if "shutdown" in leaves else ["done"]), job
    assert "egmentation" not in job.errors and "panicked" not in job.errors, job


@pytest.mark.parametrize("leaves", ["hvd.shutdown()", "pass"], ids=["shutdown", "end of the script"])
def test_what_was_asked_for_is_carried_out_before_a_rank_leaves(leaves: str) -> None:
    """MXNet has not begun it yet: the array is still being computed. Only rank 0 waits for the result."""
    job = run_job(
        2,
        HEAD
        + f"""
    hvd.init()
    slow = mx.nd.ones((500, 500))
    for _ in range(30):
        slow = mx.nd.dot(slow, slow) / 500
    late = hvd.allreduce(slow, op=hvd.Sum, name="late")
    if hvd.rank() == 0:
        lapse("rank 0, which waits later", 0.5)
        print(late.asnumpy()[0, 0], flush=True)
    {leaves}
    """,
        seconds=SECONDS,
    )
    assert job.code == 0 and job.lines(0) == ["2.0"], job


def test_the_synchronous_engine_raises_errors_in_the_call() -> None:
    os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"
    try:
        job = run_job(
            2,
            HEAD
            + """
    hvd.init()
    assert hvd.allreduce(mx.nd.ones((3,)), op=hvd.Sum).asnumpy().tolist() == [2.0] * 3
    assert hvd.allgather(mx.nd.ones((hvd.rank() + 1,))).shape == (3,)
    array = mx.nd.arange(8)
    hvd.grouped_allreduce_([array[0:2], array[4:6]], op=hvd.Sum)
    assert array.asnumpy().tolist() == [0, 2, 2, 3, 8, 10, 6, 7]
    try:
        hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)))
        print("was not refused", flush=True)
    except mx.base.MXNetError as error:
        print("Mismatched" in str(error), flush=True)
    # A rank that leaves at once may do so before the other one is told what was wrong.
    hvd.allgather_object(None)
    """,
            seconds=SECONDS,
        )
    finally:
        del os.environ["MXNET_ENGINE_TYPE"]
    assert job.code == 0 and job.lines(0) == ["True"] and job.lines(1) == ["True"], job


def test_several_threads_ask_at_once() -> None:
    job = run_job(
        2,
        HEAD
        + """
    import threading
    hvd.init()

    def ask(thread):
        for step in range(30):
            name = f"{thread}.{step}"
            assert hvd.allreduce(mx.nd.ones((100,)), op=hvd.Sum, name=name).asnumpy()[0] == 2.0
            assert hvd.allgather(mx.nd.ones((1,)), name=name).shape == (2,)
        done.append(thread)

    done = []
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sorted(done), flush=True)
    """,
        seconds=SECONDS,
    )
    assert job.code == 0 and job.lines(0) == ["[0, 1, 2, 3]"] and job.lines(1) == ["[0, 1, 2, 3]"], job


def test_ctrl_c_ends_a_wait_for_ranks_that_do_not_come() -> None:
    job = run_job(
        2,
        HEAD
        + """
    import threading
    hvd.init()
    if hvd.rank() == 0:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            hvd.allgather(mx.nd.ones((2,)), name="nobody")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    hvd.allgather_object(None, name="the end")
    """,
        seconds=SECONDS,
    )
    assert job.code == 0 and job.lines(0) == ["interrupted"], job
