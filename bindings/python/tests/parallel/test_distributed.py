"""The backend of `torch.distributed`: every operation, on the world and on its parts, with results worked out here."""

import functools
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from waiting import wait_for

import farandole.torch as hvd
import farandole.torch.distributed  # noqa: F401 - makes the backend known
from farandole.torch import device_memory

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
TRAVELLING = [*DTYPES, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]


@pytest.fixture(scope="module", autouse=True)
def world():
    """The default process group, for the tests of this file. Tensors are in host memory, or on a device of choice."""
    torch.set_num_threads(1)
    torch.set_default_device(os.environ.get("FARANDOLE_TEST_DEVICE", "cpu"))
    dist.init_process_group("farandole", timeout=timedelta(seconds=60))
    yield
    torch.set_default_device(None)
    dist.destroy_process_group()
    assert not hvd.is_initialized()


@pytest.fixture(scope="module")
def groups(world):
    """The groups that this rank is in, with their global ranks: the world, every other rank, all but the last, one."""
    size = dist.get_world_size()
    wanted = [list(range(0, size, 2)), list(range(1, size, 2)), list(range(size - 1)), [0], list(range(size))]
    made = [(dist.new_group(ranks), ranks) for ranks in wanted]
    here = [(group, ranks) for group, ranks in made if dist.get_rank() in ranks]
    return [(dist.group.WORLD, list(range(size))), *here]


def values(rank, dtype, count=5):
    """What a rank contributes; all sums of them are exact in every type."""
    return (torch.arange(count) % 3 + rank % 3).to(dtype)


def same(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    assert torch.equal(one.to(torch.complex128), other.to(torch.complex128)), (one, other)


def as_list(tensor):
    return tensor.to(torch.complex128).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce(groups, dtype):
    for group, ranks in groups:
        rows = torch.stack([values(rank, dtype).to(torch.float64) for rank in ranks])
        expected = {
            dist.ReduceOp.SUM: rows.sum(0),
            dist.ReduceOp.MIN: rows.min(0).values,
            dist.ReduceOp.MAX: rows.max(0).values,
            dist.ReduceOp.PRODUCT: rows.prod(0),
        }
        for op, result in expected.items():
            tensor = values(dist.get_rank(), dtype)
            dist.all_reduce(tensor, op=op, group=group)
            same(tensor, result.to(dtype))


def test_all_reduce_of_average_and_scaled_sum(groups):
    for group, ranks in groups:
        total = torch.stack([values(rank, torch.float32) for rank in ranks]).sum(0)
        tensor = values(dist.get_rank(), torch.float32)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group)
        torch.testing.assert_close(tensor, total / len(ranks))
        tensor = values(dist.get_rank(), torch.float32)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5), group=group)
        same(tensor, total * 0.5)


def test_all_reduce_of_bool_and_complex(groups):
    for group, ranks in groups:
        me = dist.get_rank()
        for op, expected in [(dist.ReduceOp.BAND, [True, False]), (dist.ReduceOp.BOR, [True, len(ranks) > 1])]:
            flags = torch.tensor([True, me != ranks[0]])
            dist.all_reduce(flags, op=op, group=group)
            assert flags.tolist() == expected
        numbers = torch.tensor([1 + 2j, 3 - 1j]) * (me + 1)
        dist.all_reduce(numbers, group=group)
        same(numbers, torch.tensor([1 + 2j, 3 - 1j]) * sum(rank + 1 for rank in ranks))
        with pytest.raises(ValueError, match="complex"):
            dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=group)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_bitwise_reductions(groups, dtype):
    for group, ranks in groups:
        rows = [torch.tensor([1 << rank % 4, rank, 5], dtype=dtype) for rank in ranks]
        mine = rows[ranks.index(dist.get_rank())]
        folds = {
            dist.ReduceOp.BAND: torch.bitwise_and,
            dist.ReduceOp.BOR: torch.bitwise_or,
            dist.ReduceOp.BXOR: torch.bitwise_xor,
        }
        for op, fold in folds.items():
            expected = functools.reduce(fold, rows)
            tensor = mine.clone()
            dist.all_reduce(tensor, op=op, group=group)
            same(tensor, expected)
            tensor = mine.clone()
            dist.reduce(tensor, ranks[-1], op=op, group=group)
            same(tensor, expected if dist.get_rank() == ranks[-1] else mine)
            output = torch.zeros(1, dtype=dtype)
            dist.reduce_scatter_tensor(output, mine.repeat(len(ranks))[: len(ranks)].clone(), op=op, group=group)
            parts = [row.repeat(len(ranks))[ranks.index(dist.get_rank())].view(1) for row in rows]
            same(output, functools.reduce(fold, parts))
        flags = torch.tensor([True, dist.get_rank() == ranks[0]])
        dist.all_reduce(flags, op=dist.ReduceOp.BXOR, group=group)
        assert flags.tolist() == [len(ranks) % 2 == 1, True]


