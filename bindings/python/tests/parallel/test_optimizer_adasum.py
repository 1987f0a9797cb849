"""The optimizer with Adasum: every rank's own step, combined pair by pair."""

from __future__ import annotations

import pytest
import torch
from models import batches, own_part, same_everywhere, small_network
from torch import nn
from torch.nn.functional import mse_loss

import farandole.torch as hvd
from farandole.torch import delta_optimizer

pytestmark = pytest.mark.usefixtures("job")


def adasum_of_two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The definition: each is shortened by half of what the other has of its direction."""
    dot = (a * b).sum()
    left = 1 - dot / (2 * (a * a).sum()) if a.any() else 1.0
    right = 1 - dot / (2 * (b * b).sum()) if b.any() else 1.0
    return left * a + right * b


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_steps_are_combined(kind: type, compression: str) -> None:
    network = small_network(dtype=torch.float64)
    optimizer = hvd.DistributedOptimizer(
        kind(network.parameters(), lr=0.05),
        network.named_parameters(),
        op=hvd.Adasum,
        compression=getattr(hvd.Compression, compression),
    )
    assert isinstance(optimizer, kind)
    twin = small_network(dtype=torch.float64)
    own = kind(twin.parameters(), lr=0.05)
    for x, y in batches(4, dtype=torch.float64):
        twin.load_state_dict(network.state_dict())
        for model, opt in ((network, optimizer), (twin, own)):
            opt.zero_grad()
            mse_loss(model(own_part(x)), own_part(y)).backward()
        starts = [p.detach().clone() for p in network.parameters()]
        optimizer.step()
        own.step()
        for number, (parameter, other, start) in enumerate(
            zip(network.parameters(), twin.parameters(), starts, strict=True)
        ):
            deltas = hvd.allgather((other.detach() - start).unsqueeze(0), name=f"deltas.{number}")
            if hvd.size() == 2:
                expected = start + adasum_of_two(deltas[0], deltas[1])
            else:
                expected = start + hvd.allreduce(deltas[hvd.rank()].clone(), name=f"adasum.{number}", op=hvd.Adasum)
            tolerance = 1e-9 if compression == "none" else 5e-3
            torch.testing.assert_close(parameter.detach(), expected, rtol=tolerance, atol=tolerance)
        assert all(same_everywhere(p) for p in network.parameters())


def test_the_same_step_everywhere_is_the_step_of_one() -> None:
    network, reference = small_network(), small_network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), op=hvd.Adasum
    )
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    x, y = batches(1)[0]
    for model, opt in ((network, optimizer), (reference, alone)):
        mse_loss(model(x), y).backward()
        opt.step()
    for own, other in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_accumulation_clipping_and_closures() -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1),
        network.named_parameters(),
        op=hvd.Adasum,
        backward_passes_per_step=2,
    )
    data = batches(3)

    def backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = mse_loss(network(own_part(x)), own_part(y))
        loss.backward()
        return loss

    with optimizer.no_sync():
        backward(*data[0])
    backward(*data[1])
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(network.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert optimizer.step(lambda: backward(*data[2])).item() > 0
    assert all(same_everywhere(p) for p in network.parameters())


@pytest.mark.parametrize("kind", ["one", "three", "lists"])
def test_groups_hold_and_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, reference = small_network(), small_network()
    parameters = list(network.parameters())
    groups = {"one": 1, "three": 3, "lists": [parameters[:3], parameters[5:7]]}[kind]
    sizes = []
    original = delta_optimizer.grouped_allreduce_async_

    def counting(tensors: list[torch.Tensor], **options) -> int:
        sizes.append(len(tensors))
        return original(tensors, **options)

    monkeypatch.setattr(delta_optimizer, "grouped_allreduce_async_", counting)
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum, groups=wanted
        )
        for model, wanted in ((network, groups), (reference, None))
    ]
    for x, y in batches(2):
        for model, optimizer in zip((network, reference), optimizers, strict=True):
            optimizer.zero_grad()
            mse_loss(model(own_part(x)), own_part(y)).backward()
            optimizer.step()
    for own, other in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.equal(own, other)
    assert sizes == 2 * {"one": [12], "three": [4, 4, 4], "lists": [3, 2] + [1] * 7}[kind]


def test_parameters_without_a_gradient_stay() -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), op=hvd.Adasum
    )
    before = network[-1].weight.detach().clone()
    network[:-1](torch.randn(3, 6)).sum().backward()
    optimizer.step()
    assert torch.equal(before, network[-1].weight)
    assert all(same_everywhere(p) for p in network.parameters())


def test_only_the_ranks_of_a_process_set_are_combined() -> None:
    some = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.global_process_set
    try:
        network = small_network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), op=hvd.Adasum, process_set=some
        )
        x, y = batches(1)[0]
        mse_loss(network(own_part(x)), own_part(y)).backward()
        optimizer.step()
        gathered = hvd.allgather(network[0].weight.detach().reshape(1, -1))
        assert torch.equal(gathered[0], gathered[1])
        assert hvd.size() == 2 or not torch.equal(gathered[0], gathered[2])
    finally:
        if hvd.size() > 2:
            hvd.remove_process_set(some)


def test_skipping_is_refused() -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), op=hvd.Adasum
    )
    with pytest.raises(AssertionError, match="Skipping synchronization is not supported when using Adasum optimizer"):
        optimizer.skip_synchronize()


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_skips_a_step_on_all_ranks_or_on_none(fused: bool) -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(network.parameters(), lr=0.01, fused=fused), network.named_parameters(), op=hvd.Adasum
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for iteration, (x, y) in enumerate(batches(4)):
        before = [p.detach().clone() for p in network.parameters()]
        optimizer.zero_grad()
        loss = mse_loss(network(own_part(x)), own_part(y))
        if hvd.rank() == 0 and iteration == 2:
            loss = loss * float("inf")  # On one rank only.
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        stays = [torch.equal(p, old) for p, old in zip(network.parameters(), before, strict=True)]
        assert all(stays) if iteration == 2 else not any(stays)
        assert all(same_everywhere(p) for p in network.parameters())
    assert scaler.get_scale() == 8.0
