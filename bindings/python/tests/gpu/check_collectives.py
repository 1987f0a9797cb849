"""Collectives of tensors in device memory: every operation and element type, streams, process sets, leaks."""

from __future__ import annotations

import time

import torch
from checking import ALONE, no_host_memory, on_devices, reference, same, small_model

import farandole.torch as hvd
from farandole.torch import run_ahead

SHAPES = [(), (17,), (0, 3), (5, 4, 3)]
GPU_DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *reference.FLOATS, torch.bool]


def allreduce(device: torch.device) -> None:
    world = hvd.global_process_set
    for dtype in GPU_DTYPES:
        for shape in SHAPES:
            for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Average):
                if dtype == torch.bool and op == hvd.Average:
                    continue
                expected = reference.reduced(reference.contributions(world, shape, dtype), op)
                mine = reference.mine(shape, dtype).to(device)
                same(hvd.allreduce(mine, op=op), expected, device)
                hvd.allreduce_(mine, op=op)
                same(mine, expected, device)


def grouped(device: torch.device) -> None:
    world = hvd.global_process_set
    mine = [reference.mine((size,), seed=size).to(device) for size in range(1, 20)]
    sums = hvd.grouped_allreduce(mine, op=hvd.Sum)
    for size, total in enumerate(sums, start=1):
        same(total, reference.reduced(reference.contributions(world, (size,), seed=size), hvd.Sum), device)


def strided(device: torch.device) -> None:
    world = hvd.global_process_set
    expected = reference.reduced(reference.contributions(world, (5, 4, 3)), hvd.Sum)
    for view in reference.strided_versions(reference.mine((5, 4, 3)).to(device)):
        same(hvd.allreduce(view, op=hvd.Sum), expected, device)
        hvd.allreduce_(view, op=hvd.Sum)
        same(view, expected, device)


def moves(device: torch.device) -> None:
    world = hvd.global_process_set
    for dtype in GPU_DTYPES:
        rows = [reference.contribution(rank, (rank + 1, 3), dtype) for rank in world.ranks]
        same(hvd.allgather(rows[hvd.rank()].to(device)), torch.cat(rows), device)
        last = hvd.size() - 1
        mine = rows[last] if hvd.rank() == last else torch.zeros_like(rows[last])
        same(hvd.broadcast(mine.to(device), last), rows[last], device)
        square = [reference.contribution(rank, (2 * hvd.size(), 2), dtype) for rank in world.ranks]
        mine = square[hvd.rank()].to(device)
        expected = torch.cat([tensor[2 * hvd.rank() : 2 * hvd.rank() + 2] for tensor in square])
        same(hvd.alltoall(mine), expected, device)
        received, splits = hvd.alltoall(mine, torch.tensor([2] * hvd.size(), dtype=torch.int32, device=device))
        same(received, expected, device)
        assert splits.tolist() == [2] * hvd.size()
        if dtype != torch.bool:
            total = reference.reduced(square, hvd.Sum)
            same(hvd.reducescatter(mine, op=hvd.Sum), reference.rows_of(world, total), device)


def grouped_moves(device: torch.device) -> None:
    world = hvd.global_process_set
    rows = [[reference.contribution(rank, (rank + size, 2), seed=size) for rank in world.ranks] for size in (1, 2, 3)]
    for gathered, of_ranks in zip(hvd.grouped_allgather([each[hvd.rank()].to(device) for each in rows]), rows):
        same(gathered, torch.cat(of_ranks), device)
    square = [[reference.contribution(rank, (2 * hvd.size() + 1, 2), seed=s) for rank in world.ranks] for s in (1, 2)]
    parts = hvd.grouped_reducescatter([each[hvd.rank()].to(device) for each in square], op=hvd.Sum)
    for part, of_ranks in zip(parts, square):
        same(part, reference.rows_of(world, reference.reduced(of_ranks, hvd.Sum)), device)


def uneven(device: torch.device) -> None:
    """Splits that differ between ranks, and ranks without rows."""
    rank, size = hvd.rank(), hvd.size()
    rows = torch.arange(float(sum(range(size)) + size * rank), device=device)
    splits = [peer + rank for peer in range(size)]
    came, received = hvd.alltoall(rows, torch.tensor(splits, dtype=torch.int32))
    assert received.tolist() == [rank + peer for peer in range(size)]
    expected = []
    for peer in range(size):
        start = sum(earlier + peer for earlier in range(rank))
        expected.append(torch.arange(float(start), float(start + rank + peer)))
    same(came, torch.cat(expected), device)
    mine = torch.full((rank, 2), float(rank), device=device)
    same(hvd.allgather(mine), torch.cat([torch.full((peer, 2), float(peer)) for peer in range(size)]), device)


def everything_stays(device: torch.device) -> None:
    """All collectives of all types are carried out in device memory: nothing goes through host memory."""
    if not on_devices():
        return
    with no_host_memory():
        moves(device)
        grouped_moves(device)
        strided(device)
        hvd.broadcast_parameters(small_model().to(device).state_dict(), root_rank=0)


