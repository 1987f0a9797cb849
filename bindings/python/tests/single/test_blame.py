"""Who is blamed when a rank leaves while others wait for it: the survivors' errors, the launcher's last line and
`farandole.run` name that rank, its cause and how far it was, whoever ends first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

import jobs
from farandole import _ending
from farandole.launch import RankFailed, run

SCRIPT = """
import logging, os, signal, sys
import farandole.basics
from farandole import _native
from tensors import Floats, allreduce

def leave(fault):
    if fault == "ends":
        return True
    if fault == "exit(0)":
        sys.exit(0)
    if fault == "exit(3)":
        sys.exit(3)
    if fault == "exit(text)":
        sys.exit("no data found")
    if fault == "raises":
        raise ValueError("a bad batch")
    if fault == "logs":
        try:
            raise ValueError("a bad batch")
        except ValueError:
            logging.exception("training failed")
            sys.exit(1)
    if fault == "catches":
        try:
            sys.exit(7)
        except SystemExit:
            return True
    if fault == "os._exit(3)":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)

def train(fault):
    _native.init([], dynamic=False)
    for number in range(5):
        if _native.rank() == FAULTY and number == 3 and leave(fault):
            return
        allreduce("gradient", Floats([1])).wait()
        MARK
"""

SURVIVES = """
try:
    train(sys.argv[1])
except Exception as error:
    if _native.rank() == FAULTY:
        raise
    sys.stdout.write(f"caught: {type(error).__name__} {error}\\n")
    sys.exit(1)
