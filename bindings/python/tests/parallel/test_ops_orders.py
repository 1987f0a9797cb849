"""Handles, names, and ranks that do things in different orders."""

import threading

import pytest
import torch
from reference import contributions, mine, reduced, same

import farandole.torch as hvd
from farandole import _native
from farandole.torch import handles
from farandole.torch.device_work import DeviceWork

pytestmark = pytest.mark.usefixtures("job")


def total(shape=(3,), seed=0):
    return reduced(contributions(hvd.global_process_set, shape, seed=seed), hvd.Sum)


def test_ranks_may_submit_in_any_order():
    count = 60
    order = [(index * 7 + hvd.rank() * 13) % count for index in range(count)]
    for _ in range(4):
        asked = {i: hvd.allreduce_async(mine((i + 1,), seed=i), name=f"order.{i}", op=hvd.Sum) for i in order}
        for i, handle in reversed(asked.items()):
            same(hvd.synchronize(handle), total((i + 1,), i))


def test_kinds_of_operations_may_be_mixed_in_any_order():
    def ask(kind):
        tensor = mine((4,))
        return {
            "allreduce": lambda: hvd.allreduce_async(tensor, name="mixed", op=hvd.Sum),
            "allgather": lambda: hvd.allgather_async(tensor, name="mixed"),
            "broadcast": lambda: hvd.broadcast_async(tensor, 0, name="mixed"),
            "alltoall": lambda: hvd.alltoall_async(tensor, [4] + [0] * (hvd.size() - 1), name="mixed"),
            "reducescatter": lambda: hvd.reducescatter_async(tensor, name="mixed"),
            "grouped": lambda: hvd.grouped_allreduce_async([tensor, tensor], name="mixed", op=hvd.Sum),
        }[kind]()

    kinds = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "grouped"]
    turned = kinds[hvd.rank() :] + kinds[: hvd.rank()]
    for _ in range(3):
        asked = {kind: ask(kind) for kind in turned}
        results = {kind: hvd.synchronize(handle) for kind, handle in asked.items()}
        same(results["allreduce"], total((4,)))
        same(results["grouped"][1], total((4,)))
        same(results["allgather"], torch.cat(contributions(hvd.global_process_set, (4,))))
        same(results["broadcast"], contributions(hvd.global_process_set, (4,))[0])
        assert results["alltoall"][1].tolist() == ([4] * hvd.size() if hvd.rank() == 0 else [0] * hvd.size())


def test_blocking_here_and_asynchronous_there():
    if hvd.rank() == 0:
        results = [hvd.allreduce(mine((2,), seed=i), op=hvd.Sum) for i in range(3)]
    else:
        asked = [hvd.allreduce_async(mine((2,), seed=i), op=hvd.Sum) for i in range(3)]
        results = [hvd.synchronize(handle) for handle in reversed(asked)][::-1]
    for index, result in enumerate(results):
        same(result, total((2,), index))


def test_nameless_operations_of_a_set_leave_the_count_of_others_alone(sets):
    if hvd.rank() == 0:
        for _ in range(3):
            hvd.allreduce(mine((2,)), process_set=sets[1]) if sets[1].size() == 1 else None
    same(hvd.allreduce(mine((2,)), op=hvd.Sum), total((2,)))


def test_names_are_those_of_horovod():
    hvd.barrier()
    name = handles.name_of
    assert name("allreduce", "w", 0) == "allreduce.w"
    first = name("test_kind", None, 0)
    assert first == "test_kind.noname.1"
    assert name("test_kind", None, 0) == "test_kind.noname.2"
    assert name("test_kind", None, 1) == "test_kind.noname.1"


def name_in_engine(handle):
    work = handles._pending[handle].work
    return work.handle.names if isinstance(work, DeviceWork) else [native.name for native in work.handles]


def test_the_engine_knows_requests_by_horovods_names():
    tensor = mine((hvd.size(),))
    for kind, asked in {
        "allreduce.n": hvd.allreduce_async(tensor, name="n"),
        "allgather.n": hvd.allgather_async(tensor, name="n"),
        "broadcast.n": hvd.broadcast_async(tensor, 0, name="n"),
        "alltoall.n": hvd.alltoall_async(tensor, name="n"),
        "reducescatter.n": hvd.reducescatter_async(tensor, name="n"),
    }.items():
        assert name_in_engine(asked) == [kind]
        hvd.synchronize(asked)
    for kind, asked in {
        "grouped_allreduce": hvd.grouped_allreduce_async([tensor, tensor], name="n"),
        "grouped_allgather": hvd.grouped_allgather_async([tensor, tensor], name="n"),
        "grouped_reducescatter": hvd.grouped_reducescatter_async([tensor, tensor], name="n"),
    }.items():
        assert name_in_engine(asked) == [f"{kind}.n_1of2", f"{kind}.n_2of2"]
        hvd.synchronize(asked)