def test_tensors_that_are_not_contiguous(groups):
    for group, ranks in groups:
        tensor = torch.arange(12.0).view(3, 4).t()[1:]
        expected = tensor.clone() * len(ranks)
        dist.all_reduce(tensor, group=group)
        same(tensor, expected)
        output = torch.zeros(2, 2 * len(ranks)).t()
        dist.all_gather_into_tensor(output, torch.full((2, 2), float(dist.get_rank())), group=group)
        assert output[:, 0].tolist() == [float(rank) for rank in ranks for _ in range(2)]


def test_sparse_tensors(groups):
    me = dist.get_rank()
    for group, ranks in groups:
        # Each rank has row 0, a row of its own, and that one twice.
        tensor = torch.sparse_coo_tensor([[0, me + 1, me + 1]], [[1.0, 2.0], [3.0, 4.0], [1.0, 1.0]], (9, 2))
        dist.all_reduce(tensor, group=group)
        expected = torch.zeros(9, 2)
        expected[0] = torch.tensor([1.0, 2.0]) * len(ranks)
        for rank in ranks:
            expected[rank + 1] = torch.tensor([4.0, 5.0])
        same(tensor.to_dense(), expected)


def test_nothing_at_all(groups):
    for group, ranks in groups:
        dist.all_reduce(torch.empty(0), group=group)
        dist.broadcast(torch.empty(0), ranks[0], group=group)
        dist.all_gather([torch.empty(0) for _ in ranks], torch.empty(0), group=group)
        dist.all_to_all_single(torch.empty(0), torch.empty(0), group=group)


@pytest.mark.parametrize("dtype", TRAVELLING)
def test_broadcast_gather_and_scatter(groups, dtype):
    me = dist.get_rank()
    for group, ranks in groups:
        for root in ranks:
            tensor = values(me, dtype)
            dist.broadcast(tensor, root, group=group)
            same(tensor, values(root, dtype))
            outputs = [torch.zeros(5, dtype=dtype) for _ in ranks] if me == root else None
            dist.gather(values(me, dtype), outputs, root, group=group)
            for rank, output in zip(ranks, outputs or []):
                same(output, values(rank, dtype))
            output = torch.zeros(5, dtype=dtype)
            dist.scatter(output, [values(rank, dtype) for rank in ranks] if me == root else None, root, group=group)
            same(output, values(me, dtype))


@pytest.mark.parametrize("dtype", TRAVELLING)
def test_all_gather_and_all_to_all(groups, dtype):
    me = dist.get_rank()
    for group, ranks in groups:
        outputs = [torch.zeros(5, dtype=dtype) for _ in ranks]
        dist.all_gather(outputs, values(me, dtype), group=group)
        for rank, output in zip(ranks, outputs):
            same(output, values(rank, dtype))
        whole = torch.zeros(5 * len(ranks), dtype=dtype)
        dist.all_gather_into_tensor(whole, values(me, dtype), group=group)
        assert as_list(whole) == [value for rank in ranks for value in as_list(values(rank, dtype))]
        # Rank i sends i + j + 1 elements to rank j.
        outputs = [torch.zeros(rank + me + 1, dtype=dtype) for rank in ranks]
        dist.all_to_all(outputs, [values(me, dtype, rank + me + 1) for rank in ranks], group=group)
        for rank, output in zip(ranks, outputs):
            same(output, values(rank, dtype, rank + me + 1))


