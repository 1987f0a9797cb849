"""What the survivor of a process group with the backend "farandole" gets when the other rank fails: an exception that
it can catch, and neither a signal nor a hang. `survivors.py` has the ranks."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

import jobs
from survivors import CAUGHT

# PyTorch takes seconds to start on a busy machine; each pair of ranks has a deadline of its own.
pytestmark = pytest.mark.timeout(300)

WAYS = {
    "collectives": ["sync", "wait", "future", "coalesced", "gather"],
    "DDP": ["view", "static_graph", "unused"],
    "hooks of DDP": ["hook", "hook of torch", "powersgd"],
    "FSDP": ["fsdp1", "fsdp2"],
}


def pairs(folder: pathlib.Path, fault: str, ways: list[str]) -> list[dict[str, Any]]:
    """Runs a pair of ranks for each way: how they ended."""
    script = pathlib.Path(jobs.__file__).parent / "survivors.py"
    words = [sys.executable, str(script), str(folder), *(f"{way}:{fault}" for way in ways)]
    done = subprocess.run(
        words,
        env=jobs.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ended) == len(ways), done.stdout
    return ended


def check_caught(pair: dict[str, Any], *words: str) -> None:
    """The survivor has caught one error with these words, and left in order."""
    assert pair["codes"][0] == CAUGHT, pair
    [line] = [line for line in pair["outputs"][0].splitlines() if line.startswith("caught: Farandole: ")]
    assert all(word in line for word in words), pair


@pytest.mark.parametrize("kind", WAYS)
def test_a_killed_rank_ended_survivors_by_sigsegv(tmp_path: pathlib.Path, kind: str) -> None:
    for pair in pairs(tmp_path, "killed", WAYS[kind]):
        assert pair["codes"][1] == -signal.SIGKILL, pair
        check_caught(pair, "rank 1", "is gone")


def test_an_exception_of_a_rank_ended_survivors_by_sigsegv(tmp_path: pathlib.Path) -> None:
    for pair in pairs(tmp_path, "raises", ["sync", "unused", "fsdp2"]):
        assert pair["codes"][1] == 1, pair
        check_caught(pair, "rank 1", "ValueError: a bad batch")


def test_survivors_exited_before_the_rank_that_failed(tmp_path: pathlib.Path) -> None:
    """torchrun takes the process that exits first for the cause."""
    [pair] = pairs(tmp_path, "raises", ["uncaught"])
    assert pair["codes"] == [1, 1] and pair["first"], pair


def test_an_exception_within_backward_ended_survivors_by_sigsegv(tmp_path: pathlib.Path) -> None:
    for pair in pairs(tmp_path, "in backward", ["unused", "hook"]):
        assert pair["codes"][1] == 1, pair
        check_caught(pair, "rank 1", "ValueError: a bad batch")


def test_a_rank_that_exits_early_ended_survivors_by_sigsegv(tmp_path: pathlib.Path) -> None:
    for pair in pairs(tmp_path, "exits", ["sync", "unused", "fsdp2"]):
        assert pair["codes"][1] == 0, pair
        check_caught(pair)


def test_calls_that_do_not_fit_ended_survivors_by_sigsegv(tmp_path: pathlib.Path) -> None:
    for pair in pairs(tmp_path, "shape", ["sync", "unused", "fsdp2"]):
        check_caught(pair, "Mismatched", "rank 0", "rank 1")


def test_a_timeout_in_backward_ended_survivors_by_sigsegv(tmp_path: pathlib.Path) -> None:
    for pair in pairs(tmp_path, "stopped", ["sync", "unused", "fsdp2"]):
        check_caught(pair, "has exceeded its timeout of 1 s")


def test_an_error_that_nothing_catches_is_a_traceback_and_exit_code_1(tmp_path: pathlib.Path) -> None:
    [pair] = pairs(tmp_path, "killed", ["uncaught"])
    assert pair["codes"][0] == 1, pair
    output = pair["outputs"][0]
    assert output.count("farandole.torch.distributed.DistRankLostError: Farandole: ") == 1, pair
    assert "Got the following error" not in output and "direct cause" not in output, pair
