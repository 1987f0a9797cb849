"""Small networks and data for tests, the same on all ranks."""

from __future__ import annotations

import torch
from torch import nn

import farandole.torch as hvd


def small_network(seed: int = 7, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A network of twelve parameters of different sizes, the same for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 40),
        nn.LayerNorm(40),
        nn.Tanh(),
        nn.Linear(40, 40),
        nn.LayerNorm(40),
        nn.Tanh(),
        nn.Linear(40, 16),
        nn.Tanh(),
        nn.Linear(16, 3),
    ).to(dtype)


def batches(
    count: int, rows: int = 5, seed: int = 11, dtype: torch.dtype = torch.float32
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """So many joined batches; each has `rows` rows of every rank, one rank's after the other's."""
    generator = torch.Generator().manual_seed(seed)
    size = rows * hvd.size()
    return [
        (torch.randn(size, 6, generator=generator).to(dtype), torch.randn(size, 3, generator=generator).to(dtype))
        for _ in range(count)
    ]


def own_part(joined: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a joined batch."""
    rows = joined.size(0) // hvd.size()
    return joined[hvd.rank() * rows : (hvd.rank() + 1) * rows]


def same_everywhere(tensor: torch.Tensor) -> bool:
    """Whether all ranks have these very bits."""
    gathered = hvd.allgather(tensor.detach().reshape(1, -1).contiguous())
    return bool((gathered == gathered[0]).all())


def assert_alike(network: nn.Module, reference: nn.Module, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Asserts that two networks have the same parameters, up to rounding."""
    for (name, own), theirs in zip(network.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