def test_poll_and_synchronize():
    handle = hvd.allreduce_async(mine((3,)), op=hvd.Sum)
    assert isinstance(handle, int)
    while not hvd.poll(handle):
        pass
    same(hvd.synchronize(handle), total())
    assert hvd.synchronize(handle) is None, "a handle is fetched once"
    assert hvd.synchronize(987654321) is None
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.poll(handle)


def test_a_tensor_that_nobody_holds_lives_until_its_request_is_done():
    asked = []
    for index in range(20):
        asked.append(hvd.allreduce_async_(torch.full((1000,), float(index)), name=f"dropped.{index}", op=hvd.Sum))
        torch.full((1000,), -1.0)
    for index, handle in enumerate(asked):
        assert torch.all(hvd.synchronize(handle) == index * hvd.size())


def test_a_handle_that_nobody_fetches_does_no_harm():
    hvd.allreduce_async(mine((3,)), name="forgotten")
    hvd.barrier()
    same(hvd.allreduce(mine((3,)), op=hvd.Sum), total())


def test_threads_may_ask_at_the_same_time():
    failures = []

    def work(thread):
        try:
            for step in range(20):
                result = hvd.allreduce(mine((5,), seed=thread), name=f"thread.{thread}.{step}", op=hvd.Sum)
                same(result, total((5,), thread))
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_barrier_holds_everybody_back(sets):
    for process_set in sets:
        for _ in range(3):
            hvd.barrier(process_set)
    counted = torch.tensor([1])
    assert hvd.allreduce(counted, op=hvd.Sum).item() == hvd.size()
    hvd.barrier()


def test_a_priority_reaches_the_engine_in_every_form(monkeypatch):
    handed_in = []
    original = _native.allreduce_many

    def allreduce_many(requests):
        handed_in.extend(request[10] for request in requests)
        return original(requests)

    def noted(submit):
        def call(*arguments, priority):
            handed_in.append(priority)
            return submit(*arguments, priority=priority)

        return call

    monkeypatch.setattr(_native, "allreduce_many", allreduce_many)
    for name in ("submit_on_device", "submit_tensors_on_device"):
        monkeypatch.setattr(_native, name, noted(getattr(_native, name)))
    forms = [
        lambda: hvd.allreduce(mine((3,)), name="p", op=hvd.Sum, priority=7),
        lambda: hvd.allreduce(mine((3,)).requires_grad_(), name="p", op=hvd.Sum, priority=7),
        lambda: hvd.allreduce_(mine((3,)), name="p", op=hvd.Sum, priority=7),
        lambda: hvd.synchronize(hvd.allreduce_async(mine((3,)), name="p", op=hvd.Sum, priority=7)),
        lambda: hvd.synchronize(hvd.allreduce_async_(mine((3,)), name="p", op=hvd.Sum, priority=7)),
        lambda: hvd.grouped_allreduce([mine((3,))], name="p", op=hvd.Sum, priority=7)[0],
        lambda: hvd.grouped_allreduce([mine((3,)).requires_grad_()], name="p", op=hvd.Sum, priority=7)[0],
        lambda: hvd.grouped_allreduce_([mine((3,))], name="p", op=hvd.Sum, priority=7)[0],
        lambda: hvd.synchronize(hvd.grouped_allreduce_async([mine((3,))], name="p", op=hvd.Sum, priority=7))[0],
        lambda: hvd.synchronize(hvd.grouped_allreduce_async_([mine((3,))], name="p", op=hvd.Sum, priority=7))[0],
    ]
    for form in forms:
        same(form().detach(), total())
    assert handed_in == [7] * len(forms)


def test_of_operations_that_are_ready_together_those_of_higher_priority_run_first():
    """A batch is ready all at once, on all ranks, and its members run in the order of their priorities."""
    count = 6
    tensors = [torch.ones(1 << 22) for _ in range(count)]
    for _ in range(3):
        words = [
            (f"urgent.{i}", t.data_ptr(), t.shape, 11, t.untyped_storage(), 1, 1.0, 1.0, 0, ("urgent", count), i, None)
            for i, t in enumerate(tensors)
        ]
        asked = _native.allreduce_many(words)
        # Four of these tensors fill a bucket, so the two of the lowest priorities travel in the second one, and when
        # one of them is done, so are all others.
        asked[0].wait()
        done = [handle.poll() for handle in asked]
        assert all(done[2:]), done
        _native.wait_all(asked)
