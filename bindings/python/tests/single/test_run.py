"""`farandole.run`: functions in the ranks of a job, their results, and every way in which that can fail."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from waiting import wait_for

import farandole
from farandole.launch import RankFailed, run

SIZE = 3
FACTOR = 10


def own_rank() -> int:
    return int(os.environ["FARANDOLE_RANK"])


def scaled(number: int, *, by: int = 1) -> tuple[int, int]:
    return own_rank(), number * by * FACTOR


def test_results_come_in_the_order_of_ranks_with_arguments_and_globals():
    assert run(scaled, (2,), {"by": 7}, num_proc=SIZE) == [(rank, 140) for rank in range(SIZE)]
    assert farandole.run is run


def test_lambdas_and_closures_run():
    here = object.__name__
    assert run(lambda word: word + here, args=["an "]) == ["an object"]


def test_ranks_are_a_world():
    def summed() -> tuple[int, list[float]]:
        import array

        from farandole import _native

        _native.init([], dynamic=False)
        data = array.array("f", [_native.rank() + 1.0] * 4)
        address, _ = data.buffer_info()
        handle = _native.allreduce("data", address, [4], 11, data, 1, 1.0, 1.0, 0, None, 0, None)
        handle.wait()
        _native.shutdown()
        return _native.is_initialized(), list(data)

    assert run(summed, num_proc=2) == [(False, [3.0] * 4)] * 2


def test_large_results_come_back():
    results = run(lambda: bytes(120_000_000), num_proc=2)
    assert [len(result) for result in results] == [120_000_000] * 2


def test_large_arguments_go_there():
    assert run(len, (bytes(50_000_000),), num_proc=2) == [50_000_000] * 2


class Odd(ValueError):
    """An exception with more than a text."""

    def __init__(self, number: int) -> None:
        super().__init__(f"odd: {number}")
        self.number = number

    def __reduce__(self):
        return Odd, (self.number,)


def test_an_exception_names_the_rank_and_carries_its_traceback():
    def fails_in_one() -> None:
        if own_rank() == 1:
            raise Odd(17)
        # It would not end by itself.
        signal.pause()

    with pytest.raises(RankFailed, match=r"rank 1 raised .*Odd: odd: 17") as caught:
        run(fails_in_one, num_proc=SIZE)
    assert caught.value.rank == 1
    assert "in fails_in_one" in (caught.value.remote_traceback or "")
    assert isinstance(caught.value.__cause__, Odd) and caught.value.__cause__.number == 17


def test_what_cannot_be_pickled_is_an_exception_of_that_rank():
    with pytest.raises(RankFailed, match="rank 0 raised TypeError: cannot pickle"):
        run(threading.Lock)

    def raises_a_lock() -> None:
        raise RuntimeError("held", threading.Lock())

    with pytest.raises(RankFailed, match="rank 0 raised RuntimeError") as caught:
        run(raises_a_lock)
    assert caught.value.__cause__ is None and "raises_a_lock" in str(caught.value)


def test_a_killed_rank_gives_the_launchers_last_line():
    def dies_in_one() -> None:
        if own_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(RankFailed, match=r"rank 1 on .* was killed by signal 9 \(SIGKILL\)") as caught:
        run(dies_in_one, num_proc=2)
    assert caught.value.rank == 1 and caught.value.remote_traceback is None


def test_an_exit_of_a_program_that_has_imported_the_package_could_not_be_sent():
    script = """
    import sys
    import farandole.torch
    from farandole.launch import RankFailed, run

    try:
        run(sys.exit, (5,))
    except RankFailed as error:
        print(error)
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    ended = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    assert re.match("rank 0 on .* ended with exit code 5", ended.stdout), ended


def test_a_function_that_exits_is_no_success():
    with pytest.raises(RankFailed, match="rank 0 ended well, but its function did not return"):
        run(sys.exit, (0,))
    with pytest.raises(RankFailed, match="rank 0 on .* ended with exit code 5"):
        run(sys.exit, (5,))


def test_what_the_launcher_refuses_is_said():
    with pytest.raises(RankFailed, match="h1"):
        run(own_rank, num_proc=3, hosts="h1:1,h2:1")
    with pytest.raises(RankFailed, match="no-such-python"):
        run(own_rank, executable="/no-such-python")


@pytest.mark.parametrize(
    "argument, value",
    [("min_num_proc", 1), ("max_num_proc", 4), ("slots", 2), ("reset_limit", 3), ("cooldown_range", [1, 2])]
    + [("host_discovery_script", "./hosts.sh")],
)
def test_elastic_jobs_are_refused_in_words(argument, value):
    with pytest.raises(ValueError, match=f"{argument}: a function cannot be an elastic job"):
        run(own_rank, **{argument: value})


def test_arguments_are_checked_as_horovod_does():
    with pytest.raises(ValueError, match="hosts and hostfile only allow one"):
        run(own_rank, hosts="localhost:1", hostfile="hosts")
    with pytest.raises(ValueError, match="use_gloo and use_mpi only allow one"):
        run(own_rank, use_gloo=True, use_mpi=True)
    with pytest.raises(ValueError, match="farandole starts ranks itself"):
        run(own_rank, use_mpi=True)
    with pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc instead"):
        assert run(own_rank, np=2, use_gloo=True, disable_cache=True, verbose=0) == [0, 1]


def test_output_goes_where_it_is_wanted(tmp_path, capfd):
    def speaks() -> None:
        print("here I am")

    run(speaks, num_proc=2, output_filename=tmp_path / "logs", start_timeout=20, hosts="localhost:2")
    assert (tmp_path / "logs/rank.1/stdout").read_text() == "here I am\n"
    assert "[0]<stdout>:here I am" in capfd.readouterr().out


def test_functions_of_modules_beside_the_script_are_found(tmp_path):
    (tmp_path / "beside.py").write_text("import os\ndef rank():\n    return os.environ['FARANDOLE_RANK']\n")
    (tmp_path / "script.py").write_text("import beside, farandole\nprint(farandole.run(beside.rank, num_proc=2))\n")
    package = str(pathlib.Path(farandole.__file__).parent.parent)
    environment = dict(os.environ, PYTHONPATH=package)
    words = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, timeout=50)
    assert done.stdout == "['0', '1']\n", done.stderr


INTERRUPTED = """
    import os, pathlib, signal
    import farandole

    def waits(place):
        pathlib.Path(place, os.environ["FARANDOLE_RANK"]).write_text(str(os.getpid()))
        signal.pause()

    farandole.run(waits, [{place!r}], num_proc=2)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_caller_that_is_interrupted_or_killed_leaves_nothing(how, tmp_path):
    script = textwrap.dedent(INTERRUPTED.format(place=str(tmp_path)))
    package = str(pathlib.Path(farandole.__file__).parent.parent)
    environment = dict(os.environ, PYTHONPATH=package)
    caller = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        ranks = [wait_for("its note", lambda rank=rank: _pid(tmp_path / str(rank))) for rank in range(2)]
        caller.send_signal(how)
        _, errors = caller.communicate(timeout=30)
    finally:
        caller.kill()
    for rank in ranks:
        wait_for("its end", lambda rank=rank: not pathlib.Path(f"/proc/{rank}").exists())
    if how == signal.SIGINT:
        assert "KeyboardInterrupt" in errors and caller.returncode != 0


def _pid(file: pathlib.Path) -> int | None:
    return int(file.read_text() or 0) if file.exists() else None


