"""A network whose training is exact, and what its losses must be, however its gradients are reduced.

Weights, data and the learning rate are small multiples of powers of two and the loss is linear in the output, so a few
steps in float64 round nothing: sums of gradients do not depend on their order, and every way to train, on any number of
ranks and over any backend, has the losses of one process that trains with the data of all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from waiting import wait_for

import farandole.torch as hvd
import farandole.torch.distributed  # noqa: F401 - makes the backend known

BACKENDS = ("gloo", "farandole")
STEPS = 4
ROWS = 4
"""Of each rank in a step."""
FEATURES = 4
LEARNING_RATE = 2.0**-2


class ExactNetwork(nn.Module):
    """Two layers; called with inputs and signs, it gives the loss as well. With a third layer each step would double
    the digits of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 1)).double()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                # Quarters from -1/2 to 1/2.
                parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=generator) / 4)

    def forward(self, inputs: torch.Tensor, signs: torch.Tensor | None = None) -> Any:
        outputs = self.layers(inputs)
        return outputs if signs is None else {"loss": (outputs * signs).mean(), "outputs": outputs}


def samples(world_size: int) -> list[dict[str, torch.Tensor]]:
    """The samples of all steps, as a dataset: in each step `ROWS` of each rank, one rank's after the other's."""
    generator = torch.Generator().manual_seed(5)
    count = STEPS * ROWS * world_size
    inputs = torch.randint(-2, 3, (count, FEATURES), generator=generator).double()
    signs = torch.randint(0, 2, (count, 1), generator=generator).double() * 2 - 1
    return [{"inputs": inputs[row], "signs": signs[row]} for row in range(count)]


def batch(step: int, rank: int, world_size: int) -> dict[str, torch.Tensor]:
    """What a rank trains with in a step."""
    first = (step * world_size + rank) * ROWS
    rows = samples(world_size)[first : first + ROWS]
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def optimizer_of(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)


def expected_losses(world_size: int) -> list[list[float]]:
    """For each step, the loss of each rank: what one process finds that trains with the data of all."""
    network = ExactNetwork()
    optimizer = optimizer_of(network)
    found = []
    for step in range(STEPS):
        of_ranks = [network(**batch(step, rank, world_size))["loss"] for rank in range(world_size)]
        found.append([loss.item() for loss in of_ranks])
        optimizer.zero_grad()
        (sum(of_ranks) / world_size).backward()
        optimizer.step()
    return found


def train(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """An ordinary loop over all steps. The losses of this rank."""
    losses = []
    for step in range(STEPS):
        loss = network(**batch(step, dist.get_rank(), dist.get_world_size()))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@contextlib.contextmanager
def process_group(backend: str) -> Iterator[None]:
    """A default process group with this backend. What it and frameworks leave in the environment is taken back."""
    before = dict(os.environ)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    try:
        yield
        all_leave_together()
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)


# Numbers of the process groups that have ended, the same on all ranks: a store may outlive its group.
_GROUPS = itertools.count()


def all_leave_together() -> None:
    """Waits for all ranks before a process group ends. A thread of gloo's that finds its peer gone in the middle of
    something ends the process, and a barrier of its own is such a thing."""
    if hvd.is_initialized():
        hvd.barrier()
    else:
        dist.barrier()
        store, size, number = dist.distributed_c10d._get_default_store(), dist.get_world_size(), next(_GROUPS)
        store.add(f"left {number}", 1)
        wait_for("all ranks to leave the barrier", lambda: store.add(f"left {number}", 0) >= size)
        # Rank 0 hosts the store, which the others do not need any more then.
        store.add(f"done {number}", 1)
        if dist.get_rank() == 0:
            wait_for("all ranks to be done", lambda: store.add(f"done {number}", 0) >= size)


def losses_with_each(train_with: Callable[[str], list[float]]) -> dict[str, list[float]]:
    """The losses of this rank with each backend. train_with: given the backend of the default process group."""
    found = {}
    for backend in BACKENDS:
        with process_group(backend):
            found[backend] = train_with(backend)
            assert len(found[backend]) >= STEPS and len(set(found[backend])) > 1, "it has not trained"
    return found


def check_expected(found: dict[str, list[float]], rank: int, world_size: int) -> None:
    """The losses with each backend are those of one process, bit by bit."""
    expected = [of_ranks[rank] for of_ranks in expected_losses(world_size)]
    for backend, losses in found.items():
        assert losses == expected, f"{backend}: {losses} instead of {expected}"
