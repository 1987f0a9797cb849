"""What can only be seen on a machine with a GPU: tensors in device memory, through every operation and the optimizer.

    farandole run -np 2 python bindings/python/tests/gpu/check.py

The ranks may share one GPU. Not a part of the test command, which runs on machines without one; there the logic of
`staging` is tested with events that are not a device's. Without a GPU this program fails.

Every check compares with the same computation on the CPU in plain torch. Rank 0 prints one line for each, and at the
end how long gradients of ResNet-50's size take. FARANDOLE_PLANE=staged does the same through host memory; the checks of
what runs ahead of the device are left out then. Names of checks on the command line run only these.

With HOROVOD_ENABLE_ASYNC_COMPLETION=auto the host runs ahead of the device, and that is checked, too.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import farandole.torch as hvd
from farandole import _native
from farandole.torch import device_memory, run_ahead

sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))
import reference  # noqa: E402

SHAPES = [(), (17,), (0, 3), (5, 4, 3)]
GPU_DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *reference.FLOATS, torch.bool]

Check = Callable[[torch.device], None]


def same(actual: torch.Tensor, expected: torch.Tensor, device: torch.device) -> None:
    """Fails unless a result lies on this device and has these values."""
    assert actual.device == device, (actual.device, device)
    reference.same(actual.cpu().contiguous(), expected)


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


def everything_stays(device: torch.device) -> None:
    """All collectives of all types are carried out in device memory: nothing goes through host memory."""
    if not on_devices():
        return
    refuse = ("allreduce_many", "allreduce_batch", "allgather", "alltoall", "broadcast", "reducescatter")
    kept = {name: getattr(_native, name) for name in refuse}

    def host_memory(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a tensor went through host memory")

    for name in refuse:
        setattr(_native, name, host_memory)
    try:
        moves(device)
        grouped_moves(device)
        strided(device)
        hvd.broadcast_parameters(_model().to(device).state_dict(), root_rank=0)
    finally:
        for name, call in kept.items():
            setattr(_native, name, call)


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


def _spin(device: torch.device, seconds: float) -> None:
    """Gives the device work for about so long, and returns at once."""
    torch.cuda._sleep(int(seconds * 1.5e9))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def runs_ahead(device: torch.device) -> None:
    """`synchronize` of what repeats returns while the device computes; what comes after it sees the results."""
    if not host_runs_ahead():
        return
    tensor = torch.ones(1 << 20, device=device)
    hvd.allreduce_(tensor, name="ahead", op=hvd.Sum)
    torch.cuda.synchronize()
    _spin(device, 0.5)
    tensor.fill_(3.0)
    handle = hvd.allreduce_async_(tensor, name="ahead", op=hvd.Sum)
    waited = _seconds(lambda: hvd.synchronize(handle))
    doubled = tensor * 2
    busy = not torch.cuda.current_stream().query()
    assert busy and waited < 0.1, (busy, waited)
    assert run_ahead._under_way
    assert doubled.eq(6 * hvd.size()).all()
    # Waited for on request, and polled truthfully.
    _spin(device, 0.5)
    handle = hvd.allreduce_async_(tensor, name="ahead", op=hvd.Sum)
    assert not hvd.poll(handle)
    assert _seconds(lambda: hvd.synchronize(handle, block=True)) > 0.1
    assert torch.cuda.current_stream().query()


def calls_that_wait(device: torch.device) -> None:
    """Calls that wait for the device, or hold the driver's lock meanwhile, hold no rank up: copies to host memory,
    allocations, and freeing."""
    for step in range(60):
        tensor = torch.full((1 << (10 + step % 14),), float(step), device=device)
        handle = hvd.allreduce_async_(tensor, name="waits", op=hvd.Sum)
        hvd.synchronize(handle)
        if step % 3 == hvd.rank() % 3:
            assert tensor.cpu().eq(step * hvd.size()).all()
        elif step % 3 == 1:
            torch.cuda.synchronize()
        else:
            torch.cuda.empty_cache()
            torch.empty(1 << (20 + step % 7), device=device)
        assert tensor[-1].item() == step * hvd.size()


def step_ahead(device: torch.device) -> None:
    """`step` returns while the device computes the gradients, and the host is one step ahead at most."""
    if not host_runs_ahead():
        return
    model = torch.nn.Linear(64, 64).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    times = []
    for step in range(6):
        wrapped.zero_grad()
        output = model(torch.ones(4, 64, device=device))
        if step > 2:
            _spin(device, 0.3)
        output.sum().backward()
        times.append(_seconds(wrapped.step))
    left = _seconds(torch.cuda.synchronize)
    assert max(times[3:]) < 0.1, times
    assert left > 0.1, left
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert all(torch.equal(other, weights) for other in hvd.allgather(weights.unsqueeze(0)))


def refused_ahead(device: torch.device) -> None:
    """What ranks refuse is raised by `synchronize`, while the device computes, and the job goes on."""
    hvd.allreduce(torch.ones(4, device=device), name="later")
    _spin(device, 0.2)
    handle = hvd.allreduce_async(torch.ones(4 + hvd.rank(), device=device), name="later")
    try:
        hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        assert "later" in str(error), error
    else:
        raise AssertionError("nobody was told that the ranks refused")
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


def compressed(device: torch.device) -> None:
    """Compressed gradients leave in one call, and ranks stay alike."""
    calls: list[int] = []
    begin = device_memory.DeviceWork.__init__

    def counted(work: device_memory.DeviceWork, handle: _native.DeviceHandle, *rest: object) -> None:
        calls.append(len(handle))
        begin(work, handle, *rest)

    device_memory.DeviceWork.__init__ = counted
    try:
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            model = _model().to(device)
            wrapped = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), compression=compression
            )
            for step in range(4):
                calls.clear()
                wrapped.zero_grad()
                generator = torch.Generator().manual_seed(step * hvd.size() + hvd.rank())
                model(torch.randn(8, 3, 8, 8, generator=generator).to(device)).square().mean().backward()
                wrapped.step()
            assert not on_devices() or calls == [4], calls
            weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            assert all(torch.equal(other, weights) for other in hvd.allgather(weights.unsqueeze(0)))
    finally:
        device_memory.DeviceWork.__init__ = begin


def distributed_ahead(device: torch.device) -> None:
    """`torch.distributed`: waits of what repeats do not block the host, futures are complete with their streams."""
    import torch.distributed as dist

    import farandole.torch.distributed  # noqa: F401 - makes the backend known

    dist.init_process_group("farandole")
    total = torch.ones(1 << 16, device=device)
    for _ in range(80):
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
    if host_runs_ahead():
        torch.cuda.synchronize()
        _spin(device, 0.5)
        total.fill_(2.0)
        work = dist.all_reduce(total, op=dist.ReduceOp.SUM, async_op=True)
        assert work is not None and not work.is_completed()
        work.wait()
    for _ in range(80):
        total.fill_(1.0)
        dist.all_reduce(total)
    torch.cuda.synchronize()
    assert total.eq(hvd.size()).all()
    if host_runs_ahead():
        _spin(device, 0.5)
        total.fill_(1.0)
        work = dist.all_reduce(total, async_op=True)
        assert _seconds(work.wait) < 0.1
        assert not work.is_completed()
        doubled = total * 2
        assert doubled.eq(2 * hvd.size()).all() and work.is_completed()
        _spin(device, 0.5)
        total.fill_(1.0)
        future = dist.all_reduce(total, async_op=True).get_future()
        assert _seconds(future.wait) < 0.3
        assert future.value()[0].eq(hvd.size()).all()
    dist.destroy_process_group()


def on_devices() -> bool:
    """Whether allreduces of this job are carried out in device memory."""
    return _native.works_on_devices(0, ("allreduce", hvd.Sum, 1.0, 1.0), 11)


def host_runs_ahead() -> bool:
    """Whether the host goes on while collectives in device memory are under way; not where ranks take turns."""
    takes_turns = hvd.local_size() > torch.cuda.device_count() and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    return on_devices() and run_ahead.is_allowed() and not takes_turns


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


def gradients(device: torch.device) -> None:
    tensor = torch.ones(6, 2, device=device, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Sum).sum().backward()
    assert torch.equal(tensor.grad.cpu(), torch.full((6, 2), float(hvd.size())))
    tensor = torch.ones(6, 2, device=device, requires_grad=True)
    hvd.allgather(tensor).sum().backward()
    assert torch.equal(tensor.grad.cpu(), torch.ones(6, 2))


def _model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
    )


def optimizer(device: torch.device) -> None:
    """Ranks with a part of the batch each end where one process with the whole batch does."""
    alone, shared = _model().double(), _model().double().to(device)
    hvd.broadcast_parameters(shared.state_dict(), root_rank=0)
    single = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    wrapped = hvd.DistributedOptimizer(
        torch.optim.SGD(shared.parameters(), lr=0.05, momentum=0.9), named_parameters=shared.named_parameters()
    )
    for step in range(8):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(8 * hvd.size(), 3, 8, 8, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 10, (8 * hvd.size(),), generator=generator)
        single.zero_grad()
        torch.nn.functional.cross_entropy(alone(images), labels).backward()
        single.step()
        part = slice(8 * hvd.rank(), 8 * hvd.rank() + 8)
        wrapped.zero_grad()
        torch.nn.functional.cross_entropy(shared(images[part].to(device)), labels[part].to(device)).backward()
        wrapped.step()
    for expected, actual in zip(alone.parameters(), shared.parameters()):
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-9, atol=1e-9)


def together(device: torch.device) -> None:
    """Gradients that are ready together leave with one call, groups hold, and both change nothing in the result."""
    calls: list[int] = []
    begin = device_memory.DeviceWork.__init__

    def counted(work: device_memory.DeviceWork, handle: _native.DeviceHandle, *rest: object) -> None:
        calls.append(len(handle))
        begin(work, handle, *rest)

    device_memory.DeviceWork.__init__ = counted
    try:
        ends = []
        for groups, expected in ((None, [4]), (1, [4]), (2, [2, 2]), (4, [1, 1, 1, 1])):
            model = _model().double().to(device)
            wrapped = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters(), groups=groups
            )
            for step in range(4):
                calls.clear()
                generator = torch.Generator().manual_seed(step * hvd.size() + hvd.rank())
                wrapped.zero_grad()
                inputs = torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64).to(device)
                model(inputs).square().mean().backward()
                wrapped.step()
            assert not on_devices() or sorted(calls) == expected, (groups, calls)
            ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        assert all(torch.equal(end, ends[0]) for end in ends)
    finally:
        device_memory.DeviceWork.__init__ = begin


def replaced(device: torch.device) -> None:
    """Memory that is replaced under way: the operation completes, and whoever replaced it is told."""
    tensor = torch.ones(1 << 20, device=device)
    handle = hvd.allreduce_async_(tensor, name="replaced")
    tensor.data = torch.zeros(1, device=device)
    try:
        hvd.synchronize(handle)
    except ValueError as error:
        assert "memory of tensor 'allreduce.replaced' was replaced" in str(error), error
    else:
        raise AssertionError("nobody noticed that the tensor has other memory")
    model = _model().to(device)
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
    model(torch.ones(1, 3, 8, 8, device=device)).sum().backward()
    model[0].weight.grad.data = torch.zeros_like(model[0].weight)
    try:
        wrapped.step()
    except AssertionError as error:
        assert "gradient of parameter 'allreduce.0.weight' was replaced" in str(error), error
    else:
        raise AssertionError("nobody noticed that the gradient has other memory")


def mixed_precision(device: torch.device) -> None:
    """Autocast and a scaler, clipping after `unscale_`, fp16 on the wire: ranks stay alike and the loss falls."""
    model = _model().to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    wrapped = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-2), model.named_parameters(), compression=hvd.Compression.fp16
    )
    scaler = torch.amp.GradScaler("cuda")
    torch.manual_seed(hvd.rank())
    images, labels = torch.randn(32, 3, 8, 8, device=device), torch.randint(0, 10, (32,), device=device)
    losses = []
    for _ in range(30):
        wrapped.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(wrapped)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(wrapped)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    others = hvd.allgather(weights.unsqueeze(0))
    assert all(torch.equal(other, weights) for other in others)


def sync_batch_norm(device: torch.device) -> None:
    plain = torch.nn.BatchNorm2d(4).double()
    synced = hvd.SyncBatchNorm(4).double().to(device)
    whole = torch.randn(4 * hvd.size(), 4, 5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    part = whole[4 * hvd.rank() : 4 * hvd.rank() + 4].to(device).requires_grad_()
    reference_input = copy.deepcopy(whole).requires_grad_()
    expected, actual = plain(reference_input), synced(part)
    rows = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    torch.testing.assert_close(actual.cpu(), expected[rows].detach())
    (expected**3).sum().backward()
    (actual**3).sum().backward()
    torch.testing.assert_close(part.grad.cpu(), reference_input.grad[rows])
    torch.testing.assert_close(synced.running_var.cpu(), plain.running_var)


def speed(device: torch.device) -> str:
    """How long 102 MB of gradients take, in 161 tensors: as a group, and by a call for each."""
    sizes = [25_557_032 // 161] * 161
    tensors = [torch.ones(size, device=device) for size in sizes]

    def as_group() -> None:
        hvd.grouped_allreduce_(tensors, name="group")

    def one_by_one() -> None:
        for handle in [hvd.allreduce_async_(tensor, name=f"g{place}") for place, tensor in enumerate(tensors)]:
            hvd.synchronize(handle)

    medians = [1e3 * _median_seconds(run) for run in (as_group, one_by_one)]
    return (
        f"161 tensors, {4 * sum(sizes) / 1e6:.0f} MB, on {hvd.size()} ranks, "
        f"{'in device memory' if on_devices() else 'through host memory'}: "
        f"{medians[0]:.2f} ms as a group, {medians[1]:.2f} ms by a call for each (medians of 30)"
    )


def _median_seconds(run: Callable[[], None]) -> float:
    times = []
    for _ in range(40):
        hvd.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return sorted(times[10:])[15]


CHECKS: list[Check] = [
    allreduce,
    grouped,
    strided,
    moves,
    grouped_moves,
    uneven,
    everything_stays,
    sets,
    mixed,
    stream_order,
    dropped,
    other_stream,
    refusals,
    gradients,
    optimizer,
    together,
    replaced,
    mixed_precision,
    sync_batch_norm,
    compressed,
    runs_ahead,
    calls_that_wait,
    step_ahead,
    refused_ahead,
    captured,
    no_leak,
    distributed_ahead,
]

ALONE = hvd.ProcessSet([0])


def main() -> None:
    hvd.init(process_sets=[ALONE])
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if hvd.rank() == 0:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {hvd.size()} ranks", flush=True)
    for check in [check for check in CHECKS if not sys.argv[1:] or check.__name__ in sys.argv[1:]]:
        begun = time.perf_counter()
        check(device)
        if hvd.rank() == 0:
            print(f"ok {check.__name__} ({time.perf_counter() - begun:.1f} s)", flush=True)
    words = speed(device)
    if hvd.rank() == 0:
        print(words, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
