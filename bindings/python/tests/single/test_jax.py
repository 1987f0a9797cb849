"""JAX outside of jobs of pytest: what is imported, jobs of one rank, ranks that are killed or leave, reports.

Few jobs with many checks each, because importing JAX takes longer than everything else.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import command, environment, run_job

pytestmark = pytest.mark.timeout(180)

SOON_SECONDS = 1.0
"""Survivors know of a killed rank by then, inside of a compiled program, too."""


def run_alone(script: str) -> str:
    """What a script prints that nobody has launched."""
    words = [sys.executable, "-c", script]
    done = subprocess.run(
        words, env=environment(JAX_PLATFORMS="cpu"), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


ALONE = """
import sys
import farandole.jax as hvd
loaded = {"torch", "tensorflow", "keras", "optax", "flax"} & set(sys.modules)
assert not loaded, f"farandole.jax has loaded {loaded}"

import jax, jax.numpy as jnp
try:
    jax.block_until_ready(jax.jit(hvd.psum)(jnp.ones(3)))
except ValueError as error:
    print("before init:", error)
hvd.init()
assert (hvd.rank(), hvd.size()) == (0, 1)
tree = {"a": jnp.arange(3.0), "b": 7}
for function in (hvd.psum, hvd.pmean, hvd.pmax, hvd.broadcast, hvd.allgather):
    found = jax.jit(function)(tree)
    assert found["a"].tolist() == [0.0, 1.0, 2.0], (function, found)
assert hvd.alltoall(jnp.arange(3)).tolist() == [0, 1, 2]
assert hvd.reducescatter(jnp.arange(3)).tolist() == [0, 1, 2]
assert jax.jit(jax.grad(lambda x: hvd.psum(x * x)))(3.0) == 6.0
assert jax.jit(jax.vmap(hvd.psum))(jnp.ones((2, 2))).tolist() == [[1.0, 1.0], [1.0, 1.0]]
hvd.barrier()
assert hvd.join() == 0

import farandole.jax.primitive as primitive
jax.jit(hvd.psum).trace(jnp.ones(2)).lower(lowering_platforms=("cuda",))
try:
    jax.jit(hvd.psum).trace(jnp.ones(2)).lower(lowering_platforms=("rocm",))
except NotImplementedError as error:
    print("on another GPU:", error)