def test_the_input_of_an_all_gather_may_lie_in_its_output(groups):
    for group, ranks in groups:
        whole = torch.full((3 * len(ranks),), -1.0)
        own = whole.chunk(len(ranks))[ranks.index(dist.get_rank())]
        own.fill_(float(dist.get_rank()))
        dist.all_gather_into_tensor(whole, own, group=group)
        assert whole.tolist() == [float(rank) for rank in ranks for _ in range(3)]


def test_an_output_of_another_size_is_refused(groups):
    for group, ranks in groups:
        with pytest.raises(ValueError, match=f"take 1 elements, but {2 * len(ranks)} came"):
            dist.all_gather([torch.zeros(1)], torch.zeros(2), group=group)
        dist.barrier(group=group)


def test_all_to_all_single_with_rows_of_unequal_number(groups):
    me = dist.get_rank()
    for group, ranks in groups:
        sizes = [rank + me + 1 for rank in ranks]
        rows = torch.full((sum(sizes), 2), float(me))
        output = torch.zeros(sum(sizes), 2)
        dist.all_to_all_single(output, rows, sizes, sizes, group=group)
        assert output[:, 1].tolist() == [float(rank) for rank, size in zip(ranks, sizes) for _ in range(size)]
        even = torch.zeros(2 * len(ranks))
        dist.all_to_all_single(even, torch.full((2 * len(ranks),), float(me)), group=group)
        assert even.tolist() == [float(rank) for rank in ranks for _ in range(2)]


def test_reduce_leaves_the_tensors_of_others_as_they_are(groups):
    me = dist.get_rank()
    for group, ranks in groups:
        for root in ranks:
            tensor = values(me, torch.float32)
            dist.reduce(tensor, root, group=group)
            total = torch.stack([values(rank, torch.float32) for rank in ranks]).sum(0)
            same(tensor, total if me == root else values(me, torch.float32))


def test_reduce_scatter(groups):
    me = dist.get_rank()
    for group, ranks in groups:
        place, size = ranks.index(me), len(ranks)
        whole = torch.arange(3.0 * size) + me
        total = torch.stack([torch.arange(3.0 * size) + rank for rank in ranks]).sum(0)
        output = torch.zeros(3)
        dist.reduce_scatter_tensor(output, whole, group=group)
        same(output, total[3 * place : 3 * place + 3])
        output = torch.zeros(3)
        dist.reduce_scatter(output, list(whole.chunk(size)), group=group)
        same(output, total[3 * place : 3 * place + 3])
        uneven = [torch.full((rank + 1,), float(me)) for rank in ranks]
        output = torch.zeros(me + 1)
        dist.reduce_scatter(output, uneven, group=group)
        same(output, torch.full((me + 1,), float(sum(ranks))))


