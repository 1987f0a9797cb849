"""Reducing gradients in PyTorch: Farandole beside its peers, in one run.

``farandole run -np 2 python bindings/python/benchmarks/torch_peers.py`` (`cargo xtask torch-bench` builds what it needs and runs it).

All contestants live in the same processes and take turns, a few iterations at a time, so that whatever else the machine does hits all
alike. An iteration takes as long as on its slowest rank; what is printed is the median over all iterations of all rounds.

- `farandole`: `DistributedOptimizer`, or `farandole.torch`'s operations.
- `ddp`: torch's `DistributedDataParallel` over gloo as it is by default, or `torch.distributed`'s operations.
- `ddp tuned`: with `gradient_as_bucket_view` and `static_graph`, which save it copies and look-ups.
- `horovod`: the real one, where it is installed and the launcher is one that it knows (mpirun).
- `nothing`: the same work without communication.

Three workloads: a thousand tensors of 1 KB; ResNet-50's 161 gradients, 102 MB; training steps of a ResNet. In the first two backward hands out
gradients that were made beforehand, so that nothing is measured but their way. In the third the figure is the *overhead*:
step time with communication over step time without. Their rows "by operations" have no optimizer: tensors are reduced in place by the
calls that each side offers for several at once, and for one at a time.

``--busy N`` keeps N cores busy meanwhile, beside all contestants: what waking up and taking turns cost where cores are taken.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import farandole.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "python"))
import resnet  # noqa: E402 - found through the line above

#: Iterations in a row of one contestant. Orders and buckets are learned anew by nobody within a row, and the first of a row
#: is not counted: it finds the caches full of the contestant before.
ITERATIONS_IN_A_ROW = 6


@dataclass
class Contestant:
    """One that takes part: its name, and what it does in an iteration."""

    name: str
    iterate: Callable[[], None]


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

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self.in_order = tuple(self.weights)  # Walking through a ParameterList takes longer than reducing it.
        self.gradients = [torch.full(shape, float(hvd.rank())) for shape in shapes]

    def forward(self) -> torch.Tensor:
        return HandOut.apply(self.gradients, *self.in_order)


def ours(network: nn.Module) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.01), network.named_parameters())


def real_horovod():
    """Horovod's own module, or nothing: our alias does not count."""
    found = importlib.util.find_spec("horovod")
    if found is None or found.origin is None or not list(Path(found.origin).parent.glob("torch/mpi_lib_v2*")):
        return None
    import horovod.torch as horovod

    horovod.init()
    return horovod


def backward_contestants(shapes: list[tuple[int, ...]], horovod) -> list[Contestant]:
    """Backward and all that it takes until gradients are reduced."""

    def alone() -> Contestant:
        network = Gradients(shapes)

        def iterate() -> None:
            network().backward()
            network.zero_grad()

        return Contestant("nothing", iterate)

    def by_optimizer(name: str, wrap: Callable[[nn.Module], torch.optim.Optimizer]) -> Contestant:
        network = Gradients(shapes)
        optimizer = wrap(network)

        def iterate() -> None:
            network().backward()
            optimizer.synchronize()
            network.zero_grad()

        return Contestant(name, iterate)

    def by_ddp(name: str, **options: bool) -> Contestant:
        network = nn.parallel.DistributedDataParallel(Gradients(shapes), **options)

        def iterate() -> None:
            network().backward()
            network.zero_grad()

        return Contestant(name, iterate)

    contestants = [
        alone(),
        by_optimizer("farandole", ours),
        by_ddp("ddp"),
        by_ddp("ddp tuned", gradient_as_bucket_view=True, static_graph=True),
    ]
    if horovod is not None:

        def theirs(network: nn.Module) -> torch.optim.Optimizer:
            return horovod.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.01), network.named_parameters())

        contestants.append(by_optimizer("horovod", theirs))
    return contestants


def operation_contestants(shapes: list[tuple[int, ...]], horovod) -> tuple[list[Contestant], list[Contestant]]:
    """Reducing tensors in place by operations: all in one call, and each in its own."""
    tensors = [torch.zeros(shape) for shape in shapes]
    names = [f"tensor.{number}" for number in range(len(tensors))]

    def grouped(module) -> Callable[[], None]:
        return lambda: module.grouped_allreduce_(tensors, op=module.Sum, name="all")

    def single(module) -> Callable[[], None]:
        def iterate() -> None:
            handles = [module.allreduce_async_(t, op=module.Sum, name=n) for t, n in zip(tensors, names, strict=True)]
            for handle in handles:
                module.synchronize(handle)

        return iterate

    def their_single() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    def their_coalesced() -> None:
        dist.all_reduce_coalesced(tensors)

    together = [Contestant("farandole", grouped(hvd)), Contestant("gloo", their_coalesced)]
    one_by_one = [Contestant("farandole", single(hvd)), Contestant("gloo", their_single)]
    if horovod is not None:
        together.append(Contestant("horovod", grouped(horovod)))
        one_by_one.append(Contestant("horovod", single(horovod)))
    return together, one_by_one


def training_contestants(build: Callable[[], nn.Module], images: torch.Tensor, horovod) -> list[Contestant]:
    """Whole training steps."""
    labels = torch.zeros(images.size(0), dtype=torch.int64)

    def training(name: str, network: nn.Module, optimizer: torch.optim.Optimizer) -> Contestant:
        def iterate() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()

        return Contestant(name, iterate)

    def plain(network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=0.001)

    def with_ddp(name: str, **options: bool) -> Contestant:
        network = nn.parallel.DistributedDataParallel(build(), **options)
        return training(name, network, plain(network))

    alone, own = build(), build()
    contestants = [
        training("nothing", alone, plain(alone)),
        training("farandole", own, ours(own)),
        with_ddp("ddp"),
        with_ddp("ddp tuned", gradient_as_bucket_view=True, static_graph=True),
    ]
    if horovod is not None:
        theirs = build()
        wrapped = horovod.DistributedOptimizer(plain(theirs), theirs.named_parameters())
        contestants.append(training("horovod", theirs, wrapped))
    return contestants


