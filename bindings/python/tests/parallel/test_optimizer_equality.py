"""Training on several ranks is training on one with the joined batch, and what torch's own DistributedDataParallel
does."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from models import assert_alike, batches, own_part, same_everywhere, small_network
from torch import nn
from torch.nn.functional import mse_loss

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}


@pytest.fixture(scope="module")
def gloo() -> Iterator[None]:
    """torch's own process group among the same ranks."""
    folder = tempfile.TemporaryDirectory() if hvd.rank() == 0 else None
    path = hvd.broadcast_object(folder.name if folder else None, 0)
    store = dist.FileStore(path + "/store", hvd.size())
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
    yield
    hvd.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("named", [True, False])
def test_many_ranks_train_as_one_with_the_joined_batch(kind: str, named: bool) -> None:
    network, reference = small_network(), small_network()
    names = network.named_parameters() if named else None
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](network.parameters()), named_parameters=names)
    alone = OPTIMIZERS[kind](reference.parameters())
    for x, y in batches(12):
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.step()
        alone.zero_grad()
        mse_loss(reference(x), y).backward()
        alone.step()
    assert_alike(network, reference)
    assert all(same_everywhere(parameter) for parameter in network.parameters())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_is_that_of_distributed_data_parallel(kind: str, gloo: None) -> None:
    network, theirs = small_network(), nn.parallel.DistributedDataParallel(small_network())
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](network.parameters()), network.named_parameters())
    their_optimizer = OPTIMIZERS[kind](theirs.parameters())
    for x, y in batches(12):
        for model, opt in ((network, optimizer), (theirs, their_optimizer)):
            opt.zero_grad()
            mse_loss(model(own_part(x)), own_part(y)).backward()
            opt.step()
    assert_alike(network, theirs.module, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("passes", [2, 3])
@pytest.mark.parametrize("groups", [None, 2])
def test_accumulation_with_a_short_last_window_is_that_of_one_rank(passes: int, groups: int | None) -> None:
    network, reference = small_network(), small_network()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](network.parameters()),
        network.named_parameters(),
        backward_passes_per_step=passes,
        groups=groups,
    )
    alone = OPTIMIZERS["sgd"](reference.parameters())
    for epoch in range(3):
        data = batches(3 * passes + 1, seed=epoch)
        for first in range(0, len(data), passes):
            window = data[first : first + passes]
            optimizer.zero_grad()
            alone.zero_grad()
            for x, y in window:
                mse_loss(network(own_part(x)), own_part(y)).backward()
                mse_loss(reference(x), y).backward()
            optimizer.step()
            alone.step()
    assert_alike(network, reference)


def test_no_sync_accumulates_on_this_rank() -> None:
    network, reference = small_network(), small_network()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["adam"](network.parameters()), network.named_parameters())
    alone = OPTIMIZERS["adam"](reference.parameters())
    for epoch in range(4):
        *first, (last_x, last_y) = batches(3, seed=epoch)
        optimizer.zero_grad()
        alone.zero_grad()
        with optimizer.no_sync():
            for x, y in first:
                mse_loss(network(own_part(x)), own_part(y)).backward()
        if epoch != 2:  # In one of them nothing follows: step alone must send what has gathered.
            mse_loss(network(own_part(last_x)), own_part(last_y)).backward()
        optimizer.step()
        for x, y in first + ([(last_x, last_y)] if epoch != 2 else []):
            mse_loss(reference(x), y).backward()
        alone.step()
    assert_alike(network, reference)


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("groups", ["none", "number", "lists"])
def test_groups_and_the_predivide_factor_change_nothing(factor: float, groups: str) -> None:
    network, reference = small_network(), small_network()
    parameters = list(network.parameters())
    grouping = {"none": None, "number": 3, "lists": [parameters[:2], parameters[5:8]]}[groups]
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](network.parameters()),
        network.named_parameters(),
        gradient_predivide_factor=factor,
        groups=grouping,
    )
    alone = OPTIMIZERS["sgd"](reference.parameters())
    for x, y in batches(5):
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.step()
        alone.zero_grad()
        mse_loss(reference(x), y).backward()
        alone.step()
    assert_alike(network, reference)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients_train_nearly_alike(compression: str) -> None:
    network, reference = small_network(), small_network()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](network.parameters()),
        network.named_parameters(),
        compression=getattr(hvd.Compression, compression),
    )
    alone = OPTIMIZERS["sgd"](reference.parameters())
    for x, y in batches(4):
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.step()
        alone.zero_grad()
        mse_loss(reference(x), y).backward()
        alone.step()
    assert_alike(network, reference, rtol=0.02, atol=0.02)
    assert not all(
        torch.equal(own, other) for own, other in zip(network.parameters(), reference.parameters(), strict=True)
    )
    assert all(same_everywhere(parameter) for parameter in network.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_types_are_reduced_in_their_type(dtype: torch.dtype) -> None:
    network = small_network(dtype=dtype)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
    for x, y in batches(3, dtype=dtype):
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y)).backward()
        local = [parameter.grad.clone() for parameter in network.parameters()] if hvd.size() == 1 else None
        optimizer.synchronize()
        assert local is None or all(torch.equal(a, p.grad) for a, p in zip(local, network.parameters(), strict=True))
        assert all(parameter.grad.dtype == dtype for parameter in network.parameters())
        with optimizer.skip_synchronize():
            optimizer.step()
    assert all(same_everywhere(parameter) for parameter in network.parameters())


def test_sum_is_the_sum_of_all_gradients() -> None:
    network, reference = small_network(), small_network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), op=hvd.Sum
    )
    for x, y in batches(3):
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y), reduction="sum").backward()
        optimizer.synchronize()
        reference.zero_grad()
        mse_loss(reference(x), y, reduction="sum").backward()
        for own, theirs in zip(network.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_a_process_set_trains_by_itself() -> None:
    evens = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    try:
        network = small_network()
        before = copy.deepcopy(network)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), process_set=evens, groups=2
        )
        x, y = batches(1)[0]
        # On a copy: those of the network itself may have been reduced already when they are looked at.
        mse_loss(before(own_part(x)), own_part(y)).backward()
        own = [parameter.grad for parameter in before.parameters()]
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.step()
        for parameter, old, gradient in zip(network.parameters(), before.parameters(), own, strict=True):
            if evens.included():
                gradient = hvd.allreduce(gradient, process_set=evens)
            torch.testing.assert_close(parameter, old - 0.1 * gradient)
    finally:
        hvd.remove_process_set(evens)


def test_ranks_that_have_joined_count_as_zeros() -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
    data = batches(6)
    own_batches = 3 if hvd.rank() == 0 else 6
    for x, y in data[:own_batches]:
        optimizer.zero_grad()
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.step()
    last = hvd.join()
    assert last != 0
    hvd.broadcast_parameters(network.state_dict(), root_rank=last)
    reference = small_network()
    for number, (x, y) in enumerate(data):
        reference.zero_grad()
        rows = x.size(0) // hvd.size()
        present = [rank for rank in range(hvd.size()) if rank != 0 or number < 3]
        losses = [mse_loss(reference(x[r * rows : (r + 1) * rows]), y[r * rows : (r + 1) * rows]) for r in present]
        (torch.stack(losses).sum() / hvd.size()).backward()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter -= 0.1 * parameter.grad
    assert_alike(network, reference)
