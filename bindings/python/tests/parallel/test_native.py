"""The native module between ranks: memory under way, waits that are interrupted, names in use, threads.

Run as a job (`farandole run -np 2 python -m pytest …`): every rank runs every test, in the same order.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref

import numpy
import pytest
from tensors import SUM, Floats, allreduce, allreduce_words
from waiting import lapse, wait_for, wait_until_asleep

from farandole import _native


@pytest.fixture(autouse=True)
def world() -> None:
    """The job is entered once and kept: other tests follow."""
    _native.init([], dynamic=True)


def meet(name: str) -> None:
    """Returns when all ranks are here."""
    _native.barrier(name, 0).wait()


def total(values: list[float]) -> list[float]:
    """What all ranks together have if each has this, times its rank plus one."""
    size = _native.size()
    return [value * size * (size + 1) / 2 for value in values]


def test_sums_and_their_names() -> None:
    mine = Floats([_native.rank() + 1, 2 * (_native.rank() + 1)])
    handle = allreduce("sums", mine)
    handle.wait()
    assert mine.values() == total([1, 2])


def test_memory_lives_until_the_request_is_done_whatever_is_dropped() -> None:
    late = _native.size() - 1
    if _native.rank() != late:
        tensor = Floats([1] * 4096)
        alive = weakref.ref(tensor)
        allreduce("early", tensor)
        del tensor
        gc.collect()
        # Memory that was freed too early would be given to somebody else now.
        others = [Floats([5] * 4096) for _ in range(16)]
        assert alive() is not None
        meet("early has been dropped")
        meet("early is done")
        wait_for("the end of its memory", lambda: _native.rank() >= 0 and alive() is None)
        assert all(other.values() == [5] * 4096 for other in others)
    else:
        meet("early has been dropped")
        tensor = Floats([1] * 4096)
        allreduce("early", tensor).wait()
        assert tensor.values() == [_native.size()] * 4096
        meet("early is done")


def test_ctrl_c_ends_the_wait_and_not_the_request() -> None:
    tensor = Floats([1])
    if _native.rank() == 0:
        handle = allreduce("interrupted", tensor)
        batch = _native.allreduce_batch([Floats([1]).words("interrupted, too")], SUM, 1.0, 1.0, 0, None)
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)

        def interrupt() -> None:
            # It may sleep before, because it has started this thread.
            lapse("the one that begins to wait", 0.05)
            wait_until_asleep(threading.main_thread())
            os.kill(os.getpid(), signal.SIGINT)

        try:
            for wait in (handle.wait, lambda: _native.wait_all([handle, handle]), batch.wait):
                with pytest.raises(KeyboardInterrupt):
                    threading.Thread(target=interrupt).start()
                    wait()
        finally:
            signal.signal(signal.SIGINT, previous)
        meet("rank 0 was interrupted")
        handle.wait()
        batch.wait()
    else:
        meet("rank 0 was interrupted")
        allreduce("interrupted, too", Floats([1]))
        allreduce("interrupted", tensor).wait()
    assert tensor.values() == [_native.size()]


def test_a_name_is_taken_while_its_request_is_under_way() -> None:
    first, second = Floats([1]), Floats([1])
    if _native.rank() == 0:
        handle = allreduce("taken", first)
        with pytest.raises(
            ValueError, match="^Requested to allreduce, allgather, or broadcast a tensor with the same name"
        ):
            allreduce("taken", second)
    meet("rank 0 has taken the name")
    if _native.rank() != 0:
        handle = allreduce("taken", first)
    handle.wait()
    allreduce("taken", second).wait()
    assert first.values() == second.values() == [_native.size()]


def test_one_wrong_among_many_raises_and_the_others_are_done() -> None:
    tensors = [Floats([1]) for _ in range(10)]
    wrong = Floats([1] * (2 + _native.rank()))
    words = [allreduce_words(f"many {n}", tensor) for n, tensor in enumerate(tensors)]
    words.insert(5, allreduce_words("wrong among many", wrong))
    handles = _native.allreduce_many(words)
    with pytest.raises(_native.HorovodInternalError, match="wrong among many"):
        _native.wait_all(handles)
    for handle in handles:
        if handle.name != "wrong among many":
            handle.wait()
    assert all(tensor.values() == [_native.size()] for tensor in tensors)
    with pytest.raises(_native.HorovodInternalError, match="wrong among many"):
        handles[5].wait()


def test_a_batch_raises_what_went_wrong_first_and_the_others_are_done() -> None:
    tensors = [Floats([1]) for _ in range(10)]
    words = [tensor.words(f"batch {n}") for n, tensor in enumerate(tensors)]
    words.insert(5, Floats([1] * (2 + _native.rank())).words("wrong in a batch"))
    batch = _native.allreduce_batch(words, SUM, 1.0, 1.0, 0, None)
    caught: list[str] = []

    def wait() -> None:
        try:
            batch.wait()
        except _native.HorovodInternalError as error:
            caught.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(caught) == 4 and "wrong in a batch" in caught[0] and len(set(caught)) == 1
    assert all(tensor.values() == [_native.size()] for tensor in tensors)


def test_threads_of_every_rank_wait_beside_each_other() -> None:
    wrong: list[object] = []

    def ask(thread: int) -> None:
        for round_ in range(30):
            tensor = Floats([thread + round_] * (1 + 50 * thread))
            allreduce(f"thread {thread}", tensor).wait()
            if tensor.values()[-1] != (thread + round_) * _native.size():
                wrong.append((thread, round_, tensor.values()[-1]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_one_handle_is_waited_for_by_many_threads() -> None:
    tensor = Floats([1])
    if _native.rank() == 0:
        handle = allreduce("for many threads", tensor)
        results: list[object] = []
        threads = [threading.Thread(target=lambda: results.append(handle.wait())) for _ in range(6)]
        for thread in threads:
            thread.start()
        meet("threads wait")
        for thread in threads:
            thread.join(30)
        assert len(results) == 6 and all(result is results[0] for result in results)
    else:
        meet("threads wait")
        allreduce("for many threads", tensor).wait()
    assert tensor.values() == [_native.size()]


def test_results_of_the_engines_making_are_taken_over() -> None:
    rank, size = _native.rank(), _native.size()
    rows = Floats([rank] * (2 * (rank + 1)), (rank + 1, 2))
    gathered = numpy.from_dlpack(_native.allgather(*rows.words("rows"), 0, None).wait())
    assert gathered.tolist() == [[other] * 2 for other in range(size) for _ in range(other + 1)]
    parts = Floats(range(2 * size), (2 * size,))
    mine = numpy.from_dlpack(_native.reducescatter(*parts.words("parts"), SUM, 1.0, 1.0, 0, None).wait())
    assert mine.tolist() == [2 * rank * size, (2 * rank + 1) * size]
    splits = [1 if other <= rank else 0 for other in range(size)]
    sent = Floats([rank] * sum(splits))
    result = _native.alltoall(*sent.words("sent"), splits, 0).wait()
    assert result.received_splits == [1 if rank <= other else 0 for other in range(size)]
    assert numpy.from_dlpack(result).tolist() == [other for other in range(size) if rank <= other]


def test_a_broadcast_names_its_root_by_world_rank_in_every_process_set() -> None:
    rank, last = _native.rank(), _native.size() - 1
    members = [max(1, last - 1), last] if last > 1 else [last]
    some = _native.add_process_set(members)
    try:
        assert _native.process_sets()[some] == members
        tensor = Floats([rank])
        with pytest.raises(ValueError, match="invalid root rank 0"):
            _native.broadcast(*tensor.words("b"), 0, some, None)
        if rank in members:
            _native.broadcast(*tensor.words("b"), last, some, None).wait()
            assert tensor.values() == [last]
        else:
            with pytest.raises(ValueError, match="not a member"):
                _native.broadcast(*tensor.words("b"), last, some, None)
    finally:
        _native.remove_process_set(some)


def test_join_tells_who_was_last() -> None:
    if _native.rank() == 0:
        lapse("rank 0, which is late", 0.2)
    assert _native.join(0).wait().last_joined == 0
