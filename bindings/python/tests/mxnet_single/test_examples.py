"""The example for MXNet in its short form, as a job of two ranks, and what it prints."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from jobs import command, environment

SCRIPT = pathlib.Path(__file__).parents[4] / "examples" / "python" / "mxnet_mnist.py"

pytestmark = pytest.mark.timeout(120)


def test_mxnet_learns_to_read_and_saves_once(tmp_path: pathlib.Path) -> None:
    words = [command(), "run", "-np", "2", "--no-prefix", sys.executable, str(SCRIPT), "--short"]
    done = subprocess.run(
        [*words, "--save", str(tmp_path / "mnist.params")],
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    accuracies = [float(number) for number in re.findall(r"Test accuracy: ([\d.]+)%", done.stdout)]
    assert len(accuracies) == 2 and accuracies[-1] > 80, done.stdout
    assert (tmp_path / "mnist.params").exists()


def test_it_explains_itself() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--help"], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "--batch-size" in done.stdout and "--short" in done.stdout, done
