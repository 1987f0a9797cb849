"""The native module where processes end: killed ranks, forked children, interpreters that exit with work under way.

Each test starts a job of its own and looks at how it ended.
"""

from __future__ import annotations

import pytest
from jobs import run_job

pytestmark = pytest.mark.timeout(120)


# Survivors have a moment to say what they were told, and then the launcher ends them.
@pytest.mark.alone
def test_survivors_of_a_killed_rank_are_told_who_it_was() -> None:
    job = run_job(
        3,
        """
        import os, signal
        from farandole import _native
        from tensors import Floats, allreduce
        _native.init([], dynamic=False)
        allreduce("first", Floats([1])).wait()
        if _native.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            allreduce("second", Floats([1])).wait()
        except _native.RankLostError as error:
            assert isinstance(error, _native.HorovodInternalError) and isinstance(error, RuntimeError)
            print("caught:", error, flush=True)
            raise
        """,
    )
    assert job.code != 0
    for survivor in (0, 2):
        assert any(line.startswith("caught:") and "rank 1" in line for line in job.lines(survivor)), job
    assert "rank 1" in job.errors.strip().splitlines()[-1] and "SIGKILL" in job.errors, job


def test_what_the_ranks_refuse_is_an_internal_error_and_the_job_goes_on() -> None:
    job = run_job(
        2,
        """
        from farandole import _native
        from tensors import Floats, allreduce
        _native.init([], dynamic=False)
        try:
            allreduce("x", Floats([1] * (1 + _native.rank()))).wait()
        except _native.MismatchError as error:
            print("caught:", error)
        tensor = Floats([1])
        allreduce("x", tensor).wait()
        print(tensor.values())
        """,
    )
    assert job.code == 0, job
    for rank in (0, 1):
        caught, values = job.lines(rank)
        assert caught.startswith("caught:") and "Mismatched allreduce tensor shapes".lower() in caught.lower(), job
        assert values == "[2.0]"


def test_an_interpreter_ends_in_time_with_requests_under_way() -> None:
    job = run_job(
        2,
        """
        import threading
        from farandole import _native
        from tensors import Floats, allreduce
        _native.init([], dynamic=False)
        handles = [allreduce(f"{_native.rank()} {n}", Floats([1])) for n in range(20)]
        # Who has left ends the job for the others: both have submitted first.
        _native.barrier("submitted", 0).wait()
        def wait():
            try:
                handles[3].wait()
            except _native.HorovodInternalError:
                pass
        for _ in range(4):
            threading.Thread(target=wait, daemon=True).start()
        print("leaving")
        """,
        seconds=20,
    )
    assert job.code == 0, job
    assert job.lines(0) == job.lines(1) == ["leaving"], job


def test_a_thread_that_adds_a_process_set_alone_does_not_keep_the_interpreter_from_ending() -> None:
    job = run_job(
        2,
        """
        import threading
        from farandole import _native
        from waiting import lapse, wait_until_asleep
        _native.init([], dynamic=True)
        if _native.rank() == 0:
            alone = threading.Thread(target=_native.add_process_set, args=([0],), daemon=True)
            alone.start()
            wait_until_asleep(alone)
        else:
            lapse("rank 1, which knows nothing of it", 0.5)
        print("leaving")
        """,
        seconds=20,
    )
    assert job.lines(0) == job.lines(1) == ["leaving"], job


def test_threads_that_shut_down_at_once_do_not_wait_for_each_other() -> None:
    job = run_job(
        2,
        """
        import threading
        from farandole import _native
        from tensors import Floats, allreduce
        for cycle in range(5):
            _native.init([], dynamic=True)
            tensor = Floats([1])
            allreduce("x", tensor).wait()
            assert tensor.values() == [2.0]
            together = threading.Barrier(6)
            def leave():
                together.wait()
                _native.shutdown()
            threads = [threading.Thread(target=leave, daemon=True) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive(), f"a thread hangs in shutdown in cycle {cycle}"
            assert not _native.is_initialized()
        print("over")
        """,
        seconds=80,
    )
    assert job.code == 0 and job.lines(0) == job.lines(1) == ["over"], job
    assert "process set" not in job.errors, job


