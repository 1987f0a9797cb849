"""Stalls of scripts: the report shows where the rank is that the others wait for.

Each scene is a job of its own, whose ranks are told after a second that something waits. The jobs run beside each
other, because they mostly sleep; no scene begins before the ranks of all jobs have loaded what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from jobs import Job, run_job

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]

RANKS = 2

_BEGIN = """
import os, pathlib, sys, time
import torch
import farandole
import farandole.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1), name="before")

together, scene, ranks = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(together / f"{scene} {hvd.rank()}").touch()
while len(os.listdir(together)) < ranks:
    time.sleep(0.01)
"""

_SLEEPS = """
def validate():
    time.sleep(6)  # the line to be shown

if hvd.rank() == {missing}:
    with farandole.phase("validation"):
        validate()
hvd.allreduce(torch.ones(1), name="w")
"""

# PyDLL keeps the interpreter's lock while it sleeps, as a badly written extension does.
_STUCK = """
def stuck():
    import ctypes
    ctypes.PyDLL(None).sleep(7)

if hvd.rank() == 1:
    stuck()
hvd.allreduce(torch.ones(1), name="w")
"""

_STOPPED = """
import signal, subprocess, sys
if hvd.rank() == 1:
    # There are no heartbeats here, so nobody misses it until it is woken again.
    resume = f"import os, signal, time; time.sleep(9); os.kill({os.getpid()}, signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-c", resume])
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGSTOP)
hvd.allreduce(torch.ones(1), name="w")
"""

_NAMES = """
name = "model/w" if hvd.rank() == 0 else "model_1/w"
handle = hvd.allreduce_async(torch.ones(1), name=name)
time.sleep(4)
other = hvd.allreduce_async(torch.ones(1), name="model_1/w" if hvd.rank() == 0 else "model/w")
hvd.synchronize(handle)
hvd.synchronize(other)
"""

SCENES = {
    "rank 0 sleeps": _SLEEPS.format(missing=0),
    "rank 1 sleeps": _SLEEPS.format(missing=1),
    "stuck": _STUCK,
    "stopped": _STOPPED,
    "names": _NAMES,
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Job]]]:
    """The jobs of all scenes, as they end."""
    together = tmp_path_factory.mktemp("together")

    def play(scene: str) -> Job:
        words = [str(together), scene, str(RANKS * len(SCENES))]
        return run_job(RANKS, _BEGIN + SCENES[scene], seconds=150, arguments=words)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(SCENES)) as pool:
        patch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1")
        # A rank may be stopped for a while: this is about stalls.
        patch.setenv("FARANDOLE_HEARTBEAT_TIMEOUT", "0")
        patch.setenv("FARANDOLE_TRACE_TROUBLE", "0")
        yield {scene: pool.submit(play, scene) for scene in SCENES}


def errors_of(jobs: dict[str, Future[Job]], scene: str) -> str:
    """What the ranks have written to their standard errors."""
    job = jobs[scene].result()
    assert job.code == 0, job
    return job.errors


@pytest.mark.parametrize("missing", range(RANKS))
def test_the_report_shows_the_line_in_which_the_missing_rank_sleeps(jobs, missing: int) -> None:
    errors = errors_of(jobs, f"rank {missing} sleeps")
    assert f'Stall: rank {missing} has been in phase "validation" for' in errors, errors
    assert "One or more tensors were submitted to be reduced, gathered or broadcasted" in errors, errors
    assert 'last collective: "allreduce.before", done' in errors, errors
    assert "Python, MainThread:" in errors and " in validate" in errors, errors
    for rank in range(RANKS):
        told = [line for line in errors.splitlines() if line.startswith(f"[{rank}]<stderr>:Stall: ")]
        assert len(told) == 1, errors


def test_an_interpreter_that_does_not_answer_is_told_as_such_and_seen_from_outside(jobs) -> None:
    errors = errors_of(jobs, "stuck")
    assert "its interpreter did not answer within 1.0 s" in errors, errors
    assert " in stuck" in errors, errors
    assert "inside native code that holds the interpreter's lock" in errors, errors


def test_a_stopped_rank_is_told_as_stopped(jobs) -> None:
    errors = errors_of(jobs, "stopped")
    assert "is stopped (SIGSTOP, Ctrl-Z or a debugger)" in errors, errors
    assert "no answer within 3.0 s; its process is stopped" in errors, errors


def test_names_that_differ_are_the_verdict(jobs) -> None:
    errors = errors_of(jobs, "names")
    assert "names differ." in errors and "model_1/w" in errors, errors
