"""The same script under every launcher: it finds its ranks, computes with them, leaves, and comes again.

A launcher that is not installed fails its test; `cargo xtask ci` installs them all.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
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

# Variables that launchers set. The tests may themselves run under one of them.
OF_LAUNCHERS = ("FARANDOLE_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_", "HYDI_", "SLURM_", "TORCHELASTIC_")
OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(**variables: str) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OF_LAUNCHERS) and name not in OF_TORCHRUN
    }
    return {**clean, "PYTHONPATH": str(jobs.PACKAGE), "OMP_NUM_THREADS": "1", **variables}


def run(words: Sequence[str], ranks: int, script: pathlib.Path, **variables: str) -> None:
    """Runs a launcher to its end; every rank must have said that it is well."""
    process = subprocess.Popen(
        [*words, str(script)],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{words[0]} was not over after {DEADLINE_SECONDS} s:\n{output}") from None
    assert process.returncode == 0, output
    for rank in range(ranks):
        assert output.count(f"rank {rank} of {ranks} is well") == 1, output


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


def test_with_horovods_name(script):
    script.write_text(SCRIPT.replace("farandole.torch", "horovod.torch"))
    run([jobs.command(), "run", "-np", "2", "--horovod", sys.executable], 2, script)
