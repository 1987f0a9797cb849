"""A dataset for tests of loaders' workers, in a module: workers that are started anew import it."""

from __future__ import annotations

import torch
from waiting import lapse

_initialised = False


def seen_by_init(_worker: int) -> None:
    """The function that the user has workers call first."""
    global _initialised
    _initialised = True


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, bool]]):
    """Samples that take a moment, each with the news whether the worker has called `seen_by_init`."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, bool]:
        lapse("a sample", 0.001)
        return torch.full((1,), float(index)), _initialised
