"""Phases and timelines, as a program says and asks for them; in jobs of one rank, each a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM_SECONDS = 100


def run(program: str, folder: Path, **variables: str) -> None:
    environment = {**os.environ, **variables}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROGRAM_SECONDS, cwd=folder, env=environment)


def test_phases_are_in_the_trace_and_marks_before_init_do_nothing(tmp_path):
    program = """
import farandole, farandole.torch as hvd
with farandole.phase("too early"):
    pass
hvd.init()
farandole.epoch(1)
farandole.iteration(7)
with farandole.phase("augment"), farandole.phase("forward"):
    pass
@farandole.phase("decorated")
def work(number):
    return number + 1
assert work(1) == 2
hvd.shutdown()
farandole.iteration(8)
"""
    run(program, tmp_path, FARANDOLE_TRACE=str(tmp_path / "traces"))
    trace = (tmp_path / "traces" / "rank-00000.trace").read_bytes()
    assert b"augment" in trace and b"decorated" in trace
    assert b"too early" not in trace and b"end of run" in trace


def test_a_timeline_is_whole_json_when_it_is_stopped(tmp_path):
    program = """
import farandole.torch as hvd, torch
hvd.init()
hvd.start_timeline("t.json", mark_cycles=True)
hvd.allreduce(torch.ones(3), name="w")
hvd.stop_timeline()
"""
    run(program, tmp_path, HOROVOD_TIMELINE="DYNAMIC")
    text = (tmp_path / "t.json").read_text()
    assert isinstance(json.loads(text), list)
    for word in ("allreduce.w", "NEGOTIATE_ALLREDUCE", "CYCLE_START", "start_time_since_epoch_in_micros"):
        assert word in text, text


def test_a_timeline_that_nobody_announced_is_refused(tmp_path):
    program = """
import farandole.torch as hvd
hvd.init()
try:
    hvd.start_timeline("t.json")
except ValueError as error:
    assert "Set HOROVOD_TIMELINE=DYNAMIC" in str(error), error
else:
    raise AssertionError("a timeline was started")
hvd.stop_timeline()
"""
    environment = {name: value for name, value in os.environ.items() if "TIMELINE" not in name}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROGRAM_SECONDS, cwd=tmp_path, env=environment)


def test_a_file_that_cannot_be_made_is_an_error_of_the_caller(tmp_path):
    program = """
import farandole.torch as hvd
hvd.init()
try:
    hvd.start_timeline("/nowhere/t.json")
except OSError:
    pass
else:
    raise AssertionError("a timeline was started")
"""
    run(program, tmp_path, HOROVOD_TIMELINE="DYNAMIC")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
