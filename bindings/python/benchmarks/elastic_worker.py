"""One process of `elastic_recovery.py`: trains a small network for ever, and notes every step that it has completed.

A note is a line of its file: the moment (`time.monotonic_ns`, which all processes of a host share), the number of the
step, the number of ranks, and a checksum of the parameters.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
import zlib
from typing import Any

import torch

WIDTH = 256
"""The network has one layer of so many inputs and outputs: steps take about a millisecond."""


class Notes:
    """What this process has done, for the one that measures."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._file = open(folder / f"{os.getpid()}.steps", "a", buffering=1)  # noqa: SIM115 - open until the end

    def add(self, step: int, size: int, model: torch.nn.Module) -> None:
        """A step is complete."""
        checksum = 0
        for parameter in model.parameters():
            checksum = zlib.crc32(parameter.detach().numpy().tobytes(), checksum)
        self._file.write(f"{time.monotonic_ns()} {step} {size} {checksum}\n")


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The same on all ranks."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Linear(WIDTH, WIDTH)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def compute(model: torch.nn.Module, step: int, rank: int) -> None:
    """Gradients that follow from step and rank."""
    batch = torch.full((4, WIDTH), 0.001 * (step % 7 + rank))
    model(batch).square().mean().backward()


def farandole(notes: Notes) -> None:
    """A plain loop of farandole's, which goes on when ranks leave and join."""
    import farandole.torch as hvd

    hvd.init()
    model, optimizer = network()
    wrapped: Any = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    training = hvd.elastic.Training(wrapped, model)
    training.join()
    noted = training.steps
    while True:
        with training.step():
            wrapped.zero_grad()
            compute(model, training.steps, hvd.rank())
            wrapped.step()
        # A step that a lost rank has ended is not complete, and is repeated.
        if training.steps != noted:
            noted = training.steps
            notes.add(noted, hvd.size(), model)


def torchrun(notes: Notes) -> None:
    """PyTorch over gloo: all ranks are started again when one is lost."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model, optimizer = network()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    step = 0
    while True:
        optimizer.zero_grad()
        compute(wrapped, step, dist.get_rank())
        optimizer.step()
        step += 1
        notes.add(step, dist.get_world_size(), model)


if __name__ == "__main__":
    {"farandole": farandole, "torchrun": torchrun}[sys.argv[1]](Notes(pathlib.Path(sys.argv[2])))
