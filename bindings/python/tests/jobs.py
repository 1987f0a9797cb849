"""Jobs for tests: a script on several ranks, under the launcher, with a deadline.

For what cannot be tested inside a job of pytest: ranks that are killed, interpreters that end. A job that is not over
in time is ended with everything it has started, and what it had written is shown.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import farandole

PACKAGE = pathlib.Path(farandole.__file__).parent.parent

# Scripts import from here, too.
TESTS = pathlib.Path(__file__).parent


# Variables that launchers set. The tests may themselves run under one of them.
OF_LAUNCHERS = ("FARANDOLE_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_", "HYDI_", "SLURM_", "TORCHELASTIC_")
OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(**variables: str) -> dict[str, str]:
    """The environment of these tests without what a launcher has put there."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OF_LAUNCHERS) and name not in OF_TORCHRUN
    }
    return {**clean, "PYTHONPATH": f"{PACKAGE}:{TESTS}", "OMP_NUM_THREADS": "1", **variables}


@dataclass
class Job:
    """How a job ended."""

    code: int
    output: str
    errors: str

    def lines(self, rank: int) -> list[str]:
        """What a rank has printed."""
        mark = f"[{rank}]<stdout>:"
        return [line.removeprefix(mark) for line in self.output.splitlines() if line.startswith(mark)]


def command() -> str:
    """The launcher: the one that the chore has built, or the one on the path."""
    found = os.environ.get("FARANDOLE_COMMAND") or shutil.which("farandole")
    assert found, "there is no command `farandole`: run `cargo xtask python`, or set FARANDOLE_COMMAND"
    return found


def free_port() -> int:
    """A port of this host that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def run_job(
    ranks: int,
    script: str,
    *,
    seconds: float = 200,
    flags: Sequence[str] = (),
    arguments: Sequence[str] = (),
    threads: int = 1,
) -> Job:
    """Runs a script, which may be indented, on so many ranks: with flags for the launcher, arguments for the script,
    and so many threads for the arithmetic of each rank."""
    environment = dict(os.environ, PYTHONPATH=f"{PACKAGE}:{TESTS}", PYTHONUNBUFFERED="1", OMP_NUM_THREADS=str(threads))
    words = [command(), "run", "-np", str(ranks), *flags, sys.executable, "-c", textwrap.dedent(script), *arguments]
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, errors = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
        raise AssertionError(f"the job was not over after {seconds} s\n{output}\n{errors}") from None
    return Job(process.returncode, output, errors)
