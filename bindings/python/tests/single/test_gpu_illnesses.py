"""The check of reports on a GPU (`tests/gpu/illnesses.py`), against a device that is not there; and what it says where
a report is wrong."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from jobs import PACKAGE, command

GPU = pathlib.Path(__file__).parents[1] / "gpu"
sys.path.insert(0, str(GPU))
import illnesses  # noqa: E402

pytestmark = pytest.mark.timeout(560)


@pytest.mark.alone
def test_waiting_for_a_device_is_neither_input_nor_lateness_and_each_illness_is_found():
    words = [sys.executable, str(GPU / "illnesses.py"), "--device", "pretend", "--steps", "16", "--tolerance", "40"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "FARANDOLE_COMMAND": command(), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(words, timeout=500, capture_output=True, text=True, env=environment)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ok ") == 6, run.stdout


def _said(cause: str, percent: float, **more: Any) -> dict[str, Any]:
    finding = {"cause": cause, "rank": None, "phase": None, "lost_percent": percent, **more}
    return {"findings": [finding], "split": {"losses": [{"cause": cause, "percent": percent}]}, **_device(40, 30)}


def _device(idle_percent: float, hidden_percent: float) -> dict[str, Any]:
    ranks = [{"rank": 0, "idle_percent": idle_percent, "hidden_input_ns": 1000 * hidden_percent}]
    return {"ns": 100_000, "devices": {"ranks": ranks, "caches": []}}


def _faults(scene: str, said: dict[str, Any]) -> list[str]:
    return illnesses.faults_of_scene(scene, said, tolerance=15)


def test_the_check_notices_a_report_that_blames_something_else():
    assert _faults("starved", _said("input", 50)) == []
    assert _faults("late", _said("late", 40, rank=1)) == []
    assert _faults("evaluation", _said("sequential", 40, phase="evaluation")) == []
    assert _faults("healthy", _said("packing", 40)) == []
    assert _faults("healthy", {"findings": [], "split": {"losses": []}, **_device(0, 0)}) == []
    assert "the first finding should be sequential, and is late" in _faults("evaluation", _said("late", 40, rank=0))
    assert _faults("late", _said("late", 40, rank=0)) == ["rank 1 is late, and rank 0 is named"]
    said = _said("sequential", 40, phase="tidying")
    assert _faults("evaluation", said) == ["the phase should be evaluation, and is tidying"]
    assert _faults("healthy", _said("late", 40, rank=0)) == ["40.0 % are booked as late"]
    assert _faults("healthy", _said("input", 14)) == []
    assert _faults("overlapped", _said("other", 2)) == []
    assert _faults("overlapped", _said("input", 60)) == ["60.0 % are booked as input"]


def test_the_check_notices_a_report_that_does_not_know_what_the_device_did():
    busy = {**_said("input", 50), **_device(10, 0)}
    assert _faults("starved", busy) == ["the device of rank 0 is said to idle 10.0 %"]
    shown = {**_said("other", 2), **_device(40, 3)}
    assert _faults("overlapped", shown) == ["of rank 0, 3.0 % are said to be waits behind work"]
    del busy["devices"]
    assert _faults("starved", busy) == ["nothing is said of the devices"]


def test_the_check_notices_a_wait_for_the_device_that_is_missing_or_is_input():
    def faults(*span: illnesses.Span) -> list[str]:
        return illnesses.faults_of_marks({0: [*span, ("input wait", 5e6, 6e6)]}, ranks=1, steps=24)

    assert faults(("device work", 0.0, 4e6)) == []
    assert faults(("device work", 0.0, 1e4)) == ["rank 0 waited 10 ms for its device; 1500 ms were expected"]
    assert faults(("device work", 0.0, 5.5e6)) == ["rank 0 waits for input and for its device at once"]
    assert len(faults()) == 1
    assert illnesses.faults_of_marks({}, ranks=1, steps=24, waits=False) == []
