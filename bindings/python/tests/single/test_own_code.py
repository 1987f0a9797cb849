"""Where a script is while it is in no phase: what is looked at, and that looking harms nobody."""

from __future__ import annotations

import json
import subprocess
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from jobs import command, run_job

from farandole import _stacks

HEAD = """
    import os, sys, time, torch, farandole, farandole.torch as hvd
    from waiting import lapse

    hvd.init()
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())

    def train(steps, between):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.ones(8, 4)).sum()
            loss.backward()
            optimizer.step()
            between()
"""


def first_finding(traces: Path) -> dict[str, Any]:
    """The first finding of the report on a run."""
    words = [command(), "report", str(traces), "--json", "--window", "iterations=2..1000"]
    report = json.loads(subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout)
    first: dict[str, Any] = report["findings"][0]
    assert first["cause"] == "own", report["headline"]
    return first


def line_of(script: str, text: str) -> int:
    lines = textwrap.dedent(script).splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


@pytest.mark.alone
def test_native_code_that_holds_the_interpreter_s_lock_is_seen_where_it_was_called(tmp_path):
    script = HEAD + """
    numbers = list(range(100_000))

    def between():
        for _ in range(3):
            sorted(numbers, key=lambda number: -number)
            hash(tuple(numbers) * 40)

    train(8, between)
    hvd.shutdown()
"""
    job = run_job(2, script, seconds=150, flags=["--trace", str(tmp_path)])
    assert job.code == 0, job
    places = {entry["place"]: entry["percent"] for entry in first_finding(tmp_path)["evidence"]["places"]}
    sorting, hashing = line_of(script, "sorted(numbers"), line_of(script, "hash(tuple")
    seen = {
        line: sum(percent for place, percent in places.items() if f":{line} in " in place)
        for line in (sorting, hashing)
    }
    assert seen[sorting] + seen[hashing] > 80, places
    # How the rest divides depends on the machine: a look that falls into the native code comes when that ends.
    assert seen[hashing] > 10, places


@pytest.mark.alone
def test_a_script_without_a_loader_has_its_forward_pass_from_zero_grad_on(tmp_path):
    script = HEAD + """
    def between():
        time.sleep(0.03)

    train(20, between)
    hvd.shutdown()
"""
    job = run_job(2, script, seconds=150, flags=["--trace", str(tmp_path)])
    assert job.code == 0, job
    first = first_finding(tmp_path)
    place = f"<string>:{line_of(script, 'time.sleep(0.03)')} in between"
    assert first["evidence"]["places"][0]["place"] == place, first


@pytest.mark.parametrize("end", ["pass", "hvd.shutdown()", "sys.exit(0)", "os._exit(0)"])
def test_programs_end_while_they_are_looked_at(end, tmp_path):
    # Threads that keep the interpreter busy, and children that are forked, while the sampler looks.
    script = HEAD + f"""
    import threading

    def busy():
        while not over.is_set():
            sum(range(1000))

    def between():
        child = os.fork()
        if child == 0:
            with farandole.phase("in a child"):
                lapse("the child", 0.001)
            # As processes of `multiprocessing` end. (PyTorch hangs in children that end otherwise while other
            # threads run Python.)
            os._exit(0)
        lapse("the child", 0.01)
        assert os.waitpid(child, 0)[1] == 0

    over = threading.Event()
    thread = threading.Thread(target=busy)
    thread.start()
    train(10, between)
    hvd.barrier()
    over.set()
    thread.join()
    print("trained", flush=True)
    {end}
"""
    job = run_job(2, script, seconds=150, flags=["--trace", str(tmp_path)])
    if end != "os._exit(0)":
        assert job.code == 0, job
    assert "trained" in job.output, job
    assert "fatal" not in job.errors.lower() and "panick" not in job.errors, job


def test_nobody_is_looked_at_without_a_trace():
    script = HEAD + """
    def names():
        return [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]

    train(3, lambda: None)
    print("sampled" if any(name.startswith("farandole-sampl") for name in names()) else "left alone")
    hvd.shutdown()
"""
    job = run_job(1, script, seconds=150)
    assert job.code == 0 and job.lines(0) == ["left alone"], job


def test_the_innermost_call_of_the_script_is_the_place():
    def at_work(file: str, source: str, **names: Any) -> str:
        """Where a thread is that runs this source out of such a file."""
        begun, end = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            end.wait(30)

        code = compile(textwrap.dedent(source), file, "exec")
        thread = threading.Thread(target=lambda: exec(code, {"wait": wait, **names}), name="at work")
        thread.start()
        try:
            assert begun.wait(30)
            return str(_stacks.place(thread.ident or 0))
        finally:
            end.set()
            thread.join()

    # `wait` is in this file, which is no library.
    own = f"{__file__.removeprefix(_stacks._here)}:"
    assert at_work("/home/me/train.py", "def log():\n  wait()\nlog()").startswith(own)
    # A library that waits on behalf of the script: the script's line counts.
    waiting: dict[str, Any] = {}
    library = compile(
        "def write(end, begun):\n  begun.set()\n  end.wait(30)", "/x/site-packages/board/writer.py", "exec"
    )
    exec(library, waiting)
    script = compile("def log():\n  write(end, begun)\n\nlog()", "/home/me/train.py", "exec")
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=exec, args=(script, {"write": waiting["write"], "end": end, "begun": begun}))
    thread.start()
    assert begun.wait(30)
    try:
        assert _stacks.place(thread.ident or 0) == "/home/me/train.py:2 in log"
    finally:
        end.set()
        thread.join()
    assert _stacks.place(0) is None