"""

UNEVEN = "ranks have different numbers of batches; see join, drop_last, DistributedSampler"

# What survivors are told, and what the launcher says of the rank.
FAULTS = {
    "ends": (rf"rank 1 ended \(exit code 0\) after 3 steps while rank \d waits in step 4: {UNEVEN}", None),
    "exit(0)": (rf"rank 1 ended \(exit code 0\) after 3 steps while rank \d waits in step 4: {UNEVEN}", None),
    "catches": (rf"rank 1 ended \(exit code 0\) after 3 steps while rank \d waits in step 4: {UNEVEN}", None),
    "exit(3)": (r"rank 1 ended \(exit code 3\) after 3 steps", r"ended with exit code 3 after "),
    "exit(text)": (
        r"rank 1 ended \(exit code 1\): no data found \(after 3 steps\)",
        r"ended with exit code 1 after .*: no data found",
    ),
    "raises": (
        r"rank 1 raised ValueError: a bad batch \(after 3 steps\)",
        r"ended with exit code 1 after .*: ValueError: a bad batch",
    ),
    "logs": (
        r"rank 1 raised ValueError: a bad batch \(after 3 steps\)",
        r"ended with exit code 1 after .*: ValueError: a bad batch",
    ),
    "os._exit(3)": (r"rank 1 on .*(is gone|ended with exit code 3)", r"ended with exit code 3 after "),
    "kill": (r"rank 1 on .*(is gone|was killed by signal 9)", r"was killed by signal 9 \(SIGKILL\)"),
}


def script(faulty: int = 1, mark: str = "_native.mark_step_done(number + 1)") -> str:
    return (SCRIPT + SURVIVES).replace("FAULTY", str(faulty)).replace("MARK", mark)


def caught(text: str) -> list[str]:
    return re.findall(r"caught: RankLostError (.*)", text)


def check_survivors(output: str, told: str, ranks: int) -> None:
    words = caught(output)
    assert len(words) == ranks - 1, output
    for word in words:
        assert re.match(told, word), output


@pytest.mark.parametrize("fault", FAULTS)
def test_the_launcher_blamed_the_rank_that_waited(fault: str) -> None:
    told, said = FAULTS[fault]
    job = jobs.run_job(3, script(), arguments=[fault], seconds=100)
    check_survivors(job.output, told, 3)
    last = job.errors.strip().splitlines()[-1]
    whole = rf"farandole: rank 1 on localhost \(pid \d+\) {said or told.removeprefix('rank 1 ')}"
    assert re.match(whole, last), job
    assert job.code == {"exit(3)": 3, "os._exit(3)": 3, "kill": 137}.get(fault, 1), job


def test_the_coordinator_that_leaves_is_named_as_any_other() -> None:
    job = jobs.run_job(2, script(faulty=0), arguments=["ends"], seconds=100)
    assert "rank 0 ended (exit code 0) after 3 steps while rank 1 waits in step 4" in caught(job.output)[0], job
    assert "farandole: rank 0 on localhost" in job.errors.strip().splitlines()[-1], job


def test_without_steps_collectives_are_counted() -> None:
    job = jobs.run_job(2, script(mark="pass"), arguments=["ends"], seconds=100)
    words = "rank 1 ended (exit code 0) after 3 collectives while rank 0 waits in collective 4"
    assert caught(job.output)[0].startswith(words), job


def test_a_rank_that_ends_before_the_others_in_order_is_no_cause() -> None:
    # Rank 0 waits for nobody when it fails, later and by itself.
    body = """
    train("none")
    if _native.rank() == 0:
        wait_for("rank 1 to leave", lambda: os.path.exists(sys.argv[1]))
        sys.exit("its own fault")
    """
    ends = "    open(sys.argv[1], 'w').close()\n"
    code = SCRIPT.replace("FAULTY", "9").replace("MARK", "pass")
    code += "from waiting import wait_for\n" + textwrap.dedent(body) + "else:\n    _native.shutdown()\n" + ends
    marker = f"/tmp/farandole-blame-{os.getpid()}"
    try:
        job = jobs.run_job(2, code, arguments=[marker], seconds=100)
    finally:
        if os.path.exists(marker):
            os.unlink(marker)
    last = job.errors.strip().splitlines()[-1]
    assert re.match(r"farandole: rank 0 on localhost \(pid \d+\) ended with exit code 1 .*: its own fault", last), job


@pytest.mark.parametrize("fault", FAULTS)
def test_survivors_under_a_foreign_launcher_name_the_rank_that_left(fault: str) -> None:
    told, _ = FAULTS[fault]
    port = str(jobs.free_port())
    ranks = []
    for rank in range(3):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
        torchrun = {**place, "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        torchrun |= {"TORCHELASTIC_RUN_ID": "blame", "TORCHELASTIC_RESTART_COUNT": "0"}
        environment = jobs.environment(**torchrun)
        environment["PYTHONPATH"] += os.pathsep + os.path.dirname(os.path.abspath(jobs.__file__))
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", script(), fault],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = ["".join(rank.communicate(timeout=100)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    check_survivors("".join(outputs), told, 3)
    assert [ranks[0].returncode, ranks[2].returncode] == [1, 1], outputs


def test_run_raises_what_the_function_has_raised() -> None:
    def fails() -> None:
        from farandole import _native
        from tensors import Floats, allreduce

        _native.init([], dynamic=False)
        allreduce("first", Floats([1])).wait()
        if _native.rank() == 1:
            raise KeyError("loss")
        allreduce("second", Floats([1])).wait()

    with pytest.raises(RankFailed) as failed:
        run(fails, num_proc=2)
    assert failed.value.rank == 1 and isinstance(failed.value.__cause__, KeyError), failed.value
    assert "rank 1 raised KeyError: 'loss'" in str(failed.value)


def test_run_names_a_rank_whose_function_exits() -> None:
    def exits() -> None:
        from farandole import _native
        from tensors import Floats, allreduce

        _native.init([], dynamic=False)
        allreduce("first", Floats([1])).wait()
        if _native.rank() == 1:
            sys.exit(0)
        allreduce("second", Floats([1])).wait()

    with pytest.raises(RankFailed, match=r"rank 1 on localhost .* ended \(exit code 0\) after 1 collective") as failed:
        run(exits, num_proc=2)
    assert failed.value.rank == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Caught FileNotFoundError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
            '  File "x.py", line 1, in <module>\nFileNotFoundError: [Errno 2] no such file: "17.jpg"\n',
            'raised FileNotFoundError: [Errno 2] no such file: "17.jpg" (in DataLoader worker process 0)',
        ),
        (
            "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
            '<stack traces unavailable>\nKeyError: "label"\nTraceback (most recent call last):\n\n  File "x.py"\n\n'
            'KeyError: "label"\n\n\t [[{{node PyFunc}}]]',
            'raised KeyError: "label"',
        ),
        (
            "Graph execution error:\n\nDetected at node Add defined at (most recent call last):\n"
            "<stack traces unavailable>\nIncompatible shapes: [2] vs. [3]\n\t [[{{node Add}}]]",
            "raised Incompatible shapes: [2] vs. [3]",
        ),
        ("two\nlines", "raised RuntimeError: two\nlines"),
    ],
)
def test_exceptions_that_a_framework_has_wrapped_are_named_themselves(text: str, said: str) -> None:
    assert _ending._raised(RuntimeError(text)) == said
