"""The same script under every launcher: it finds its ranks, computes with them, leaves, and comes again.

A launcher that is not installed fails its test; `cargo xtask ci` installs them all.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

import jobs
import slurm

# Launchers that are written in Python, and PyTorch itself, take seconds to start on a busy machine.
pytestmark = pytest.mark.timeout(180)
DEADLINE_SECONDS = 150

SCRIPT = """
import os
import torch
import farandole.torch as hvd

first = None
for time in range(5):
    hvd.init()
    mine = torch.arange(6, dtype=torch.float64) + hvd.rank()
    total = hvd.allreduce(mine, name="t", op=hvd.Sum)
    others = sum(range(hvd.size()))
    assert torch.equal(total, torch.arange(6, dtype=torch.float64) * hvd.size() + others), total
    rank, size = hvd.rank(), hvd.size()
    hvd.shutdown()
    assert not hvd.is_initialized()
    held = len(os.listdir("/proc/self/fd"))
    first = first or held
    assert held <= first, f"{first} descriptors after the first time, {held} now"
print(f"rank {rank} of {size} is well", flush=True)
"""

STALLS = """
import pathlib, sys
import torch
import farandole.torch as hvd
import waiting

hvd.init()
hvd.allreduce(torch.ones(1), name="before")

is_late, may_go_on = map(pathlib.Path, sys.argv[1:])

def wait_for(file):
    if file == may_go_on:
        is_late.touch()
    waiting.wait_for(file.name, file.exists, 100)

def main():
    wait_for(may_go_on if hvd.rank() == 1 else is_late)
    hvd.allreduce(torch.ones(1), name="w")

main()
print(f"rank {hvd.rank()} of {hvd.size()} is well", flush=True)
"""

def start(words: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """Starts a launcher."""
    return subprocess.Popen(
        words,
        env=jobs.environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(words: Sequence[str], ranks: int, script: pathlib.Path, **variables: str) -> None:
    """Runs a launcher to its end; every rank must have said that it is well."""
    process = start([*words, str(script)], **variables)
    try:
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{words[0]} was not over after {DEADLINE_SECONDS} s:\n{output}") from None
    assert process.returncode == 0, output
    for rank in range(ranks):
        assert output.count(f"rank {rank} of {ranks} is well") == 1, output


def run_stalled(words: Sequence[str], folder: pathlib.Path, **variables: str) -> None:
    """Runs a job of two whose rank 1 does not come before both ranks have said where it is."""
    script, is_late, may_go_on = (folder / name for name in ("stalls.py", "is-late", "may-go-on"))
    script.write_text(STALLS)
    impatience = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "FARANDOLE_TRACE_TROUBLE": "0"}
    process = start([*words, str(script), str(is_late), str(may_go_on)], **impatience, **variables)
    deadline = threading.Timer(DEADLINE_SECONDS, lambda: os.killpg(process.pid, signal.SIGKILL))
    deadline.start()
    output = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            output += line
            if output.count(" in main") >= 2:
                may_go_on.touch()
        assert process.wait() == 0, output
    finally:
        deadline.cancel()
    for part in (
        'Stall: rank 1 has not asked for "allreduce.w"',
        "One or more tensors were submitted to be reduced",
        "Missing ranks:",
        'last collective: "allreduce.before", done ',
    ):
        assert output.count(part) == 2, f"{part!r}:\n{output}"
    assert output.count(" in wait_for") >= 2, output
    for rank in range(2):
        assert output.count(f"rank {rank} of 2 is well") == 1, output


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


def test_alone(script):
    run([sys.executable], 1, script)


@pytest.mark.parametrize("ranks", [1, 3])
def test_under_farandole_run(script, ranks):
    run([jobs.command(), "run", "-np", str(ranks), sys.executable], ranks, script)


def test_under_torchrun(script):
    torchrun = pathlib.Path(sys.executable).with_name("torchrun")
    run([str(torchrun), "--nproc-per-node", "2"], 2, script)


def test_under_open_mpi(script):
    run(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable], 2, script)


def test_under_mpich(script):
    run(["mpirun.mpich", "-np", "2", sys.executable], 2, script)


def test_under_slurm(script, tmp_path):
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm.cluster(folder) as variables:
        run(["srun", "-n", "2", sys.executable], 2, script, **variables)


def test_a_stall_is_reported_by_every_rank_under_torchrun(tmp_path):
    torchrun = pathlib.Path(sys.executable).with_name("torchrun")
    run_stalled([str(torchrun), "--nproc-per-node", "2"], tmp_path)


def test_a_stall_is_reported_by_every_rank_under_open_mpi(tmp_path):
    words = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
    run_stalled(words, tmp_path)


def test_a_stall_is_reported_by_every_rank_under_mpich(tmp_path):
    run_stalled(["mpirun.mpich", "-np", "2", sys.executable], tmp_path)


def test_a_stall_is_reported_by_every_rank_under_slurm(tmp_path):
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm.cluster(folder) as variables:
        run_stalled(["srun", "-n", "2", sys.executable], tmp_path, **variables)


def test_with_horovods_name(script):
    script.write_text(SCRIPT.replace("farandole.torch", "horovod.torch"))
    run([jobs.command(), "run", "-np", "2", "--horovod", sys.executable], 2, script)
