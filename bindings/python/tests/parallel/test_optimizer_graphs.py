"""Gradients that come in another order, not at all, sparse, or in another layout: results must not depend on it."""

from __future__ import annotations

import pytest
import torch
from models import own_part, same_everywhere, small_network
from torch import nn

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")


class Branches(nn.Module):
    """Four branches of which each call takes some, in a given order."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor, taken: list[int]) -> torch.Tensor:
        for number in taken:
            x = torch.tanh(self.branches[number](x))
        return x


def mean_of_all(values: list[torch.Tensor | None], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """The average over all ranks, with zeros for what is not there, by plain allreduces."""
    return [
        hvd.allreduce((torch.zeros_like(p) if v is None else v).clone(), name=f"reference.{number}")
        for number, (v, p) in enumerate(zip(values, like, strict=True))
    ]


def check_iterations(takes, iterations: int, groups=None) -> None:
    """Runs iterations of `Branches`, of which `takes(rank, iteration)` says which branches, and checks every
    gradient."""
    network, twin = Branches(), Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), groups=groups
    )
    for iteration in range(iterations):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * iteration + hvd.rank()))
        optimizer.zero_grad()
        network(x, takes(hvd.rank(), iteration)).sum().backward()
        twin.load_state_dict(network.state_dict())
        twin.zero_grad(set_to_none=True)
        twin(x, takes(hvd.rank(), iteration)).sum().backward()
        expected = mean_of_all([p.grad for p in twin.parameters()], list(twin.parameters()))
        optimizer.synchronize()
        for parameter, gradient in zip(network.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert all(same_everywhere(parameter) for parameter in network.parameters())


@pytest.mark.parametrize("groups", [None, 2])
def test_ranks_may_compute_in_different_orders(groups: int | None) -> None:
    check_iterations(lambda rank, _: [0, 1, 2, 3] if rank % 2 == 0 else [3, 1, 0, 2], 4, groups)


@pytest.mark.parametrize("groups", [None, 2])
def test_the_order_may_change_from_one_iteration_to_the_next(groups: int | None) -> None:
    check_iterations(lambda rank, iteration: [(number * 3 + iteration) % 4 for number in range(4)], 6, groups)


@pytest.mark.parametrize("groups", [None, 2])
def test_ranks_may_take_different_branches(groups: int | None) -> None:
    check_iterations(lambda rank, iteration: [(rank + iteration) % 4, (rank + iteration + 1) % 4], 6, groups)


def test_a_branch_that_nobody_takes_counts_as_zeros() -> None:
    check_iterations(lambda rank, iteration: [0, 1, 2] if iteration != 3 else [0, 1, 2, 3], 6)


def test_a_branch_that_is_left_out_after_the_order_was_learned_holds_nobody_up() -> None:
    check_iterations(lambda rank, iteration: [0, 1, 2, 3] if iteration < 3 else [0, 2], 8)


def test_frozen_parameters_stay_as_they_are_and_unfrozen_ones_are_reduced() -> None:
    network = small_network()
    last = network[-1]
    last.requires_grad_(False)  # Before the optimizer is made: it comes in later.
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), network.named_parameters()
    )
    first = network[0]
    for iteration in range(8):
        last.requires_grad_(iteration >= 3)
        first.requires_grad_(not 2 <= iteration < 5)
        frozen = [p.clone() for layer in (first, last) for p in layer.parameters() if not p.requires_grad]
        optimizer.zero_grad()
        network(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        still = [p for layer in (first, last) for p in layer.parameters() if not p.requires_grad]
        assert all(torch.equal(old, new) for old, new in zip(frozen, still, strict=True))
        assert all(same_everywhere(parameter) for parameter in network.parameters())


def test_a_parameter_that_is_frozen_on_one_rank_only_moves_on_all() -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
    for _ in range(3):
        network[0].requires_grad_(hvd.rank() != 0)
        before = network[0].weight.clone()
        optimizer.zero_grad()
        network(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(before, network[0].weight)
        assert all(same_everywhere(parameter) for parameter in network.parameters())


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("groups", [None, 1, "lists"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_sparse_gradients_are_those_of_dense_ones(sparse_as_dense: bool, groups, op: int) -> None:
    def build(sparse: bool) -> nn.Module:
        torch.manual_seed(1)
        return nn.ModuleDict({"table": nn.Embedding(20, 4, sparse=sparse), "head": nn.Linear(4, 2)})

    network, reference = build(True), build(False)
    grouping = [list(network.parameters())] if groups == "lists" else groups
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1),
        network.named_parameters(),
        sparse_as_dense=sparse_as_dense,
        groups=grouping,
        op=op,
    )
    dense = hvd.DistributedOptimizer(
        torch.optim.SGD(reference.parameters(), lr=0.1),
        [("dense." + name, p) for name, p in reference.named_parameters()],
        op=op,
    )
    for iteration in range(4):
        # Uneven numbers of words, and in one iteration none on rank 0: its gradient is missing altogether.
        words = torch.randint(
            0, 20, (2 + 3 * hvd.rank(),), generator=torch.Generator().manual_seed(iteration * 9 + hvd.rank())
        )
        for model, opt in ((network, optimizer), (reference, dense)):
            opt.zero_grad()
            if iteration == 2 and hvd.rank() == 0:
                model["head"](torch.ones(1, 4)).sum().backward()
            else:
                model["head"](model["table"](words)).sum().backward()
            opt.synchronize()
            with opt.skip_synchronize():
                opt.step()
        assert network["table"].weight.grad.is_sparse
        for own, other in zip(network.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own.grad.to_dense(), other.grad)
            torch.testing.assert_close(own, other)


def test_sparse_adam_takes_what_comes_back() -> None:
    for sparse_as_dense in (False, True):
        table = nn.Embedding(10, 3, sparse=True)
        hvd.broadcast_parameters(table.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(list(table.parameters()), lr=0.1), sparse_as_dense=sparse_as_dense
        )
        words = torch.tensor([1, 2, 4, 5] if hvd.rank() == 0 else [1, 3, 4])
        for _ in range(3):
            optimizer.zero_grad()
            table(words).sum().backward()
            optimizer.step()
        assert same_everywhere(table.weight)


def test_channels_last_and_transposed_parameters_are_reduced_in_their_layout() -> None:
    torch.manual_seed(5)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
    twisted = nn.Parameter(torch.randn(6, 4).t())
    assert not network[1].weight.is_contiguous() and not twisted.is_contiguous()
    parameters = [*network.parameters(), twisted]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
    for iteration in range(3):
        optimizer.zero_grad()
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(iteration * 7 + hvd.rank()))
        x = x.to(memory_format=torch.channels_last)
        with optimizer.no_sync():
            (network(x).sum() + (twisted * (1 + hvd.rank())).square().sum()).backward()
        expected = mean_of_all([p.grad.contiguous() for p in parameters], parameters)
        optimizer.synchronize()
        for parameter, gradient in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
            assert parameter.grad.stride() == parameter.stride()
        with optimizer.skip_synchronize():
            optimizer.step()


def test_complex_parameters_are_reduced() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
    factor = complex(1 + hvd.rank(), 2 * hvd.rank())
    (parameter * factor).real.sum().backward()
    own = torch.full((3,), complex(1 + hvd.rank(), -2 * hvd.rank()))
    mean = hvd.allreduce(torch.view_as_real(own).contiguous())
    optimizer.step()
    torch.testing.assert_close(torch.view_as_real(parameter.grad), mean)


def test_a_gradient_that_the_script_sets_itself_is_reduced() -> None:
    network = small_network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=1.0), network.named_parameters())
    before = [p.clone() for p in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, float(hvd.rank()))
    optimizer.step()
    mean = (hvd.size() - 1) / 2
    for parameter, old in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(parameter, old - mean)


def test_many_tiny_and_a_few_large_parameters_travel_in_buckets() -> None:
    torch.manual_seed(2)
    parameters = [nn.Parameter(torch.randn(5)) for _ in range(600)] + [
        nn.Parameter(torch.randn(700, 700)) for _ in range(3)
    ]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.01))
    for iteration in range(4):
        optimizer.zero_grad()
        scale = float(1 + hvd.rank() + iteration)
        sum((p * scale).sum() for p in parameters).backward()
        optimizer.synchronize()
        mean = 1 + iteration + (hvd.size() - 1) / 2
        assert all(torch.equal(p.grad, torch.full_like(p, mean)) for p in parameters)
        with optimizer.skip_synchronize():
            optimizer.step()


def test_two_optimizers_take_turns() -> None:
    torch.manual_seed(4)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = hvd.DistributedOptimizer(
        torch.optim.SGD(generator.parameters(), lr=0.1),
        [("generator." + n, p) for n, p in generator.named_parameters()],
    )
    second = hvd.DistributedOptimizer(
        torch.optim.Adam(critic.parameters()), [("critic." + n, p) for n, p in critic.named_parameters()]
    )
    for _ in range(4):
        critic(generator(own_part(torch.randn(4 * hvd.size(), 4)))).sum().backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
    assert all(same_everywhere(p) for p in [*generator.parameters(), *critic.parameters()])


def test_an_optimizer_that_is_gone_leaves_its_parameters_alone() -> None:
    network = small_network()
    for round_number in range(3):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
        for _ in range(2):
            network(torch.randn(3, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        del optimizer
    network(torch.randn(3, 6)).sum().backward()