def measure(contestants: list[Contestant], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Times of single iterations, in seconds, each that of the slowest rank. Stops early when time is up.

    Ranks wait for each other and agree to stop by torch's means: in training nothing but gradients would pass through our engine, and whatever
    else does makes it ask all ranks again what they are about.
    """
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for contestant in contestants:
        for _ in range(4):  # Orders are learned, buckets rebuilt.
            contestant.iterate()
    until = time.monotonic() + seconds
    for number in range(rounds):
        for contestant in contestants:
            for iteration in range(ITERATIONS_IN_A_ROW):
                dist.barrier()
                begun = time.perf_counter()
                contestant.iterate()
                if iteration > 0:
                    times[contestant.name].append(time.perf_counter() - begun)
        up = torch.tensor(float(number > 0 and time.monotonic() > until))
        dist.all_reduce(up)
        if up > 0:
            break
    slowest = {}
    for name, own in times.items():
        everybody = hvd.allgather(torch.tensor([own], dtype=torch.float64))
        slowest[name] = everybody.max(0).values.tolist()
    return slowest


def report(title: str, times: dict[str, list[float]], overhead: bool) -> bool:
    """Prints one workload. Returns whether ours is the lowest."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians["farandole"]
    if hvd.rank() == 0:
        print(f"\n{title}")
        heading = f"  {'':<12}{'iterations':>11}{'median ms':>11}{'p10':>9}{'p90':>9}{'ratio':>8}"
        print(heading + (f"{'overhead':>10}" if overhead else ""))
        for name, values in times.items():
            deciles = statistics.quantiles(values, n=10)
            ratio = f"{medians[name] / base:>8.2f}" if name != "nothing" else f"{'':>8}"
            row = f"  {name:<12}{len(values):>11}{1e3 * medians[name]:>11.3f}{1e3 * deciles[0]:>9.3f}{1e3 * deciles[-1]:>9.3f}{ratio}"
            print(row + (f"{medians[name] / medians['nothing']:>10.3f}" if overhead else ""), flush=True)
    return all(base <= median for name, median in medians.items() if name != "nothing")


#: Computes until the process that started it is gone.
COMPUTE = "import os; p = os.getppid()\nwhile os.getppid() == p:\n    for _ in range(1000000): pass"


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keeps so many cores busy, from rank 0."""
    count = cores if hvd.rank() == 0 else 0
    neighbours = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(count)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def join_gloo() -> None:
    """Makes torch's process group among the same ranks."""
    folder = tempfile.mkdtemp() if hvd.rank() == 0 else None
    folder = hvd.broadcast_object(folder, 0)
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", hvd.size()), rank=hvd.rank(), world_size=hvd.size())


def read_words() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--rounds", type=int, default=40, help="rounds of each workload, at most")
    words.add_argument("--seconds", type=float, default=12.0, help="time for each workload, about")
    words.add_argument("--only", default="", help="workloads whose title contains this")
    words.add_argument("--image", type=int, default=64, help="height and width of an image")
    words.add_argument("--batch", type=int, default=8, help="images of each rank in a step")
    words.add_argument("--busy", type=int, default=0, metavar="CORES", help="keep so many cores busy beside the contestants")
    words.add_argument("--check", action="store_true", help="fail if ours is not the lowest everywhere")
    return words.parse_args()


def main() -> int:
    words = read_words()
    torch.set_num_threads(1)  # Ranks share the cores.
    hvd.init()
    join_gloo()
    horovod = real_horovod()
    small = [(256,)] * 1000
    large = [tuple(parameter.shape) for parameter in resnet.resnet50().parameters()]
    images = torch.randn(words.batch, 3, words.image, words.image)
    workloads: list[tuple[str, Callable[[], list[Contestant]], bool]] = [
        ("1,000 tensors of 1 KB, by backward and optimizer", lambda: backward_contestants(small, horovod), False),
        ("1,000 tensors of 1 KB, by operations, together", lambda: operation_contestants(small, horovod)[0], False),
        ("1,000 tensors of 1 KB, by operations, one by one", lambda: operation_contestants(small, horovod)[1], False),
        ("ResNet-50's 161 gradients, 102 MB, by backward and optimizer", lambda: backward_contestants(large, horovod), False),
        ("ResNet-50's 161 gradients, 102 MB, by operations, together", lambda: operation_contestants(large, horovod)[0], False),
        (f"training step, ResNet-18, {words.batch} images of {words.image}x{words.image} for each rank",
         lambda: training_contestants(resnet.resnet18, images, horovod), True),
        (f"training step, ResNet-50, {words.batch} images of {words.image}x{words.image} for each rank",
         lambda: training_contestants(resnet.resnet50, images, horovod), True),
    ]
    if hvd.rank() == 0:
        load = os.getloadavg()[0]
        print(f"{hvd.size()} ranks, {os.cpu_count()} cores, load average {load:.1f}, torch {torch.__version__}, float32; "
              f"horovod: {'there' if horovod else 'not installed'}; busy cores beside: {words.busy}", flush=True)
    lowest = True
    with busy(words.busy):
        for title, build, overhead in workloads:
            if words.only in title:
                contestants = build()
                lowest &= report(title, measure(contestants, words.rounds, words.seconds), overhead)
                del contestants
    if hvd.rank() == 0 and not lowest:
        print("\nfarandole is not the lowest everywhere")
    return int(words.check and not lowest)


if __name__ == "__main__":
    sys.exit(main())
