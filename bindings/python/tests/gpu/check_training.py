"""Trainings on a device: optimizers, compression, mixed precision, batch normalization, and how long gradients take."""

from __future__ import annotations

import copy

import torch
from checking import median_seconds, on_devices, small_model

import farandole.torch as hvd
from farandole import _native
from farandole.torch import device_memory


def gradients(device: torch.device) -> None:
    tensor = torch.ones(6, 2, device=device, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Sum).sum().backward()
    assert torch.equal(tensor.grad.cpu(), torch.full((6, 2), float(hvd.size())))
    tensor = torch.ones(6, 2, device=device, requires_grad=True)
    hvd.allgather(tensor).sum().backward()
    assert torch.equal(tensor.grad.cpu(), torch.ones(6, 2))


def optimizer(device: torch.device) -> None:
    """Ranks with a part of the batch each end where one process with the whole batch does."""
    alone, shared = small_model().double(), small_model().double().to(device)
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
            model = small_model().double().to(device)
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
    model = small_model().to(device)
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
    model = small_model().to(device)
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
            model = small_model().to(device)
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


def speed(device: torch.device) -> str:
    """How long 102 MB of gradients take, in 161 tensors: as a group, and by a call for each."""
    sizes = [25_557_032 // 161] * 161
    tensors = [torch.ones(size, device=device) for size in sizes]

    def as_group() -> None:
        hvd.grouped_allreduce_(tensors, name="group")

    def one_by_one() -> None:
        for handle in [hvd.allreduce_async_(tensor, name=f"g{place}") for place, tensor in enumerate(tensors)]:
            hvd.synchronize(handle)

    medians = [1e3 * median_seconds(run) for run in (as_group, one_by_one)]
    return (
        f"161 tensors, {4 * sum(sizes) / 1e6:.0f} MB, on {hvd.size()} ranks, "
        f"{'in device memory' if on_devices() else 'through host memory'}: "
        f"{medians[0]:.2f} ms as a group, {medians[1]:.2f} ms by a call for each (medians of 30)"
    )