import os
child = os.fork()
if child == 0:
    try:
        hvd.allgather(jnp.ones(2))
    except ValueError as error:
        os.write(1, f"in a child: {error}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
hvd.shutdown()
hvd.init()
assert hvd.psum(2) == 2
"""


def test_a_job_of_one_rank_needs_no_launcher_and_nothing_but_jax() -> None:
    output = run_alone(ALONE)
    assert "before init: Farandole has not been initialized; use hvd.init()." in output
    assert re.search("on another GPU: .*NVIDIA's GPUs; this program is compiled for rocm", output), output
    assert "in a child: this process was forked from a rank and is not a rank itself" in output


SHARED = """
    import jax, jax.numpy as jnp, torch
    import farandole.jax as hvd
    import farandole.torch as of_torch

    hvd.init()
    # One engine and one job: what one front end has initialised the other may use.
    assert of_torch.is_initialized() and (of_torch.rank(), of_torch.size()) == (hvd.rank(), hvd.size())
    program = jax.jit(lambda array: hvd.psum(array) + 1)
    for _ in range(5):
        handle = of_torch.allreduce_async(torch.ones(1000), op=of_torch.Sum)
        assert program(jnp.ones(1000)).tolist() == [3.0] * 1000
        assert of_torch.synchronize(handle).tolist() == [2.0] * 1000
    of_torch.shutdown()
    assert not hvd.is_initialized()
    print("shared", flush=True)
"""


def test_torch_and_jax_in_one_process_share_the_engine() -> None:
    job = run_job(2, SHARED, seconds=100)
    assert job.code == 0, f"{job.output}\n{job.errors}"
    assert [job.lines(rank) for rank in range(2)] == [["shared"], ["shared"]]


LEAVING = """
    import pathlib, sys, threading
    import jax, jax.numpy as jnp
    import farandole.jax as hvd
    from waiting import wait_for, wait_until_asleep

    hvd.init()
    has_left = pathlib.Path(sys.argv[2])
    program = jax.jit(hvd.psum)
    jax.block_until_ready(program(jnp.ones(2)))
    if sys.argv[1] == "shutdown":
        # A program waits for the other rank, which never comes, while this one leaves.
        if hvd.rank() == 0:
            def wait():
                try:
                    jax.block_until_ready(program(jnp.ones(2)))
                except Exception as error:
                    print(f"ended: {error}", flush=True)

            thread = threading.Thread(target=wait)
            thread.start()
            wait_until_asleep(thread)
            hvd.shutdown()
            thread.join()
            has_left.touch()
    elif hvd.rank() == 0:
        # The interpreter ends while a program is under way.
        thread = threading.Thread(target=lambda: program(jnp.ones(2)), daemon=True)
        thread.start()
        wait_until_asleep(thread)
        print("leaving", flush=True)
        has_left.touch()
    if hvd.is_initialized() and hvd.rank() == 1:
        wait_for("the end of rank 0", has_left.exists)
"""


ENDING = """
    import sys
    import jax, jax.numpy as jnp
    import farandole.jax as hvd
    from waiting import lapse

    hvd.init()
    ordered, jit = sys.argv[1] != "by name", hvd.jit if sys.argv[1] == "hvd.jit" else jax.jit
    slow = jit(lambda array: hvd.allreduce(array @ array, name="step", ordered=ordered) * 1e-3)
    array = jnp.ones((400, 400))
    if hvd.rank() == 1:
        lapse("rank 1, which is late", 0.5)
    for _ in range(20):
        array = slow(array)
    # Nobody waits for the last of them.
"""


@pytest.mark.parametrize("how", ["ordered", "by name", "hvd.jit"])
def test_a_rank_that_ends_does_its_part_in_what_it_has_dispatched(how: str) -> None:
    job = run_job(2, ENDING, seconds=100, arguments=[how])
    assert job.code == 0 and "Error" not in job.errors, f"{job.output}\n{job.errors}"


@pytest.mark.parametrize("how", ["shutdown", "exit"])
def test_programs_under_way_end_with_the_job(how: str, tmp_path: Path) -> None:
    job = run_job(2, LEAVING, seconds=100, arguments=[how, str(tmp_path / "left")])
    assert job.code == 0, f"{job.output}\n{job.errors}"
    lines = job.lines(0)
    assert lines[-1] == "leaving" if how == "exit" else "Farandole has been shut down" in "".join(lines), job


@pytest.mark.alone
def test_a_killed_rank_ends_the_compiled_step_of_the_others(tmp_path: Path) -> None:
    script = """
    import os, signal, sys, time
    import jax, jax.numpy as jnp, optax
    import farandole
    import farandole.jax as hvd

    hvd.init()
    tx = hvd.DistributedOptimizer(optax.sgd(0.1), name="training")
    params = {"w": jnp.ones((4, 2)), "b": jnp.ones(2)}
    state = tx.init(params)

    @jax.jit
    def step(params, state, features):
        grads = jax.grad(lambda params: (features @ params["w"] + params["b"]).sum())(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for number in range(20):
        if number == 7 and hvd.rank() == 1:
            open(sys.argv[1], "w").write(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            params, state = jax.block_until_ready(step(params, state, jnp.ones((3, 4))))
        except Exception as error:
            print(f"after {time.time() - float(open(sys.argv[1]).read()):.3f} s: {type(error).__name__}: {error}")
            try:
                hvd.psum(1)
            except farandole.RankLostError as second:
                print(f"outside of jit: {second}", flush=True)
            raise
"""
    job = run_job(2, script, seconds=100, arguments=[str(tmp_path / "when")])
    assert job.code != 0
    first, second = job.lines(0)
    found = re.match(r"after ([\d.]+) s: JaxRuntimeError: UNKNOWN: farandole\.RankLostError: .*rank 1", first)
    assert found and float(found[1]) < SOON_SECONDS, job
    assert re.match("outside of jit: .*rank 1", second), job


FOLLOWED = """
    import os, sys
    import jax, jax.numpy as jnp
    import farandole.jax as hvd
    from waiting import wait_for

    hvd.init()
    reduced = jax.jit(lambda array: hvd.psum(array * 2 + array ** 2) * 0.1)
    following = jax.jit(lambda array: array * 0.5 + 1)
    array = reduced(jnp.ones(200_000))
    jax.block_until_ready(array)
    hvd.barrier()
    if hvd.rank() == 1:
        wait_for("rank 0", lambda: os.path.exists(sys.argv[1]))
        raise ValueError("a bad batch")
    # The result does not exist yet: rank 1 ends instead of taking part. All that follows fails with it.
    array = reduced(array)
    for _ in range(19):
        array = following(array)
    open(sys.argv[1], "w").close()
    try:
        hvd.psum(array)
    except hvd.HorovodInternalError as error:
        print(f"outside of jit: {error}", flush=True)
    jax.block_until_ready(array)
"""


def test_an_error_repeated_xlas_words_for_each_program_that_followed(tmp_path: Path) -> None:
    job = run_job(2, FOLLOWED, seconds=100, arguments=[str(tmp_path / "dispatched")])
    assert job.code != 0
    [outside] = job.lines(0)
    assert re.match("outside of jit: rank 1 raised ValueError: a bad batch", outside), job
    of_rank_0 = [line for line in job.errors.splitlines() if line.startswith("[0]")]
    [line] = [line for line in of_rank_0 if "JaxRuntimeError" in line]
    assert re.search(r"JaxRuntimeError: .*farandole\.RankLostError: rank 1 raised ValueError", line), job
    assert line.count("Error dispatching computation") <= 1, job
    # JAX prints the errors of its tokens at the end of the interpreter, once more and with tracebacks.
    assert "Exception ignored in atexit callback" not in job.errors, job


TRAINING = """
    import jax, jax.numpy as jnp, optax
    import farandole.jax as hvd
    from waiting import lapse

    hvd.init()
    tx = hvd.DistributedOptimizer(optax.sgd(0.1))
    params = jnp.ones((50, 50))
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda params: jnp.tanh(params).sum())(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(30):
        # Asleep, so that it is as late as it should however busy the machine is.
        lapse("the work of a step, with a late rank", 0.06 if hvd.rank() == 1 else 0.01)
        params, state = jax.block_until_ready(step(params, state))
"""


@pytest.mark.alone
def test_a_report_has_the_iterations_and_names_the_late_rank(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace")
    job = run_job(2, TRAINING, seconds=100, flags=["--trace", trace])
    assert job.code == 0, f"{job.output}\n{job.errors}"
    words = [command(), "report", trace, "--json", "--window", "iterations=2..29"]
    report = json.loads(subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout)
    assert 27 <= report["iterations"] <= 29, report["headline"]
    assert "rank 1" in report["headline"], report["headline"]
    assert report["efficiencies"]["parallel_efficiency"] < 0.8, report["headline"]
