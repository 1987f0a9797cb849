"""One process of one contestant of `torch_peers.py`, which starts it and tells it what to do.

``python torch_contestant.py CONTESTANT FOLDER`` connects to the socket in FOLDER, says its rank, and then answers
requests, one JSON object in a line each: ``{"build": WORKLOAD, …}`` makes what the workload needs and makes the first
iterations, ``{"iterate": true}`` makes one iteration and answers when it began and ended, on the clock that all
processes of a host share, and how much processor time its threads took.

What is *not* here: who takes part, whose turn it is, and what the times mean. Nothing but gradients passes through a
contestant's own collectives while it is measured: a barrier of theirs between iterations would be part of what they do.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "python"))
import resnet  # noqa: E402 - found through the line above

#: Iterations before any is timed: orders are learned, buckets rebuilt.
FIRST_ITERATIONS = 4

#: Shapes of gradients.
SMALL: list[tuple[int, ...]] = [(256,)] * 1000

Iterate = Callable[[], Any]


def large() -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in resnet.resnet50().parameters()]


class HandOut(torch.autograd.Function):
    """Backward hands out gradients that exist already."""

    @staticmethod
    def forward(ctx, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros((), requires_grad=True)

    @staticmethod
    def backward(ctx, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.gradients


class Gradients(nn.Module):
    """A module of parameters of given shapes, whose backward costs next to nothing."""

    def __init__(self, shapes: list[tuple[int, ...]], rank: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self.in_order = tuple(self.weights)  # Walking through a ParameterList takes longer than reducing it.
        self.gradients = [torch.full(shape, float(rank)) for shape in shapes]

    def forward(self) -> torch.Tensor:
        return HandOut.apply(self.gradients, *self.in_order)


class Nothing:
    """The same work without communication; the others say where they differ."""

    def __init__(self) -> None:
        self.rank = int(os.environ["CONTESTANT_RANK"])

    def wrap(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The network and the optimizer that a training loop calls."""
        return network, optimizer

    def reduced(self, optimizer: torch.optim.Optimizer) -> None:
        """After backward, until gradients are reduced."""

    def backward(self, shapes: list[tuple[int, ...]]) -> Iterate:
        """Backward and all that it takes until gradients are reduced."""
        network = Gradients(shapes, self.rank)
        wrapped, optimizer = self.wrap(network, torch.optim.SGD(network.parameters(), lr=0.01))

        def iterate() -> None:
            wrapped().backward()
            self.reduced(optimizer)
            wrapped.zero_grad()

        return iterate

    def training(self, build: Callable[[], nn.Module], images: torch.Tensor) -> Iterate:
        """Whole training steps."""
        labels = torch.zeros(images.size(0), dtype=torch.int64)
        network = build()
        wrapped, optimizer = self.wrap(network, torch.optim.SGD(network.parameters(), lr=0.001))

        def iterate() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(images), labels).backward()
            optimizer.step()

        return iterate

    def together(self, tensors: list[torch.Tensor]) -> Iterate:
        """Reducing tensors in place, all in one call."""
        raise NotImplementedError("only who reduces has operations")

    def one_by_one(self, tensors: list[torch.Tensor]) -> Iterate:
        """Reducing tensors in place, each in a call of its own."""
        raise NotImplementedError("only who reduces has operations")


class Wrapping(Nothing):
    """`DistributedOptimizer` and the operations of this module: ours, or those of the real Horovod."""

    def __init__(self, module: str) -> None:
        self.hvd: Any = importlib.import_module(module)
        self.hvd.init()
        self.rank = self.hvd.rank()

    def wrap(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return network, self.hvd.DistributedOptimizer(optimizer, network.named_parameters())

    def reduced(self, optimizer: Any) -> None:
        optimizer.synchronize()

    def together(self, tensors: list[torch.Tensor]) -> Iterate:
        return lambda: self.hvd.grouped_allreduce_(tensors, op=self.hvd.Sum, name="all")

    def one_by_one(self, tensors: list[torch.Tensor]) -> Iterate:
        names = [f"tensor.{number}" for number in range(len(tensors))]
        reduce, wait, op = self.hvd.allreduce_async_, self.hvd.synchronize, self.hvd.Sum

        def iterate() -> None:
            for handle in [reduce(tensor, op=op, name=name) for tensor, name in zip(tensors, names, strict=True)]:
                wait(handle)

        return iterate


class Ddp(Nothing):
    """torch's `DistributedDataParallel` and its operations, over gloo or over our backend."""

    def __init__(self, folder: Path, name: str, backend: str = "gloo", **options: Any) -> None:
        super().__init__()
        self.options = options
        ranks = int(os.environ["CONTESTANT_RANKS"])
        importlib.import_module("farandole.torch.distributed")  # Makes the backend known; gloo does not mind.
        store = dist.FileStore(str(folder / f"store {name}"), ranks)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=ranks)

    def wrap(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return nn.parallel.DistributedDataParallel(network, **self.options), optimizer

    def together(self, tensors: list[torch.Tensor]) -> Iterate:
        return lambda: dist.all_reduce_coalesced(tensors)

    def one_by_one(self, tensors: list[torch.Tensor]) -> Iterate:
        def iterate() -> None:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        return iterate


class DdpHook(Ddp):
    """`DistributedDataParallel` over gloo, with our hook for its gradients."""

    def __init__(self, folder: Path, name: str, **options: Any) -> None:
        super().__init__(folder, name, **options)
        self.hvd: Any = importlib.import_module("farandole.torch")
        # The engine's ranks meet through the store, and are those of gloo.
        self.group = dist.new_group(backend="farandole")

    def wrap(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        wrapped, optimizer = super().wrap(network, optimizer)
        wrapped.register_comm_hook(None, self.hvd.ddp_comm_hook)
        return wrapped, optimizer


#: What saves `DistributedDataParallel` copies and look-ups.
TUNED = {"gradient_as_bucket_view": True, "static_graph": True}


def contestant(name: str, folder: Path) -> Nothing:
    if name == "nothing":
        return Nothing()
    if name.startswith("ddp"):
        options: dict[str, Any] = TUNED if name.endswith("tuned") else {}
        if "hook" in name:
            return DdpHook(folder, name, **options)
        return Ddp(folder, name, "farandole" if "backend" in name else "gloo", **options)
    return Wrapping(f"{name}.torch")


def build(who: Nothing, workload: str, batch: int, image: int) -> Iterate:
    """What this contestant does in an iteration of a workload."""
    kind, what = workload.split(" ")
    if kind == "training":
        return who.training(getattr(resnet, what), torch.randn(batch, 3, image, image))
    shapes = SMALL if what == "small" else large()
    if kind == "backward":
        return who.backward(shapes)
    tensors = [torch.zeros(shape) for shape in shapes]
    return who.together(tensors) if kind == "together" else who.one_by_one(tensors)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)  # Ranks share the cores.
    who = contestant(name, folder)
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(folder / "socket"))
    requests, answers = line.makefile("r"), line.makefile("w")

    def answer(words: dict[str, Any]) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    answer({"name": name, "rank": who.rank})
    iterate: Iterate | None = None
    for request in map(json.loads, requests):
        if "build" in request:
            iterate = None  # What the workload before needed is given back first.
            iterate = build(who, request["build"], request["batch"], request["image"])
            for _ in range(FIRST_ITERATIONS):
                iterate()
            answer({"built": request["build"]})
        elif iterate is not None:
            used, begun = time.process_time(), time.monotonic()
            iterate()
            ended = time.monotonic()
            answer({"begun": begun, "ended": ended, "processor": time.process_time() - used})


if __name__ == "__main__":
    main()
