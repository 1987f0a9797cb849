"""Stalls of scripts: the report shows where the rank is that the others wait for.

Each test is a job of its own, whose ranks are told after a second that something waits.
"""

from __future__ import annotations

import pytest
from jobs import run_job

pytestmark = pytest.mark.timeout(120)

_BEGIN = """
import os, time
import torch
import farandole
import farandole.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1), name="before")
"""


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1")
    # A rank may be stopped for a while: this is about stalls.
    monkeypatch.setenv("FARANDOLE_HEARTBEAT_TIMEOUT", "0")
    monkeypatch.setenv("FARANDOLE_TRACE_TROUBLE", "0")


def _run(script: str) -> str:
    job = run_job(2, _BEGIN + script, seconds=100)
    assert job.code == 0, job
    return job.errors


def test_the_report_shows_the_line_in_which_the_missing_rank_sleeps() -> None:
    for missing in (0, 1):
        errors = _run(
            f"""
def validate():
    time.sleep(6)  # the line to be shown

if hvd.rank() == {missing}:
    with farandole.phase("validation"):
        validate()
hvd.allreduce(torch.ones(1), name="w")
"""
        )
        assert f'Stall: rank {missing} has been in phase "validation" for' in errors, errors
        assert "One or more tensors were submitted to be reduced, gathered or broadcasted" in errors, errors
        assert 'last collective: "allreduce.before", done' in errors, errors
        assert "Python, MainThread:" in errors and " in validate" in errors, errors
        for rank in (0, 1):
            told = [line for line in errors.splitlines() if line.startswith(f"[{rank}]<stderr>:Stall: ")]
            assert len(told) == 1, errors


def test_an_interpreter_that_does_not_answer_is_told_as_such_and_seen_from_outside() -> None:
    # PyDLL keeps the interpreter's lock while it sleeps, as a badly written extension does.
    errors = _run(
        """
def stuck():
    import ctypes
    ctypes.PyDLL(None).sleep(7)

if hvd.rank() == 1:
    stuck()
hvd.allreduce(torch.ones(1), name="w")
"""
    )
    assert "its interpreter did not answer within 1.0 s" in errors, errors
    assert " in stuck" in errors, errors
    assert "inside native code that holds the interpreter's lock" in errors, errors


def test_a_stopped_rank_is_told_as_stopped() -> None:
    errors = _run(
        """
import signal, subprocess, sys
if hvd.rank() == 1:
    # There are no heartbeats here, so nobody misses it until it is woken again.
    resume = f"import os, signal, time; time.sleep(9); os.kill({os.getpid()}, signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-c", resume])
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGSTOP)
hvd.allreduce(torch.ones(1), name="w")
"""
    )
    assert "is stopped (SIGSTOP, Ctrl-Z or a debugger)" in errors, errors
    assert "no answer within 3.0 s; its process is stopped" in errors, errors


def test_names_that_differ_are_the_verdict() -> None:
    errors = _run(
        """
name = "model/w" if hvd.rank() == 0 else "model_1/w"
handle = hvd.allreduce_async(torch.ones(1), name=name)
time.sleep(4)
other = hvd.allreduce_async(torch.ones(1), name="model_1/w" if hvd.rank() == 0 else "model/w")
hvd.synchronize(handle)
hvd.synchronize(other)
"""
    )
    assert "names differ." in errors and "model_1/w" in errors, errors
