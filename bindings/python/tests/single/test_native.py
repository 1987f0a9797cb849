"""The native module in a world of one: what it refuses, what it gives away, what it keeps alive, and what it lets
go."""

from __future__ import annotations

import gc
import resource
import threading
import weakref
from collections.abc import Iterator

import numpy
import pytest
from tensors import FLOAT32, SUM, Floats, allreduce, allreduce_words

from farandole import _native


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Every test begins with a world of its own."""
    _native.shutdown()
    _native.init([], dynamic=True)
    yield
    _native.shutdown()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_a_word_for_wire_protection_that_is_none_is_refused() -> None:
    _native.shutdown()
    with pytest.raises(ValueError, match='wire_protection is "off", "checksum" or "encrypt", not "tls"'):
        _native.init([], dynamic=False, wire_protection="tls")
    assert not _native.is_initialized()
    for word in ("off", "checksum", "Encrypt"):
        _native.init([], dynamic=False, wire_protection=word)
        assert _native.size() == 1
        _native.shutdown()


def test_without_a_world_every_question_is_refused() -> None:
    _native.shutdown()
    assert not _native.is_initialized()
    for ask in (_native.rank, _native.size, _native.local_rank, _native.cross_size, _native.process_sets):
        with pytest.raises(ValueError, match="Farandole has not been initialized; use hvd.init()."):
            ask()
    with pytest.raises(ValueError, match="Farandole has not been initialized"):
        allreduce("x", Floats([1]))


def test_a_world_can_be_left_and_entered_again() -> None:
    for round_ in range(3):
        _native.init([], dynamic=False)
        assert (_native.rank(), _native.size(), _native.local_size(), _native.cross_size()) == (0, 1, 1, 1)
        tensor = Floats([round_])
        allreduce("x", tensor).wait()
        assert tensor.values() == [round_]
        _native.shutdown()
        _native.shutdown()


def test_a_result_can_be_fetched_twice() -> None:
    handle = allreduce("x", Floats([1, 2], (2, 1)))
    assert handle.name == "x"
    first = handle.wait()
    assert handle.poll() and handle.wait() is first
    assert (first.shape, first.received_splits, first.last_joined, first.dtype) == ((2, 1), [], -1, None)


def test_results_in_the_callers_memory_are_not_given_away() -> None:
    with pytest.raises(ValueError, match="lies in the tensor that came with it"):
        allreduce("x", Floats([1])).wait().__dlpack__()


def test_an_output_takes_the_result_and_the_input_stays() -> None:
    source, target = Floats([1, 2]), Floats([0, 0])
    words = (*source.words("x"), SUM, 2.0, 5.0, 0, None, 0, (target.address, target))
    _native.allreduce(*words).wait()
    assert (source.values(), target.values()) == ([1, 2], [10, 20])


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0)])
def test_memory_that_was_given_away_outlives_everything_of_ours(max_version: tuple[int, int] | None) -> None:
    tensor = Floats(range(6), (3, 2))
    result = _native.allgather(*tensor.words("x"), 0, None).wait()
    assert result.__dlpack_device__() == (1, 0)
    capsule = result.__dlpack__(max_version=max_version)

    class Capsule:
        """What numpy asks for a capsule."""

        def __dlpack__(self, **_: object) -> object:
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    array = numpy.from_dlpack(Capsule())
    del result, capsule, tensor
    _native.shutdown()
    gc.collect()
    assert array.dtype == numpy.float32 and array.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_capsules_that_nobody_takes_are_let_go() -> None:
    """Each result has 1 MB. The first 50 add about 50 MB and 4,500 no more than 64 MB, so the first do not count."""
    array = numpy.zeros(1 << 20, dtype=numpy.uint8)

    def take_and_forget(times: int) -> None:
        for _ in range(times):
            result = _native.allgather("x", array.ctypes.data, array.shape, 1, array, 0, None).wait()
            result.__dlpack__()
            result.__dlpack__(max_version=(1, 0))
            numpy.from_dlpack(result)

    take_and_forget(50)
    before = resident_bytes()
    take_and_forget(300)
    assert resident_bytes() - before < 64 << 20


def test_every_element_type_arrives_as_what_it_is() -> None:
    names = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 - float32 float64".split()
    for number, name in enumerate(names):
        if name == "-":
            continue  # numpy has no bfloat16
        array = numpy.array([[0, 1], [1, 1]], dtype=name)
        result = _native.allgather(name, array.ctypes.data, array.shape, number, array, 0, None).wait()
        assert result.dtype == number
        got = numpy.from_dlpack(result)
        assert got.dtype == array.dtype and got.tolist() == array.tolist()


def test_nothing_is_a_tensor_too() -> None:
    for shape in [(0,), (0, 3), (3, 0)]:
        empty = Floats([], shape)
        _native.allreduce("x", 0, shape, FLOAT32, empty, SUM, 1.0, 1.0, 0, None, 0, None).wait()
        result = _native.allgather("y", 0, shape, FLOAT32, empty, 0, None).wait()
        assert result.shape == shape
    assert numpy.from_dlpack(_native.allgather("y", 0, (0, 3), FLOAT32, None, 0, None).wait()).shape == (0, 3)
    scalar = Floats([7], ())
    assert allreduce("z", scalar).wait().shape == ()


def test_more_than_two_gibibytes_are_ordinary() -> None:
    array = numpy.zeros((1 << 31) + 24, dtype=numpy.uint8)
    array[-1] = 7
    _native.allreduce("x", array.ctypes.data, array.shape, 1, array, SUM, 1.0, 1.0, 0, None, 0, None).wait()
    assert array[-1] == 7 and array[0] == 0


def test_wrong_use_is_a_value_error_and_the_world_goes_on() -> None:
    tensor = Floats([1])
    name, address, shape, dtype, owner, *rest = allreduce_words("x", tensor)
    wrong = [
        ((name, 0, shape, dtype, owner, *rest), "null address"),
        ((name, address, (-1,), dtype, owner, *rest), "below zero"),
        ((name, address, (2**40, 2**40), dtype, owner, *rest), "more elements than there is memory"),
        ((name, address, (2**63 - 1,), 1, owner, *rest), "there is no memory"),
        ((name, address, shape, 13, owner, *rest), "no element type with the number 13"),
        (allreduce_words("x", tensor, op=6), "no reduction operation with the number 6"),
        (allreduce_words("x", tensor, group=9), "no group 9"),
        (allreduce_words("x", tensor, group=-1), "no process set -1"),
    ]
    for words, what in wrong:
        with pytest.raises(ValueError, match=what):
            _native.allreduce(*words)
        with pytest.raises(ValueError, match=what):
            _native.allreduce_many([words])
    with pytest.raises(ValueError, match="invalid root rank 1"):
        _native.broadcast(*tensor.words("x"), 1, 0, None)
    with pytest.raises(TypeError, match="12 arguments"):
        _native.allreduce_many([("x", 1)])
    allreduce("x", tensor).wait()


def test_many_are_asked_for_in_one_call() -> None:
    tensors = [Floats([number]) for number in range(100)]
    handles = _native.allreduce_many([allreduce_words(f"t{n}", tensor) for n, tensor in enumerate(tensors)])
    assert [handle.name for handle in handles] == [f"t{n}" for n in range(100)]
    results = _native.wait_all(handles)
    assert len(results) == 100 and all(handle.wait() is result for handle, result in zip(handles, results))
    assert _native.wait_all([]) == [] and _native.allreduce_many(()) == []
    with pytest.raises(TypeError):
        _native.wait_all([1])


def test_a_batch_handle_returns_nothing_but_that_all_are_done() -> None:
    tensors = [Floats([number]) for number in range(100)]
    gone = [weakref.ref(tensor) for tensor in tensors]
    batch = _native.allreduce_batch(
        [tensor.words(f"t{n}") for n, tensor in enumerate(tensors)], SUM, 2.0, 3.0, 0, None
    )
    assert len(batch) == 100 and batch.wait() is None and batch.poll() and batch.wait() is None
    assert [tensor.values() for tensor in tensors] == [[6 * number] for number in range(100)]
    tensors.clear()
    assert not any(reference() for reference in gone)
    together = _native.allreduce_batch(
        iter([Floats([1]).words("a"), Floats([2]).words("b")]), SUM, 1.0, 1.0, 0, "both"
    )
    together.wait()
    _native.allreduce_batch([], SUM, 1.0, 1.0, 0, None).wait()


def test_a_wrong_batch_is_refused_as_a_whole() -> None:
    good = Floats([1])
    for words, error, what in [
        (("b", 1), TypeError, "tuple of 5"),
        (("b", 0, (1,), FLOAT32, good), ValueError, "null address"),
        (("b", good.address, (-1,), FLOAT32, good), ValueError, "below zero"),
    ]:
        with pytest.raises(error, match=what):
            _native.allreduce_batch([good.words("a"), words], SUM, 1.0, 1.0, 0, None)
    with pytest.raises(ValueError, match="no reduction operation"):
        _native.allreduce_batch([good.words("a")], 9, 1.0, 1.0, 0, None)
    with pytest.raises(ValueError, match="same name"):
        _native.allreduce_batch([good.words("a"), Floats([1]).words("a")], SUM, 1.0, 1.0, 0, "batch of two")


def test_an_owner_is_let_go_with_the_result() -> None:
    tensor, output = Floats([1]), Floats([0])
    gone = [weakref.ref(tensor), weakref.ref(output)]
    handle = _native.allreduce(*tensor.words("x"), SUM, 1.0, 1.0, 0, None, 0, (output.address, output))
    del tensor, output
    handle.wait()
    assert [reference() for reference in gone] == [None, None]


def test_a_refused_request_holds_on_to_nothing() -> None:
    tensor = Floats([1])
    gone = weakref.ref(tensor)
    with pytest.raises(ValueError):
        allreduce("x", tensor, group=9)
    del tensor
    gc.collect()
    assert gone() is None


def test_threads_ask_and_wait_beside_each_other() -> None:
    wrong: list[str] = []

    def ask(thread: int) -> None:
        for round_ in range(200):
            tensor = Floats([thread, round_])
            allreduce(f"thread {thread}", tensor).wait()
            if tensor.values() != [thread, round_]:
                wrong.append(f"{thread} {round_}: {tensor.values()}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_requests_of_a_world_that_was_left_end_with_an_error() -> None:
    handle = allreduce("x", Floats([1]))
    handle.wait()
    _native.shutdown()
    _native.init([], dynamic=False)
    assert handle.wait().shape == (1,)
    with pytest.raises(ValueError, match="Set FARANDOLE_DYNAMIC_PROCESS_SETS=1"):
        _native.add_process_set([0])


def test_process_sets_of_a_world_of_one() -> None:
    assert _native.process_sets() == {0: [0]}
    for ranks, what in [([0], "exists already"), ([], "is empty"), ([0, 0], "names a rank twice"), ([1], "no rank 1")]:
        with pytest.raises(ValueError, match=what):
            _native.add_process_set(ranks)
    with pytest.raises(ValueError):
        _native.remove_process_set(0)
    with pytest.raises(ValueError):
        _native.remove_process_set(5)