def sets(device: torch.device) -> None:
    """In a process set of rank 0 alone, and in that of all ranks."""
    if hvd.rank() == 0:
        same(hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum, process_set=ALONE), torch.ones(3), device)
    everybody = hvd.allreduce(torch.ones(3, device=device), name="set", op=hvd.Sum)
    same(everybody, torch.full((3,), float(hvd.size())), device)


def mixed(device: torch.device) -> None:
    """Tensors on the CPU and on the GPU in one job, in one group and in one optimizer."""
    both = [torch.ones(4), torch.ones(5, device=device)]
    for total in hvd.grouped_allreduce(both, op=hvd.Sum):
        assert total.eq(hvd.size()).all()
    handles = [hvd.allreduce_async(tensor, name=f"mixed.{index}", op=hvd.Sum) for index, tensor in enumerate(both)]
    for handle, tensor in zip(handles, both):
        total = hvd.synchronize(handle)
        assert total.device == tensor.device and total.eq(hvd.size()).all()
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3).to(device)
    names = [*first.named_parameters(prefix="cpu"), *second.named_parameters(prefix="gpu")]
    for _, parameter in names:
        parameter.data.fill_(0.5)
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD([parameter for _, parameter in names], lr=0.1), names)
    for _ in range(4):
        wrapped.zero_grad()
        second(first(torch.full((2, 3), float(hvd.rank() + 1))).to(device)).sum().backward()
        wrapped.step()
    for _, parameter in names:
        everybodys = hvd.allgather(parameter.detach().cpu().reshape(1, -1))
        assert all(torch.equal(other, everybodys[0]) for other in everybodys)


def stream_order(device: torch.device) -> None:
    """A tensor is still being computed when it is handed in, and its result is used at once."""
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(5):
        for _ in range(10):
            busy = torch.tanh(busy @ busy)
        tensor = busy.mean() * 0 + torch.arange(1 << 20, device=device, dtype=torch.float32)
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
        doubled = hvd.synchronize(handle) / hvd.size()
        assert torch.equal(doubled.cpu(), torch.arange(1 << 20, dtype=torch.float32))


def dropped(device: torch.device) -> None:
    """Tensors that are gone as soon as they are handed in, and whose memory is used again, travel as they were."""
    handles = []
    for place in range(50):
        tensor = torch.full((1 << 18,), float(place), device=device)
        handles.append(hvd.allreduce_async(tensor, name=f"dropped.{place}", op=hvd.Sum))
        del tensor
        torch.full((1 << 18,), -1.0, device=device)
    for place, handle in enumerate(handles):
        assert torch.all(hvd.synchronize(handle) == place * hvd.size()), place


def other_stream(device: torch.device) -> None:
    """Work on a stream of the user's own is waited for, and goes on there."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        doubled = hvd.allreduce(torch.full((1 << 20,), 3.0, device=device), op=hvd.Sum) * 2
    stream.synchronize()
    assert torch.all(doubled == 6 * hvd.size())


def refusals(device: torch.device) -> None:
    """What ranks refuse reaches the one who waits, and the next operation works."""
    try:
        hvd.allreduce(torch.ones(3 + hvd.rank(), device=device), name="refused")
    except hvd.HorovodInternalError as error:
        assert "Mismatched ALLREDUCE tensor shapes" in str(error), error
    else:
        raise AssertionError("tensors of different shapes were reduced")
    same(hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum), torch.full((3,), float(hvd.size())), device)


def captured(device: torch.device) -> None:
    """A collective inside of a CUDA graph is refused, with the reason."""
    if not on_devices():
        return
    tensor = torch.ones(4, device=device)
    stream = torch.cuda.Stream(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
            hvd.allreduce_(tensor, name="captured")
    except RuntimeError as error:
        assert "cannot become part of a CUDA graph" in str(error), error
    else:
        raise AssertionError("a graph took a collective")
    same(hvd.allreduce(torch.ones(2, device=device), op=hvd.Sum), torch.full((2,), float(hvd.size())), device)


def no_leak(device: torch.device) -> None:
    """A hundred rounds of everything leave neither memory of torch's nor of the driver's in use."""

    def rounds(count: int) -> None:
        for index in range(count):
            tensor = torch.ones(1 << 16, device=device)
            hvd.allreduce(tensor, name="leak.reduce")
            hvd.allgather(tensor[: 1 + index % 7], name="leak.gather")
            hvd.alltoall(tensor[: hvd.size() * (1 + index % 5)], name="leak.exchange")
            hvd.reducescatter(tensor, name="leak.scatter")
            hvd.broadcast_(tensor, 0, name="leak.broadcast")
        hvd.synchronize(hvd.allreduce_async_(tensor, name="leak.last"), block=True)
        run_ahead.settle()
        torch.cuda.synchronize()
        # The engine gives memory back when it looks next, within milliseconds.
        time.sleep(0.05)

    rounds(10)
    hvd.barrier()
    before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    hvd.barrier()
    rounds(100)
    hvd.barrier()
    after = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    assert after[0] <= before[0], (before, after)
    # All ranks on the device count here; a segment of torch's is 2 MB.
    assert after[1] >= before[1] - (8 << 20), (before, after)
    hvd.barrier()