def test_a_shutdown_beside_threads_that_change_process_sets_ends_and_blames_nobody() -> None:
    job = run_job(
        2,
        """
        import threading
        from farandole import _native
        said = []
        for cycle in range(10):
            _native.init([], dynamic=True)
            number = _native.add_process_set([0])
            together = threading.Barrier(6)
            def change(call, argument):
                together.wait()
                try:
                    call(argument)
                except (_native.HorovodInternalError, ValueError) as error:
                    said.append(str(error))
            def leave():
                together.wait()
                _native.shutdown()
            threads = [threading.Thread(target=leave, daemon=True) for _ in range(2)]
            threads += [
                threading.Thread(target=change, args=(_native.add_process_set, [1]), daemon=True) for _ in range(2)
            ]
            threads += [
                threading.Thread(target=change, args=(_native.remove_process_set, number), daemon=True)
                for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive(), f"a thread hangs in cycle {cycle}"
            assert not _native.is_initialized()
        known = ("shut down", "left the job", "process set", "group", "init")
        assert all(any(word in text for word in known) for text in said), said
        print("over")
        """,
        seconds=100,
    )
    assert job.lines(0) == job.lines(1) == ["over"], job


def test_forked_children_ask_but_do_not_disturb() -> None:
    job = run_job(
        2,
        """
        import os, sys
        from farandole import _native
        from tensors import Floats, allreduce
        _native.init([], dynamic=True)
        mine = allreduce(f"only rank {_native.rank()}", Floats([1]))
        child = os.fork()
        if child == 0:
            assert (_native.rank(), _native.size()) == (int(os.environ["FARANDOLE_RANK"]), 2)
            tries = [
                lambda: allreduce("x", Floats([1])),
                lambda: mine.wait(),
                lambda: _native.wait_all([mine]),
                lambda: _native.init([], dynamic=False),
                lambda: _native.add_process_set([0]),
                lambda: _native.barrier("b", 0),
            ]
            for try_ in tries:
                try:
                    try_()
                except ValueError as error:
                    assert "forked from a rank" in str(error), error
                else:
                    raise SystemExit("a forked child was let in")
            del mine
            _native.shutdown()
            # Ends as any Python program does, with all exit handlers.
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        tensor = Floats([1])
        allreduce("after", tensor).wait()
        print(tensor.values())
        """,
    )
    assert job.code == 0, job
    assert job.lines(0) == job.lines(1) == ["[2.0]"], job


def test_workers_of_a_process_pool_know_their_rank() -> None:
    job = run_job(
        2,
        """
        import multiprocessing
        from farandole import _native
        from tensors import Floats, allreduce
        _native.init([], dynamic=False)
        def work(_):
            return _native.rank()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert set(pool.map(work, range(8))) == {_native.rank()}
        tensor = Floats([1])
        allreduce("x", tensor).wait()
        print(tensor.values())
        """,
    )
    assert job.code == 0 and job.lines(0) == ["[2.0]"], job


def test_an_exception_in_one_rank_ends_the_others_waits() -> None:
    job = run_job(
        2,
        """
        from farandole import _native
        from tensors import Floats, allreduce
        _native.init([], dynamic=False)
        allreduce("first", Floats([1])).wait()
        if _native.rank() == 1:
            raise ArithmeticError("the loss is not a number")
        allreduce("second", Floats([1])).wait()
        """,
        seconds=20,
    )
    assert job.code == 1, job
    last = job.errors.strip().splitlines()[-1]
    assert last.startswith("farandole: rank 1 ") and "the loss is not a number" in last, job
    of_rank_0 = [line for line in job.errors.splitlines() if line.startswith("[0]<stderr>:")]
    heard = [line for line in of_rank_0 if "farandole.RankLostError" in line]
    assert "rank 1 raised ArithmeticError: the loss is not a number (after 1 collective)" in heard[-1], job


def test_ranks_that_protect_data_differently_are_told_so_and_may_try_again() -> None:
    job = run_job(
        2,
        """
        import os
        import farandole.torch as hvd
        from farandole import _native
        try:
            hvd.init(wire_protection="encrypt" if os.environ["FARANDOLE_RANK"] == "0" else "off")
        except _native.MismatchError as error:
            print("caught:", error)
        hvd.init(wire_protection="checksum")
        print(hvd.size())
        """,
    )
    assert job.code == 0, job
    for rank in (0, 1):
        caught, size = job.lines(rank)
        expected = "caught: the ranks differ in FARANDOLE_WIRE_PROTECTION: encrypt on rank 0, off on rank 1;"
        assert caught.startswith(expected) and size == "2", job
