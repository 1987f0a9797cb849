"""What can only be seen on a machine with a GPU: tensors in device memory, through every operation and the optimizer.

    farandole run -np 2 python bindings/python/tests/gpu/check.py

The ranks may share one GPU. Not a part of the test command, which runs on machines without one; there the logic of
`staging` is tested with events that are not a device's. Without a GPU this program fails.

Every check compares with the same computation on the CPU in plain torch. Rank 0 prints one line for each, and at the
end how long gradients of ResNet-50's size take. FARANDOLE_PLANE=staged does the same through host memory.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import farandole.torch as hvd
from farandole import _native
from farandole.torch import device_memory, staging

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
    begin = staging.DeviceWork.__init__

    def counted(work: staging.DeviceWork, handle: _native.BatchHandle, on: torch.device) -> None:
        calls.append(len(handle))
        begin(work, handle, on)

    staging.DeviceWork.__init__ = counted
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
            assert not device_memory.reduces_in(0) or sorted(calls) == expected, (groups, calls)
            ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        assert all(torch.equal(end, ends[0]) for end in ends)
    finally:
        staging.DeviceWork.__init__ = begin


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
        f"{'in device memory' if device_memory.reduces_in(0) else 'through host memory'}: "
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
]


def main() -> None:
    hvd.init()
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if hvd.rank() == 0:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {hvd.size()} ranks", flush=True)
    for check in CHECKS:
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
