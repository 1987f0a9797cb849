"""What runs ahead of the device: the host goes on while collectives are under way."""

from __future__ import annotations

import torch
from checking import host_runs_ahead, same, seconds_of, spin

import farandole.torch as hvd
from farandole.torch import run_ahead


def runs_ahead(device: torch.device) -> None:
    """`synchronize` of what repeats returns while the device computes; what comes after it sees the results."""
    if not host_runs_ahead():
        return
    tensor = torch.ones(1 << 20, device=device)
    hvd.allreduce_(tensor, name="ahead", op=hvd.Sum)
    torch.cuda.synchronize()
    spin(device, 0.5)
    tensor.fill_(3.0)
    handle = hvd.allreduce_async_(tensor, name="ahead", op=hvd.Sum)
    waited = seconds_of(lambda: hvd.synchronize(handle))
    doubled = tensor * 2
    busy = not torch.cuda.current_stream().query()
    assert busy and waited < 0.1, (busy, waited)
    assert run_ahead._under_way
    assert doubled.eq(6 * hvd.size()).all()
    # Waited for on request, and polled truthfully.
    spin(device, 0.5)
    handle = hvd.allreduce_async_(tensor, name="ahead", op=hvd.Sum)
    assert not hvd.poll(handle)
    assert seconds_of(lambda: hvd.synchronize(handle, block=True)) > 0.1
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
            spin(device, 0.3)
        output.sum().backward()
        times.append(seconds_of(wrapped.step))
    left = seconds_of(torch.cuda.synchronize)
    assert max(times[3:]) < 0.1, times
    assert left > 0.1, left
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert all(torch.equal(other, weights) for other in hvd.allgather(weights.unsqueeze(0)))


def refused_ahead(device: torch.device) -> None:
    """What ranks refuse is raised by `synchronize`, while the device computes, and the job goes on."""
    hvd.allreduce(torch.ones(4, device=device), name="later")
    spin(device, 0.2)
    handle = hvd.allreduce_async(torch.ones(4 + hvd.rank(), device=device), name="later")
    try:
        hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        assert "later" in str(error), error
    else:
        raise AssertionError("nobody was told that the ranks refused")
    same(hvd.allreduce(torch.ones(2, device=device), op=hvd.Sum), torch.full((2,), float(hvd.size())), device)


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
        spin(device, 0.5)
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
        spin(device, 0.5)
        total.fill_(1.0)
        work = dist.all_reduce(total, async_op=True)
        assert seconds_of(work.wait) < 0.1
        assert not work.is_completed()
        doubled = total * 2
        assert doubled.eq(2 * hvd.size()).all() and work.is_completed()
        spin(device, 0.5)
        total.fill_(1.0)
        future = dist.all_reduce(total, async_op=True).get_future()
        assert seconds_of(future.wait) < 0.3
        assert future.value()[0].eq(hvd.size()).all()
    dist.destroy_process_group()
