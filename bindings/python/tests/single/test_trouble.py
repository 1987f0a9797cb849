"""What a job says that cannot go on: of a parameter that is frozen on one rank, in reports of dumps, in tracebacks."""

from __future__ import annotations

import pathlib
import shlex
import socket
import subprocess
import sys
import textwrap

import jobs
import pytest

pytestmark = pytest.mark.timeout(180)

FROZEN = """
    import sys
    import torch
    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))

    def optimizer():
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        return hvd.DistributedOptimizer(own, named_parameters=model.named_parameters())

    def freeze():
        model[0].bias.requires_grad_(hvd.rank() == 0)

    if sys.argv[1] == "at first":
        freeze()
    distributed = optimizer()
    for step in range(20):
        if step == 10 and sys.argv[1] == "later":
            freeze()
            distributed = optimizer()
        distributed.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        distributed.step()
"""


@pytest.mark.parametrize("when", ["at first", "later"])
def test_a_parameter_frozen_on_one_rank_is_an_error_and_not_a_stall(when: str) -> None:
    job = jobs.run_job(2, FROZEN, seconds=120, arguments=[when])
    assert job.code != 0, job
    cause = '"allreduce.0.bias": rank 1 has no gradient of this name, which rank 0 reduces: the parameter is frozen'
    assert cause in job.errors, job.errors
    assert "Stall:" not in job.errors, job.errors


def test_parameters_that_all_ranks_unfreeze_or_freeze_are_no_error() -> None:
    script = """
        import torch
        import farandole.torch as hvd

        hvd.init()
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        model[0].requires_grad_(False)

        def optimizer():
            own = torch.optim.SGD(model.parameters(), lr=0.1)
            return hvd.DistributedOptimizer(own, named_parameters=model.named_parameters())

        distributed = optimizer()
        for step in range(40):
            if step == 10:
                model[0].requires_grad_(True)  # Is registered in the next step.
            if step == 20:
                model[1].requires_grad_(False)
                distributed = optimizer()
            if step == 30 and hvd.rank() == 1:
                model[0].bias.requires_grad_(False)  # Counts as zeros: the optimizer knows it.
            distributed.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            distributed.step()
        print("done")
    """
    job = jobs.run_job(2, script, seconds=120)
    assert job.code == 0 and all(job.lines(rank) == ["done"] for rank in range(2)), job


STALL = """
    import os, pathlib, sys
    import torch
    import farandole.torch as hvd
    from waiting import wait_for

    folder = pathlib.Path(sys.argv[1])
    hvd.init()
    hvd.allreduce(torch.ones(1), name="before")
    if hvd.rank() == 1:
        # Until both ranks have left records that tell of it, or the job is ended.
        told = lambda: [dump for dump in folder.glob("*.trace") if b"allreduce.w" in dump.read_bytes()]
        wait_for("records of both ranks", lambda: len(told()) == 2)
    hvd.allreduce(torch.ones(1), name="w")
"""


def test_the_report_of_a_dump_says_what_the_stall_report_says(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once said: 77 % to other things."""
    monkeypatch.setenv("FARANDOLE_STALL_CHECK_TIME_SECONDS", "1")
    folder = tmp_path / "what was dumped"
    monkeypatch.setenv("FARANDOLE_TRACE_TROUBLE", str(folder))
    job = jobs.run_job(2, STALL, seconds=120, arguments=[str(folder)])
    assert job.code == 0, job
    lines = [line.removeprefix("[0]<stderr>:") for line in job.errors.splitlines()]
    told = [line for line in lines if line.startswith("Stall:")]
    wrote = [line for line in lines if line.startswith("farandole: rank 0: wrote ")]
    assert told and wrote, job.errors
    words = shlex.split(wrote[0].split("; to read: ")[1])
    assert words == ["farandole", "report", str(folder)], wrote
    report = subprocess.run(
        [jobs.command(), *words[1:]], check=True, timeout=60, capture_output=True, text=True
    ).stdout
    assert report.startswith("Stall: rank 1 has not asked for") and report.splitlines()[0] in told, report
    assert 'Rank 0 has waited for "allreduce.w" for ' in report.splitlines()[0], report
    assert 'rank 1 last finished "allreduce.before"' in report.splitlines()[0], report
    assert "rank 0 on " in report and ': has waited for "allreduce.w" of rank 1 for ' in report, report
    assert " %" not in report, report


def test_a_traceback_is_written_by_one_call() -> None:
    """The line that says where a rank has left its records once landed inside of the traceback of the same process."""
    script = """
        import farandole.torch as hvd

        hvd.init()

        def deeper(levels):
            if levels == 0:
                raise ValueError("no such batch")
            deeper(levels - 1)

        deeper(3)
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        words = [sys.executable, "-c", textwrap.dedent(script)]
        process = subprocess.Popen(words, env=jobs.environment(), stderr=theirs)
        theirs.close()
        ours.settimeout(120)
        pieces = []
        while piece := ours.recv(1 << 16):
            pieces.append(piece.decode())
        assert process.wait(120) == 1
    (whole,) = [piece for piece in pieces if "Traceback (most recent call last):" in piece]
    assert whole.endswith("ValueError: no such batch\n") and whole.count("in deeper") == 4, pieces