def test_coalesced_operations(groups):
    me = dist.get_rank()
    for group, ranks in groups:
        tensors = [torch.full((count,), float(me)) for count in (1, 70, 3)]
        with dist._coalescing_manager(group=group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        assert all(tensor.eq(sum(ranks)).all() for tensor in tensors)
        outputs = [torch.zeros(count * len(ranks)) for count in (2, 5)]
        with dist._coalescing_manager(group=group):
            for output in outputs:
                dist.all_gather_into_tensor(output, torch.full((len(output) // len(ranks),), float(me)), group=group)
        assert [output[-1].item() for output in outputs] == [float(ranks[-1])] * 2
        parts = [torch.zeros(count) for count in (2, 5)]
        with dist._coalescing_manager(group=group):
            for part in parts:
                dist.reduce_scatter_tensor(part, torch.full((len(part) * len(ranks),), float(me)), group=group)
        assert all(part.eq(sum(ranks)).all() for part in parts)


def test_tensors_that_are_contiguous_on_some_ranks_only(groups):
    me = dist.get_rank()
    for group, ranks in groups:
        for _ in range(10):
            # What a rank copies has the same name as what another one reduces in place.
            whole = torch.full((4, 2 * 3), float(me))
            tensors = [whole[:, ::2] if me == ranks[0] else whole[:, :3].contiguous(), torch.full((70,), float(me))]
            dist.all_reduce_coalesced(tensors, group=group)
            assert all(tensor.eq(sum(ranks)).all() for tensor in tensors)
            negative = torch.full((3,), 1j * me).conj().imag
            assert negative.is_neg()
            dist.all_reduce(negative, group=group)
            assert negative.eq(-sum(ranks)).all()


def test_memory_that_was_replaced_under_way_is_told_by_name(groups):
    for group, _ in groups:
        tensors = [torch.ones(3), torch.ones(3)]
        work = group.allreduce_coalesced(tensors)
        if not device_memory.lies_there(tensors[1]):
            tensors[1].data = torch.zeros(3)
            with pytest.raises(ValueError, match=r"The memory of tensor 'c10d\.[0-9.]+_1' was replaced"):
                work.wait()
        else:
            work.wait()


def test_a_burst_that_ends_within_a_cycle_of_names_is_reduced(groups):
    for group, ranks in groups:
        tensors = [torch.full((3,), float(dist.get_rank())) for _ in range(150)]
        for burst in range(6):
            works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()
            assert all(tensor.eq(sum(ranks) * len(ranks) ** burst).all() for tensor in tensors)


def test_objects(groups):
    me = dist.get_rank()
    for group, ranks in groups:
        gathered = [None] * len(ranks)
        dist.all_gather_object(gathered, {"rank": me, "text": "x" * me}, group=group)
        assert gathered == [{"rank": rank, "text": "x" * rank} for rank in ranks]
        words = [f"of {me}"]
        dist.broadcast_object_list(words, ranks[-1], group=group)
        assert words == [f"of {ranks[-1]}"]
        received = [None]
        dist.scatter_object_list(received, ranks if me == ranks[0] else None, ranks[0], group=group)
        assert received == [me]


@pytest.mark.parametrize("count", [0, 1, 5000, 300_000])
def test_send_and_recv(groups, count):
    me = dist.get_rank()
    for group, ranks in groups:
        place = ranks.index(me)
        after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        sends = [dist.isend(values(me + tag, torch.float32, count), after, group=group, tag=tag) for tag in range(3)]
        for tag in [2, 0, 1]:
            received = torch.full((2, count), -1.0)[0]
            dist.recv(received, before, group=group, tag=tag) if before != me else dist.irecv(
                received, before, group=group, tag=tag
            ).wait()
            same(received, values(before + tag, torch.float32, count))
        for send in sends:
            send.wait()
            assert send.is_completed()


@pytest.mark.parametrize("dtype", TRAVELLING)
def test_batched_messages_of_every_type(groups, dtype):
    me = dist.get_rank()
    for group, ranks in groups:
        others = [rank for rank in ranks if rank != me]
        if not others:
            continue
        received = {rank: torch.zeros(6, 2, dtype=dtype).t()[:, 1:] for rank in others}
        messages = [dist.P2POp(dist.irecv, received[rank], rank, group) for rank in others]
        messages += [dist.P2POp(dist.isend, values(me, dtype, 10).view(2, 5), rank, group) for rank in others]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        for rank in others:
            same(received[rank], values(rank, dtype, 10).view(2, 5))


def test_receiving_from_anybody_and_objects():
    me, size = dist.get_rank(), dist.get_world_size()
    if me == 0:
        heard = {}
        for _ in range(size - 1):
            tensor = torch.zeros(1)
            source = dist.recv(tensor)
            heard[source] = tensor.item()
        assert heard == {rank: float(rank) for rank in range(1, size)}
        dist.send_object_list(["for", {"rank": 1}], 1)
    else:
        dist.send(torch.full((1,), float(me)), 0)
    if me == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received == ["for", {"rank": 1}]


def test_messages_that_do_not_fit_are_refused_and_the_job_goes_on():
    me = dist.get_rank()
    if me == 0:
        with pytest.raises(dist.DistBackendError, match="rank 0 sends 400000 bytes"):
            dist.send(torch.zeros(100_000), 1)
    elif me == 1:
        with pytest.raises(dist.DistBackendError, match="rank 1 receives 40 bytes"):
            dist.recv(torch.zeros(10), 0)
    dist.barrier()


def test_work_and_futures(groups):
    for group, ranks in groups:
        tensor = torch.ones(4)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work.wait()
        if tensor.is_cuda:
            # The stream waits; the host has gone on.
            torch.cuda.synchronize()
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert work.result()[0] is tensor
        futures = [dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future() for _ in range(5)]
        futures = [future.then(lambda done: done.value()[0] + 1) for future in futures]
        for result in torch.futures.wait_all(futures):
            assert result.tolist() == [len(ranks) + 1.0] * 2
        work = dist.all_gather([torch.zeros(1) for _ in ranks], torch.ones(1), group=group, async_op=True)
        while not work.is_completed():
            pass
        assert [output.item() for output in work.result()] == [1.0] * len(ranks)


def test_calls_of_the_group_itself_need_no_options(groups):
    for group, ranks in groups:
        tensor = torch.ones(2)
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [float(len(ranks))] * 2


def test_the_future_of_a_complete_work_is_complete(groups):
    for group, ranks in groups:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        work.wait()
        assert work.get_future().done() and work.get_future().value()[0].tolist() == [float(len(ranks))] * 2


def test_outputs_are_filled_though_nobody_waits(groups):
    for group, ranks in groups:
        # Not contiguous: the engine writes a copy, which is copied back when the operation is finished.
        tensor = torch.ones(4, 4).t()[1:]
        dist.all_reduce(tensor, group=group, async_op=True)
        wait_for("the result", lambda tensor=tensor, ranks=ranks: tensor.eq(len(ranks)).all())


@pytest.mark.parametrize("by_initial_size", [True, False])
def test_uneven_inputs(by_initial_size):
    """The reducer waits for a work that only C++ code has left."""
    network = torch.nn.Linear(2, 2)
    parallel = torch.nn.parallel.DistributedDataParallel(network)
    size, me = dist.get_world_size(), dist.get_rank()
    with parallel.join(divide_by_initial_world_size=by_initial_size):
        for _ in range(1 + me):
            network.zero_grad()
            parallel(torch.ones(1, 2)).sum().backward()
    # In this rank's last pass those before it had no inputs left.
    expected = (size - me) / size if by_initial_size else 1.0
    torch.testing.assert_close(network.weight.grad, torch.full((2, 2), expected))


def test_splitting_a_group(groups):
    size, me = dist.get_world_size(), dist.get_rank()
    parts = [list(range(size - 1, size // 2 - 1, -1)), list(range(size // 2))]
    group = dist.split_group(split_ranks=parts)
    ranks = next(part for part in parts if me in part)
    assert dist.get_process_group_ranks(group) == ranks and group.rank() == ranks.index(me)
    tensor = torch.tensor([me])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == sum(ranks)
    alone = dist.split_group(parent_pg=group, split_ranks=[[0]])
    if me == ranks[0]:
        dist.barrier(group=alone)
    else:
        assert alone is dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()


def test_many_operations_under_way_at_once(groups):
    for group, ranks in groups:
        tensors = [torch.full((3,), float(number)) for number in range(300)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        assert all(tensor.eq(number * len(ranks)).all() for number, tensor in enumerate(tensors))


def test_groups_that_are_made_and_destroyed(groups):
    size = dist.get_world_size()
    for _ in range(3):
        group = dist.new_group(list(range(size)))
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == size
        dist.barrier(group=group)
        dist.destroy_process_group(group)
    for group, _ in groups:
        dist.barrier(group=group)
        dist.monitored_barrier(group=group)


def test_the_engine_is_shared_with_horovods_functions():
    assert (hvd.rank(), hvd.size()) == (dist.get_rank(), dist.get_world_size())
    total = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="beside")
    assert total.tolist() == [float(hvd.size())] * 2


def test_calls_that_do_not_fit_together_are_refused_and_the_job_goes_on():
    tensor = torch.ones(2 + dist.get_rank())
    with pytest.raises(dist.DistBackendError, match="c10d"):
        dist.all_reduce(tensor)
    with pytest.raises(ValueError, match="times as large"):
        dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(3 * dist.get_world_size() + 1))
    with pytest.raises(ValueError, match="does not reduce"):
        dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BXOR)
    dist.barrier()


def test_the_default_group_can_be_made_again():
    for _ in range(2):
        dist.barrier()
        dist.destroy_process_group()
        assert not hvd.is_initialized()
        dist.init_process_group("farandole", timeout=timedelta(seconds=60))
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == dist.get_world_size()
